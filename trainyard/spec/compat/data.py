"""Rows on what reaches a node, on generators and on validators."""

from __future__ import annotations

import re

from trainyard.spec.axes.data import DATA_PORTS, DataFormat, GenerationTemplate, GeneratorKind, Port
from trainyard.spec.compat.context import Match, NodeView, Row, When, join_words
from trainyard.spec.nodes import AiGeneratorConfig, DataSourceConfig, EvaluatorConfig, ValidatorConfig
from trainyard.spec.ports import ROW_PORTS
from trainyard.spec.repositories import parse_place
from trainyard.spec.training import TrainerConfig

REMOTE = re.compile(r"[a-z][a-z0-9+.-]*://|[\w.-]+@[\w.-]+:", re.IGNORECASE)
"""How the address of a repository elsewhere begins: `https://…`, `git@host:…`."""
REPOSITORY_FORMATS = (DataFormat.AUTO, DataFormat.DOCUMENTS)
"""Formats of a git repository: its commits and files are documents."""
MODEL_SETTINGS = (
    "temperature", "max_tokens", "concurrency", "retries", "timeout_s", "seed", "max_chars", "endpoint",
    "best_of",
)  # fmt: skip
"""Settings of a generator that shape the requests to a model."""


def data_missing(*ports: Port) -> When:
    """Return the node lacks its input, and these are what it wants."""

    def when(_: object, at: NodeView) -> Match:
        missing = at.view.missing.get(at.node.id)
        if missing is None or missing.needed != ports or missing.only_control:
            return False
        return {"offered": join_words(missing.offered) or "nothing"}

    return when


def two_sources(_: object, at: NodeView) -> Match:
    """Nodes that are equally near, with the ports that they share."""
    shared: dict[tuple[str, ...], list[str]] = {}
    for ambiguity in at.view.ambiguous.get(at.node.id, []):
        shared.setdefault(ambiguity.candidates, []).append(ambiguity.port.value)
    return [{"ports": join_words(ports), "nodes": " and ".join(map(repr, nodes))} for nodes, ports in shared.items()]


def own_output(config: AiGeneratorConfig, at: NodeView) -> Match:
    """Return the generator asks the role that this chain deploys."""
    role = "/".join((config.model or "").split("/")[:2])
    return role in {f"{tenant}/{name}" for tenant, name in at.view.roles} and {"role": role}


def unfit_format(config: DataSourceConfig, _: NodeView) -> Match:
    """Return each repository whose format is not documents."""
    return [
        {"where": where, "format": source.format}
        for where, _, source in config.named_sets()
        if source.repository and source.format not in REPOSITORY_FORMATS
    ]


def unfit_set(config: DataSourceConfig, _: NodeView) -> Match:
    """Return each repository whose set is named by another port than documents."""
    return [
        {"where": where, "port": port}
        for where, port, source in config.named_sets()
        if source.repository and port not in (None, Port.DOCUMENTS) and source.format in REPOSITORY_FORMATS
    ]


def misplaced_rows(config: DataSourceConfig, _: NodeView) -> Match:
    """Return each path that is no place in a repository of a data worker."""
    return [
        {"where": where, "path": source.path}
        for where, _, source in config.named_sets()
        if source.data_worker and parse_place(source.path or "") is None
    ]


def unread_by_engine(config: AiGeneratorConfig, _: NodeView) -> Match:
    """Return each setting that is not at its default and that this generator does not read."""
    readers: dict[str, str] = {}
    if config.engine is GeneratorKind.EXTRACTIVE and config.model is None:
        readers |= dict.fromkeys(MODEL_SETTINGS, "an engine that asks a model")
    elif config.engine in (GeneratorKind.LOCAL, GeneratorKind.VLLM):
        readers["endpoint"] = "engine openai"
    if config.template is not GenerationTemplate.QA:
        readers["wordings"] = "template qa"
    usual = AiGeneratorConfig()
    return [
        {"setting": name, "by": by} for name, by in readers.items() if getattr(config, name) != getattr(usual, name)
    ]


def remote_repository(config: DataSourceConfig, _: NodeView) -> Match:
    """Return each repository that is not a folder of this machine."""
    return [
        {"where": f"{where}repository", "repository": source.repository}
        for where, _, source in config.named_sets()
        if source.repository and REMOTE.match(source.repository)
    ]


def repeats_dropped(config: ValidatorConfig, at: NodeView) -> Match:
    """Return each set of a mixture whose repetitions the validator would drop as duplicates."""
    if not config.exact_duplicates and config.near_duplicates is None:
        return False
    return [
        {"source": node.id, "name": name, "epochs": rows.max_epochs}
        for node in {node.id: node for node in at.sources(*ROW_PORTS)}.values()
        if isinstance(node.config, DataSourceConfig) and node.config.mix is not None
        for name, rows in node.config.mix.sets.items()
        if rows.max_epochs > 1
    ]


