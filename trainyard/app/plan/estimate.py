"""What is known on this machine about the trainings of a chain: measured times, data sets, mean tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from trainyard.backends.timings.records import read_timings, timing_key
from trainyard.data.remote.kinds import find_kind
from trainyard.data.renderers.choice import AUTO
from trainyard.errors import TrainyardError
from trainyard.settings import Settings
from trainyard.spec.axes.data import DATA_PORTS, Port
from trainyard.spec.axes.devices import Device
from trainyard.spec.chain import ResolvedChain, ResolvedNode
from trainyard.spec.estimate.shape import ModelShape
from trainyard.spec.estimate.timing import Timings
from trainyard.spec.nodes import DataSourceConfig, SourceSet
from trainyard.spec.training import STARTER, TrainerConfig
from trainyard.stores.artifacts import NodeOutput
from trainyard.stores.models import resolve_model


@dataclass(frozen=True)
class FinishedNodes:
    """A chain, the finished results of its nodes, and their keys as far as they are known."""

    chain: ResolvedChain
    outputs: Mapping[str, NodeOutput | None]
    keys: Mapping[str, str | None]


def folder_of(name: str, settings: Settings) -> Path | None:
    """The folder of a base model; None if it is not here, which the trainer's own line reports."""
    try:
        return resolve_model(name, settings).path
    except TrainyardError:
        return None


def shape_of(name: str, settings: Settings) -> ModelShape | None:
    """The shape of a base model that is here."""
    folder = folder_of(name, settings)
    return ModelShape.from_config(json.loads((folder / "config.json").read_text("utf-8"))) if folder else None


def trainers_of(chain: ResolvedChain) -> list[tuple[ResolvedNode, TrainerConfig]]:
    nodes = (chain.node(node_id) for node_id in chain.order)
    return [(node, node.config) for node in nodes if isinstance(node.config, TrainerConfig)]


def known_timings(chain: ResolvedChain, settings: Settings, here: Device, slowdown: float = 1.0) -> dict[str, Timings]:
    """Trainer's id -> what was measured for trainings like it; `slowdown` is that of the CPU now."""
    found = {}
    for node, config in trainers_of(chain):
        device = here if config.device is Device.AUTO else config.device
        base = folder_of(config.base_model or settings.default_base_model, settings)
        timings = read_timings(timing_key(config, base, device, settings), settings)
        found[node.id] = replace(timings, slowdown=slowdown) if device is Device.CPU else timings
    return found


def data_names(found: FinishedNodes) -> dict[str, frozenset[str]]:
    """Trainer's id -> names of the data set that reaches it: its digest, and the key of what reads it."""
    every = {}
    for node, _ in trainers_of(found.chain):
        names = set()
        for source in (one for port in DATA_PORTS for one in node.inputs.get(port, ())):
            output, key = found.outputs.get(source.node_id), found.keys.get(source.node_id)
            if output is not None and source.port in output.outputs:
                names.add(output.outputs[source.port].sha256)
            if key:
                names.add(key_name(key))
        every[node.id] = frozenset(names)
    return every


def key_name(key: str) -> str:
    return f"key:{key}"


def counted_tokens(found: FinishedNodes) -> dict[str, float]:
    """Trainer's id -> mean tokens of its rows, where a finished validator before it has counted them."""
    means = {}
    for node, _ in trainers_of(found.chain):
        for source in (one for port in DATA_PORTS for one in node.inputs.get(port, ())):
            output = found.outputs.get(source.node_id)
            facts = (output.facts.get(source.port.value) or {}) if output else {}
            tokens, rows = (facts.get("tokens") or {}).get("kept"), facts.get("kept")
            if tokens and rows:
                means[node.id] = tokens / rows
    return means


def list_templated(chain: ResolvedChain, settings: Settings, *, named: bool) -> frozenset[str]:
    """Return the trainers of chats whose base is here: those that name a template, or those with the base's own.

    The starter's own template is known to render.
    """
    return frozenset(
        node.id
        for node, config in trainers_of(chain)
        if Port.TEXT not in config.stage.facts.ports
        and not any(port is Port.MODEL for port in node.inputs)
        and (config.engine.template != AUTO) is named
        and (named or (config.base_model or settings.default_base_model) != STARTER)
        and (base := folder_of(config.base_model or settings.default_base_model, settings)) is not None
        and (base / "tokenizer.json").is_file()
    )


def reads_local_data(chain: ResolvedChain) -> bool:
    """Whether a data source of the chain is on this machine."""
    return any(isinstance(node.config, DataSourceConfig) and is_local(node.config) for node in chain.nodes)


def is_local(config: DataSourceConfig) -> bool:
    return all(is_local_set(given) for _, _, given in config.named_sets())


def is_local_set(given: SourceSet) -> bool:
    return not given.data_worker and find_kind(given) is None
