"""What people see: results as text on stdout, progress on stderr (a bar on a terminal, plain lines elsewhere)."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from pydantic import BaseModel
from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from trainyard.api.records import RunResult
from trainyard.api.verbs import demo, night
from trainyard.errors import TrainyardError

LINE_EVERY_S = 10.0
"""Least time between two plain progress lines of one node: a log is read later, by people."""
ENDS = {"finished": "done", "reused": "reused", "failed": "failed", "skipped": "skipped", "stopped": "stopped"}


class Progress:
    """Progress on stderr while an operation works. rich honours NO_COLOR and a dumb terminal by itself."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self.bars: RichProgress | None = None
        self.tasks: dict[str, TaskID] = {}
        self.said: dict[str, float] = {}

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bars is not None:
            self.bars.stop()

    def say(self, text: str) -> None:
        """One line about what happens now."""
        self.console.print(text, markup=False)

    def event(self, event: dict[str, Any]) -> None:
        """One event of a run."""
        node, what = event["node"], event["event"]
        if not node:
            self.say(f"run {event.get('name', '')}: {event['text']}")
        elif what in ENDS:
            self.end(node, what, event)
        elif what in ("note", "warning"):
            self.say(f"{node}: {event['text']}")
        elif self.console.is_terminal:
            self.bar(node, float(event.get("fraction", 0.0)), str(event.get("text", "")))
        else:
            self.line(node, event)

    def end(self, node: str, what: str, event: dict[str, Any]) -> None:
        if self.bars is not None and node in self.tasks:
            self.bars.remove_task(self.tasks.pop(node))
        rows = ", ".join(f"{count:,} {port}" for port, count in event.get("rows", {}).items())
        detail = event.get("message") or rows
        self.say(f"{node}: {ENDS[what]}" + (f" ({detail})" if detail else ""))

    def line(self, node: str, event: dict[str, Any]) -> None:
        """A plain line, at most one every ten seconds for each node."""
        if event["event"] == "started":
            self.said[node] = time.monotonic()
            self.say(f"{node}: started")
        elif time.monotonic() - self.said.get(node, 0.0) >= LINE_EVERY_S:
            self.said[node] = time.monotonic()
            self.say(f"{node}: {event.get('text', '')} ({100 * float(event.get('fraction', 0.0)):.0f} %)")

    def bar(self, node: str, fraction: float, text: str) -> None:
        if self.bars is None:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
            self.bars = RichProgress(
                *columns, TimeElapsedColumn(), TextColumn("{task.fields[text]}"), console=self.console, transient=True
            )
            self.bars.start()
        if node not in self.tasks:
            self.tasks[node] = self.bars.add_task(node, total=1.0, text=text)
        self.bars.update(self.tasks[node], completed=fraction, text=text)


def print_error(error: TrainyardError, *, as_json: bool) -> None:
    """An error in words on stderr; with `--json` also as a document on stdout, so that a program always gets one."""
    if as_json:
        print(json.dumps({"error": error.as_dict()}, indent=2))
    lines = [f"{error.code}: {error.what}"]
    lines += [f"  {line}" for line in error.why.splitlines()]
    lines += [f"  Do: {error.do}"] if error.do and error.do not in error.why else []
    print("\n".join(lines), file=sys.stderr)


def table(rows: Sequence[Sequence[str]], header: Sequence[str]) -> str:
    """Columns padded with spaces: readable, and cut and grep work on it."""
    everything = [list(header), *[[str(cell) for cell in row] for row in rows]]
    widths = [max(len(row[column]) for row in everything) for column in range(len(header))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
                     for row in everything)  # fmt: skip


def render(name: str, result: Any) -> str:
    """A result as text for people."""
    if isinstance(result, RunResult):
        return run_text(result)
    return RENDERERS.get(name, as_json)(result)


def as_json(result: BaseModel) -> str:
    return result.model_dump_json(indent=2)


def check_text(result: Any) -> str:
    lines = []
    for one in result.files:
        lines += [f"{one.file}: ok, {one.nodes} nodes, digest {one.digest[:12]}"] if one.ok else []
        lines += [f"{one.file}: {reason.line}" for reason in one.reasons]
    return "\n".join(lines)


def env_text(result: Any) -> str:
    return "\n".join(f"export {key}={shlex.quote(value)}" for key, value in result.variables.items())


def up_text(result: Any) -> str:
    rows = [
        ("Prefect server" if result.own_server else "Prefect server (attached)", result.ui_url),
        *([("login", f"the text in {result.auth_file}")] if result.auth_file else []),
        ("worker", f"pid {result.worker_pid}"),
        ("watchdog", f"pid {result.watchdog_pid}"),
        ("model server", result.embedded_url or "-"),
        ("home", result.home),
    ]
    return table(rows, ("up", ""))


