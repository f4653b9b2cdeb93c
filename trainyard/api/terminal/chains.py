"""Checks, plans, runs, comparisons, scripts and imported configs as text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from trainyard.api.terminal.tables import paragraph, table
from trainyard.api.terminal.text import draw_curves, message_text, next_lines, short_reason
from trainyard.loading import load
from trainyard.stores.live.job_ids import given_name

LONGEST = 44
"""Characters of a setting's value in the table; `--json` has all of it."""


def check_text(result: Any) -> str:
    lines = []
    for one in result.files:
        lines += [f"{one.file}: ok, {one.nodes} nodes, digest {one.digest[:12]}"] if one.ok else []
        lines += [f"{one.file}: {note}" for note in one.notes]
        lines += [f"{one.file}: {reason['line']}" for reason in one.reasons]
    return "\n".join(lines)


def node_table(nodes: Sequence[Any]) -> list[str]:
    """How the nodes ended, as one text; none where there are no nodes."""
    rows = [(node.id, node.state.value, f"{node.seconds:.1f}", short_reason(node.message)) for node in nodes]
    return [table(rows, ("node", "state", "seconds", "result"))] if rows else []


def run_text(result: Any) -> str:
    lines = [
        *node_table(result.nodes),
        message_text(f"{result.name}: {result.state_text}. {result.message}"),
        result.url,
    ]
    return "\n".join([*lines, *next_lines(result.next)])


def plan_text(result: Any) -> str:
    """Format the plan as a table, then each node's estimate with its basis, then the reasons against a run."""
    header = ("node", "type", "takes", "result", "rows", "tokens", "steps", "memory", "time")
    lines = [f"chain {result.chain}, digest {result.digest[:12]}, tenant {result.tenant}"]
    lines.append(table([plan_row(node) for node in result.nodes], header))
    lines += [f"{one.node}: {line}" for one in result.decisions for line in one.lines()]
    lines += [f"{node.id}: {'; '.join(node.estimate.basis)}" for node in result.nodes if node.estimate.basis]
    lines += [f"{node.id}: {choices_line(node.choices)}" for node in result.nodes if node.choices]
    lines += [f"{node.id}: {text}" for node in result.nodes for text in role_lines(node)]
    lines += [f"{node.id}: note: {text}" for node in result.nodes for text in node.advice]
    return "\n".join([*lines, *(refusal["line"] for refusal in result.refusals)])


def choices_line(choices: dict[str, str]) -> str:
    """`decided on this machine: device cpu, precision fp32 (…), threads 2`."""
    return f"decided on this machine: {', '.join(f'{name} {value}' for name, value in choices.items())}"


def role_lines(node: Any) -> list[str]:
    """What a deployer makes, and what an evaluator compares the candidate with."""
    config = node.config
    if node.type == "deployer":
        few = "; few rows are allowed" if config.get("few_rows") == "allow" else ""
        return [f"makes the next version of {config['tenant']}/{config['role']}, live if it is better{few}"]
    if node.type == "evaluator" and config["baseline"] != "base":
        also = "the base and " if config["baseline"] == "both" else ""
        return [f"compares with {also}what is live on role {config['role']}"]
    return []


def plan_row(node: Any) -> list[str]:
    given = node.estimate
    devices = "" if given.devices == 1 else f"{given.devices} x "
    return [
        node.id,
        node.type,
        ", ".join(source for sources in node.takes.values() for source in sources) or "-",
        "reused" if node.reused else "problem" if node.problem else "to make",
        "?" if given.rows is None else f"{given.rows:,}",
        "-" if given.tokens is None else f"{given.tokens:,}",
        "-" if given.steps is None else f"{given.steps:,}",
        "-" if given.memory_bytes is None else f"{devices}{given.memory_bytes / 2**30:.2f} GiB",
        time_cell(node),
    ]


