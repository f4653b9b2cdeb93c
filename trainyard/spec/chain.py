"""A chain, as requested and as resolved: typed nodes in a line, or with `needs` as a DAG. Data only, never code.

`ChainSpec` is what a user writes. `spec/graph.py` turns it into a `ResolvedChain`: every id, edge, port and default
written out, stored with the results, with one digest for one meaning whatever its spelling was.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Annotated, Any

import rfc8785
from pydantic import Field, SerializeAsAny, ValidationInfo, field_validator

from trainyard.spec.axes.axis import Strict, omit_default
from trainyard.spec.axes.data import Port
from trainyard.spec.money import Dollars
from trainyard.spec.nodes import NODE_CONFIGS, Name, Node, NodeType

MAX_NODES = 10_000
"""Nodes of one chain. Over the cap is an error with its number, never a truncation."""


THEME = "Subject of the training, such as customer support; it is in the ledger and among the run's tags."
LABELS = "Labels of its runs, which lists show and the ledger keeps."
Theme = Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f]*$")]
Labels = tuple[Name, ...]


class ChainSpec(Strict):
    """Chain as a user writes it. Nodes without `needs` follow the node above them."""

    name: Name = Field("chain", description="Of the chain, in runs and reports.")
    description: str = Field("", max_length=2000, description="For people.")
    tenant: Name = Field("default", description="Owner of its data and adapters.")
    max_spend: Dollars | None = omit_default(None, description="USD that one run may spend; no limit by default.")
    nodes: tuple[Node, ...] = Field(min_length=1, max_length=MAX_NODES)
    theme: Theme = omit_default("", description=THEME)
    tags: Labels = omit_default((), max_length=16, description=LABELS)


class Source(Strict):
    """Source of an input: a port of an earlier node."""

    node_id: str
    port: Port
    control: bool = Field(False, description="The adapter of a control trainer, which only an evaluator takes.")


class ResolvedNode(Strict):
    """A node with everything written out.

    `inputs` names for each port that the node takes where it comes from. The key is what the node wants and the
    source's own port is what the earlier node made: a trainer that learns the chosen side of pairs has
    `{sft: (source.preference,)}`. Two sources at one port mean a set whose kind is known when it is read: exactly one
    of them will exist; only an evaluator has a second adapter, its control.
    """

    id: str
    type: NodeType
    config: SerializeAsAny[Strict]
    needs: tuple[str, ...] = ()
    inputs: dict[Port, tuple[Source, ...]] = Field(default_factory=dict)
    produces: tuple[Port, ...] = ()

    @field_validator("config", mode="before")
    @classmethod
    def config_of_type(cls, value: Any, info: ValidationInfo) -> object:
        """Read a stored config back as the model of its node type."""
        return NODE_CONFIGS[info.data["type"]].model_validate(value) if isinstance(value, dict) else value


class ResolvedChain(Strict):
    """Resolved chain, complete and in order."""

    name: str
    tenant: str
    nodes: tuple[ResolvedNode, ...]
    order: tuple[str, ...]
    digest: str
    theme: str = omit_default("")
    tags: tuple[str, ...] = omit_default(())
    max_spend: Dollars | None = omit_default(None)
    """US dollars that a run may spend; no part of the digest."""

    @cached_property
    def by_id(self) -> dict[str, ResolvedNode]:
        return {node.id: node for node in self.nodes}

    def node(self, node_id: str) -> ResolvedNode:
        return self.by_id[node_id]


def canonical_json(value: Any) -> bytes:
    """RFC 8785 bytes of a JSON value: one text for one meaning."""
    return rfc8785.dumps(value)


def digest(value: object) -> str:
    """SHA-256 (hex) of the canonical JSON of a value, or of a pydantic model's JSON form."""
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json")
    return hashlib.sha256(canonical_json(value)).hexdigest()
