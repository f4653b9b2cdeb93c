"""The data of a chain, read before it runs: the same readers, rules and validator as in the run, up to a time limit.

    data_source → read here: local files and folders    ai_generator by rule → its pairs    validator → what it keeps

What is remote, or written by a model, stays unread; so does what the time does not allow. A set that was read whole
decides as the run would; the first rows of a longer one only estimate.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainyard.app.plan.machine import find_base_folder, is_local
from trainyard.callbacks import ignore
from trainyard.data.limited.requests import ParseRequest
from trainyard.data.limited.service import keep_service
from trainyard.data.paths import data_roots, open_inside, resolve_inside
from trainyard.data.quarantine import QUARANTINE_FILE, describe_first
from trainyard.data.rows import ROWS_FILE
from trainyard.data.sources import read_source
from trainyard.errors import InvalidInput, Reason, TrainyardError, Unavailable, to_reason
from trainyard.evals.tasks import count_held_out
from trainyard.settings import Settings
from trainyard.spec.axes.data import DATA_PORTS, GeneratorKind, Port
from trainyard.spec.axes.stages import Stage
from trainyard.spec.chain import ResolvedChain, ResolvedNode
from trainyard.spec.estimate.estimate import SampledNode
from trainyard.spec.estimate.verdict import find_floor
from trainyard.spec.graph import find_extracted, works_by_rule
from trainyard.spec.nodes import AiGeneratorConfig, DataSourceConfig, DeployerConfig, ValidatorConfig
from trainyard.spec.ports import ROW_PORTS
from trainyard.spec.training import STARTER, TrainerConfig
from trainyard.stores.artifacts import NodeOutput, ProducedSet, Reference

FIRST_ROWS, MOST_ROWS = 500, 20_000
"""Rows, or documents, that are read at first, and at most."""
GENERATION_FACTOR = 4
"""The rules that take questions from documents may take this many times `plan_read_s`: all documents of an ordinary
folder are read, so that a check says what a run will find."""
LEAST_SHARE = 3
"""A generator that finds less than one row of so many is short of rows."""
ANYWAY = (
    "To train all the same: --yes (`yes: true` over REST). To deploy what is better on so few rows, too: few_rows: "
    "allow at the deployer, of a template `-p publish.few_rows=allow`."
)
STARTER_SUCCESS = (
    "The base is the starter, five million parameters. It learns sentences of these documents by heart, and answers "
    "next to no question in words of your own: none of 15 that a reader asked three of its adapters."
)
STARTER_CODE = (
    "The base is the starter, five million parameters. It learns these functions and commits by heart and writes none "
    "of its own: nothing that a reader asked adapters of three repositories was right."
)
STARTER_TOKENS = 20_000
"""Tokens of rows that the starter can learn. 120 chats of 4,200 tokens end at a loss of 0.04, 299 of 41,000 at 3.2."""
STARTER_REMEDY = (
    "Name a language model by base_model (`-p base_model=` of a template), or train it all the same: --yes "
    "(`yes: true` over REST)."
)
LEAST_GROWTH = 2
"""A set is read again only for this many times the rows."""
COUNTED_BYTES = 32 << 20
"""Beginning of a file from which its number of lines is estimated."""
LINES = frozenset({".jsonl", ".ndjson", ".csv", ".tsv"})


@dataclass
class ChainSample:
    """Rows read, node by node, and the reasons that a run would report."""

    nodes: dict[str, SampledNode] = field(default_factory=dict)
    reasons: list[Reason] = field(default_factory=list)
    """Why a run would fail on these rows."""
    shortages: list[Reason] = field(default_factory=list)
    """Why a run is only started when its user allows it: it would train on far fewer rows than were requested, could
    give no verdict (`E-FEW-ROWS`), or has a base that does not learn to answer questions (`E-STARTER`).
    """
    unread: list[str] = field(default_factory=list)
    """Parts that were not read in time, so that a run may still refuse them."""

    @property
    def notes(self) -> dict[str, tuple[str, ...]]:
        return {name: node.notes for name, node in self.nodes.items() if node.notes}


@dataclass(frozen=True)
class SampleSet:
    """Rows of one port that lie in a folder."""

    port: Port
    folder: Path
    rows: int
    scale: float
    """All rows over those that were read; 1 where all were."""
    facts: Mapping[str, Any]

    @property
    def whole(self) -> bool:
        return self.scale == 1.0


def read_chain(
    chain: ResolvedChain,
    settings: Settings,
    outputs: Mapping[str, NodeOutput | None] | None = None,
    refused: frozenset[str] = frozenset(),
) -> ChainSample:
    """Read what a chain would read, as far as `plan_read_s` allows. Nodes in `refused` have a reason already.

    `outputs` are finished results, which are taken as they are.
    """
    with tempfile.TemporaryDirectory(prefix="trainyard-plan-") as scratch, ExitStack() as stack:
        reading = Reading(chain, settings, Path(scratch), stack, dict(outputs or {}))
        for node_id in chain.order:
            if node_id not in refused:
                reading.read(chain.node(node_id))
        reading.ask_about_starter(refused)
        return reading.sample


@dataclass
class Reading:
    """One pass over a chain."""

    chain: ResolvedChain
    settings: Settings
    scratch: Path
    stack: ExitStack
    finished: dict[str, NodeOutput | None]
    sample: ChainSample = field(default_factory=ChainSample)
    sets: dict[str, dict[Port, SampleSet]] = field(default_factory=dict)
    deadline: float = 0.0
    """By the monotonic clock; 0 until the reader is ready."""
    tokenizers: dict[tuple[Path, str], Any] = field(default_factory=dict)
    balances: dict[tuple[str, Port], str] = field(default_factory=dict)
    """What each validator did with its rows of a port, in words."""
    sft_tokens: dict[str, int] = field(default_factory=dict)
    """Tokens of the rows of a trainer of stage sft."""
    too_long: dict[tuple[str, Port], int] = field(default_factory=dict)
    """Rows of a port that a validator dropped for their length."""

    def read(self, node: ResolvedNode) -> None:
        """Read, generate, validate or encode the rows of a node, where its inputs were read."""
        output = self.finished.get(node.id)
        if output is not None:
            self.take_finished(node, output)
            return
        before = {source.node_id for port, all in node.inputs.items() for source in all if port in DATA_PORTS}
        if not all(name in self.sets for name in before):
            return
        if before and self.deadline and time.monotonic() > self.deadline:
            self.note_unread(node.id, f"rows: not read within {self.settings.plan_read_s:g} s (setting plan_read_s)")
            return
        config = node.config
        try:
            if isinstance(config, DataSourceConfig) and is_local(config):
                self.read_source(node, config)
            elif isinstance(config, AiGeneratorConfig) and config.engine is GeneratorKind.EXTRACTIVE:
                self.generate(node, config)
            elif isinstance(config, ValidatorConfig):
                self.validate(node, config)
            elif isinstance(config, TrainerConfig) and before:
                self.fit(node, config)
        except TrainyardError as error:
            if all(sample_set.whole for name in before for sample_set in self.sets[name].values()):
                self.sample.reasons.append(to_reason(error, node.id, ""))
            else:
                self.note(node.id, f"of the rows that were read: {error.what} {error.why}".strip())

    def add_shortage(self, name: str, field: str, because: str, instead: str) -> None:
        """Add a shortage, unless the chain says that few rows are meant."""
        self.note(name, f"few rows: {because}")
        deployers = [node.config for node in self.chain.nodes if isinstance(node.config, DeployerConfig)]
        if not any(config.few_rows == "allow" for config in deployers):
            self.sample.shortages.append(Reason("E-FEW-ROWS", name, field, because, instead + ANYWAY))

    def ask_about_starter(self, refused: frozenset[str]) -> None:
        """Ask before the starter is trained on pairs of the user's documents by rule, or on more than it can learn."""
        nodes = [self.chain.node(node_id) for node_id in self.chain.order]
        inputs, configs = {node.id: node.inputs for node in nodes}, {node.id: node.config for node in nodes}
        extracted = find_extracted(inputs, configs)
        by_rule = find_extracted(inputs, configs, works_by_rule)
        reasons: dict[str, str] = {}
        for node in nodes:
            node_id = node.id
            is_new = node_id not in refused and self.finished.get(node_id) is None
            if not (is_new and isinstance(node.config, TrainerConfig) and node.config.base_model == STARTER):
                continue
            tokens = self.sft_tokens.get(node_id, 0)
            if node_id in extracted:
                reasons[node_id] = STARTER_SUCCESS
            elif node_id in by_rule and node.config.stage.type is Stage.SFT:
                reasons[node_id] = STARTER_CODE
            elif tokens > STARTER_TOKENS and node.config.hyperparameters.max_steps is None:
                reasons[node_id] = (
                    f"The base is the starter, five million parameters, and the rows have {tokens:,} tokens. It can "
                    f"learn what about {STARTER_TOKENS:,} say; of more it learns the manner alone."
                )
        for node_id, because in list(reasons.items())[:1]:
            self.note(node_id, f"small base: {because}")
            self.sample.shortages.append(Reason("E-STARTER", node_id, "config.base_model", because, STARTER_REMEDY))

    def note(self, name: str, text: str) -> None:
        node = self.sample.nodes.get(name, SampledNode())
        self.sample.nodes[name] = node.model_copy(update={"notes": (*node.notes, text)})

    def note_unread(self, name: str, text: str) -> None:
        self.note(name, text)
        self.sample.unread.append(f"{name}: {text}")

    def take_finished(self, node: ResolvedNode, output: NodeOutput) -> None:
        """Take the rows of a finished result as they are; of one without its files nothing is known."""
        sets = [produced for port, produced in output.outputs.items() if port in DATA_PORTS]
        if not all((produced.path / ROWS_FILE).is_file() for produced in sets):
            return
        self.sets[node.id] = {
            port: SampleSet(port, produced.path, produced.rows or 0, 1.0, produced.facts)
            for port, produced in output.outputs.items()
            if port in DATA_PORTS
        }

    def keep(self, node: ResolvedNode, folder: Path, produced_sets: Mapping[Port, ProducedSet], scale: float) -> None:
        """Keep what a node gave, with all its rows."""
        self.sets[node.id] = {
            port: SampleSet(port, folder / produced.folder, produced.rows or 0, scale, produced.facts)
            for port, produced in produced_sets.items()
        }
        rows = {port: round((produced.rows or 0) * scale) for port, produced in produced_sets.items()}
        sampled_node = self.sample.nodes.get(node.id, SampledNode())
        self.sample.nodes[node.id] = sampled_node.model_copy(update={"rows": rows, "whole": scale == 1.0})

    def folder_for(self, node: ResolvedNode, name: str = "out") -> Path:
        folder = self.scratch / node.id / name
        folder.mkdir(parents=True)
        return folder

    # Data sources

    def read_source(self, node: ResolvedNode, config: DataSourceConfig) -> None:
        """Read the first rows, and more of them while the time lasts."""
        most, best = FIRST_ROWS, None
        while True:
            began = time.monotonic()
            folder = self.folder_for(node, f"first-{most}")
            with self.reader():
                try:
                    result = read_source(
                        first_rows(config, most), folder, settings=self.settings, report=ignore, judged=False
                    )
                except Unavailable:
                    if time.monotonic() < self.deadline:
                        raise
                    break  # the time was over: what was read before counts
            best = (folder, result.outputs, most)
            left = self.deadline - time.monotonic()
            more = min(MOST_ROWS, int(most * max(0.0, left) * 0.5 / max(0.01, time.monotonic() - began)))
            if is_whole(config, result.outputs, most) or more < LEAST_GROWTH * most:
                break
            most = more
        if best is None:
            self.note_unread(node.id, f"rows: not read within {self.settings.plan_read_s:g} s (setting plan_read_s)")
            return
        folder, outputs, most = best
        scale = 1.0
        if not is_whole(config, outputs, most):
            scale = self.extrapolate(node, config, outputs)
        self.judge(node, config, outputs, folder, whole=scale == 1.0)
        self.keep(node, folder, outputs, scale)

    @contextmanager
    def reader(self) -> Iterator[None]:
        """Have a reading service that is ended when the time is over."""
        if not self.deadline:
            self.service = self.stack.enter_context(keep_service())
            self.service.parse(ParseRequest(()))  # its imports do not count as reading
            self.deadline = time.monotonic() + self.settings.plan_read_s
        process = self.service.process
        timer = threading.Timer(max(0.1, self.deadline - time.monotonic()), process.kill if process else ignore)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def extrapolate(self, node: ResolvedNode, config: DataSourceConfig, outputs: Mapping[Port, ProducedSet]) -> float:
        """Return all rows over those that were read: by the lines of a file, else by what is known of the source."""
        rows = sum(produced.rows or 0 for produced in outputs.values())
        paths = [source_set.path for _, _, source_set in config.trained_sets()]
        lines = count_lines(paths[0], self.settings) if len(paths) == 1 and paths[0] and not config.mix else None
        if lines is None:
            self.note_unread(
                node.id, f"first {rows:,} rows read within {self.settings.plan_read_s:g} s; there are more"
            )
            return 1.0 + 1e-9
        lines = min(lines, config.max_rows or lines)
        self.note(node.id, f"first {rows:,} rows read, extrapolated to {lines:,}")
        return max(1.0 + 1e-9, lines / max(1, rows))

    def judge(
        self,
        node: ResolvedNode,
        config: DataSourceConfig,
        outputs: Mapping[Port, ProducedSet],
        folder: Path,
        *,
        whole: bool,
    ) -> None:
        """Refuse what the run refuses: too many bad rows."""
        for port, produced in outputs.items():
            facts = produced.facts
            if "mixture" in facts:
                continue
            bad, read = int(facts.get("quarantined", 0)), int(facts.get("read", 0))
            share = bad / max(1, read)
            if share <= config.max_bad_fraction and read > bad:
                continue
            problem = (
                f"{bad} of {read} rows of {port.value} are bad ({share:.1%}); {config.max_bad_fraction:.1%} may be."
            )
            if not whole:
                self.note(node.id, f"of the rows that were read: {problem}")
                continue
            problem += f" The first: {describe_first(folder / produced.folder / QUARANTINE_FILE)}."
            raise InvalidInput(problem, do="Correct the rows, or raise max_bad_fraction.", code="E-DATA-BAD-ROWS")

    # Generators and validators

    def generate(self, node: ResolvedNode, config: AiGeneratorConfig) -> None:
        """Run the rules on the documents."""
        from trainyard.data.generation.generate import generate  # imports grammars, schemas and clients

        documents = self.first(node, Port.DOCUMENTS)
        folder = self.folder_for(node)
        began = time.monotonic()
        limit_s = GENERATION_FACTOR * self.settings.plan_read_s
        result = generate(config, documents.folder, folder, complete=None, report=ignore, deadline=began + limit_s)
        self.deadline += time.monotonic() - began  # the rules have a limit of their own
        rows = sum(produced.rows or 0 for produced in result.outputs.values())
        requested = int(result.facts.get("asked") or config.count)
        read = int(result.facts["documents"])
        whole = documents.whole and read >= documents.rows
        growth = documents.scale * documents.rows / max(1, read)
        scale = 1.0 if whole else max(1.0 + 1e-9, min(growth, requested / max(1, rows)))
        self.keep(node, folder, result.outputs, scale)
        pairs = int(result.facts.get("pairs") or 0)
        sampled_node = self.sample.nodes[node.id]
        self.sample.nodes[node.id] = sampled_node.model_copy(update={"requested": requested})
        self.note(node.id, f"rows: {rows:,} of {requested:,} by rule, {pairs:,} questions")
        if read < documents.rows:
            part = f"{read:,} of {documents.rows:,} documents"
            self.note_unread(
                node.id, f"{part} read by the rules within {limit_s:g} s ({GENERATION_FACTOR} × setting plan_read_s)"
            )
        if whole and rows * LEAST_SHARE < requested:
            because = (
                f"The rules find {rows:,} rows of {requested:,} (config.count {config.count:,}) in these documents."
            )
            most = rows * LEAST_SHARE
            instead = f"Name a model that writes more, give more of them, or set count to at most {most:,}. "
            self.add_shortage(node.id, "config.count", because, instead)

    def validate(self, node: ResolvedNode, config: ValidatorConfig) -> None:
        """Run the validator on what was read."""
        from trainyard.data.quality.lengths import load_token_counter  # imports the rules of quality
        from trainyard.data.validation import validate  # imports the rules of quality

        name = config.tokenizer or self.settings.default_base_model
        base = find_base_folder(name, self.settings)
        if base is None:
            return  # reported with the models that are not here
        roots = data_roots(self.settings)
        paths = [str(resolve_inside(path, roots, field="config.evaluation_sets")) for path in config.evaluation_sets]
        config = config.model_copy(update={"evaluation_sets": tuple(paths)})
        tokens, folder = load_token_counter(base), self.folder_for(node)
        documents = self.find(node, Port.DOCUMENTS)
        outputs: dict[Port, ProducedSet] = {}
        scale, held_out = 1.0, 0
        for port in ROW_PORTS:
            if (sample_set := self.find(node, port)) is None:
                continue
            source = Reference(
                uri=f"file://{sample_set.folder}",
                sha256="",
                kind=port,
                rows=sample_set.rows,
                facts=dict(sample_set.facts),
            )
            result = validate(
                config, source, folder, tokens=tokens, documents=documents.folder if documents else None,
                report=ignore,
            )  # fmt: skip
            outputs |= result.outputs
            scale = max(scale, sample_set.scale)
            held_out += sum(result.facts["heldout"].values())
            self.balances[node.id, port] = balance_text(result.facts)
            self.too_long[node.id, port] = int(result.facts["dropped"].get("too_long", 0))
            self.note(node.id, self.balances[node.id, port])
        if not outputs:
            raise self.nothing_arrives(node, *ROW_PORTS)
        self.keep(node, folder, outputs, scale)

    # Trainers

    def fit(self, node: ResolvedNode, config: TrainerConfig) -> None:
        """Encode the rows as the trainer would."""
        sample_set = self.first(node, *(port for port in node.inputs if port in DATA_PORTS))
        if sample_set.port not in (*config.stage.facts.ports, *config.stage.facts.instead):
            raise self.nothing_arrives(node, *config.stage.facts.ports)
        if sample_set.port in config.stage.facts.instead and not config.stage.model_fields_set:
            self.ask_for_stage(node, sample_set.port, config.stage.type)
        self.judge_verdict(node, sample_set)
        base = find_base_folder(config.base_model or self.settings.default_base_model, self.settings)
        made_before = any(port is Port.MODEL for port in node.inputs)
        technique = config.stage.technique.facts if config.stage.technique is not None else None
        judged = sample_set.whole if technique is not None and technique.reads_steps else technique is None
        if base is None or made_before or not judged or not (base / "tokenizer.json").is_file():
            return
        # Imports transformers' tokenizers, and only where rows were read.
        from trainyard.app.plan.row_fit import fit_rows, load_tokenizer, require_reasoning  # imports transformers

        template = config.engine.template
        if (base, template) not in self.tokenizers:
            self.tokenizers[base, template] = load_tokenizer(base, template, data_roots(self.settings))
            self.deadline = max(self.deadline, time.monotonic() + 1)
        rows_path = sample_set.folder / ROWS_FILE
        if technique is not None:
            require_reasoning(config, rows_path, sample_set.port, self.tokenizers[base, template], self.deadline)
            return
        fitted = fit_rows(
            config, rows_path, sample_set.port, self.tokenizers[base, template],
            max_bad_fraction=config.refusal_limit, deadline=self.deadline,
            decides=sample_set.whole,
        )  # fmt: skip
        share = sample_set.rows / max(1, fitted.rows) * sample_set.scale
        if config.stage.type is Stage.SFT:
            self.sft_tokens[node.id] = round(fitted.examples * share * (fitted.tokens_per_example or 0))
        notes = [f"{count:,} of {fitted.rows:,} rows are dropped: {name}" for name, count in fitted.dropped.items()]
        notes += [f"{fitted.truncated:,} of {fitted.rows:,} rows are cut to max_length"] if fitted.truncated else []
        notes += fitted.notes
        sampled_node = self.sample.nodes.get(node.id, SampledNode())
        self.sample.nodes[node.id] = sampled_node.model_copy(
            update={
                "examples": round(fitted.examples * share), "tokens_per_row": fitted.tokens_per_example,
                "whole": sample_set.whole and fitted.rows == sample_set.rows, "notes": (*sampled_node.notes, *notes),
            }
        )  # fmt: skip

    def ask_for_stage(self, node: ResolvedNode, port: Port, default: Stage) -> None:
        """Add a reason where a trainer without a stage would learn one side of its rows, and none after it learns from
        both.
        """
        stages = sorted((stage for stage in Stage if port in stage.facts.ports), key=lambda stage: stage.value)
        others = [other.config for other in self.chain.nodes if isinstance(other.config, TrainerConfig)]
        if any(other.stage.type in stages for other in others):
            return
        because = (
            f"The rows are {port.value} rows, and no stage is named: {default} would learn their chosen side alone."
        )
        names = " or ".join(f"stage={stage}" for stage in stages)
        instead = f"Write {names} to learn from both sides, or stage={default} for the chosen side."
        self.sample.reasons.append(Reason("R-PORT", node.id, "config.stage", because, instead))

    def judge_verdict(self, node: ResolvedNode, sample_set: SampleSet) -> None:
        """Say whether the chain's gate could decide on these rows."""
        floor = find_floor(self.chain)
        if floor is None or node.id not in floor.candidates or not sample_set.whole:
            return
        node_id, port = floor.decides or ("", sample_set.port)
        decides = self.sets.get(node_id, {}).get(port)
        held_out = count_held_out(decides.folder, port) if decides and decides.whole else None
        if reasons := floor.reasons(trained=sample_set.rows, held_out=held_out):
            lost = [
                f"Of {source.node_id}'s {sample_set.port.value} {balance}."
                for source in node.inputs.get(sample_set.port, ())
                if (balance := self.balances.get((source.node_id, sample_set.port)))
            ]
            longer = sum(
                self.too_long.get((source.node_id, sample_set.port), 0)
                for source in node.inputs.get(sample_set.port, ())
            )
            instead = "Give more documents or rows. "
            if longer:
                instead += f"{longer:,} are too long: raise max_tokens (of a template: training.max_length). "
            self.add_shortage(node.id, "", " ".join([*reasons, *lost]), instead)

    # Inputs

    def find(self, node: ResolvedNode, *ports: Port) -> SampleSet | None:
        """Return the nearest set on the first of these ports that has one, as the run finds it."""
        for port in ports:
            for source in node.inputs.get(port, ()):
                if (sample_set := self.sets.get(source.node_id, {}).get(source.port)) is not None:
                    return sample_set
        return None

    def first(self, node: ResolvedNode, *ports: Port) -> SampleSet:
        sample_set = self.find(node, *ports)
        if sample_set is None:
            raise self.nothing_arrives(node, *ports)
        return sample_set

    def nothing_arrives(self, node: ResolvedNode, *ports: Port) -> InvalidInput:
        """Return the error for a node whose kind of rows is in none of the sets before it."""
        left = {
            port.value: source.node_id
            for all in node.inputs.values()
            for source in all
            for port in self.sets.get(source.node_id, {})
        }
        names = " or ".join(port.value for port in ports)
        arrived = ", ".join(f"{kind} rows ({name})" for kind, name in left.items()) or "nothing"
        stage = f"Stage {node.config.stage} learns" if isinstance(node.config, TrainerConfig) else "The node works"
        return InvalidInput(
            f"{stage} from {names}, and what was read is {arrived}.",
            do=f"Give the data source a set that fills {names}, or use a stage that learns from these rows.",
            code="R-PORT",
        )


