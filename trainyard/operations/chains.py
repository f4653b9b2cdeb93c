"""Chains: check, plan, run, store, edit, import and export. Requests, texts and rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from trainyard.json_types import JsonObject
from trainyard.loading import load_object
from trainyard.operations.base import Nothing, Parameters, Request
from trainyard.operations.fields import Argument, Option
from trainyard.operations.table import Operation, Scope
from trainyard.operations.tables import format_table, message_text, next_lines, paragraph, short_reason

if TYPE_CHECKING:
    from trainyard.app.chains.describe import ShownSchema, TemplateRows
    from trainyard.app.chains.drafts import ExpandedChain, LinkAnswers, Palette
    from trainyard.app.chains.eject import EjectOutput
    from trainyard.app.chains.other_tools import ExportOutput, ImportOutput
    from trainyard.app.chains.stored import ChainDetail, ChainList, DeletedChain, RevisionDiff, RunsOfChain
    from trainyard.app.plan.check import CheckOutput
    from trainyard.app.plan.plan import ChainPlan

ChainText = dict[str, Any]
"""A chain or a job as a mapping, as its file has it: what a program gives in place of a file."""
GROUP_NAME = r"^([a-z0-9][a-z0-9._-]{0,62})?$"
Group = Annotated[str, Field(pattern=GROUP_NAME, description="Group of runs, to list and compare them.")]
Watch = Annotated[bool, Option("-w", "--watch", local=True), Field(description="Follow the run to its end.")]
Refresh = Annotated[
    bool, Option("--refresh/--no-refresh"), Field(description="Make every result again, also those that are finished.")
]
RefreshFrom = Annotated[
    str | None,
    Option("--refresh-from"),
    Field(max_length=100, description="Make the results of this node and of all after it again."),
]
FewRows = Annotated[
    bool,
    Option("-y", "--yes"),
    Field(description="Train also on fewer rows than were requested, or than a verdict needs."),
]
Tags = Annotated[tuple[str, ...], Option("--tag"), Field(description="A tag for the run; may be repeated.")]
PARAMETERS = "A parameter; dots reach inside."
PRESET_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$"
CHAIN_CHARS = 100
"""Longest name or id of a stored chain."""
PRESET = "Parameters from deployments/presets; -p wins over them."


class CheckInput(Request):
    files: Annotated[tuple[Path | ChainText, ...], Argument("FILE")] = Field(min_length=1)


class PlanInput(Request):
    target: Annotated[str | ChainText, Argument("TEMPLATE|FILE", is_file=True, completes="template")] = Field(
        description="A template's name, or a chain or job file."
    )
    parameters: Parameters = Field({}, description=PARAMETERS)
    preset: Annotated[str | None, Option(completes="preset")] = Field(None, pattern=PRESET_NAME, description=PRESET)
    measure: Annotated[bool, Option(local=True)] = Field(
        False, description="Train ten steps of each trainer first, to know its time."
    )


class RunInput(Request):
    target: Annotated[str | ChainText, Argument("TEMPLATE|FILE|RUN", is_file=True, completes="template or run")] = (
        Field(description="A template, a chain or job file, or an ended run.")
    )
    parameters: Parameters = Field({}, description=PARAMETERS)
    preset: Annotated[str | None, Option(completes="preset")] = Field(None, pattern=PRESET_NAME, description=PRESET)
    watch: Watch = False
    refresh: Refresh = False
    refresh_from: RefreshFrom = None
    yes: FewRows = False
    tags: Tags = ()
    group: Group = ""
    queue: str = Field(
        "", pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,62})?$",
        description="Work queue of the pool, such as that of a rented machine; default: the deployment's.",
    )  # fmt: skip


class EjectInput(Request):
    target: Annotated[str, Argument("JOB", is_file=True, completes="template or run")] = Field(
        description="A job's name or id, a chain or job file, or a template."
    )
    node: str | None = Field(None, description="Which trainer, if there are several.")
    into: Path | None = Field(None, description="Folder to write; default: <trainer>-script here.")


class TemplatesInput(Request):
    name: Annotated[str | None, Argument("NAME", completes="template")] = Field(
        None, description="Only this one, with its parameters."
    )


class SchemaInput(Request):
    name: Annotated[str | None, Argument("NAME", completes="schema")] = Field(
        None, description="chain, a node's type, a template, job, night, sweep or settings; default: list the names."
    )


# Configs of other tools

ToolName = Literal["axolotl", "llamafactory", "trl", "unsloth", "oumi", "torchtune"]


class ImportInput(Request):
    source: Annotated[Path, Argument("FILE|DIR")] = Field(description="A config, or a folder of configs.")
    tool: Annotated[ToolName | None, Option("--from")] = Field(None, description="Whose it is; default: by its keys.")
    settings: Annotated[JsonObject, Option("--set")] = Field(
        {}, description="A trainer's setting, or data_source.path; dots reach inside."
    )
    without: Annotated[tuple[str, ...], Option("--without")] = Field(
        (), description="A key that is left out; may be repeated."
    )
    out: Annotated[Path | None, Option("-o", "--out")] = Field(
        None, description="File to write, or folder for a folder; default: print."
    )
    report: Annotated[bool, Option("--report")] = Field(False, description="Print what became of every key.")


class ExportConfigInput(Request):
    target: Annotated[str, Argument("CHAIN", is_file=True)] = Field(description="A chain or job file, or a template.")
    to: Literal["axolotl", "llamafactory", "skypilot", "kubeflow"] = Field(
        description="The tool; skypilot and kubeflow run the whole chain elsewhere."
    )
    node: str | None = Field(None, description="Which trainer, if there are several.")
    gpu: str = Field("", max_length=64, pattern=r"^[A-Za-z0-9._-]*$", description="Name of the GPU for skypilot.")
    out: Annotated[Path | None, Option("-o", "--out")] = Field(None, description="File to write; default: print.")


# Stored chains


class StoredName(Request):
    chain: Annotated[str, Argument("CHAIN", completes="chain")] = Field(
        min_length=1, max_length=CHAIN_CHARS, description="Id of a stored chain, or its name where only one has it."
    )


class StoredChainsInput(Request):
    name: str | None = Field(None, max_length=100, description="Only chains whose name contains this.")
    limit: int = Field(50, ge=1, le=1000, description="Maximum number of results.")
    offset: int = Field(0, ge=0, le=10**9, description="Number of results to skip, newest first.")


Body = Annotated[ChainText, Option("--set")]
BODY = "Keys that are laid over the file's, or a whole chain."


class StoreChainInput(Request):
    file: Annotated[Path | None, Argument("FILE", local=True)] = Field(
        None, description="A chain, a job, or the call of a template, as YAML or JSON."
    )
    spec: Body = Field({}, description=BODY)


class UpdateChainInput(StoredName):
    file: Annotated[Path | None, Argument("FILE", local=True)] = Field(None, description="The chain as it shall be.")
    spec: Body = Field({}, description=BODY)
    if_match: str = Field("", max_length=200, description="ETag of the revision that was edited; refused without it.")


class ShowChainInput(StoredName):
    revision: int | None = Field(None, ge=1, le=10**9, description="Default: the newest.")


class RunChainInput(StoredName):
    revision: int | None = Field(None, ge=1, le=10**9, description="Default: the newest.")
    parameters: Parameters = Field({}, description="Of the call of a template that is stored; dots reach inside.")
    watch: Watch = False
    refresh: Refresh = False
    refresh_from: RefreshFrom = None
    yes: FewRows = False
    tags: Tags = ()
    group: Group = ""


class ChainRunsInput(StoredName):
    limit: int = Field(50, ge=1, le=1000, description="Maximum number of results.")
    offset: int = Field(0, ge=0, le=10**9, description="Number of results to skip, newest first.")


MOST_TEXT = 1 << 20


class ExpandInput(Request):
    target: Annotated[str | ChainText | None, Argument("TEMPLATE|FILE", is_file=True, completes="template")] = Field(
        None, description="A template's name, or a chain or job file."
    )
    parameters: Parameters = Field({}, description=PARAMETERS)
    text: str = Field("", max_length=MOST_TEXT, description="A chain or a job as YAML or JSON, in place of a file.")


class LinksInput(Request):
    target: Annotated[str | ChainText, Argument("TEMPLATE|FILE", is_file=True, completes="template")] = Field(
        description="The chain, which need not be valid."
    )
    node: Annotated[str, Argument("NODE")] = Field(
        min_length=1, max_length=200, description="Id of the node at which the link begins."
    )


class DiffInput(StoredName):
    before: int = Field(ge=1, le=10**9, description="Revision.")
    after: int | None = Field(None, ge=1, le=10**9, description="Revision; default: the newest.")


def check_text(result: CheckOutput) -> str:
    lines = []
    for file in result.files:
        lines += [f"{file.file}: ok, {file.nodes} nodes, digest {(file.digest or '')[:12]}"] if file.ok else []
        lines += [f"{file.file}: {note}" for note in file.notes]
        lines += [f"{file.file}: a run would be refused without --yes: {reason['line']}" for reason in file.questions]
        lines += [f"{file.file}: {reason['line']}" for reason in file.reasons]
    return "\n".join(lines)


def node_table(nodes: Sequence[Any]) -> list[str]:
    """Return how the nodes ended, as one text; none where there are no nodes."""
    rows = [(node.id, node.state.value, f"{node.seconds:.1f}", short_reason(node.message)) for node in nodes]
    return [format_table(rows, ("node", "state", "seconds", "result"))] if rows else []


def run_text(result: Any) -> str:
    lines = [
        *node_table(result.nodes),
        message_text(f"{result.name}: {result.state_text}. {result.message}"),
        *([f"cost: {result.cost.text}"] if result.cost is not None else []),
        result.url,
    ]
    return "\n".join([*lines, *next_lines(result.next)])


def plan_text(result: ChainPlan) -> str:
    """Format the plan as a table, then each node's estimate with its basis, then the reasons against a run."""
    header = ("node", "type", "takes", "result", "rows", "tokens", "steps", "memory", "time")
    lines = [f"chain {result.chain}, digest {result.digest[:12]}, tenant {result.tenant}"]
    lines.append(format_table([plan_row(node) for node in result.nodes], header))
    lines += list_cost_lines(result)
    lines += [f"{decision.node}: {line}" for decision in result.decisions for line in decision.lines()]
    lines += [f"{node.id}: {'; '.join(node.estimate.basis)}" for node in result.nodes if node.estimate.basis]
    lines += [f"{node.id}: {choices_line(node.choices)}" for node in result.nodes if node.choices]
    lines += [f"{node.id}: {text}" for node in result.nodes for text in role_lines(node)]
    lines += [f"{node.id}: note: {text}" for node in result.nodes for text in node.advice]
    return "\n".join([*lines, *(refusal["line"] for refusal in result.refusals)])


