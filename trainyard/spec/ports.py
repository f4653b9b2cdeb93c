"""Typed ports: what each node makes, what it takes, and from which earlier node it comes.

The rule: an input comes from the nearest earlier node that makes it. Nearness counts the links between the two; of two
equally near nodes the one that was itself made from the other wins, and if neither was, the spec is refused rather than
one of them dropped.

What a set of rows is may show only when its file is read (`data.jsonl` with `format: auto`). Such a set is offered on
every row port that it may turn out to be, and checked again at run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Literal

from trainyard.spec.axes.axis import Strict
from trainyard.spec.axes.data import COLUMN_FIELDS, DECIDING_FIELDS, DataFormat, GenerationTemplate, Port
from trainyard.spec.axes.stages import Stage, StageSettings
from trainyard.spec.chain import Source
from trainyard.spec.nodes import AiGeneratorConfig, DataSourceConfig, SourceSet
from trainyard.spec.training import TrainerConfig

ROW_PORTS = (Port.SFT, Port.PREFERENCE, Port.LABELLED, Port.PROMPTS, Port.TEXT)
"""Ports that carry rows, in the order in which reports list them."""
EVALUATED_PORTS = tuple(port for port in ROW_PORTS if port is not Port.PROMPTS)
"""Ports of rows that have an answer, by which an evaluator measures."""

ROW_SUFFIXES = (".jsonl", ".json", ".ndjson", ".parquet", ".csv", ".tsv", ".arrow")
COMPRESSION_SUFFIXES = (".gz", ".zst", ".bz2", ".xz")

Channel = Literal[
    "documents", "sft", "preference", "labelled", "prompts", "text", "weights", "policy", "scores", "control", "report"
]
"""What one offer hides: a newer adapter or model hides the older one, whichever of the two it is. Of `weights`, those
that answer are offered as `policy` too and those that score as `scores`: a trainer may take one of each."""


@dataclass(frozen=True)
class Offer:
    """Offers that the nodes before a node pass to it on one channel."""

    sources: tuple[Source, ...]
    """The nearest; more than one only when they are equally near and none was made from another."""
    distance: int
    certain: bool = True
    """False for rows whose kind shows when the file is read."""


Offers = Mapping[Channel, Offer]
Inputs = dict[Port, tuple[Source, ...]]


@dataclass(frozen=True)
class Missing:
    """A node did not get what it cannot work without."""

    node_id: str
    needed: tuple[Port, ...]
    offered: tuple[Port, ...]
    only_control: bool = False
    """The only adapter that reaches the node is a control's."""


@dataclass(frozen=True)
class Ambiguous:
    """Two equally near nodes make the same port."""

    node_id: str
    port: Port
    candidates: tuple[str, ...]


@dataclass
class Wiring:
    """The links of a whole chain, with what could not be linked."""

    inputs: dict[str, Inputs] = field(default_factory=dict)
    produces: dict[str, tuple[Port, ...]] = field(default_factory=dict)
    missing: list[Missing] = field(default_factory=list)
    ambiguous: list[Ambiguous] = field(default_factory=list)
    after: dict[str, Offers] = field(default_factory=dict)
    """What each node hands on: its own and what reached it."""


@dataclass(frozen=True)
class PortNode:
    """View of a node for wiring. `clear` is False where an error above makes its inputs unknowable."""

    id: str
    type: str
    config: Strict
    needs: tuple[str, ...]
    clear: bool = True


def wire(nodes: Sequence[PortNode]) -> Wiring:
    """Link every input of nodes that are given in topological order. Time is linear in nodes and links."""
    wiring = Wiring()
    after = wiring.after
    position = {node.id: index for index, node in enumerate(nodes)}
    for node in nodes:
        offers = merge([after[need] for need in node.needs if need in after], wiring.inputs, position)
        inputs = take(node, offers)
        wiring.inputs[node.id] = inputs
        outputs = list_offers(node, offers)
        wiring.produces[node.id] = tuple(
            dict.fromkeys(source.port for offer in outputs.values() for source in offer.sources)
        )
        handed = pass_offers(node, offers).items()
        after[node.id] = {key: replace(offer, distance=offer.distance + 1) for key, offer in handed} | outputs
        if node.clear:
            wiring.missing += find_missing(node, offers, inputs)
            wiring.ambiguous += find_ambiguous(node, offers)
    return wiring


# What a node makes


def list_offers(node: PortNode, offers: Offers) -> dict[Channel, Offer]:
    """Return what later nodes can take from this one, at distance 1."""
    if node.type == "validator":
        return {
            channel: Offer((Source(node_id=node.id, port=Port(channel)),), 1, offers[channel].certain)
            for channel in map(find_channel, ROW_PORTS)
            if channel in offers
        }
    ports, certain = products(node.config, node.type)
    control = isinstance(node.config, TrainerConfig) and node.config.control is not None
    sources = [Source(node_id=node.id, port=port, control=control) for port in ports]
    offers = {channel_of_source(source): Offer((source,), 1, source.port in certain) for source in sources}
    if isinstance(node.config, TrainerConfig) and "weights" in offers:
        offers["scores" if node.config.stage.facts.head == "reward" else "policy"] = offers["weights"]
    return offers