def heldout_unread(config: DataSourceConfig, at: NodeView) -> Match:
    """Return whether a held-out set reaches no node that reads it; a validator makes its own."""
    if config.heldout is None:
        return False
    takers = (
        node.config
        for node in at.view.chain.nodes
        if any(source.node_id == at.node.id for port in DATA_PORTS for source in node.inputs.get(port, ()))
    )
    return not any(
        isinstance(taker, EvaluatorConfig)
        or (isinstance(taker, TrainerConfig) and taker.eval is not None and taker.eval.set == "heldout")
        for taker in takers
    )


SOURCE_ROWS = (
    Row(
        "source-repository", "R-SOURCE", "data_source", "config.{where}format", unfit_format,
        "A git repository gives documents (its commits and files), not rows of format {format}.",
        "Remove `format`, or name a file of rows in `path`.",
    ),
    Row(
        "source-repository-set", "R-SOURCE", "data_source", "config.{where}repository", unfit_set,
        "A git repository gives documents (its commits and files), not {port} rows.",
        "Name the set documents, or name a file of rows in `path`.",
    ),
    Row(
        "data-worker", "R-DATA-WORKER", "data_source", "config.{where}path", misplaced_rows,
        "{path!r} is not a place in a repository of a data worker.",
        "Write /datasets/NAME/FILE, or /datasets/NAME@REVISION/FILE for a branch, a tag or a commit.",
    ),
)  # fmt: skip

PORT_ROWS = tuple(
    Row(name, "R-PORT", on, field, data_missing(*ports), because, instead, chained=True)
    for name, on, field, ports, because, instead in (
        ("port-documents", "ai_generator", "needs", (Port.DOCUMENTS,),
         "A generator writes rows from documents, and it is offered {offered}.",
         "Put a data_source with a folder or a document before it."),
        ("port-rows", "validator", "needs", (Port.SFT, Port.PREFERENCE, Port.LABELLED, Port.PROMPTS, Port.TEXT),
         "A validator checks rows, and it is offered {offered}.",
         "Put a generator before it, or a data_source with a data set."),
        ("port-sft", "trainer", "config.stage", (Port.SFT,),
         "Stage {config.stage} learns from sft rows, and it is offered {offered}.",
         "Put a generator or a data_source with instructions or chats before it."),
        ("port-prompts", "trainer", "config.stage", (Port.SFT, Port.PROMPTS),
         "Stage {config.stage} draws completions for sft rows or prompts, and it is offered {offered}.",
         "Put a data_source with prompts, instructions or chats before it."),
        ("port-preference", "trainer", "config.stage", (Port.PREFERENCE,),
         "Stage {config.stage} learns from preference pairs, and it is offered {offered}.",
         "Give the data_source a set of pairs (`sets.preference`), or use stage sft."),
        ("port-labelled", "trainer", "config.stage", (Port.LABELLED,),
         "Stage {config.stage} learns from labelled answers, and it is offered {offered}.",
         "Give the data_source a labelled set (`sets.labelled`), or use stage dpo with pairs."),
        ("port-text", "trainer", "config.stage", (Port.TEXT, Port.DOCUMENTS),
         "Stage {config.stage} learns from plain text, and it is offered {offered}.",
         "Put a data_source with documents or `format: text` before it."),
        ("port-candidate", "evaluator", "needs", (Port.ADAPTER, Port.MODEL),
         "An evaluator judges an adapter or a model, and it is offered {offered}.",
         "Put a trainer before it."),
        ("port-adapter", "deployer", "needs", (Port.ADAPTER, Port.MODEL),
         "A deployer publishes an adapter or a model, and it is offered {offered}.",
         "Put a trainer before it."),
    )
)  # fmt: skip
"""A node that lacks its input, and what it is offered."""
DATA_ROWS = (
    *SOURCE_ROWS,
    Row(
        "heldout-unread", "R-SETTING-UNUSED", "data_source", "config.heldout", heldout_unread,
        "No node reads the held-out rows: a trainer needs `eval: {{set: heldout}}`, a validator makes its own sets.",
        "Write that in the trainer right after this source, or remove heldout.", chained=True,
    ),
    Row(
        "repository-url", "R-SOURCE", "data_source", "config.{where}", remote_repository,
        "The repository {repository!r} is an address, and a repository is read from a folder of this machine.",
        "Clone it into a data root, and write that folder as repository.",
    ),
    *PORT_ROWS,
    Row(
        "port-two", "R-PORT", "*", "needs", two_sources,
        "The nodes {nodes} make {ports} and are equally near.",
        "Name one of them in `needs`, or join the data before this node.", chained=True,
    ),
)  # fmt: skip

