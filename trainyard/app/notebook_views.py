"""Notebook views of results: plans, checks and reports as Markdown, trainings with their loss so far.

Curves and reports of a run are read from its files, so that they are shown where the run is; the metrics of a job
contain their points, and are drawn anywhere.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from trainyard.app.training_logs import run_svg
from trainyard.evals.curves import loss_curves
from trainyard.spec.axes.data import Port
from trainyard.stores.artifacts import Reference

GIB = 2**30
REPORT = "report.md"


def format_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown; what would end a cell is escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell(value) for value in line) + " |" for line in lines)


def cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def plan_markdown(plan: Any) -> str:
    """Return a plan as Markdown: each node with its facts, then the reasons of a refusal."""
    rows = []
    for node in plan.nodes:
        estimate = node.estimate
        memory = "" if estimate.memory_bytes is None else f"{estimate.memory_bytes / GIB:.2f} GiB"
        seconds = "" if estimate.seconds is None else f"{estimate.seconds:,.0f} s"
        state = "reused" if node.reused else node.problem or "to make"
        rows.append((node.id, node.type, state, estimate.rows or "", estimate.steps or "", memory, seconds))
    header = ("node", "type", "result", "rows", "steps", "memory", "time")
    refused = [f"- {refusal['line']}" for refusal in plan.refusals]
    return "\n\n".join(
        part
        for part in (f"**{plan.chain}** `{plan.digest[:12]}`", format_table(header, rows), "\n".join(refused))
        if part
    )


def check_markdown(check: Any) -> str:
    """Return whether chains would run, with every reason."""
    lines = []
    for file in check.files:
        lines += [f"- **{file.file}**: " + (f"ok, {file.nodes} nodes, `{file.digest[:12]}`" if file.ok else "refused")]
        lines += [f"  - {row['line']}" for row in (*file.questions, *file.reasons)]
    return "\n".join(lines)


def metrics_svg(metrics: Any) -> str:
    """Return the loss of a job's trainers, of the points that the metrics contain."""
    curves: dict[str, dict[str, object]] = {}
    for training in metrics.trainings:
        curves[training.node] = {"losses": [(point.step, point.loss, 0.0) for point in training.points]}
        curves[f"{training.node} eval"] = {"losses": [(point.step, point.eval_loss, 0.0) for point in training.points]}
    return loss_curves(curves)


def run_markdown(run: Any) -> str:
    """Return a run: its state, its nodes, its curve and the reports of its evaluators."""
    rows = [(node.id, node.state.value, f"{node.seconds:.1f}", node.message) for node in run.nodes]
    picture = run_svg(run.run_id)
    parts = [
        f"**{run.name}**: {run.state_text}. {run.message}",
        format_table(("node", "state", "seconds", "result"), rows) if rows else "",
        f"![loss](data:image/svg+xml;base64,{base64.b64encode(picture.encode()).decode()})" if picture else "",
        *(report for node in run.nodes for report in find_reports(node.outputs)),
    ]
    return "\n\n".join(part for part in parts if part)


def find_reports(outputs: dict[Port, Reference]) -> list[str]:
    """Return the report of an evaluator, if it is on this machine."""
    folders = [Path(reference.path) for port, reference in outputs.items() if port is Port.REPORT]
    return [(folder / REPORT).read_text(encoding="utf-8") for folder in folders if (folder / REPORT).is_file()]