def pass_offers(node: PortNode, offers: Offers) -> Offers:
    """Return what later nodes may take of what reached a node. Behind a generator that chooses by a reward model the
    weights
    are those before that model: it has done its work, and nothing continues it."""
    if not (isinstance(node.config, AiGeneratorConfig) and node.config.best_of > 1 and "scores" in offers):
        return offers
    remaining: dict[Channel, Offer] = dict(offers)
    remaining.pop("weights", None)  # a generator before this one may have ended it already
    return remaining | {"weights": offers["policy"]} if "policy" in offers else remaining


def products(config: Strict, node_type: str) -> tuple[tuple[Port, ...], frozenset[Port]]:
    """Return the ports that a node fills by its config alone, and those of them that are certain before the run."""
    ports: tuple[Port, ...] = ()
    if isinstance(config, DataSourceConfig):
        ports = tuple(port for port in Port if port in config.sets) or kinds_of_source(config)
        return ports, frozenset(ports if config.sets or len(ports) == 1 else ())
    if isinstance(config, AiGeneratorConfig):
        ports = (Port.PREFERENCE if config.template is GenerationTemplate.PREFERENCE else Port.SFT,)
    elif isinstance(config, TrainerConfig):
        ports = (Port.ADAPTER if config.method.facts.adapter else Port.MODEL,)
    elif node_type == "evaluator":
        ports = (Port.REPORT,)
    return ports, frozenset(ports)


def kinds_of_source(config: DataSourceConfig) -> tuple[Port, ...]:
    """Return the ports that the one set of a source may fill; a mixture fills one that all of its sets may fill."""
    if config.mix is None:
        return kinds_of_set(config.single())
    if config.mix.port is not None:
        return (config.mix.port,)
    of_sets = [kinds_of_set(rows) for rows in config.mix.sets.values()]
    return tuple(port for port in of_sets[0] if all(port in kinds for kinds in of_sets))


def kinds_of_set(source: SourceSet) -> tuple[Port, ...]:
    """Return the ports that a set may fill, from its format or its name, without reading it."""
    if source.format is not DataFormat.AUTO:
        return source.format.facts.ports
    if source.repository:
        return (Port.DOCUMENTS,)
    if source.columns:
        named = next((name for name in DECIDING_FIELDS if name in source.columns), None)
        return COLUMN_FIELDS[named] if named else ROW_PORTS
    if source.hub is not None or source.sql is not None or source.converter is not None:
        return ROW_PORTS
    name = PurePosixPath(str(source.path or source.url).split("?")[0].split("#")[0])
    suffixes = [suffix.lower() for suffix in name.suffixes]
    while suffixes and suffixes[-1] in COMPRESSION_SUFFIXES:
        suffixes.pop()
    return ROW_PORTS if suffixes and suffixes[-1] in ROW_SUFFIXES else (Port.DOCUMENTS,)


# What a node takes


def take(node: PortNode, offers: Offers) -> Inputs:
    """Return the inputs of a node, chosen from the offered ports."""
    if isinstance(node.config, AiGeneratorConfig):
        return {**pick(offers, "documents"), **(find_scores(offers) if node.config.best_of > 1 else {})}
    if node.type == "validator":
        rows = pick(offers, *map(find_channel, ROW_PORTS))
        return {**pick(offers, "documents"), **rows} if rows else {}
    if isinstance(node.config, TrainerConfig):
        return {**training_data(node.config.stage.type, offers), **find_weights(node.config.stage, offers)}
    if node.type == "evaluator":
        inputs = pick(offers, *map(find_channel, EVALUATED_PORTS), "weights")
        if "weights" in offers and "control" in offers:
            (control,) = offers["control"].sources[:1]
            inputs[control.port] = (*inputs.get(control.port, ()), control)
        return inputs
    if node.type == "deployer":
        return pick(offers, "weights", "report")
    return {}


def pick(offers: Offers, *channels: Channel) -> Inputs:
    """Return the first source of each of these channels that is offered, under its own port."""
    sources = [offers[channel].sources[0] for channel in channels if channel in offers]
    return {source.port: (source,) for source in sources}


def find_weights(stage: StageSettings, offers: Offers) -> Inputs:
    """Return the weights that a trainer begins with; of a stage that draws completions never a reward model, which it
    takes
    next to them where it reads its scores."""
    if not stage.facts.draws_groups:
        return pick(offers, "weights")
    return {**pick(offers, "policy"), **(find_scores(offers) if stage.reads_scores else {})}


def find_scores(offers: Offers) -> Inputs:
    """Return the nearest reward model, if one is offered."""
    return {Port.REWARD: offers["scores"].sources[:1]} if "scores" in offers else {}


