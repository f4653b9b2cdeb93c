"""A chain: named nodes, in a line or with `needs` as a DAG. The spec is data only and is checked before it runs.

Three steps, each a pure function: `parse_chain` (shape: unknown keys and types), `resolve` (ids, edges, defaults:
the complete config that is stored beside the result) and `digest` (one name for one meaning).
"""

from __future__ import annotations

import hashlib
from typing import Any

import rfc8785
from pydantic import Field

from trainyard.spec.nodes import Name, Node
from trainyard.spec.training import Strict

MAX_NODES = 10_000


class ChainSpec(Strict):
    """What a user asks for. Nodes without `needs` follow the node above them."""

    name: Name = "chain"
    description: str = Field("", max_length=2000)
    tenant: Name = "default"
    nodes: tuple[Node, ...] = Field(min_length=1, max_length=MAX_NODES)


def canonical_json(value: Any) -> bytes:
    """RFC 8785 bytes of a JSON value: one text for one meaning."""
    return rfc8785.dumps(value)


def digest(value: Any) -> str:
    """SHA-256 (hex) of the canonical JSON of a value, or of a pydantic model's JSON form."""
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json")
    return hashlib.sha256(canonical_json(value)).hexdigest()
