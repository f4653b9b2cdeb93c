"""Evaluation reports of runs: the list with each verdict, and one whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from trainyard.app import run_folders as finding
from trainyard.app.artifacts.artifacts import select_artifacts
from trainyard.app.artifacts.contents import damaged_error
from trainyard.app.context import Context
from trainyard.app.names import find_artifact, find_run
from trainyard.app.responses import Response
from trainyard.app.run_folders import FoundArtifact
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.operations.artifacts import EvaluationInput, EvaluationsInput
from trainyard.spec.axes.data import Port
from trainyard.stores.adapters import AdapterRegistry

REPORT_JSON = "report.json"


class PairedInterval(Response):
    """A mean with its interval; positive is better for every metric."""

    mean: float | None
    low: float | None = None
    """None: one case, no interval."""
    high: float | None = None
    cases: int = 0
    """Independent cases that the interval is computed over."""


class FlippedRows(Response):
    better: int
    worse: int
    equal: int


class EvaluationVerdict(Response):
    """An evaluation as a list shows it."""

    run_id: str
    run_name: str
    tenant: str
    node: str
    ended: float
    available: bool
    better: bool | None = None
    """Whether the candidate may replace its baseline; None where the report is gone."""
    primary: str = ""
    """The benchmark that decides: `benchmark/set`."""
    improvement: PairedInterval | None = None
    """Of the primary benchmark."""
    reasons: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()
    few_rows: tuple[str, ...] = ()
    """Why there are not enough rows to say; empty where there are."""
    adapter_sha256: str = ""


class EvaluationList(Response):
    evaluations: tuple[EvaluationVerdict, ...]
    next: str | None = None
    """Cursor of the next page; None at the end."""


class BenchmarkComparisons(Response):
    """Control that a candidate is compared with besides its baseline."""

    control: float | None = None
    """Of an adapter that was trained on shuffled answers."""
    vs_control: PairedInterval | None = None
    live: float | None = None
    """Of the version that is live."""
    vs_live: PairedInterval | None = None


class EvaluatedBenchmark(BenchmarkComparisons):
    """A benchmark on one set."""

    name: str
    set: str
    metric: str
    higher_is_better: bool
    rows: int
    skipped: int
    gold: str
    """Where the right answers come from."""
    margin: float | None
    """By so much the candidate may be worse."""
    baseline: float | None
    candidate: float | None
    improvement: PairedInterval
    flips: FlippedRows
    judge: JsonObject | None = None


class EvaluationGate(Response):
    better: bool
    primary: str
    reasons: tuple[str, ...] = ()
    """Why not; empty when better."""
    passed: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()
    few_rows: tuple[str, ...] = ()
    better_on_few: bool = False
    """Whether it would be better if these rows were enough."""


class AnswerSample(Response):
    set: str = ""
    """Of the evaluation; empty in a report that does not name it."""
    prompt: str
    gold: str
    baseline: str
    candidate: str


class Evaluation(EvaluationVerdict):
    """An evaluation, whole."""

    base_model: str
    baseline: str
    live: str | None = None
    """The version that is live, which the candidate has to be better than, too."""
    confidence: float
    resamples: int
    benchmarks: tuple[EvaluatedBenchmark, ...]
    gate: EvaluationGate
    notes: tuple[str, ...]
    samples: tuple[AnswerSample, ...]
    training: JsonObject
    """Trained adapter -> what its trainer counted."""
    facts: JsonObject
    adapters: tuple[str, ...]
    """Versions of the registry that are this adapter."""


def list_evaluations(request: EvaluationsInput, context: Context) -> EvaluationList:
    """Return a page of the evaluations of the newest runs, by their end. Raises what `select_artifacts` raises."""
    artifacts, cursor = select_artifacts(request, context, Port.REPORT)
    artifacts.sort(key=lambda artifact: artifact.ended, reverse=True)
    return EvaluationList(
        evaluations=tuple(EvaluationVerdict(**verdict_fields(artifact)) for artifact in artifacts), next=cursor
    )


def verdict_fields(artifact: FoundArtifact) -> JsonObject:
    """Return what a list shows, by the facts that travel with the report."""
    facts = artifact.reference.facts if artifact.reference else {}
    primary = str(facts.get("primary") or "")
    line = (facts.get("benchmarks") or {}).get(primary) or {}
    return {
        "run_id": artifact.run.id, "run_name": artifact.run.name, "tenant": artifact.run.tenant,
        "node": artifact.node, "ended": artifact.ended,
        "available": artifact.reference is not None, "better": facts.get("better"), "primary": primary,
        "improvement": line.get("improvement"), "reasons": facts.get("reasons") or (),
        "cautions": facts.get("cautions") or (), "few_rows": facts.get("few_rows") or (),
        "adapter_sha256": str(facts.get("adapter_sha256") or ""),
    }  # fmt: skip


def show_evaluation(request: EvaluationInput, context: Context) -> Evaluation:
    """Raises what `find_artifact` raises, and `Corrupt` (`E-CORRUPT`) for a report that cannot be read."""
    store = finding.open_store(context)
    artifact = find_artifact(find_run(request.run, context), request.node, Port.REPORT, store)
    path = artifact.folder(store) / REPORT_JSON
    report = read_report(path)
    fields = {
        name: report.get(name)
        for name in ("base_model", "baseline", "live", "confidence", "resamples", "notes", "samples", "facts")
    }
    try:
        return Evaluation(
            **verdict_fields(artifact), **fields, gate=validate_fields(EvaluationGate, report["gate"]),
            benchmarks=tuple(validate_fields(EvaluatedBenchmark, line) for line in report["benchmarks"]),
            training=report.get("training") or {},
            adapters=tuple(list_registered_versions(str(report.get("adapter_sha256") or ""), context)),
        )  # fmt: skip
    except (ValidationError, KeyError, TypeError, AttributeError) as error:
        raise damaged_error(path, f"It is not a report of this version: {error}") from error


def validate_fields(model: type[Response], values: JsonMapping) -> Any:
    """Return a response of the fields that it has; a report has more, such as the score of each row."""
    return model.model_validate({name: value for name, value in values.items() if name in model.model_fields})


def read_report(path: Path) -> JsonObject:
    """Raises `Corrupt` (`E-CORRUPT`)."""
    try:
        value = orjson.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise damaged_error(path, str(error)) from error
    if not isinstance(value, dict):
        raise damaged_error(path, "It is not a JSON object.")
    return value


def list_registered_versions(sha256: str, context: Context) -> list[str]:
    """Return the adapter versions with this digest that the caller may see."""
    if not sha256:
        return []
    versions = AdapterRegistry(context.settings.adapters).list(context.caller.tenant or None)
    return [version.name for version in versions if version.sha256 == sha256]