def list_cost_lines(result: Any) -> list[str]:
    """Return the estimated cost of each training with its price, and of all with the chain's limit."""
    lines = [
        f"{node.id}: price {node.price.text}" + (f", about {node.cost.usd} USD" if node.cost is not None else "")
        for node in result.nodes
        if node.price is not None
    ]
    limit = "" if result.max_spend is None else f"; the run may spend {result.max_spend} USD"
    total = "not known yet" if result.cost is None else f"about {result.cost.usd} USD"
    return [*lines, f"cost: {total}{limit}"] if result.cost is not None or limit else lines


def choices_line(choices: dict[str, str]) -> str:
    """`decided on this machine: device cpu, precision fp32 (…), threads 2`."""
    return f"decided on this machine: {', '.join(f'{name} {value}' for name, value in choices.items())}"


def role_lines(node: Any) -> list[str]:
    """Return what a deployer makes, and what an evaluator compares the candidate with."""
    config = node.config
    if node.type == "deployer":
        few = "; few rows are allowed" if config.get("few_rows") == "allow" else ""
        return [f"makes the next version of {config['tenant']}/{config['role']}, live if it is better{few}"]
    if node.type == "evaluator" and config["baseline"] != "base":
        also = "the base and " if config["baseline"] == "both" else ""
        return [f"compares with {also}what is live on role {config['role']}"]
    return []


