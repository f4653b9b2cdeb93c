"""A chain that is being written: each node with an id, its links and a config, whether it is valid yet or not.

A node that is not valid keeps its place: its links are drawn with what can be read of its config.

What an editor offers: each type of node with the config that it starts with, and each port with its group.

A new node is valid at once where its type has defaults; a data source starts with a path to be corrected.

Where a link from one node's port may lead: for every other node yes, or the reason of the table why not.

Adding one link changes what reaches its target alone, so that one wiring of the draft answers for all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from pydantic import ValidationError

from trainyard.errors import Reason
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.spec.axes.axis import Strict
from trainyard.spec.axes.data import Port
from trainyard.spec.chain import ResolvedChain, ResolvedNode, Source
from trainyard.spec.compat.context import View
from trainyard.spec.compat.data import DATA_ROWS
from trainyard.spec.compat.evaluator_deployer import DEPLOYER_ROWS, EVALUATOR_ROWS
from trainyard.spec.compat.table import apply_rows
from trainyard.spec.graph import MAX_CYCLE_SHOWN, complete_config, describe_cycle, place_nodes, sort_nodes
from trainyard.spec.load.parse import ParsedNode, number, parse_nodes
from trainyard.spec.model_schema import drop_defaults
from trainyard.spec.nodes import NODE_CONFIGS, NODE_MODELS, AiGeneratorConfig
from trainyard.spec.ports import (
    EVALUATED_PORTS,
    ROW_PORTS,
    Offer,
    Offers,
    PortNode,
    Wiring,
    channel_of_source,
    find_ambiguous,
    find_channel,
    find_missing,
    merge,
    take,
    wire,
)
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


LINK_ROWS = tuple(row for row in (*DATA_ROWS, *EVALUATOR_ROWS, *DEPLOYER_ROWS) if row.scope == "spec")


@dataclass(frozen=True)
class Link:
    """A possible link."""

    port: Port
    target: str
    linked: bool
    """The target needs the source already."""
    reason: Reason | None
    """Why not; None if it may be made."""


def list_links(nodes: Sequence[DraftNode], source: str, base_model: str) -> Iterator[Link]:
    """Yield the links from each port of a node to every other node. Raises `KeyError` for a node that is not there."""
    draft = wire_draft(nodes)
    needs = {node.id: node.needs for node in nodes}
    before = steps_to(source, needs)
    produced = ports_made(draft, source)
    for target, node in draft.nodes.items():
        if target == source:
            continue
        for port in produced:
            reason = (
                circle_reason(target, source, before)
                if target in before
                else refusal(draft, node, source, port, base_model)
            )
            yield Link(port, target, source in node.needs, reason)


def ports_made(draft: DraftWiring, node_id: str) -> tuple[Port, ...]:
    """Return the ports that a node makes; a validator that nothing reaches yet may come to make each of the rows."""
    produced = draft.wiring.produces[node_id]
    if produced or draft.nodes[node_id].type != "validator":
        return produced
    offers = {find_channel(port): Offer((Source(node_id=node_id, port=port),), 1, False) for port in ROW_PORTS}
    draft.wiring.after[node_id] = {**draft.wiring.after[node_id], **offers}
    return ROW_PORTS


def steps_to(source: str, needs: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, int]]:
    """Node before the source -> the next node on its shortest way there, and the length of that way."""
    shortest: dict[str, tuple[str, int]] = {}
    pending = deque([(source, 0)])
    while pending:
        node, steps = pending.popleft()
        for need in needs.get(node, ()):
            if need not in shortest and need != source:
                shortest[need] = (node, steps + 1)
                pending.append((need, steps + 1))
    return shortest


def circle_reason(target: str, source: str, before: Mapping[str, tuple[str, int]]) -> Reason:
    """Return why a node before the source cannot follow it."""
    begin = [target]
    while begin[-1] != source and len(begin) < MAX_CYCLE_SHOWN:
        begin.append(before[begin[-1]][0])
    return describe_cycle(begin, source, before[target][1] + 1)


def refusal(draft: DraftWiring, node: PortNode, source: str, port: Port, base_model: str) -> Reason | None:
    """Return why a node would not take a port of the source if it were linked to it; None if it would."""
    if node.type == "data_source":
        because = f"The data_source {node.id!r} reads files and takes nothing from other nodes."
        return Reason("R-PORT", node.id, "needs", because, "Link the two to a node that takes both.")
    after = draft.wiring.after
    needs = tuple(dict.fromkeys((*node.needs, source)))
    offers = merge([after[need] for need in needs if need in after], draft.wiring.inputs, draft.position)
    if two := [clash for clash in find_ambiguous(node, offers) if source in clash.candidates and clash.port == port]:
        return row_reason(node, Wiring(ambiguous=two), base_model)
    inputs = [source_port for sources in take(node, offers).values() for source_port in sources]
    if any(source_port.node_id == source and source_port.port == port for source_port in inputs):
        return None
    only = find_offer(draft, source, port)
    if missing := list(find_missing(node, only, take(node, only))):
        return row_reason(node, Wiring(missing=missing), base_model)
    names = ", ".join(dict.fromkeys(f"{source_port.port.value} of {source_port.node_id!r}" for source_port in inputs))
    because = f"The {node.type} {node.id!r} takes {names}, and would not take {port.value} of {source!r}."
    return Reason("R-PORT", node.id, "needs", because, "Remove the link of the other first.")


def find_offer(draft: DraftWiring, source: str, port: Port) -> Offers:
    """Return what the source itself offers on one port, and nothing that reached it."""
    offered = [source_port for offer in draft.wiring.after[source].values() for source_port in offer.sources]
    source_port = next(candidate for candidate in offered if candidate.node_id == source and candidate.port == port)
    alone = Source(node_id=source, port=port, control=source_port.control)
    return {channel_of_source(alone): Offer((alone,), 1)}


def row_reason(node: PortNode, wiring: Wiring, base_model: str) -> Reason | None:
    """Return the reason that the table gives for a node whose links are these."""
    config = complete_config(node.config, {}, {}, "default", base_model, by_rule=False)
    alone = ResolvedNode.model_construct(id=node.id, type=node.type, config=config, inputs={})  # type: ignore[arg-type]
    chain = ResolvedChain.model_construct(name="draft", tenant="default", nodes=(alone,), order=(node.id,), digest="")
    usual = apply_rows(LINK_ROWS, "spec", View(chain, Wiring()), frozenset())
    reasons = [
        reason for reason in apply_rows(LINK_ROWS, "spec", View(chain, wiring), frozenset()) if reason not in usual
    ]
    return reasons[0] if reasons else None