def down_text(result: Any) -> str:
    return f"stopped: {', '.join(result.stopped)}" if result.stopped else "nothing was running"


def doctor_text(result: Any) -> str:
    rows = [
        (("ok" if one.ok else "PROBLEM") if not one.note else "note", one.name, one.detail) for one in result.checks
    ]
    remedies = [f"{one.name}: {one.do}" for one in result.checks if not (one.ok or one.note)]
    return "\n".join([table(rows, ("", "what", "found")), *remedies])


def run_text(result: Any) -> str:
    rows = [(node.id, node.state.value, f"{node.seconds:.1f}", node.message.splitlines()[0] if node.message else "")
            for node in result.nodes]  # fmt: skip
    lines = [table(rows, ("node", "state", "seconds", "result"))] if rows else []
    return "\n".join([*lines, f"{result.name}: {result.state.value}. {result.message}", result.url])


def plan_text(result: Any) -> str:
    """The plan as a table, then each node's estimate with its basis, then whatever is in the way."""
    header = ("node", "type", "takes", "result", "rows", "steps", "memory", "time")
    lines = [f"chain {result.chain}, digest {result.digest[:12]}, tenant {result.tenant}"]
    lines.append(table([plan_row(node) for node in result.nodes], header))
    lines += [f"{node.id}: {'; '.join(node.estimate.basis)}" for node in result.nodes if node.estimate.basis]
    lines += [f"{node.id}: note: {text}" for node in result.nodes for text in node.advice]
    return "\n".join([*lines, *(refusal["line"] for refusal in result.refusals)])


def plan_row(node: Any) -> list[str]:
    given = node.estimate
    takes = ", ".join(source for sources in node.takes.values() for source in sources)
    return [
        node.id,
        node.type,
        takes or "-",
        "reused" if node.reused else "problem" if node.problem else "to make",
        "?" if given.rows is None else f"{given.rows:,}",
        "-" if given.steps is None else f"{given.steps:,}",
        "-" if given.memory_bytes is None else memory_cell(given),
        "-" if given.seconds is None else f"{given.seconds:,.0f} s",
    ]


def memory_cell(given: Any) -> str:
    each = f"{given.memory_bytes / 2**30:.2f} GiB"
    return each if given.devices == 1 else f"{given.devices} x {each}"


def adapters_text(result: Any) -> str:
    if not result.rows:
        return "no adapters yet"
    header = list(result.rows[0])
    return table([[str(row[key]) for key in header] for row in result.rows], header)


def jobs_text(result: Any) -> str:
    if not result.jobs:
        return "no jobs yet"
    return table([job_row(job) for job in result.jobs], ("id", "name", "state", "step", "loss", "seconds", "message"))


def job_row(job: Any) -> list[str]:
    step = f"{job.step}/{job.total_steps}" if job.total_steps else "-"
    message = job.message.splitlines()[0][:60] if job.message else ""
    loss = "-" if job.loss is None else f"{job.loss:.4f}"
    return [job.id[:8], job.name, job_state(job), step, loss, f"{job.seconds:.0f}", message]


def job_state(job: Any) -> str:
    return f"{job.state.value} ({job.detail})" if job.detail else str(job.state.value)


def job_text(result: Any) -> str:
    """One job in one line, with what can be done next."""
    step = f" at step {result.step} of {result.total_steps}" if result.total_steps else ""
    after = {"paused": f"\nContinue it by `trainyard jobs resume {result.id[:8]}`."}.get(result.state.value, "")
    return f"{result.name} ({result.id}): {job_state(result)}{step}. {result.message}{after}"


def job_detail_text(result: Any) -> str:
    """One job, then its trainers, then how its nodes ended."""
    lines = [job_text(result), result.url]
    for one in result.trainings:
        rate = "" if one.learning_rate is None else f", learning rate {one.learning_rate:.3g}"
        loss = "" if one.loss is None else f", loss {one.loss:.4f}"
        kept = f", checkpoints: {', '.join(one.checkpoints)}" if one.checkpoints else ""
        lines.append(f"{one.node}: step {one.step} of {one.total_steps or '?'}{loss}{rate}{kept}")
        lines.append(f"{one.node}: {one.folder}")
    rows = [(node.id, node.state.value, f"{node.seconds:.1f}", node.message.splitlines()[0] if node.message else "")
            for node in result.nodes]  # fmt: skip
    return "\n".join([*lines, table(rows, ("node", "state", "seconds", "result")) if rows else ""]).rstrip()


