"""`make demo`: documents in, a served adapter out, and a table that says whether it learned anything.

It is an ordinary run of the deployment `qa-pipeline/local` on the handbook of an invented product, with one addition: a
control, trained on shuffled answers, which knows the format and none of the facts. Everything printed is read from what
the run left: the report of the evaluator, the facts of the nodes, the registry, and two answers of the model server.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import httpx

from trainyard.app.chains.run import run
from trainyard.app.context import Context
from trainyard.app.responses import Response
from trainyard.app.run_records import RunResult
from trainyard.app.stack.api_service import link_to
from trainyard.app.stack.stack import up
from trainyard.errors import TrainyardError
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.locations import checkout
from trainyard.operations.base import Nothing
from trainyard.operations.chains import RunInput
from trainyard.operations.stack import UpInput
from trainyard.spec.axes.data import Port

TEMPLATE = "qa-pipeline"
ROLE = "handbook"
QUESTIONS = 20
PARAMETERS: dict[str, object] = {
    "documents": "examples/handbook",
    "count": 120,
    "training": {"epochs": 10, "learning_rate": 3e-3, "batch_size": 4, "rank": 32, "max_length": 256},
    "publish": {
        "role": ROLE,
        "targets": [{"type": "registry"}, {"type": "embedded"}],
        "tolerance": 0.5,
        "quotes": QUESTIONS,
    },
    "steps": {"validate": True, "evaluate": True, "deploy": True, "control": True},
}
"""The values that a user would fill into the form. Their measurements are in docs/performance.md.

The tolerance is wide because five million parameters that learn a handbook by heart forget much else, and the report
says how much; the gate still requires a proven gain on unseen wording.
"""

SETS = ("unseen_wording", "unseen_documents")
MODELS = (("base", "baseline"), ("control", "control"), ("tuned", "candidate"))
"""(model, as the evaluator's report calls it)"""
PRIMARY, QUOTES = "heldout_loss", "quotes"


class Interval(Response):
    """A mean and its 95 % interval; positive means that the tuned adapter is better."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"

    @property
    def positive(self) -> bool:
        return self.low > 0


class SetResult(Response):
    """A held-out set: losses per answer token, and the paired differences."""

    name: str
    rows: int
    base: float
    control: float
    tuned: float
    base_minus_tuned: Interval
    control_minus_tuned: Interval


class Quotes(Response):
    """Number of the same questions in unseen wording that each model answered with the right sentence."""

    questions: int
    base: int
    control: int
    tuned: int


class DemoUrls(Response):
    """Commands and pages that show the results of the demo."""

    prefect: str
    run: str
    dashboard: str
    """Logs a browser in, once, within an hour."""
    model: str
    """The model server; its OpenAI-compatible API is below /v1."""


class DemoResult(Response):
    """Result of the demo. `ok`: the table's first row shows an improvement."""

    documents: int
    pairs: int
    kept: int
    heldout: int
    dropped: dict[str, int]
    sets: tuple[SetResult, ...]
    quotes: Quotes
    adapter: str
    prompt: str
    base_answer: str
    tuned_answer: str
    urls: DemoUrls
    seconds: float

    @property
    def ok(self) -> bool:
        wording = self.sets[0]
        return wording.base_minus_tuned.positive and wording.control_minus_tuned.positive

    @property
    def exit_code(self) -> int:
        return 0 if self.ok else 1

    @property
    def last_line(self) -> str:
        wording = self.sets[0]
        return (
            f"demo: {'ok' if self.ok else 'failed'} adapter={self.adapter} base_loss={wording.base:.3f} "
            f"control_loss={wording.control:.3f} tuned_loss={wording.tuned:.3f}"
        )


def run_demo(_: Nothing, context: Context) -> DemoResult:
    context = move_to_checkout(context)
    stack_is = up(UpInput(), context)
    if stack_is.auth_file:
        context.say(f"log in at {stack_is.ui_url} with the text in {stack_is.auth_file}")
    started = time.monotonic()
    result = run(RunInput(target=TEMPLATE, parameters=PARAMETERS, watch=True, yes=True, tags=("demo",)), context)
    seconds = time.monotonic() - started
    assert stack_is.embedded_url is not None, "the starter model comes with the package"
    urls = DemoUrls(
        prefect=stack_is.ui_url, run=result.url, dashboard=link_to(stack_is.service_url, context.settings),
        model=stack_is.embedded_url,
    )  # fmt: skip
    return summarize(result, urls=urls, seconds=seconds)


def move_to_checkout(context: Context) -> Context:
    """Return the context with relative paths that start at the checkout, where the handbook is."""
    return replace(context, settings=context.settings.model_copy(update={"working_folder": checkout()}))


def summarize(ended: RunResult, *, urls: DemoUrls, seconds: float) -> DemoResult:
    """Read the result of a finished run and ask the model server one question twice.

    Raises `TrainyardError` (`E-DEMO`) with the run's own message when it did not complete, or its gate said no.
    """
    if not ended.succeeded or ended.gate is not None:
        raise TrainyardError(
            "The demo's run did not complete.", why=ended.message, do=f"Look at {ended.url}.", code="E-DEMO"
        )
    nodes = {node.type: node for node in ended.nodes}
    report = read_json(nodes["evaluator"].outputs[Port.REPORT].path / "report.json")
    losses = {row["set"]: row for row in report["benchmarks"] if row["name"] == PRIMARY}
    quotes = next(row for row in report["benchmarks"] if row["name"] == QUOTES)
    right = {name: round(quotes["rows"] * quotes[key]) for name, key in MODELS}
    validator = read_json(nodes["validator"].outputs[Port.SFT].path / "report.json")
    sample = report["samples"][0]  # the evaluator draws them from the primary set with the run's seed
    adapter = str(nodes["deployer"].facts["version"])
    return DemoResult(
        documents=int(nodes["data_source"].outputs[Port.DOCUMENTS].rows or 0),
        pairs=int(validator["read"]),
        kept=int(validator["kept"]),
        heldout=sum(validator["heldout"].values()),
        dropped=validator["dropped"],
        sets=tuple(set_result(losses[name]) for name in SETS if name in losses),
        quotes=Quotes(questions=quotes["rows"], **right),
        adapter=adapter,
        prompt=sample["prompt"],
        base_answer=ask(urls.model, base_name(urls.model), sample["prompt"]),
        tuned_answer=ask(urls.model, adapter, sample["prompt"]),
        urls=urls,
        seconds=round(seconds, 1),
    )


def read_json(path: Path) -> JsonObject:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def set_result(row: JsonMapping) -> SetResult:
    return SetResult(
        name=row["set"],
        rows=row["rows"],
        **{name: row[key] for name, key in MODELS},
        base_minus_tuned=interval(row["improvement"]),
        control_minus_tuned=interval(row["vs_control"]),
    )


def interval(values: Mapping[str, float]) -> Interval:
    return Interval(**{name: values[name] for name in Interval.model_fields})


def base_name(model_url: str) -> str:
    """Return the base, as the server calls it."""
    models = httpx.get(f"{model_url}/v1/models", timeout=30).json()["data"]
    return str(next(model["id"] for model in models if not model.get("parent")))


def ask(model_url: str, model: str, prompt: str) -> str:
    """Return one greedy answer of at most 48 tokens."""
    body = {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": 48, "temperature": 0}
    reply = httpx.post(f"{model_url}/v1/chat/completions", json=body, timeout=120)
    reply.raise_for_status()
    return str(reply.json()["choices"][0]["message"]["content"]).strip()