def training_data(stage: Stage, offers: Offers) -> Inputs:
    """Return what a stage learns from. An sft stage takes the chosen side of pairs when there is nothing nearer its
    own.

    Where only reading the file shows its kind, every kind that the stage learns from is linked.
    """
    own_ports = [(offers[find_channel(port)], port) for port in stage.facts.ports if find_channel(port) in offers]
    if not own_ports:
        alternatives = [
            offers[find_channel(port)].sources[:1] for port in stage.facts.instead if find_channel(port) in offers
        ]
        return {stage.facts.ports[0]: alternatives[0]} if alternatives else {}
    offer, port = min(own_ports, key=lambda pair: pair[0].distance)
    sources = offer.sources[:1]
    if port is Port.SFT and not offer.certain:
        pairs = offers.get("preference")
        sources += pairs.sources[:1] if pairs and pairs.sources[0].node_id == sources[0].node_id else ()
    inputs: Inputs = {port: sources}
    if not offer.certain:
        same = [(offer, other) for offer, other in own_ports if offer.sources[0].node_id == sources[0].node_id]
        inputs = {other: offer.sources[:1] for offer, other in same} | inputs
    return inputs


def wants(node: PortNode) -> tuple[Port, ...]:
    """Return the ports of which a node needs at least one."""
    if node.type == "ai_generator":
        return (Port.DOCUMENTS,)
    if node.type == "validator":
        return ROW_PORTS
    if isinstance(node.config, TrainerConfig):
        return node.config.stage.facts.ports
    return (Port.ADAPTER, Port.MODEL) if node.type in ("evaluator", "deployer") else ()


def find_missing(node: PortNode, offers: Offers, inputs: Inputs) -> Iterable[Missing]:
    needs = wants(node)
    if needs and not any(port in inputs for port in needs):
        offered = tuple(dict.fromkeys(offer.sources[0].port for key, offer in offers.items() if key != "control"))
        yield Missing(node.id, needs, offered, only_control="control" in offers and Port.ADAPTER in needs)


def find_ambiguous(node: PortNode, offers: Offers) -> Iterable[Ambiguous]:
    """Ports that the node would take and for which two nodes are equally near."""
    ports = {source.port for sources in take(node, offers).values() for source in sources}
    unread = unread_channels(node)
    for channel, offer in offers.items():
        if channel not in unread and len(offer.sources) > 1 and offer.sources[0].port in ports:
            yield Ambiguous(node.id, offer.sources[0].port, tuple(source.node_id for source in offer.sources))


def unread_channels(node: PortNode) -> tuple[Channel, ...]:
    """Return the channels of weights that a node does not look at: it takes any weights, or a policy, a reward model,
    or
    both."""
    if isinstance(node.config, AiGeneratorConfig):
        return ("weights", "policy")
    if not (isinstance(node.config, TrainerConfig) and node.config.stage.facts.draws_groups):
        return ("policy", "scores")
    return ("weights",) if node.config.stage.reads_scores else ("weights", "scores")


# Nearness


def find_channel(port: Port) -> Channel:
    return "weights" if port in (Port.ADAPTER, Port.MODEL) else port.value  # type: ignore[return-value]


def channel_of_source(source: Source) -> Channel:
    return "control" if source.control else find_channel(source.port)


def merge(
    branches: Sequence[Offers], inputs: Mapping[str, Inputs], position: Mapping[str, int]
) -> dict[Channel, Offer]:
    """Return what all branches offer together: on each channel the nearest."""
    if len(branches) == 1:
        return dict(branches[0])
    merged: dict[Channel, Offer] = {}
    for branch in branches:
        for channel, offer in branch.items():
            merged[channel] = nearer(merged[channel], offer, inputs, position) if channel in merged else offer
    return merged


def nearer(offer: Offer, other: Offer, inputs: Mapping[str, Inputs], position: Mapping[str, int]) -> Offer:
    """Return the nearer of two offers, or both together without those from which another of them was made."""
    if offer.distance != other.distance:
        return min(offer, other, key=lambda item: item.distance)
    if offer == other:
        return offer
    sources = tuple(dict.fromkeys((*offer.sources, *other.sources)))
    remaining = tuple(s for s in sources if not any(t != s and is_made_from(t, s, inputs, position) for t in sources))
    return Offer(remaining, offer.distance, offer.certain and other.certain)


def is_made_from(result: Source, origin: Source, inputs: Mapping[str, Inputs], position: Mapping[str, int]) -> bool:
    """Return whether `result` was made out of `origin`, over any number of nodes on the same channel."""
    channel = channel_of_source(origin)
    pending, seen = [result.node_id], {result.node_id}
    while pending:
        for sources in inputs.get(pending.pop(), {}).values():
            for source in sources:
                if source.node_id == origin.node_id:
                    return channel_of_source(source) == channel
                is_before = source.node_id in seen or position[source.node_id] < position[origin.node_id]
                if not is_before and channel_of_source(source) == channel:
                    seen.add(source.node_id)
                    pending.append(source.node_id)
    return False