def log_line_text(line: Any) -> str:
    when = "" if line.time is None else time.strftime("%H:%M:%S ", time.localtime(line.time))
    return f"{when}{line.source}: {line.text}"


def log_text(result: Any) -> str:
    return "\n".join(map(log_line_text, result.lines))


def metrics_text(result: Any) -> str:
    """Every step, a table for each trainer: the figures are for other programs, too. Rewards where there are any."""
    parts = []
    for one in result.trainings:
        rewarded = any(point.reward is not None for point in one.points)
        names = ("loss", "learning_rate", "reward") if rewarded else ("loss", "learning_rate")
        figures = [(point.step, [getattr(point, name) for name in names]) for point in one.points]
        rows = [(str(step), *("-" if v is None else f"{v:.6g}" for v in values)) for step, values in figures]
        parts.append(f"{one.node}\n{table(rows, ('step', *names))}")
    return "\n".join(parts)


def renderers_text(result: Any) -> str:
    """The table, then what is wrong, a line each."""
    kinds = list(result.rows[0].kinds) if result.rows else []
    header = ("renderer", "template", "extends", *kinds, "stop tokens", "sha256")
    rows = [
        (row.renderer, row.template, "yes" if row.extension else "no", *row.kinds.values(), " ".join(row.stops),
         row.sha256[:12])
        for row in result.rows
    ]  # fmt: skip
    return "\n".join([table(rows, header), *(f"{row.template}: {row.problem}" for row in result.rows if row.problem)])


def proof_text(result: Any) -> str:
    header = ("stage", "loss", "method", "mode", "verdict", "weights", "seconds")
    rows = [
        (cell.stage, cell.loss or "", cell.method, cell.mode,
         "identical" if cell.identical else f"DIFFERS: {', '.join(cell.differs)}", cell.sha256["weights"][:12],
         f"{cell.seconds:.1f}")
        for cell in result.cells
    ]  # fmt: skip
    identical = sum(cell.identical for cell in result.cells)
    return f"{table(rows, header)}\n{identical} of {len(result.cells)} identical in {result.seconds:.0f} s"


def record_text(result: Any) -> str:
    return json.dumps(result.record, indent=2, default=str)


def backends_text(result: Any) -> str:
    """The table, then a line for each backend that cannot be used."""
    rows = [
        (one.name.value, backend_state(one), one.version or "-", one.imports, ", ".join(one.devices))
        for one in result.rows
    ]
    told = [f"{one.name.value}: {one.why} {one.fix}".rstrip() for one in result.rows if one.why]
    return "\n".join([table(rows, ("backend", "state", "version", "imports", "computes on")), *told])


def backend_state(one: Any) -> str:
    return "absent" if not one.available else "ready" if one.fits else "no device"


def eject_text(result: Any) -> str:
    return f"{result.folder}: train.py, spec.json and {result.rows:,} rows\nRun it: {result.command}"


def query_text(result: Any) -> str:
    if not result.rows:
        return "no rows"
    return table([tuple(str(value) for value in row.values()) for row in result.rows], tuple(result.rows[0]))


def counts_text(result: Any) -> str:
    kinds = [(f"  {name}", f"{count:,}") for name, count in result.entities_by_kind.items()]
    edges = [(f"  {name}", f"{count:,}") for name, count in result.relations_by_kind.items()]
    rows = [("documents", f"{result.documents:,}"), ("entities", f"{result.entities:,}"), *kinds]
    return "\n".join(
        f"{name:<24}{count:>12}" for name, count in [*rows, ("relations", f"{result.relations:,}"), *edges]
    )


def exported_text(result: Any) -> str:
    return f"{result.file}: {result.lines:,} lines"


RENDERERS: dict[str, Callable[[Any], str]] = {
    **night.TEXTS,
    "check": check_text,
    "demo": demo.text,
    "env": env_text,
    "up": up_text,
    "down": down_text,
    "doctor": doctor_text,
    "run": run_text,
    "plan": plan_text,
    "jobs list": jobs_text,
    "jobs show": job_detail_text,
    "jobs logs": log_text,
    "jobs logs part": log_line_text,
    "jobs metrics": metrics_text,
    "jobs pause": job_text,
    "jobs resume": job_text,
    "jobs cancel": job_text,
    "adapters list": adapters_text,
    "adapters show": record_text,
    "adapters convert": lambda result: f"{result.target} ({result.to}, was {result.was})",
    "backends": backends_text,
    "backends install": backends_text,
    "eject": eject_text,
    "graph query": query_text,
    "graph stats": counts_text,
    "graph export": exported_text,
    "prove-resume": proof_text,
    "renderers verify": renderers_text,
    "starter build": record_text,
}
