"""Palette of an editor: each type of node with the config that it starts with, and each port with its group.

A new node is valid at once where its type has defaults; a data source starts with a path to be corrected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainyard.json_types import JsonMapping
from trainyard.spec.axes.axis import Strict
from trainyard.spec.axes.data import Port
from trainyard.spec.nodes import NODE_CONFIGS, AiGeneratorConfig
from trainyard.spec.ports import EVALUATED_PORTS, ROW_PORTS
from trainyard.spec.training import TrainerConfig

PortGroup = Literal["documents", "dataset", "adapter", "model", "report"]
"""Ports that look the same in an editor: each has a colour."""

GROUPS: dict[Port, PortGroup] = {
    Port.DOCUMENTS: "documents",
    **dict.fromkeys(ROW_PORTS, "dataset"),
    Port.ADAPTER: "adapter",
    Port.MODEL: "model",
    Port.REPORT: "report",
    Port.REWARD: "adapter",
}

STARTS: dict[str, dict[str, object]] = {"data_source": {"path": "documents"}}
"""Type -> config of a new node, where its defaults alone are not valid."""

TAKES: dict[str, tuple[Port, ...]] = {
    "data_source": (),
    "ai_generator": (Port.DOCUMENTS,),
    "validator": (Port.DOCUMENTS, *ROW_PORTS),
    "evaluator": (*EVALUATED_PORTS, Port.ADAPTER, Port.MODEL),
    "deployer": (Port.ADAPTER, Port.MODEL, Port.REPORT),
}
"""Type -> the ports that a node of it may take; a trainer's depend on its stage."""


@dataclass(frozen=True)
class PaletteNode:
    """A type of node."""

    type: str
    text: str
    config: JsonMapping


def list_palette() -> list[PaletteNode]:
    """Return every type of node, in the order of a chain."""
    return [
        PaletteNode(name, (model.__doc__ or "").partition("\n")[0], STARTS.get(name, {}))
        for name, model in NODE_CONFIGS.items()
    ]


def starting_config(node_type: str) -> Strict:
    """Return the config of a new node of that type."""
    return NODE_CONFIGS[node_type].model_validate(STARTS.get(node_type, {}))


def ports_taken(config: Strict, node_type: str) -> tuple[Port, ...]:
    """Return the ports that a node may take, whatever reaches it now."""
    if isinstance(config, TrainerConfig):
        facts = config.stage.facts
        scores = (Port.REWARD,) if config.stage.reads_scores else ()
        return tuple(dict.fromkeys((*facts.ports, *facts.instead, Port.ADAPTER, Port.MODEL, *scores)))
    if isinstance(config, AiGeneratorConfig) and config.best_of > 1:
        return (*TAKES[node_type], Port.REWARD)
    return TAKES[node_type]
