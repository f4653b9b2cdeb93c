"""Context of a row of the table: one node in its place in the chain, and the facts of the machine at run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from trainyard.errors import Reason
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.data import Port
from trainyard.spec.axes.devices import Device
from trainyard.spec.chain import ResolvedChain, ResolvedNode
from trainyard.spec.estimate.shape import BaseFacts
from trainyard.spec.ports import Ambiguous, Missing, Wiring
from trainyard.spec.training import TrainerConfig

MessageArgs = Mapping[str, object]
Match = bool | MessageArgs | Sequence[MessageArgs] | None
"""What a `when` returns: no, yes, yes with arguments for the message, or one set of arguments per match."""


@dataclass(frozen=True)
class RunFacts:
    """Facts of the machine, the settings and the caller's folders for a run. None: not known."""

    endpoints: Set[str] | None = None
    """Endpoints that the settings name, with an address and perhaps a key."""
    missing_key: Callable[[TrainerConfig], str | None] | None = None
    """The variable whose key a trainer's service needs, if it is not set here."""
    may_mirror: Callable[[str], bool] | None = None
    may_read: Callable[[str], bool] | None = None
    """Whether the operator lets checkpoints be copied to a bucket."""
    data_workers: Set[str] | None = None
    """Addresses of the data workers that the settings name."""
    path_problem: Callable[[str], Reason | None] | None = None
    """Why a data path may not be read (it leaves its root) and what to write instead; None if it may."""
    backends: Mapping[BackendName, str | None] | None = None
    """Backend -> why it is not available here; None if it is. One that is not listed is not available."""
    devices: Set[Device] | None = None
    """Devices of this machine, the CPU included."""
    base: Callable[[str], BaseFacts | None] | None = None
    """Facts of a base model's files, if they are on this machine."""
    vllm_install: str | None = None
    """What installs vLLM, if its executable is not here."""
    embedded: bool | None = None
    """Whether the embedded model server is up."""
    has_module: Callable[[str], bool] | None = None
    """Whether a package can be imported here."""
    opens_network: bool | None = None
    """Whether the operator lets trainings listen on the network without a token."""
    confines_code: Callable[[], bool] | None = None
    """Whether the operating system confines code of completions here, or the operator lets it run without."""


@dataclass(frozen=True)
class View:
    """A whole chain, with the facts that many rows need computed once."""

    chain: ResolvedChain
    wiring: Wiring
    facts: RunFacts = RunFacts()

    @cached_property
    def used_controls(self) -> frozenset[str]:
        sources = (source for node in self.chain.nodes for inputs in node.inputs.values() for source in inputs)
        return frozenset(source.node_id for source in sources if source.control)

    @cached_property
    def roles(self) -> Counter[tuple[str, str]]:
        configs: Iterable[Any] = (node.config for node in self.chain.nodes if node.type == "deployer")
        return Counter((config.tenant, config.role) for config in configs)

    @cached_property
    def missing(self) -> dict[str, Missing]:
        return {port.node_id: port for port in self.wiring.missing}

    @cached_property
    def ambiguous(self) -> dict[str, list[Ambiguous]]:
        by_node: dict[str, list[Ambiguous]] = {}
        for ambiguity in self.wiring.ambiguous:
            by_node.setdefault(ambiguity.node_id, []).append(ambiguity)
        return by_node


@dataclass(frozen=True)
class NodeView:
    """A node in its chain."""

    node: ResolvedNode
    view: View

    def sources(self, *ports: Port) -> list[ResolvedNode]:
        """Return the nodes that fill these ports of this node, controls left out."""
        sources = [source for port in ports for source in self.node.inputs.get(port, ()) if not source.control]
        return [self.view.chain.by_id[source.node_id] for source in sources]

    def trainer(self) -> TrainerConfig | None:
        """Return the trainer whose adapter or model this node takes."""
        configs = (node.config for node in self.sources(Port.ADAPTER, Port.MODEL))
        return next((config for config in configs if isinstance(config, TrainerConfig)), None)

    def at(self, node: ResolvedNode) -> NodeView:
        return NodeView(node, self.view)

    @property
    def facts(self) -> RunFacts:
        return self.view.facts


When = Callable[[Any, NodeView], Match]


@dataclass(frozen=True)
class Row:
    """A refused combination. `field` may contain words in braces too, such as the number of a target."""

    name: str
    """Its own, as the bad chain that it refuses is named."""
    code: str
    """Values that the rows of one subject share."""
    on: str
    field: str
    when: When
    because: str
    instead: str
    chained: bool = False
    """Looks at other nodes too; not asked where an error elsewhere makes the inputs unknowable."""
    scope: Literal["spec", "run", "words", "session"] = "spec"
    """When it is asked: of a chain, of a chain on this machine, of plain values that no spec has a place for, of the
    settings of a step session."""


def join_words(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


def answers(hits: Match) -> Sequence[MessageArgs]:
    """Return the words of each hit; empty for a no."""
    if not hits:
        return ()
    if isinstance(hits, Mapping):
        return (hits,)
    return ({},) if hits is True else hits


def fill(row: Row, arguments: MessageArgs, node: str | None, field: str) -> Reason:
    """Return the reason of a row with its texts filled."""
    return Reason(row.code, node, field, row.because.format(**arguments), row.instead.format(**arguments), row.name)