def plan_row(node: Any) -> list[str]:
    estimate = node.estimate
    devices = "" if estimate.devices == 1 else f"{estimate.devices} x "
    return [
        node.id,
        node.type,
        ", ".join(source for sources in node.takes.values() for source in sources) or "-",
        "reused" if node.reused else "problem" if node.problem else "to make",
        "?" if estimate.rows is None else f"{estimate.rows:,}",
        "-" if estimate.tokens is None else f"{estimate.tokens:,}",
        "-" if estimate.steps is None else f"{estimate.steps:,}",
        "-" if estimate.memory_bytes is None else f"{devices}{estimate.memory_bytes / 2**30:.2f} GiB",
        time_cell(node),
    ]


def time_cell(node: Any) -> str:
    """Return the time of a trainer: measured, or that it is not."""
    if node.estimate.seconds is not None:
        return f"{node.estimate.seconds:,.0f} s"
    return "not measured" if node.type == "trainer" and not node.reused else "-"


def eject_text(result: EjectOutput) -> str:
    return f"{result.folder}: train.py, spec.json and {result.rows:,} rows\nRun it: {result.command}"


def import_text(result: ImportOutput) -> str:
    if result.folder:
        lines = [
            line for file in result.files for line in (file_line(file), *(key_lines(file) if result.report else ()))
        ]
        return "\n".join([*lines, total_line(result.files)])
    (file,) = result.files
    if result.report:
        return "\n".join([*key_lines(file), counts_text(file.counts)])
    return f"{file.out}: {counts_text(file.counts)}" if file.out else str(file.chain).rstrip()


