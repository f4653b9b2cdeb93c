"""A chain that is being written: each node with an id, its links and a config, whether it is valid yet or not.

A node that is not valid keeps its place: its links are drawn with what can be read of its config.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from trainyard.spec.axes.axis import Strict
from trainyard.spec.drafts.palette import starting_config
from trainyard.spec.graph import in_order, place
from trainyard.spec.load.changes import drop_defaults
from trainyard.spec.load.parse import ParsedNode, number, parse_nodes
from trainyard.spec.nodes import NODE_CONFIGS, NODE_MODELS
from trainyard.spec.ports import PortNode, Wiring, wire


@dataclass(frozen=True)
class DraftNode:
    """A node as it is written, with what a chain leaves to its place written out."""

    id: str
    type: str
    needs: tuple[str, ...]
    config: dict[str, Any]
    valid: bool


@dataclass(frozen=True)
class DraftWiring:
    """The nodes of a draft that have a known type, in their order, and their links."""

    nodes: dict[str, PortNode]
    wiring: Wiring

    @cached_property
    def position(self) -> dict[str, int]:
        """Node -> its place in the order."""
        return {one: at for at, one in enumerate(self.nodes)}


def read_nodes(body: Mapping[str, Any]) -> list[DraftNode]:
    """The nodes of a body with ids and links; settings that have their default are left out of a valid node."""
    listed = [raw for raw in body.get("nodes") or () if isinstance(raw, Mapping)]
    parsed = parse_nodes({"nodes": listed})
    ids = number(parsed)
    found: list[DraftNode] = []
    for index, (node_id, one, raw) in enumerate(zip(ids, parsed, listed, strict=True)):
        before = tuple(ids[index - 1 : index]) if index else ()
        given = raw.get("config")
        config = dict(given) if isinstance(given, Mapping) else {}
        if one.node is not None:
            config = drop_defaults(one.node.config)  # type: ignore[attr-defined]
        needs = before if one.needs is None else one.needs
        found.append(DraftNode(node_id, one.type, tuple(needs), config, one.node is not None))
    return found


# Links


def wire_draft(nodes: Sequence[DraftNode]) -> DraftWiring:
    """Link what can be linked; the nodes of a circle follow without the links that close it."""
    placed, _ = place([parsed_node(node) for node in nodes if node.type in NODE_MODELS])
    ordered, _ = in_order([replace(one, clear=True) for one in placed])
    return DraftWiring({one.id: one for one in ordered}, wire(ordered))


def parsed_node(node: DraftNode) -> ParsedNode:
    config = readable_config(node.type, node.config)
    fields: dict[str, Any] = {"type": node.type, "id": node.id, "needs": node.needs, "config": config}
    model = NODE_MODELS[node.type].model_construct(**fields)
    return ParsedNode(node.type, node.id, node.needs, model)


def readable_config(node_type: str, given: Mapping[str, Any]) -> Strict:
    """The config without the settings that are wrong; that of a new node where nothing is left."""
    kept = dict(given)
    while True:
        try:
            return NODE_CONFIGS[node_type].model_validate(kept)
        except ValidationError as error:
            wrong = {str(one["loc"][0]) for one in error.errors() if one["loc"]} & kept.keys()
        if not wrong:
            return starting_config(node_type)
        kept = {name: value for name, value in kept.items() if name not in wrong}
