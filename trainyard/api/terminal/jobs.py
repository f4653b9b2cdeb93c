"""Jobs and sweeps as text."""

from __future__ import annotations

import time
from typing import Any

from trainyard.api.records import RunResult
from trainyard.api.terminal.chains import node_table, run_text
from trainyard.api.terminal.tables import table
from trainyard.api.terminal.text import draw_curves, draw_lines, message_text, next_lines, short_reason
from trainyard.stores.metrics import in_time

NOTE_CHARS = 40


def cut(note: str) -> str:
    """The beginning of a note, in one line."""
    text = " ".join(note.split())
    return text if len(text) <= NOTE_CHARS else f"{text[:NOTE_CHARS]}…"


def jobs_text(result: Any) -> str:
    rows, is_labelled = [], any(job.group or job.note for job in result.jobs)
    for job in result.jobs:
        step = f"{job.step}/{job.total_steps}" if job.total_steps else "-"
        message = short_reason(job.message)[:60]
        loss = "-" if job.loss is None else f"{job.loss:.4f}"
        labels = [job.group or "-", cut(job.note) or "-"] if is_labelled else []
        created = "-" if job.created is None else time.strftime("%m-%d %H:%M", time.localtime(job.created))
        rows.append([job.id, job.name, created, *labels, job_state(job), step, loss, f"{job.seconds:.0f}", message])
    label_names = ("group", "note") if is_labelled else ()
    header = ("id", "name", "created", *label_names, "state", "step", "loss", "seconds", "message")
    lines = [table(rows, header) if rows else "no jobs yet", *age_line(result.as_of)]
    return "\n".join([*lines, f"more: --cursor {result.next}"] if result.next else lines)


def age_line(as_of: float | None) -> list[str]:
    """Say when an answer was true, where Prefect could not be asked."""
    if as_of is None:
        return []
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(as_of))
    return [f"as of {at}: since then the Prefect server has not answered"]


def job_state(job: Any) -> str:
    return f"{job.state.value} ({job.detail})" if job.detail else str(job.state.value)


def job_text(result: Any) -> str:
    """One job in one line, with what can be done next."""
    step = f" at step {result.step} of {result.total_steps}" if result.total_steps else ""
    after = {"paused": f"\nContinue it by `trainyard jobs resume {result.id}`."}.get(result.state.value, "")
    return message_text(f"{result.name} ({result.id}): {job_state(result)}{step}. {result.message}{after}")


def job_detail_text(result: Any) -> str:
    """One job, then its trainers, then how its nodes ended."""
    lines = [job_text(result)]
    lines += [f"{result.id}: names it in commands, the dashboard and REST"]
    lines += [f"{result.run_id}: its run in Prefect, and its folder below runs", result.url]
    lines += [f"group: {result.group}"] if result.group else []
    lines += [f"note: {result.note}"] if result.note else []
    for one in result.trainings:
        rate = "" if one.learning_rate is None else f", learning rate {one.learning_rate:.3g}"
        loss = "" if one.loss is None else f", loss {one.loss:.4f}"
        kept = f", checkpoints: {', '.join(one.checkpoints)}" if one.checkpoints else ""
        lines.append(f"{one.node}: step {one.step} of {one.total_steps or '?'}{loss}{rate}{kept}")
        lines.append(f"{one.node}: {one.folder}")
    lines += [f"{one.node}: warning: {one.text}" for one in result.divergence]
    lines += [left_text(one) for one in result.left]
    return "\n".join([*lines, *node_table(result.nodes), *next_lines(result.next), *age_line(result.as_of)])


def left_text(left: Any) -> str:
    """The time that a training has left, and how that is known."""
    if left.seconds is None:
        return f"{left.node}: its time is not known before its second step"
    basis = {"steps": "at the pace of its newest steps", "plan": "by the plan"}[left.basis]
    return f"{left.node}: about {in_time(left.seconds)} left, {basis}"


def noted_text(job: Any) -> str:
    return f"{job.name} ({job.id}): {job.note}" if job.note else f"{job.name} ({job.id}) has no note now"


def log_line_text(line: Any) -> str:
    when = "" if line.time is None else time.strftime("%H:%M:%S ", time.localtime(line.time))
    return f"{when}{line.source}: {line.text}"


def log_text(result: Any) -> str:
    return "\n".join(map(log_line_text, result.lines))


SOMETIMES = (
    "eval_loss", "eval_reward_accuracy", "eval_reward_margin", "reward", "reward_accuracy", "reward_margin", "kl",
    "clipped", "policy_loss", "value_loss", "thought_gain",
)  # fmt: skip
"""Columns of the metrics that are shown where a trainer measured them."""


def metrics_text(result: Any) -> str:
    """Format every step, a table per trainer, for other programs to read; with what only some trainers measure."""
    if result.plot:
        return "\n\n".join(draw_curves({one.node: one.points}) for one in result.trainings if one.points)
    parts = []
    for one in result.trainings:
        names = ["loss", "learning_rate"]
        names += [name for name in SOMETIMES if any(getattr(point, name) is not None for point in one.points)]
        steps = [(point.step, [getattr(point, name) for name in names]) for point in one.points]
        rows = [(str(step), *("-" if v is None else f"{v:.6g}" for v in values)) for step, values in steps]
        parts.append(f"{one.node}\n{table(rows, ('step', *names))}")
    return "\n".join(parts)


