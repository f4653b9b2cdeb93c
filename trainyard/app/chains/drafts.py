"""A chain while it is edited: written out with ids, links and ports, as YAML, with every reason against it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import orjson
import yaml
from pydantic import Field

from trainyard.app.context import Context
from trainyard.app.plan.check import FileCheck, check_file
from trainyard.app.plan.parse import JOB, NAMES, find_file, parse_chain, parse_request
from trainyard.app.reach import require_template
from trainyard.app.responses import Response
from trainyard.errors import InvalidInput, NotFound, Reason, Refused
from trainyard.json_types import JsonObject
from trainyard.operations import chains as requests
from trainyard.operations.base import Nothing
from trainyard.spec.axes.data import Port
from trainyard.spec.chain import Source
from trainyard.spec.drafts import (
    GROUPS,
    DraftNode,
    Link,
    PortGroup,
    list_links,
    list_palette,
    ports_made,
    ports_taken,
    read_nodes,
    wire_draft,
)
from trainyard.spec.load.files import load_value
from trainyard.spec.load.text import parse_text
from trainyard.spec.nodes import NODE_CONFIGS, NodeType
from trainyard.spec.summaries import list_defaults, summarize_node


class PaletteEntry(Response):
    """One type of node that can be added."""

    type: str
    text: str
    config: JsonObject
    """Of a new node."""
    settings: JsonObject
    """JSON Schema of its config."""


class PortEntry(Response):
    """What travels between nodes, and the group whose colour it has."""

    port: Port
    group: PortGroup


class Palette(Response):
    nodes: tuple[PaletteEntry, ...]
    ports: tuple[PortEntry, ...]


class ExpandedNode(Response):
    """One node, with its ports."""

    id: str
    type: str
    valid: bool
    takes: tuple[Port, ...]
    """What it may take."""
    makes: tuple[Port, ...]
    inputs: dict[Port, tuple[Source, ...]]
    """What reaches it now, and from where."""
    summary: str = ""
    """What it does, in one line."""
    defaults: dict[str, object] = Field({})
    """Setting that is left out -> the value that a run takes for it, such as hyperparameters.learning_rate."""


class ExpandedChain(Response):
    """A whole chain, valid or not yet."""

    spec: JsonObject
    text: str
    """The same as YAML."""
    nodes: tuple[ExpandedNode, ...]
    check: FileCheck

    @property
    def exit_code(self) -> int:
        return 0 if self.check.ok else Refused.exit_code


class LinkAnswer(Response):
    """Whether a link from one port of a node may be made."""

    port: Port
    target: str
    linked: bool
    """The target needs the node already."""
    allowed: bool
    code: str = ""
    because: str = ""
    instead: str = ""


class LinkAnswers(Response):
    node: str
    links: tuple[LinkAnswer, ...]


def show_palette(_request: Nothing, _context: Context) -> Palette:
    return Palette(
        nodes=tuple(
            PaletteEntry(
                type=entry.type, text=entry.text, config=dict(entry.config),
                settings=orjson.loads(schema_text(entry.type)),
            )
            for entry in list_palette()
        ),
        ports=tuple(PortEntry(port=port, group=GROUPS[port]) for port in Port),
    )  # fmt: skip


@cache
def schema_text(kind: NodeType) -> bytes:
    """Return the JSON schema of a node's settings: pydantic makes all six in 0.13 s, and they are read again in 1
    ms.
    """
    return orjson.dumps(NODE_CONFIGS[kind].model_json_schema())


def expand(request: requests.ExpandInput, context: Context) -> ExpandedChain:
    """Write a chain out. Its problems are in `check`; its nodes are there anyway.

    Raises `Refused` for a text that is not YAML or JSON, `NotFound` (`E-PARAMETER`) for an unknown template or file.
    """
    value = value_of(request, context)
    check = check_file(value, context)
    body = value if "nodes" in value else spell_out_chain(value)
    nodes = read_nodes(body)
    spec = {
        **{name: value for name, value in body.items() if name != "nodes"},
        "nodes": [dump_node(node) for node in nodes],
    }
    text = yaml.safe_dump(spec, sort_keys=False, allow_unicode=True)
    return ExpandedChain(
        spec=spec, text=text, nodes=expand_nodes(nodes, context.settings.default_base_model), check=check
    )


def value_of(request: requests.ExpandInput, context: Context) -> JsonObject:
    """Return the plain value of a text, a file, a mapping, or a template's name with its parameters."""
    if context.caller.remote and request.target is not None:
        require_template(request.target, NAMES)
    if bool(request.text) == (request.target is not None):
        raise InvalidInput("A draft is either a target or a text.", do="Give one of them.", code="E-PARAMETER")
    target = request.target
    if isinstance(target, str) and target in NAMES:
        if target == JOB:
            return {"dataset": {}, **request.parameters}
        return {"template": target, "parameters": request.parameters}
    if isinstance(target, Mapping):
        return dict(target)
    value = parse_text(request.text) if target is None else load_value(find_file(target))
    if not isinstance(value, Mapping):
        parse_chain(value)  # raises with the reason
    return dict(value)


def spell_out_chain(value: Mapping[str, object]) -> dict[str, object]:
    """Return the chain of a template's call or of a job; one without nodes where it is not valid."""
    try:
        spec = parse_request(value).spec
    except InvalidInput:  # `check` has the reasons
        return {"name": str(value.get("template") or "chain"), "nodes": []}
    fields = spec.model_dump(mode="json", include={"name", "description", "tenant"}, exclude_defaults=True)
    return {"name": spec.name, **fields, "nodes": [node.model_dump(mode="json") for node in spec.nodes]}


def dump_node(node: DraftNode) -> dict[str, object]:
    return {"id": node.id, "type": node.type, "needs": list(node.needs), "config": node.config}


def expand_nodes(nodes: list[DraftNode], default_base_model: str) -> tuple[ExpandedNode, ...]:
    draft = wire_draft(nodes)
    rows = []
    for node in nodes:
        placed = draft.nodes.get(node.id)
        rows.append(
            ExpandedNode(
                id=node.id, type=node.type, valid=node.valid,
                takes=ports_taken(placed.config, placed.type) if placed else (),
                makes=ports_made(draft, node.id) if placed else (),
                inputs=draft.wiring.inputs[node.id] if placed else {},
                summary=summarize_node(placed.config, default_base_model) if placed else "",
                defaults=list_defaults(placed.config, default_base_model) if placed else {},
            )
        )  # fmt: skip
    return tuple(rows)


def show_links(request: requests.LinksInput, context: Context) -> LinkAnswers:
    """Return where links from a node of a draft may lead. Raises `NotFound` (`E-PARAMETER`) for a node that it
    lacks.
    """
    value = value_of(requests.ExpandInput(target=request.target), context)
    nodes = read_nodes(value if "nodes" in value else spell_out_chain(value))
    if request.node not in {node.id for node in nodes if node.type in NODE_CONFIGS}:
        raise NotFound(
            f"The draft has no node {request.node!r} of a known type.", do="Name one of its nodes.", code="E-PARAMETER"
        )
    links = list_links(nodes, request.node, context.settings.default_base_model)
    return LinkAnswers(node=request.node, links=tuple(map(answer_of, links)))


def answer_of(link: Link) -> LinkAnswer:
    reason = link.reason or Reason("", None, "", "", "")
    return LinkAnswer(
        port=link.port, target=link.target, linked=link.linked, allowed=link.reason is None,
        code=reason.code, because=reason.because, instead=reason.instead,
    )  # fmt: skip
