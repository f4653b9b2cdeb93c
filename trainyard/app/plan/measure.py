"""Ten steps of each training of a chain, for `plan --measure`.

A probe trains on the rows that the training would have: the finished result before it, or what a data source before it
reads. Where neither is there, on made-up rows, as long as the plan found them or else of the greatest length.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainyard.app.plan.estimate import FinishedNodes, key_name
from trainyard.app.plan.machine import find_base_folder, list_trainers
from trainyard.backends.job import prepare_job
from trainyard.backends.timings import STEPS, run_probe
from trainyard.data import rows as shapes
from trainyard.data.rows import Message, Row
from trainyard.data.sources import read_source
from trainyard.errors import TrainyardError
from trainyard.settings import Settings
from trainyard.spec.axes.data import DATA_PORTS, Port
from trainyard.spec.chain import ResolvedChain, ResolvedNode, Source
from trainyard.spec.estimate.timing import rows_per_step
from trainyard.spec.nodes import DataSourceConfig, ValidatorConfig
from trainyard.spec.training import TrainerConfig
from trainyard.stores.artifacts import open_reference

MOST_ROWS = 20_000
"""Rows of a data source that a probe reads."""
LEAST_ROWS = 64
TOKENS_PER_NUMBER = 3
"""Of a made-up row's words: the measured length counts, so that this need not be exact."""


@dataclass(frozen=True)
class ProbeData:
    """Rows that a probe trains on."""

    port: Port
    folder: Path
    name: str = ""
    """By which a plan recognises the data set; "" for rows that are not the ones of the training."""
    text: str = ""


# Measuring


def measure(
    nodes: FinishedNodes, settings: Settings, say: Callable[[str], None], lengths: Mapping[str, float]
) -> dict[str, str]:
    """Measure ten steps of each trainer whose result is not finished; trainer's id -> why it was not measured.

    `lengths` are tokens of a row, of the trainers whose rows the plan has read.
    """
    problems = {}
    for node, config in list_trainers(nodes.chain):
        if nodes.outputs.get(node.id) is not None:
            say(f"{node.id}: its result is finished, so it is not measured")
            continue
        if config.backend.facts.remote:
            problems[node.id] = "not measured: a service computes the steps, and may charge for them"
            continue
        base = config.base_model or settings.default_base_model
        if find_base_folder(base, settings) is None:
            problems[node.id] = f"not measured: the model {base!r} is not on this machine"
            continue
        with tempfile.TemporaryDirectory(prefix="trainyard-measure-") as scratch:
            try:
                data = probe_data(nodes, node, Path(scratch), settings, lengths.get(node.id))
                say(f"{node.id}: measuring {STEPS} steps on {data.text}")
                sha256 = {data.port: data.name} if data.name else {}
                job = prepare_job(
                    config, base, settings, data={data.port: str(data.folder)}, data_sha256=sha256, node=node.id
                )
                problem = run_probe(job, Path(scratch) / "out", settings, say)
            except TrainyardError as error:
                problems[node.id] = f"not measured: {error}"
                continue
            if problem is not None:
                problems[node.id] = problem.why
    return problems


def probe_data(
    nodes: FinishedNodes, node: ResolvedNode, scratch: Path, settings: Settings, length: float | None
) -> ProbeData:
    """Return the rows of the training, as far as they are there; else rows that are made up."""
    sources = [source for port in DATA_PORTS for source in node.inputs.get(port, ())]
    for source in sources:
        output = nodes.outputs.get(source.node_id)
        if output is not None and source.port in output.outputs:
            reference = output.outputs[source.port]
            return ProbeData(source.port, open_reference(reference), reference.sha256, "the rows of the node before it")
    for source in sources:
        if (data := read_reader_rows(nodes, source, scratch, settings)) is not None:
            return data
    config = node.config
    assert isinstance(config, TrainerConfig)
    port = next((source.port for source in sources), config.stage.facts.ports[0])
    count = max(LEAST_ROWS, STEPS * rows_per_step(config) * config.launch.processes)
    folder = scratch / "rows"
    folder.mkdir()
    longest = config.hyperparameters.max_length
    words = longest if length is None else min(longest, max(4, round(length / TOKENS_PER_NUMBER)))
    shapes.write_rows(folder / shapes.ROWS_FILE, port, make_rows(port, count, words))
    size = f"{longest:,}" if length is None else f"about {length:,.0f}"
    text = f"{count:,} made-up rows of {size} tokens, as its own are not here yet"
    return ProbeData(port, folder, "", text)


def read_reader_rows(nodes: FinishedNodes, source: Source, scratch: Path, settings: Settings) -> ProbeData | None:
    """Return the data that the data source before a trainer reads; None where rows are made by another node."""
    reader = find_reader(nodes.chain, source.node_id)
    if reader is None:
        return None
    assert isinstance(reader.config, DataSourceConfig)
    result = read_source(limit_rows(reader.config), scratch, settings=settings, report=lambda fraction, text: None)
    part = result.outputs.get(source.port)
    if part is None:
        return None
    rows, key = shapes.count_rows(scratch / part.folder / shapes.ROWS_FILE) or 0, nodes.keys.get(reader.id)
    whole = reader.id == source.node_id and rows < MOST_ROWS
    return ProbeData(
        source.port, scratch / part.folder, key_name(key) if key and whole else "", f"{rows:,} rows of {reader.id}"
    )


def find_reader(chain: ResolvedChain, node_id: str) -> ResolvedNode | None:
    """Return the data source whose rows a node hands on: itself, or through validators."""
    node = chain.node(node_id)
    if isinstance(node.config, DataSourceConfig):
        return node
    if isinstance(node.config, ValidatorConfig):
        before = [source.node_id for port in DATA_PORTS for source in node.inputs.get(port, ())]
        return find_reader(chain, before[0]) if before else None
    return None


def limit_rows(config: DataSourceConfig) -> DataSourceConfig:
    """Return the source, read to `MOST_ROWS` rows."""
    return config.model_copy(update={"max_rows": min(config.max_rows or MOST_ROWS, MOST_ROWS)})


def make_rows(port: Port, count: int, words: int) -> list[Row]:
    """Return rows of so many words, each a number: at least as many tokens."""

    def answer(number: int) -> str:
        return " ".join(f"{number + offset}" for offset in range(words))

    rows: list[Row] = []
    for number in range(count):
        question = [Message("user", f"Count on from {number}.")]
        reply = [Message("assistant", answer(number))]
        if port is Port.PREFERENCE:
            rows.append(shapes.PreferenceRow(question, reply, [Message("assistant", answer(number + 1))]))
        elif port is Port.LABELLED:
            rows.append(shapes.LabelledRow(question, reply, number % 2 == 0))
        elif port is Port.PROMPTS:
            rows.append(shapes.PromptRow([Message("user", f"Count on from {number}: {answer(number)}")], str(number)))
        elif port is Port.SFT:
            rows.append(shapes.SftRow([*question, *reply]))
        else:
            rows.append(shapes.TextRow(answer(number)))
    return rows
