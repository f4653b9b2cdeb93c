"""Report of a night: one value, kept as JSON, Markdown and HTML next to the night's record.

The report says first whether the night succeeded, then what is left, and for everything that failed the command that a
person would type next.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from trainyard.stores.files import Files
from trainyard.stores.schema import add_version, read_versioned
from trainyard.stores.whole import write_whole

REPORT_FILE = "report.json"
RETRY = "trainyard nightly run"


class ReportPart(BaseModel):
    """Immutable; a misspelt field is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Failure(ReportPart):
    """An error, its message, and what to do."""

    code: str
    what: str
    why: str = ""
    do: str = ""


class Quarantined(ReportPart):
    stream: str
    name: str
    reason: str


class Phase1Report(ReportPart):
    """Documents into the graph."""

    waiting: int = 0
    done: int = 0
    quarantined: tuple[Quarantined, ...] = ()
    left: int = 0
    """Documents for the next night."""
    predicted: int = 0
    predicted_after_20: int | None = None
    new_entities: int = 0
    changed_entities: int = 0
    new_relations: int = 0
    boot_s: float = 0.0
    extract_s: float = 0.0
    release_s: float = 0.0
    budget_s: float = 0.0
    device_free: bool = False
    failure: Failure | None = None


class BucketReport(ReportPart):
    """A corpus: its contents, and whether they were enough."""

    bucket: str
    method: str
    valid: int = 0
    invalid: int = 0
    duplicates: int = 0
    new: int = 0
    """Valid tuples since the last completed training."""
    threshold: int = 0
    marker: str = ""
    note: str = ""
    failure: Failure | None = None


class TrainingReport(ReportPart):
    """Outcome of one marker."""

    marker: str
    outcome: Literal["published", "rejected", "checkpointed", "failed", "taken", "waiting", "marker-only"]
    version: str = ""
    rows: int = 0
    first_loss: float | None = None
    final_loss: float | None = None
    gate: tuple[str, ...] = ()
    seconds: float = 0.0
    note: str = ""
    failure: Failure | None = None


class Phase2Report(ReportPart):
    """Full buckets into adapters."""

    buckets: tuple[BucketReport, ...] = ()
    trainings: tuple[TrainingReport, ...] = ()
    fetched: tuple[str, ...] = ()
    """Versions that were trained elsewhere and became live here."""
    seconds: float = 0.0
    budget_s: float = 0.0
    note: str = ""
    failure: Failure | None = None


class NightReport(ReportPart):
    """A night. `skipped` says why nothing was done."""

    run: str
    tenant: str
    state: Literal["completed", "failed", "skipped"]
    attempt: int = 1
    started: float = 0.0
    """Unix seconds."""
    seconds: float = 0.0
    window_s: float = 0.0
    phase1: Phase1Report = Phase1Report()
    phase2: Phase2Report = Phase2Report()
    skipped: str = ""

    @property
    def failures(self) -> tuple[Failure, ...]:
        parts: list[Any] = [self.phase1, self.phase2, *self.phase2.buckets, *self.phase2.trainings]
        return tuple(part.failure for part in parts if part.failure is not None)

    @property
    def exit_code(self) -> int:
        return 1 if self.state == "failed" else 0

    @property
    def headline(self) -> str:
        """Return the night in a line."""
        if self.state == "skipped":
            return f"Night {self.run} of {self.tenant} was skipped: {self.skipped}"
        training, published = (
            self.phase1,
            [training.version for training in self.phase2.trainings if training.outcome == "published"],
        )
        text = f"{training.done} documents read, {training.new_entities} new entities"
        text += f", {training.left} left for the next night" if training.left else ""
        text += f"; published {', '.join(published)}" if published else "; no new adapter"
        text += f"; now live here: {', '.join(self.phase2.fetched)}" if self.phase2.fetched else ""
        return f"Night {self.run} of {self.tenant} {self.state}: {text}."


def write_report(report: NightReport, folder: Path, files: Files) -> None:
    """`report.md`, `report.html`, then `report.json`, which alone decides whether a night is finished."""
    write_whole(files, folder / "report.md", markdown(report).encode())
    write_whole(files, folder / "report.html", page(report).encode())
    stored = add_version("night", json.loads(report.model_dump_json()))
    write_whole(files, folder / REPORT_FILE, json.dumps(stored, indent=1).encode())


