"""A chain that is being written: each node with an id, its links and a config, whether it is valid yet or not.

A node that is not valid keeps its place: its links are drawn with what can be read of its config.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pydantic import ValidationError

from trainyard.json_types import JsonMapping, JsonObject
from trainyard.spec.axes.axis import Strict
from trainyard.spec.changes import drop_defaults
from trainyard.spec.drafts.palette import starting_config
from trainyard.spec.graph import place_nodes, sort_nodes
from trainyard.spec.load.parse import ParsedNode, number, parse_nodes
from trainyard.spec.nodes import NODE_CONFIGS, NODE_MODELS
from trainyard.spec.ports import PortNode, Wiring, wire


@dataclass(frozen=True)
class DraftNode:
    """A node as it is written, with what a chain leaves to its place written out."""

    id: str
    type: str
    needs: tuple[str, ...]
    config: JsonObject
    valid: bool


@dataclass(frozen=True)
class DraftWiring:
    """The nodes of a draft that have a known type, in their order, and their links."""

    nodes: dict[str, PortNode]
    wiring: Wiring

    @cached_property
    def position(self) -> dict[str, int]:
        """Node -> its place in the order."""
        return {node: at for at, node in enumerate(self.nodes)}


def read_nodes(body: JsonMapping) -> list[DraftNode]:
    """Return the nodes of a body with ids and links; settings that have their default are left out of a valid node."""
    listed = [raw for raw in body.get("nodes") or () if isinstance(raw, Mapping)]
    parsed = parse_nodes({"nodes": listed})
    ids = number(parsed)
    nodes: list[DraftNode] = []
    for index, (node_id, node, raw) in enumerate(zip(ids, parsed, listed, strict=True)):
        before = tuple(ids[index - 1 : index]) if index else ()
        raw_config = raw.get("config")
        config = dict(raw_config) if isinstance(raw_config, Mapping) else {}
        if node.node is not None:
            config = drop_defaults(node.node.config)  # type: ignore[attr-defined]
        needs = before if node.needs is None else node.needs
        nodes.append(DraftNode(node_id, node.type, tuple(needs), config, node.node is not None))
    return nodes


# Links


def wire_draft(nodes: Sequence[DraftNode]) -> DraftWiring:
    """Link what can be linked; the nodes of a circle follow without the links that close it."""
    placed, _ = place_nodes([parse_node(node) for node in nodes if node.type in NODE_MODELS])
    ordered, _ = sort_nodes([replace(node, clear=True) for node in placed])
    return DraftWiring({node.id: node for node in ordered}, wire(ordered))


def parse_node(node: DraftNode) -> ParsedNode:
    config = readable_config(node.type, node.config)
    fields: JsonObject = {"type": node.type, "id": node.id, "needs": node.needs, "config": config}
    model = NODE_MODELS[node.type].model_construct(**fields)
    return ParsedNode(node.type, node.id, node.needs, model)


def readable_config(node_type: str, config: JsonMapping) -> Strict:
    """Return the config without the settings that are wrong; that of a new node where nothing is left."""
    readable = dict(config)
    while True:
        try:
            return NODE_CONFIGS[node_type].model_validate(readable)
        except ValidationError as error:
            wrong = {str(detail["loc"][0]) for detail in error.errors() if detail["loc"]} & readable.keys()
        if not wrong:
            return starting_config(node_type)
        readable = {name: value for name, value in readable.items() if name not in wrong}