def time_cell(node: Any) -> str:
    """The time of a trainer: measured, or that it is not."""
    if node.estimate.seconds is not None:
        return f"{node.estimate.seconds:,.0f} s"
    return "not measured" if node.type == "trainer" and not node.reused else "-"


def eject_text(result: Any) -> str:
    return f"{result.folder}: train.py, spec.json and {result.rows:,} rows\nRun it: {result.command}"


def import_text(result: Any) -> str:
    if result.folder:
        lines = [line for one in result.files for line in (file_line(one), *(key_lines(one) if result.report else ()))]
        return "\n".join([*lines, total_line(result.files)])
    (one,) = result.files
    if result.report:
        return "\n".join([*key_lines(one), counts_text(one.counts)])
    return f"{one.out}: {counts_text(one.counts)}" if one.out else str(one.chain).rstrip()


def file_line(one: Any) -> str:
    """`config.yaml: axolotl, 40 mapped, 9 noted, 0 refused -> chains/config.yaml`."""
    if one.skipped:
        return f"{one.file}: skipped: {one.problem}"
    if not one.tool:
        return f"{one.file}: {one.problem}"
    end = f" -> {one.out}" if one.out else f"; {one.problem}" if one.problem else ""
    return f"{one.file}: {one.tool}, {counts_text(one.counts)}{end}"


def key_lines(one: Any) -> list[str]:
    rows = [(row.status.value, row.key, row.value, row.ours, f"{row.because} {row.do}".strip()) for row in one.keys]
    return [table(rows, ("", "key", "value", "here", "why"))]


def counts_text(counts: Any) -> str:
    return ", ".join(f"{count} {status.value}" for status, count in counts.items())


def total_line(files: Any) -> str:
    done = sum(bool(one.chain) for one in files)
    skipped = sum(one.skipped for one in files)
    return f"{done} of {len(files) - skipped} configs became chains; {skipped} files are not configs of trainings."


def export_text(result: Any) -> str:
    return f"{result.out}: written" if result.out else str(result.text).rstrip()


def comparison_text(result: Any) -> str:
    """Settings that differ, then of two trainings metrics, benchmarks, answers and, if wanted, the curves."""
    if not result.sides:
        rows = [[one.name, *map(cell, one.values)] for one in result.settings]
        settings = table(rows, ("setting", *result.jobs)) if rows else "their settings are the same"
        return f"{settings}\n\n{result.left_out}"
    first, second = names = side_names(result.sides)
    sides = [[name, one.name, one.state, one.adapter_sha256] for name, one in zip(names, result.sides, strict=True)]
    parts = [table(sides, ("training", "run", "state", "adapter"))]
    rows = [[one.name, *map(cell, one.values)] for one in result.settings]
    parts.append(table(rows, ("setting", first, second)) if rows else "No setting differs.")
    parts.append(table([[one.name, cell(one.first), cell(one.second)] for one in result.metrics],
                       ("metric", first, second)))  # fmt: skip
    if result.benchmarks:
        parts.append(table([benchmark_row(one) for one in result.benchmarks],
                           ("benchmark", first, second, "improvement", "better / worse / rows")))  # fmt: skip
    else:
        parts.append("No benchmark is in the reports of both.")
    for one in result.samples:
        parts.append(f"prompt: {one.prompt}\nright answer: {one.gold}\n{first}: {one.first}\n{second}: {one.second}")
    drawn = {name: side.curve for name, side in zip(names, result.sides, strict=True) if side.curve}
    if result.plot:
        parts.append(draw_curves(drawn) if drawn else "Neither has a curve: their trainings ran elsewhere.")
    return "\n\n".join(parts)


def side_names(sides: Sequence[Any]) -> list[str]:
    """Return a name for each of two trainings: that of its job, with the digest, the trainer or the run if needed."""
    trainers = len({side.trainer for side in sides}) > 1
    for runs in ([given_name(side.name) for side in sides], [side.name for side in sides]):
        names = [f"{run}/{side.trainer}" if trainers else run for run, side in zip(runs, sides, strict=True)]
        if len(set(names)) == len(names) and len(set(runs)) == len({side.run for side in sides}):
            return names
    return [f"{side.run[:8]}/{side.trainer}" for side in sides]