def file_line(file: Any) -> str:
    """`config.yaml: axolotl, 40 mapped, 9 noted, 0 refused -> chains/config.yaml`."""
    if file.skipped:
        return f"{file.file}: skipped: {file.problem}"
    if not file.tool:
        return f"{file.file}: {file.problem}"
    end = f" -> {file.out}" if file.out else f"; {file.problem}" if file.problem else ""
    return f"{file.file}: {file.tool}, {counts_text(file.counts)}{end}"


def key_lines(file: Any) -> list[str]:
    rows = [(row.status.value, row.key, row.value, row.ours, f"{row.because} {row.do}".strip()) for row in file.keys]
    return [format_table(rows, ("", "key", "value", "here", "why"))]


def counts_text(counts: Any) -> str:
    return ", ".join(f"{count} {status.value}" for status, count in counts.items())


def total_line(files: Any) -> str:
    done = sum(bool(file.chain) for file in files)
    skipped = sum(file.skipped for file in files)
    return f"{done} of {len(files) - skipped} configs became chains; {skipped} files are not configs of trainings."


def export_text(result: ExportOutput) -> str:
    return f"{result.out}: written" if result.out else str(result.text).rstrip()


def templates_text(result: TemplateRows) -> str:
    """Return every template with its nodes, or one with its parameters."""
    rows = [(template.name, " → ".join(template.nodes), template.description) for template in result.templates]
    parts = [part for template in result.templates for part in section_texts(template.parameters)]
    return "\n\n".join([format_table(rows, ("template", "nodes", "what it does")), *parts])


def schema_text(result: ShownSchema) -> str:
    """Return the settings of a model, or where none was named, the names of all."""
    if not any(section.rows for section in result.sections):
        return format_table([(section.path, section.text) for section in result.sections], ("name", "what it is"))
    return "\n\n".join(section_texts(result.sections))


def section_texts(sections: Sequence[Any]) -> list[str]:
    """Return one text for each model: its path, what it is, and a table of its settings."""
    header = ("setting", "type", "range", "default", "what it is")
    section_texts = []
    for section in sections:
        text = " ".join(section.text.split())
        rows = [(row.name, row.type, row.limits, row.default, " ".join(row.text.split())) for row in section.rows]
        head = paragraph(f"{section.path}: {text}" if text else section.path)
        section_texts.append("\n".join([head, format_table(rows, header)]))
    return section_texts


# Stored chains


def stored_chains_text(result: ChainList) -> str:
    rows = [
        (chain.name, chain.id, str(chain.revision), chain.digest[:12], str(chain.nodes), chain.tenant, chain.author)
        for chain in result.chains
    ]
    chains_table = (
        format_table(rows, ("name", "id", "revision", "digest", "nodes", "tenant", "author")) if rows else "No chains."
    )
    rest = result.total - len(result.chains)
    return f"{chains_table}\n{len(rows)} of {result.total}" if rest else chains_table


def stored_chain_text(result: ChainDetail) -> str:
    """Return a stored chain: its revisions, whether it would run here, and its file."""
    lines = [
        f"{result.name} ({result.id}), revision {result.revision}, etag {result.etag}, digest {result.digest[:12]}"
    ]
    if result.check is not None:
        lines += ["It would run here now."] if result.check.ok else ["It would not run here now:"]
        lines += [reason["line"] for reason in result.check.reasons] + list(result.check.notes)
        return "\n".join(lines)
    rows = [
        (str(revision.revision), revision.digest[:12], minute_text(revision.created), revision.author)
        for revision in result.revisions
    ]
    header = ("revision", "digest", "stored", "author")
    if result.last_run is not None:
        last = result.last_run
        lines += [f"last run: {last.id}, revision {last.revision}, {last.state.value}"]
    return "\n".join([*lines, format_table(rows, header), "", *body_lines(result.body)])


def minute_text(when: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(when))


