"""`make demo`: documents in, a served adapter out, and a table that says whether it learned anything.

It is an ordinary run of the deployment `qa-pipeline/local` on the handbook of an invented product, with one addition: a
control, trained on shuffled answers, which knows the format and none of the facts. Everything printed is read from what
the run left: the report of the evaluator, the facts of the nodes, the registry, and two answers of the model server.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
from pydantic import BaseModel, ConfigDict

from trainyard.api.records import RunResult
from trainyard.errors import TrainyardError
from trainyard.spec.axes import Port

TEMPLATE = "qa-pipeline"
ROLE = "handbook"
QUESTIONS = 20
PARAMETERS: dict[str, Any] = {
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
"""What a user would put into the form. The measurements behind these values are in docs/performance.md.

The tolerance is wide because five million parameters that learn a handbook by heart forget much else, and the report
says how much; the gate still asks for a proved gain on unseen wording.
"""

SETS = ("unseen_wording", "unseen_documents")
PRIMARY, QUOTES = "heldout_loss", "quotes"


class Interval(BaseModel):
    """A mean and its 95 % interval; positive means that the tuned adapter is better."""

    model_config = ConfigDict(frozen=True)

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"

    @property
    def positive(self) -> bool:
        return self.low > 0


class SetResult(BaseModel):
    """One held-out set: losses per answer token, and the paired differences."""

    model_config = ConfigDict(frozen=True)

    name: str
    rows: int
    base: float
    control: float
    tuned: float
    base_minus_tuned: Interval
    control_minus_tuned: Interval


class Quotes(BaseModel):
    """How many of the same questions in unseen wording each model answered with the right sentence."""

    model_config = ConfigDict(frozen=True)

    questions: int
    base: int
    control: int
    tuned: int


class DemoResult(BaseModel):
    """What the demo found. `ok` asks for what the table's first row must show."""

    model_config = ConfigDict(frozen=True)

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
    ui_url: str
    run_url: str
    model_url: str
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


def summarize(run: RunResult, *, ui_url: str, model_url: str, seconds: float) -> DemoResult:
    """Read the result of a finished run and ask the model server one question twice.

    Raises `TrainyardError` (`E-DEMO`) with the run's own message when it did not complete.
    """
    if not run.succeeded:
        raise TrainyardError(
            "The demo's run did not complete.", why=run.message, do=f"Look at {run.url}.", code="E-DEMO"
        )
    nodes = {node.type: node for node in run.nodes}
    report = read_json(nodes["evaluator"].outputs[Port.REPORT].path / "report.json")
    validator = read_json(nodes["validator"].outputs[Port.SFT].path / "report.json")
    sample = best_sample(report)
    adapter = str(nodes["deployer"].facts["version"])
    base_name, tuned_name = model_names(model_url, adapter)
    return DemoResult(
        documents=int(nodes["data_source"].outputs[Port.DOCUMENTS].rows or 0),
        pairs=int(validator["read"]),
        kept=int(validator["kept"]),
        heldout=sum(validator["heldout"].values()),
        dropped=validator["dropped"],
        sets=tuple(set_result(row) for name in SETS for row in report["benchmarks"] if is_primary(row, name)),
        quotes=next(quotes_of(row) for row in report["benchmarks"] if row["name"] == QUOTES),
        adapter=adapter,
        prompt=sample["prompt"],
        base_answer=ask(model_url, base_name, sample["prompt"]),
        tuned_answer=ask(model_url, tuned_name, sample["prompt"]),
        ui_url=ui_url,
        run_url=run.url,
        model_url=model_url,
        seconds=round(seconds, 1),
    )


def read_json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def best_sample(report: Mapping[str, Any]) -> dict[str, Any]:
    """The report's first sample; the evaluator draws them from the primary set with the run's seed."""
    return dict(report["samples"][0])


def is_primary(row: Mapping[str, Any], name: str) -> bool:
    return bool(row["name"] == PRIMARY and row["set"] == name)


def set_result(row: Mapping[str, Any]) -> SetResult:
    return SetResult(
        name=row["set"],
        rows=row["rows"],
        base=row["baseline"],
        control=row["control"],
        tuned=row["candidate"],
        base_minus_tuned=interval(row["improvement"]),
        control_minus_tuned=interval(row["vs_control"]),
    )


def quotes_of(row: Mapping[str, Any]) -> Quotes:
    rows = row["rows"]
    return Quotes(
        questions=rows,
        base=round(rows * row["baseline"]),
        control=round(rows * row["control"]),
        tuned=round(rows * row["candidate"]),
    )


def interval(given: Mapping[str, float]) -> Interval:
    return Interval(mean=given["mean"], low=given["low"], high=given["high"])


def model_names(model_url: str, adapter: str) -> tuple[str, str]:
    """The server's names of its base and of the adapter version."""
    models = httpx.get(f"{model_url}/v1/models", timeout=30).json()["data"]
    base = next(model["id"] for model in models if not model.get("parent"))
    return str(base), adapter


def ask(model_url: str, model: str, prompt: str) -> str:
    """One greedy answer of at most 48 tokens."""
    body = {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": 48, "temperature": 0}
    reply = httpx.post(f"{model_url}/v1/chat/completions", json=body, timeout=120)
    reply.raise_for_status()
    return str(reply.json()["choices"][0]["message"]["content"]).strip()


def text(result: DemoResult) -> str:
    """The table that ends the demo."""
    dropped = ", ".join(f"{count} {reason}" for reason, count in result.dropped.items() if count) or "none"
    lines = [
        f"documents  {result.documents}",
        f"rows       {result.pairs} read = {result.kept} kept + {result.heldout} held out + dropped ({dropped})",
        "",
        f"{'loss per answer token':<18}{'rows':>6}{'base':>8}{'control':>9}{'tuned':>8}"
        f"   {'base - tuned [95 %]':<26}control - tuned [95 %]",
    ]
    for one in result.sets:
        lines.append(
            f"{one.name.replace('_', ' '):<18}{one.rows:>6}{one.base:>8.3f}{one.control:>9.3f}{one.tuned:>8.3f}"
            f"   {one.base_minus_tuned!s:<26}{one.control_minus_tuned!s}"
        )
    quotes = result.quotes
    lines += [
        "",
        f"{'right sentence quoted':<21}{quotes.questions:>3}{quotes.base:>8}{quotes.control:>9}{quotes.tuned:>8}"
        "   questions in unseen wording",
        "",
        f"prompt     {one_line(result.prompt)}",
        f"base       {one_line(result.base_answer)}",
        f"tuned      {one_line(result.tuned_answer)}",
        "",
        f"adapter    {result.adapter}",
        f"run        {result.run_url}",
        f"UI         {result.ui_url}",
        f"model      {result.model_url}/v1 (OpenAI-compatible)",
        f"seconds    {result.seconds:.0f}",
        result.last_line,
    ]
    return "\n".join(lines)


def one_line(given: str, width: int = 160) -> str:
    flat = " ".join(given.split())
    return flat if len(flat) <= width else flat[: width - 1] + "…"


def timed(work: Callable[[], RunResult]) -> tuple[RunResult, float]:
    """A run and the seconds it took."""
    started = time.monotonic()
    return work(), time.monotonic() - started