def first_rows(config: DataSourceConfig, most: int) -> DataSourceConfig:
    """Return the source, read to so many rows of each set; bad rows are only counted."""
    limit = {"max_rows": min(config.max_rows or most, most)}

    def cut(source_set: Any) -> Any:
        return source_set.model_copy(update={"max_rows": min(source_set.max_rows or most, most)})

    updates: dict[str, Any] = {}
    if config.mix is not None:
        sets = {name: cut(source_set) for name, source_set in config.mix.sets.items()}
        updates["mix"] = config.mix.model_copy(update={"sets": sets})
    elif config.sets:
        updates["sets"] = {port: cut(source_set) for port, source_set in config.sets.items()}
    else:
        updates |= limit
        updates |= {} if config.heldout is None else {"heldout": cut(config.heldout)}
    return config.model_copy(update=updates)


def is_whole(config: DataSourceConfig, outputs: Mapping[Port, ProducedSet], most: int) -> bool:
    """Return whether a reading of at most so many rows has found all that a run reads."""
    if config.mix is not None:
        limits = {name: source_set.max_rows for name, source_set in config.mix.sets.items()}
        counts = {
            name: facts["set"]["kept"]
            for produced in outputs.values()
            for name, facts in produced.facts["mixture"].items()
        }
    elif config.sets:
        limits = {port.value: source_set.max_rows for port, source_set in config.sets.items()}
        counts = {port.value: produced.rows or 0 for port, produced in outputs.items()}
    else:
        limits = {"": config.max_rows}
        counts = {"": sum(produced.rows or 0 for produced in outputs.values())}
    return all(count < most or (limits[name] or most + 1) <= most for name, count in counts.items())


def count_lines(path: str, settings: Settings) -> int | None:
    """Return rows of a file of lines, from the mean length of those at its beginning; None for anything else."""
    roots = data_roots(settings)
    inside = resolve_inside(path, roots)
    if not inside.is_file() or inside.suffix.lower() not in LINES:
        return None
    with open_inside(inside, roots) as stream:
        beginning = stream.read(COUNTED_BYTES)
    return round(max(1, beginning.count(b"\n")) * inside.stat().st_size / max(1, len(beginning)))


def balance_text(facts: Mapping[str, Any]) -> str:
    """Return what a validator would do with its rows, in words."""
    held_out = {name.replace("_", " "): count for name, count in facts["heldout"].items() if count}
    parts = [f"{facts['kept']:,} of {facts['read']:,} rows to train on"]
    parts += [f"{count:,} held out ({name})" for name, count in held_out.items()]
    parts += [f"{count:,} dropped ({name.replace('_', ' ')})" for name, count in facts["dropped"].items()]
    return "rows: " + ", ".join(parts)