def body_lines(body: Any) -> list[str]:
    """Return a stored chain as its file has it."""
    dump = load_object("yaml:safe_dump")
    return str(dump(body, sort_keys=False, allow_unicode=True)).rstrip().splitlines()


def deleted_chain_text(result: DeletedChain) -> str:
    return f"{result.name} ({result.id}): deleted with {result.revisions} revisions"


def chain_runs_text(result: RunsOfChain) -> str:
    rows = [
        (run.name, run.id, str(run.revision), f"{run.state.value} {run.detail}".strip(), f"{run.seconds:.1f}")
        for run in result.runs
    ]
    return format_table(rows, ("run", "id", "revision", "state", "seconds")) if rows else f"{result.name} has no runs."


LONGEST_VALUE = 60


def palette_text(result: Palette) -> str:
    rows = [(node.type, node.text) for node in result.nodes]
    ports = [(port.port.value, port.group) for port in result.ports]
    return "\n\n".join([format_table(rows, ("node", "what it does")), format_table(ports, ("port", "group"))])


def expanded_text(result: ExpandedChain) -> str:
    """Return the chain as a file has it, with its problems as comments."""
    lines = [f"# {line}" for reason in result.check.reasons for line in reason["line"].splitlines()]
    return "\n".join([*lines, result.text.rstrip()])


def links_text(result: LinkAnswers) -> str:
    rows = [
        (f"{result.node}.{link.port.value}", link.target, "linked" if link.linked else "yes" if link.allowed else "no",
         f"{link.code}: {link.because} Instead: {link.instead}" if link.code else "")
        for link in result.links
    ]  # fmt: skip
    return format_table(rows, ("from", "to", "may be linked", "why not")) if rows else f"{result.node} leads nowhere."


def difference_text(result: RevisionDiff) -> str:
    rows = [(change.name, format_value(change.before), format_value(change.after)) for change in result.changes]
    header = ("setting", f"revision {result.before}", f"revision {result.after}")
    return format_table(rows, header) if rows else f"{result.name}: the revisions do not differ."


def format_value(value: Any) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"


def nodes_text(result: Any) -> str:
    rows = [
        (node.id, node.type, node.state.value, "-" if node.fraction is None else f"{node.fraction:.0%}",
         f"{node.seconds:.1f}", short_reason(node.message))
        for node in result.nodes
    ]  # fmt: skip
    head = message_text(f"{result.name} ({result.id}): {result.state.value}. {result.message}")
    return (
        "\n".join([head, format_table(rows, ("node", "type", "state", "done", "seconds", "result"))]) if rows else head
    )


def node_text(result: Any) -> str:
    lines = [message_text(f"{result.id} ({result.type}): {result.state.value}.\n{result.message}".rstrip())]
    lines += [
        f"{port.value}: {output.rows if output.rows is not None else '-'} rows, {output.bytes:,} bytes, {output.uri}"
        for port, output in result.outputs.items()
    ]
    lines += [f"{time.strftime('%H:%M:%S', time.localtime(line.time))} {line.text}" for line in result.lines]
    return "\n".join(lines)


READ, RUN, ADMIN = Scope