def checkpoints_text(result: Any) -> str:
    """The checkpoints as a table."""
    rows = [
        [one.node, one.name, str(one.step), f"{one.bytes:,}", "-" if one.metric is None else f"{one.metric:.4f}",
         one.sha256[:12] or "no manifest"]
        for one in result.checkpoints
    ]  # fmt: skip
    return table(rows, ("trainer", "checkpoint", "step", "bytes", "metric", "sha256")) if rows else "no checkpoints"


def verified_text(result: Any) -> str:
    """One line for each checkpoint that was read."""
    lines = [f"{one.node} {one.name}: {one.damage or 'whole'}" for one in result.checkpoints]
    return "\n".join(lines) or "no checkpoints"


def samples_text(result: Any) -> str:
    """The answers of each evaluation, the newest first."""
    parts = [
        "\n".join([f"{one.node}, step {one.step}", *(f"> {own.prompt}\n{own.answer}" for own in one.samples)])
        for one in result.rounds
    ]
    return "\n\n".join(parts) or "no samples: set eval.samples of a trainer"


def provenance_text(result: Any) -> str:
    """Where results come from: a table of what was read and one of what was made, then a paragraph per trainer."""
    lines = [f"chain {result.chain} {result.digest}" if result.digest else "it has not begun"]
    read = [(one.source, one.format, str(one.rows), one.sha256[:12]) for one in result.data]
    lines += [table(read, ("source", "format", "rows", "sha256"))] if read else []
    made = [
        (one.node, one.port, str(one.rows), one.sha256[:12] or "gone", one.key[:12], "reused" if one.reused else "made")
        for one in result.results
    ]
    lines += [table(made, ("node", "port", "rows", "sha256", "key", "result"))] if made else []
    for one in result.trainings:
        lines.append(f"{one.node}: " + ", ".join(f"{name} {value}" for name, value in one.words.items()))
        lines += [f"  tokens: {counts_text(one.tokens)}"] if one.tokens else []
        lines += [f"  rows: {counts_text(one.rows)}"] if one.rows else []
        versions = ", ".join(f"{name} {own}" for name, own in one.versions.items())
        lines += [f"  versions: {versions}"] if versions else []
        steps = [f"{own.sha256[:12]} {own.stage} {own.method}".rstrip() for own in one.lineage]
        lines += [f"  lineage: {' → '.join(steps)}"] if steps else []
        lines += [f"  registered as {', '.join(one.registered)}"] if one.registered else []
    return "\n".join(lines)


def counts_text(counts: Any) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def resumed_text(result: Any) -> str:
    """The job, or the end of its run if that was watched."""
    return run_text(result) if isinstance(result, RunResult) else job_text(result)


def sweep_text(result: Any) -> str:
    """The trials of a sweep as a table, with its steps and its best; or the chain of the best alone."""
    if result.best_chain:
        return str(result.best_chain).rstrip()
    paths = sorted({path for trial in result.trials for path in trial.params})
    rows = []
    for one in result.trials:
        measured = [step for step in result.rungs if step in one.found]
        rung = f"{measured[-1]}" if measured else "-"
        last = one.value if one.value is not None else one.found.get(measured[-1]) if measured else None
        values = [short(one.params[path]) for path in paths]
        mark = " *" if result.best is not None and one.number == result.best.number else ""
        state = f"{one.state.value}{mark}" + (f": {one.code}" if one.code else "")
        rows.append([str(one.number), *values, rung, str(one.steps), "-" if last is None else f"{last:.4f}", state])
    header = ("trial", *(path.rpartition(".")[2] for path in paths), "rung", "steps", result.metric, "state")
    lines = [table(rows, header)] if rows else []
    if result.plot and rows:
        lines.append(draw_trials(result))
    return "\n".join([*lines, sweep_line(result)])


def short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def sweep_line(result: Any) -> str:
    """One sweep in one line."""
    share = f" ({result.num_steps / result.num_whole_steps:.0%} of whole trainings)" if result.num_whole_steps else ""
    best = f", best {result.metric} {result.best.value:.4f} (trial {result.best.number})" if result.best else ""
    over = sum(one.state.is_over for one in result.trials)
    state = "running" if result.is_running else "done" if over == result.num_trials else "not running"
    count = f"{len(result.trials)} of {result.num_trials} trials"
    return f"{result.name}: {state}, {count}, {result.num_steps:,} steps{share}{best}"


def sweeps_text(result: Any) -> str:
    return "\n".join(map(sweep_line, result.sweeps)) if result.sweeps else "no sweeps yet"


def draw_trials(result: Any) -> str:
    """The metric of every trial by step: where curves end, trials were stopped."""
    curves = {}
    for one in result.trials:
        points = dict(one.found) | ({one.steps: one.value} if one.value is not None else {})
        curves[str(one.number)] = sorted(points.items())
    return draw_lines(curves, x="step", y=result.metric)