GENERATOR_ROWS = (
    Row(
        "engine-model", "R-GENERATOR", "ai_generator", "config.model",
        lambda config, _: config.engine is GeneratorKind.EXTRACTIVE and config.model is not None,
        "The extractive engine takes pairs from the text by rule and would not ask the model {config.model!r}.",
        "Remove `engine: extractive` to use the model, or remove the model.",
    ),
    Row(
        "engine-no-model", "R-GENERATOR", "ai_generator", "config.model",
        lambda config, _: config.engine in (GeneratorKind.OPENAI, GeneratorKind.VLLM) and config.model is None,
        "The engine {config.engine} asks a model, and none is named.",
        "Add `model:`, or remove `engine` to take pairs from the text by rule.",
    ),
    Row(
        "engine-url", "R-GENERATOR", "ai_generator", "config.base_url",
        lambda config, _: config.base_url is not None and config.engine not in (None, GeneratorKind.OPENAI),
        "The engine {config.engine} does not ask the server at {config.base_url}.",
        "Use `engine: openai` with that address, or remove base_url.",
    ),
    Row(
        "endpoint-url", "R-ENDPOINT", "ai_generator", "config.base_url",
        lambda config, _: config.base_url is not None and config.endpoint is not None,
        "The endpoint {config.endpoint!r} has its own address, and its key goes to no other.",
        "Remove base_url to ask the endpoint with its key, or remove endpoint to ask that address without a key.",
    ),
    Row(
        "extractive-preference", "R-GENERATOR", "ai_generator", "config.template",
        lambda config, _: (
            config.engine is GeneratorKind.EXTRACTIVE and config.template is GenerationTemplate.PREFERENCE
        ),
        "A preference pair has a rejected answer, and documents contain none to extract.",
        "Name a model that writes both answers, or use template qa.",
    ),
    Row(
        "extractive-prompt", "R-SETTING-UNUSED", "ai_generator", "config.prompt",
        lambda config, _: config.engine is GeneratorKind.EXTRACTIVE and config.prompt is not None,
        "The extractive engine reads no prompt.", "Name a model that reads the prompt, or remove the prompt.",
    ),
    Row(
        "generator-setting-unused", "R-SETTING-UNUSED", "ai_generator", "config.{setting}", unread_by_engine,
        "Only {by} reads {setting}; here it would be ignored.", "Remove {setting}, or use {by}.",
    ),
    Row(
        "best-of-reward", "R-REWARD", "ai_generator", "config.best_of",
        lambda config, at: config.best_of > 1 and not at.sources(Port.REWARD),
        "Of {config.best_of} answers the one that a reward model scores best would stay, and no trainer of stage reward"
        " is before the generator.",
        "Put a trainer of stage reward before it, or remove best_of.", chained=True,
    ),
    Row(
        "best-of-prompt", "R-SETTING-UNUSED", "ai_generator", "config.prompt",
        lambda config, _: config.best_of > 1 and config.prompt is not None,
        "Further answers of best_of are asked for with the template's own words, so that the prompt would be ignored.",
        "Remove the prompt, or best_of.",
    ),
    Row(
        "best-of-template", "R-GENERATOR", "ai_generator", "config.best_of",
        lambda config, _: config.best_of > 1 and config.template is GenerationTemplate.PREFERENCE,
        "A preference pair has two replies of the same model, and best_of keeps one answer.",
        "Use template qa, instruction or code, or remove best_of.",
    ),
    Row(
        "self-label", "R-GENERATOR", "ai_generator", "config.model", own_output,
        "The model {config.model!r} is the role {role} that this chain deploys: it would learn from its own answers.",
        "Let another model write, or deploy under another role.", chained=True,
    ),
)  # fmt: skip

VALIDATOR_ROWS = (
    Row(
        "mix-repeats", "R-SETTING-UNUSED", "validator", "config.exact_duplicates", repeats_dropped,
        "The mixture of {source} takes rows of {name} up to {epochs} times, and this validator drops every repetition.",
        "Write `exact_duplicates: false` and `near_duplicates: null`, or remove max_epochs.", chained=True,
    ),
    Row(
        "grounding", "R-PORT", "validator", "config.grounding",
        lambda config, at: config.grounding is not None and not at.sources(Port.DOCUMENTS),
        "Grounding compares answers with their documents, and no documents reach the validator.",
        "Put a data_source with documents before it, or remove grounding.", chained=True,
    ),
    Row(
        "token-range", "R-TOKEN-RANGE", "validator", "config.min_tokens",
        lambda config, _: config.min_tokens > config.max_tokens,
        "No row has at least {config.min_tokens} and at most {config.max_tokens} tokens.",
        "Write a min_tokens below max_tokens.",
    ),
)  # fmt: skip