ROWS: dict[str, Operation] = {
    "check": Operation(
        "Say whether chain files would run, with all reasons at once; nothing is started.",
        request=CheckInput, run="app.plan.check:check", text=check_text, scope=READ,
        tenants=True, confined=True,
    ),
    "plan": Operation(
        "Show what a run would do: resolved config, order, reused results, sizes, times; nothing is started.",
        request=PlanInput, run="app.plan.plan:plan", text=plan_text, scope=READ,
        tenants=True, heavy=True, confined=True,
    ),
    "run": Operation(
        "Start a template or a file, or continue a run by its id; with --watch, follow it to its end.",
        request=RunInput, run="app.chains.run:run", text=run_text, scope=RUN,
        route="POST /api/v1/runs", status=202, tenants=True,
    ),
    "templates": Operation(
        "The templates with their nodes; with a name, its parameters: type, range, default, meaning.",
        request=TemplatesInput, run="app.chains.describe:show_templates", text=templates_text, scope=READ,
        route="GET /api/v1/chains/templates", tenants=True,
    ),
    "chains list": Operation(
        "The stored chains, the newest first: name, id, revision and digest.",
        request=StoredChainsInput, run="app.chains.stored:list_chains", text=stored_chains_text, scope=READ,
        route="GET /api/v1/chains", tenants=True,
    ),
    "chains create": Operation(
        "Store a chain, a job or the call of a template as revision 1 of a chain of its own, if it is valid.",
        request=StoreChainInput, run="app.chains.stored:create_chain", text=stored_chain_text, scope=RUN,
        example="trainyard chains create chain.yaml",
        route="POST /api/v1/chains", status=201, tenants=True, body="spec",
        body_schema="app.plan.parse:ChainBody",
    ),
    "chains show": Operation(
        "A stored chain as it was written, with its revisions.",
        request=ShowChainInput, run="app.chains.stored:show_chain", text=stored_chain_text, scope=READ,
        route="GET /api/v1/chains/{chain}", tenants=True,
    ),
    "chains update": Operation(
        "Store a new revision of a chain; concurrent changes are shown, and not overwritten.",
        request=UpdateChainInput, run="app.chains.stored:update_chain", text=stored_chain_text, scope=RUN,
        example="trainyard chains update guide chain.yaml --if-match 3-1f2e3d4c5b6a",
        route="PUT /api/v1/chains/{chain}", tenants=True, body="spec", body_schema="app.plan.parse:ChainBody",
    ),
    "chains delete": Operation(
        "Remove a stored chain with all its revisions; refused while a run of it has not ended.",
        request=StoredName, run="app.chains.stored:delete_chain", text=deleted_chain_text, scope=RUN,
        route="DELETE /api/v1/chains/{chain}", tenants=True,
    ),
    "chains run": Operation(
        "Start a run of a stored chain, by default of its newest revision; with --watch, follow it to its end.",
        request=RunChainInput, run="app.chains.stored:run_chain", text=run_text, scope=RUN,
        route="POST /api/v1/chains/{chain}/run", status=202, tenants=True,
    ),
    "chains runs": Operation(
        "The runs of a stored chain, the newest first, each with its revision.",
        request=ChainRunsInput, run="app.chains.stored:list_chain_runs", text=chain_runs_text, scope=READ,
        route="GET /api/v1/chains/{chain}/runs", tenants=True,
    ),
    "chains palette": Operation(
        "What chains are made of: the types of nodes with the schemas of their settings, and the ports.",
        request=Nothing, run="app.chains.drafts:show_palette", text=palette_text, scope=READ,
        route="GET /api/v1/chains/palette", tenants=True,
    ),
    "chains expand": Operation(
        "A template, file or draft as a whole chain: ids, links and settings written out, and its problems.",
        request=ExpandInput, run="app.chains.drafts:expand", text=expanded_text, scope=READ,
        example="trainyard chains expand qa-pipeline -p documents=docs > chain.yaml",
        tenants=True, confined=True,
    ),
    "chains links": Operation(
        "Where a link from a node of a chain may lead: for each port and node yes, or why not.",
        request=LinksInput, run="app.chains.drafts:show_links", text=links_text, scope=READ,
        tenants=True, confined=True,
    ),
    "chains diff": Operation(
        "The settings in which two revisions of a stored chain differ.",
        request=DiffInput, run="app.chains.stored:show_difference", text=difference_text, scope=READ,
        example="trainyard chains diff guide --before 1",
        route="GET /api/v1/chains/{chain}/diff", tenants=True,
    ),
    "schema": Operation(
        "The settings of a node, template, job, night or the machine; with --json, the JSON Schema for an editor.",
        request=SchemaInput, run="app.chains.describe:show_schema", text=schema_text, scope=READ,
        example="trainyard schema trainer",
        route="GET /api/v1/schema", tenants=True,
    ),
    "eject": Operation(
        "Write a training as a folder of its own: a plain script to edit and run by hand, its spec and its rows.",
        request=EjectInput, run="app.chains.eject:eject", text=eject_text, scope=RUN,
        local="It writes a folder anywhere on this machine.",
    ),
    "import": Operation(
        "Write a config of Axolotl, LLaMA-Factory, TRL, Unsloth, Oumi or torchtune as a chain; no key is ignored.",
        request=ImportInput, run="app.chains.other_tools:import_configs", text=import_text, scope=RUN,
        local="It reads and writes files anywhere on this machine.",
    ),
    "export": Operation(
        "Write a trainer as a config of Axolotl or LLaMA-Factory, or a chain for SkyPilot or Kubeflow.",
        request=ExportConfigInput, run="app.chains.other_tools:export_chain", text=export_text, scope=RUN,
        local="It reads and writes files anywhere on this machine.",
    ),
}  # fmt: skip
"""Name -> row, in the order of the help."""