def read_report(folder: Path, files: Files) -> NightReport | None:
    path = folder / REPORT_FILE
    return NightReport.model_validate(read_versioned("night", files.read(path), path)) if files.exists(path) else None


def tables(report: NightReport) -> list[tuple[str, list[list[str]]]]:
    """(title, rows) of every table of the report; the first row is the head."""
    first, two = report.phase1, report.phase2
    documents = [
        ["documents", "count"],
        ["waiting", str(first.waiting)],
        ["read into the graph", str(first.done)],
        ["quarantined", str(len(first.quarantined))],
        ["left for the next night", str(first.left)],
        [
            "predicted",
            f"{first.predicted}" + (f", {first.predicted_after_20} after 20" if first.predicted_after_20 else ""),
        ],
        ["entities new / changed", f"{first.new_entities} / {first.changed_entities}"],
        ["relations new", str(first.new_relations)],
    ]
    times = [
        ["phase", "seconds", "budget"],
        ["boot and readiness", f"{first.boot_s:.1f}", ""],
        ["1: documents", f"{first.extract_s:.1f}", f"{first.budget_s:.0f}"],
        ["release of the device", f"{first.release_s:.1f}", ""],
        ["2: training", f"{two.seconds:.1f}", f"{two.budget_s:.0f}"],
        ["night", f"{report.seconds:.1f}", f"{report.window_s:.0f}"],
    ]
    buckets = [["bucket", "valid", "invalid", "twice", "new", "threshold", "marker"]] + [
        [b.bucket, str(b.valid), str(b.invalid), str(b.duplicates), str(b.new), str(b.threshold), b.marker or b.note]
        for b in two.buckets
    ]
    trainings = [["marker", "outcome", "version", "rows", "loss", "gate", "seconds"]] + [
        [t.marker, t.outcome, t.version, str(t.rows), losses(t), "; ".join(t.gate) or t.note, f"{t.seconds:.1f}"]
        for t in two.trainings
    ]
    apart = [["stream", "document", "reason"]] + [[q.stream, q.name, q.reason] for q in first.quarantined]
    named = [("Documents", documents), ("Time", times), ("Corpora", buckets), ("Adapters", trainings)]
    return [(title, rows) for title, rows in [*named, ("Quarantine", apart)] if len(rows) > 1]


def losses(training: TrainingReport) -> str:
    values = [value for value in (training.first_loss, training.final_loss) if value is not None]
    return " → ".join(f"{value:.3f}" for value in values)


def next_steps(failures: Sequence[Failure]) -> list[str]:
    lines = [
        f"{failure.code}: {failure.what} {failure.why}".strip() + (f" Do: {failure.do}" if failure.do else "")
        for failure in failures
    ]
    return [*lines, f"Next: correct the cause, then `{RETRY}`: what is finished is not done again."] if lines else []


def markdown(report: NightReport) -> str:
    """Return the report for Prefect's page and for reading in a terminal."""
    lines = [f"# Night {report.run}, {report.tenant}", "", report.headline, ""]
    lines += [f"- {line}" for line in next_steps(report.failures)]
    for title, rows in tables(report):
        head, *body = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
        lines += ["", f"## {title}", "", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
        lines += [f"| {' | '.join(row)} |" for row in body]
    return "\n".join(lines) + "\n"


STYLE = "body{font:15px sans-serif;max-width:60em;margin:2em auto}td,th{padding:.2em .8em;text-align:left}"


def page(report: NightReport) -> str:
    """Return the same as one HTML page; everything that came from documents or errors is escaped."""
    escape = html.escape
    parts = [f"<h1>Night {escape(report.run)}, {escape(report.tenant)}</h1><p>{escape(report.headline)}</p>"]
    parts += [f"<p><b>{escape(line)}</b></p>" for line in next_steps(report.failures)]
    for title, rows in tables(report):
        names, *body = rows
        cells = "".join(f"<th>{escape(cell)}</th>" for cell in names)
        lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in body)
        parts.append(f"<h2>{escape(title)}</h2><table><tr>{cells}</tr>{lines}</table>")
    head = f"<meta charset='utf-8'><title>Night {escape(report.run)}</title><style>{STYLE}</style>"
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{''.join(parts)}</body></html>\n"