def benchmark_row(one: Any) -> list[str]:
    interval = "" if one.low is None else f" [{one.low:+.4f}, {one.high:+.4f}]"
    gain = "not paired: other rows" if one.improvement is None else f"{one.improvement:+.4f}{interval}"
    counts = f"{one.better} / {one.worse} / {one.rows}"
    return [f"{one.name} ({one.metric})", f"{one.first:.4f}", f"{one.second:.4f}", gain, counts]


def cell(value: Any) -> str:
    text = "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def templates_text(result: Any) -> str:
    """Every template with its nodes, or one with its parameters."""
    rows = [(one.name, " → ".join(one.nodes), one.description) for one in result.templates]
    parts = [part for one in result.templates for part in section_texts(one.parameters)]
    return "\n\n".join([table(rows, ("template", "nodes", "what it does")), *parts])


def schema_text(result: Any) -> str:
    """The settings of a model, or where none was named, the names of all."""
    if not any(one.rows for one in result.sections):
        return table([(one.path, one.text) for one in result.sections], ("name", "what it is"))
    return "\n\n".join(section_texts(result.sections))


def section_texts(sections: Sequence[Any]) -> list[str]:
    """One text for each model: its path, what it is, and a table of its settings."""
    header = ("setting", "type", "range", "default", "what it is")
    found = []
    for one in sections:
        words = " ".join(one.text.split())
        rows = [(row.name, row.type, row.limits, row.default, " ".join(row.text.split())) for row in one.rows]
        head = paragraph(f"{one.path}: {words}" if words else one.path)
        found.append("\n".join([head, table(rows, header)]))
    return found


# Stored chains


def stored_chains_text(result: Any) -> str:
    rows = [
        (one.name, one.id, str(one.revision), one.digest[:12], str(one.nodes), one.tenant, one.author)
        for one in result.chains
    ]
    shown = table(rows, ("name", "id", "revision", "digest", "nodes", "tenant", "author")) if rows else "No chains."
    rest = result.total - len(result.chains)
    return f"{shown}\n{len(rows)} of {result.total}" if rest else shown


def stored_chain_text(result: Any) -> str:
    """A stored chain: its revisions, whether it would run here, and its file."""
    lines = [
        f"{result.name} ({result.id}), revision {result.revision}, etag {result.etag}, digest {result.digest[:12]}"
    ]
    if result.check is not None:
        lines += ["It would run here now."] if result.check.ok else ["It would not run here now:"]
        lines += [reason["line"] for reason in result.check.reasons] + list(result.check.notes)
        return "\n".join(lines)
    rows = [(str(one.revision), one.digest[:12], minute_text(one.created), one.author) for one in result.revisions]
    header = ("revision", "digest", "stored", "author")
    if result.last_run is not None:
        last = result.last_run
        lines += [f"last run: {last.id}, revision {last.revision}, {last.state.value}"]
    return "\n".join([*lines, table(rows, header), "", *body_lines(result.body)])


def minute_text(when: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(when))


def body_lines(body: Any) -> list[str]:
    """A stored chain as its file has it."""
    dump = load("yaml:safe_dump")
    return str(dump(body, sort_keys=False, allow_unicode=True)).rstrip().splitlines()


def deleted_chain_text(result: Any) -> str:
    return f"{result.name} ({result.id}): deleted with {result.revisions} revisions"


def chain_runs_text(result: Any) -> str:
    rows = [
        (one.name, one.id, str(one.revision), f"{one.state.value} {one.detail}".strip(), f"{one.seconds:.1f}")
        for one in result.runs
    ]
    return table(rows, ("run", "id", "revision", "state", "seconds")) if rows else f"{result.name} has no runs."
