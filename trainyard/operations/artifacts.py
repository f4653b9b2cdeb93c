"""Results of runs and reports of evaluators. Requests, texts and rows."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from trainyard.operations.base import Request
from trainyard.operations.fields import Argument, Option
from trainyard.operations.table import Operation, Scope
from trainyard.operations.tables import format_table, json_text
from trainyard.spec.axes.data import Port

if TYPE_CHECKING:
    from trainyard.app.artifacts.artifacts import ArtifactList, ArtifactRows
    from trainyard.app.artifacts.evaluations import Evaluation, EvaluationList

RUN = "Id of a run or of its job, or enough of its beginning."
NodeId = Annotated[str, Field(min_length=1, max_length=200)]
Cursor = Annotated[str | None, Field(max_length=200, description="Continue after a page: its `next`.")]


class ArtifactsInput(Request):
    run: Annotated[str | None, Option(completes="run")] = Field(None, min_length=1, max_length=200, description=RUN)
    port: Port | None = Field(None, description="Only results of this kind.")
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$", description="Only results with this digest.")
    tenant: Annotated[str | None, Option(completes="tenant")] = Field(None, description="Only this tenant's.")
    limit: int = Field(50, ge=1, le=200, description="Maximum number of results.")
    cursor: Cursor = None


class ArtifactInput(Request):
    run: Annotated[str, Argument("RUN", completes="run")] = Field(min_length=1, max_length=200, description=RUN)
    node: Annotated[NodeId, Argument("NODE")] = Field(description="Id of the node that made it.")
    port: Annotated[Port, Argument("PORT")] = Field(description="What it is: documents, sft, adapter, report, …")


class ArtifactRowsInput(ArtifactInput):
    part: str = Field(
        "rows", min_length=1, max_length=200,
        description="rows, dropped (with reasons), or a held-out set such as unseen_wording.",
    )  # fmt: skip
    offset: int = Field(0, ge=0, le=2**53, description="Number of the first row to look at, from 0.")
    limit: int = Field(20, ge=1, le=200, description="Maximum number of rows.")
    reason: str | None = Field(None, min_length=1, max_length=200, description="Of dropped rows: only with this one.")
    text: str | None = Field(None, min_length=1, max_length=200, description="Only rows that contain this text.")
    text_chars: int = Field(
        2_000, ge=1, le=4_000_000, description="Maximum characters of a text; the row names shortened texts."
    )


class EvaluationsInput(Request):
    run: Annotated[str | None, Option(completes="run")] = Field(None, min_length=1, max_length=200, description=RUN)
    tenant: Annotated[str | None, Option(completes="tenant")] = Field(None, description="Only this tenant's.")
    limit: int = Field(50, ge=1, le=200, description="Maximum number of results.")
    cursor: Cursor = None


class EvaluationInput(Request):
    run: Annotated[str, Argument("RUN", completes="run")] = Field(min_length=1, max_length=200, description=RUN)
    node: Annotated[NodeId, Argument("NODE")] = Field("evaluator", description="Id of the evaluator.")


SHORT = 8


def format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def artifacts_text(result: ArtifactList) -> str:
    """Return a line for each result."""
    if not result.artifacts:
        return "no results yet"
    rows = [
        (format_time(artifact.ended), artifact.run_id[:SHORT], artifact.run_name, artifact.node, artifact.port.value,
         "" if artifact.rows is None else f"{artifact.rows:,}", f"{artifact.bytes:,}", format_state(artifact))
        for artifact in result.artifacts
    ]  # fmt: skip
    more = f"\nmore: --cursor {result.next}" if result.next else ""
    return format_table(rows, ("ended", "run", "chain", "node", "port", "rows", "bytes", "")) + more


def format_state(artifact: Any) -> str:
    if artifact.problem:
        return "cannot be read"
    return ("reused" if artifact.reused else "") if artifact.available else "removed"


def rows_text(result: ArtifactRows) -> str:
    """Return each row as a line of JSON, so that it can be piped; then how to continue."""
    lines = [json.dumps(row.values, ensure_ascii=False) for row in result.rows]
    reasons = ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in result.reasons.items())
    head = f"{result.part} of {result.node}/{result.port.value}: {result.total:,} rows"
    lines.insert(0, f"{head} ({reasons})" if reasons else head)
    if result.next_offset is not None:
        lines.append(f"more: --offset {result.next_offset}")
    return "\n".join(lines)


def evaluations_text(result: EvaluationList) -> str:
    """Return a line for each evaluation."""
    if not result.evaluations:
        return "no evaluations yet"
    rows = [
        (
            format_time(evaluation.ended),
            evaluation.run_id[:SHORT],
            evaluation.run_name,
            evaluation.node,
            format_verdict(evaluation),
            evaluation.primary,
            interval_words(evaluation.improvement),
        )
        for evaluation in result.evaluations
    ]
    more = f"\nmore: --cursor {result.next}" if result.next else ""
    return format_table(rows, ("ended", "run", "chain", "node", "verdict", "primary", "improvement")) + more


def format_verdict(evaluation: Any) -> str:
    if evaluation.better is None:
        return "removed"
    if evaluation.few_rows:
        return "not enough rows to say"
    return "better" if evaluation.better else "not better"


def interval_words(interval: Any) -> str:
    if interval is None or interval.mean is None:
        return ""
    return f"{interval.mean:+.4f}" + ("" if interval.low is None else f" [{interval.low:+.4f}, {interval.high:+.4f}]")


def format_number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def evaluation_text(result: Evaluation) -> str:
    """Return the verdict, then a line for each benchmark, then the notes."""
    head = f"{format_verdict(result)}: adapter {result.adapter_sha256[:12]} on {result.base_model}, by {result.primary}"
    head += f", compared with {result.baseline}" + (f" and {result.live}, which is live" if result.live else "")
    rows: list[tuple[str, ...]] = [
        (
            f"{benchmark.name}/{benchmark.set}",
            f"{benchmark.rows:,}",
            format_number(benchmark.baseline),
            format_number(benchmark.candidate),
            interval_words(benchmark.improvement),
            f"{benchmark.flips.better} / {benchmark.flips.worse} / {benchmark.flips.equal}",
        )
        for benchmark in result.benchmarks
    ]
    header: tuple[str, ...] = ("benchmark", "rows", "baseline", "candidate", "improvement", "better / worse / equal")
    if any(benchmark.control is not None for benchmark in result.benchmarks):
        header = (*header, "control", "better than control by")
        rows = [
            (*row, format_number(item.control), interval_words(item.vs_control) if item.vs_control else "")
            for row, item in zip(rows, result.benchmarks, strict=True)
        ]
    lines = [head, format_table(rows, header), *result.gate.reasons, *result.gate.cautions, *result.notes]
    return "\n".join(lines)


READ, RUN, ADMIN = Scope

ROWS: dict[str, Operation] = {
    "artifacts list": Operation(
        "Results of nodes, newest run first: sets of rows, adapters, reports.",
        request=ArtifactsInput, run="app.artifacts.artifacts:list_artifacts", text=artifacts_text, scope=READ,
        route="GET /api/v1/artifacts", tenants=True,
    ),
    "artifacts show": Operation(
        "One result of a run: what its node counted, its sets of rows and its files.",
        request=ArtifactInput, run="app.artifacts.artifacts:show_artifact", text=json_text, scope=READ,
        example="trainyard artifacts show 59b4dead validator sft",
        route="GET /api/v1/artifacts/{run}/{node}/{port}", tenants=True,
    ),
    "artifacts rows": Operation(
        "Rows of a result: kept rows, a held-out set, or dropped rows with reasons.",
        request=ArtifactRowsInput, run="app.artifacts.artifacts:read_rows", text=rows_text, scope=READ,
        example="trainyard artifacts rows 59b4dead validator sft --part dropped",
        route="GET /api/v1/artifacts/{run}/{node}/{port}/rows", tenants=True,
    ),
    "evaluations list": Operation(
        "The evaluations of runs, the newest first: verdict, primary metric, its interval.",
        request=EvaluationsInput, run="app.artifacts.evaluations:list_evaluations", text=evaluations_text, scope=READ,
        route="GET /api/v1/evaluations", tenants=True,
    ),
    "evaluations show": Operation(
        "One evaluation: benchmarks with intervals and flips, the gate, answers side by side, the training.",
        request=EvaluationInput, run="app.artifacts.evaluations:show_evaluation", text=evaluation_text, scope=READ,
        example="trainyard evaluations show 59b4dead",
        route="GET /api/v1/evaluations/{run}/{node}", tenants=True,
    ),
}  # fmt: skip
"""Name -> row, in the order of the help."""
