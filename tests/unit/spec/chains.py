"""Short spellings of chains for the tests of this room."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

from trainyard.errors import Reason
from trainyard.spec.axes.data import Port
from trainyard.spec.chain import ResolvedChain
from trainyard.spec.graph import check, resolve

RESOURCES = Path(__file__).parents[2] / "resources"
GOLDEN = Path(__file__).parents[2] / "golden"


def cpu_seconds(work: Callable[[], object], *, within: float) -> float:
    """CPU time of the work: the least of three tries, of which the first that is quick enough is the last.

    A machine whose cores are shared is slower for a while, and a large test process collects its garbage for long.
    """
    least = float("inf")
    for _ in range(3):
        gc.collect()
        started = time.process_time()
        work()
        least = min(least, time.process_time() - started)
        if least < within:
            break
    return least


def measure_slowness() -> float:
    """Factor for bounds on time: a coverage run traces every line, and other work on the machine slows this one.

    The yardstick is building and sorting plain values, which takes about 0.2 seconds of CPU on an idle core.
    """
    started = time.process_time()
    sorted([{"id": f"n{index % 997}", "needs": [str(index)]} for index in range(150_000)], key=itemgetter("id"))
    return max(1.0, (time.process_time() - started) / 0.2) * (1.0 if sys.gettrace() is None else 5.0)


def node(kind: str, node_id: str | None = None, needs: list[str] | None = None, **config: Any) -> dict[str, Any]:
    """One node of a chain as a plain value; None leaves a key out."""
    node_value: dict[str, Any] = {"type": kind}
    node_value |= {"id": node_id} if node_id else {}
    node_value |= {} if needs is None else {"needs": needs}
    return node_value | ({"config": config} if config else {})


def source(path: str = "rows.jsonl", **config: Any) -> dict[str, Any]:
    return node("data_source", path=path, **config)


def chain(*nodes: dict[str, Any], **rest: Any) -> dict[str, Any]:
    return {"nodes": list(nodes), **rest}


def resolve_nodes(*nodes: dict[str, Any], **rest: Any) -> ResolvedChain:
    return resolve(chain(*nodes, **rest))


def reasons(*nodes: dict[str, Any]) -> list[Reason]:
    return check(chain(*nodes))


def get_row_name(reason: Reason) -> str:
    """The name of the row that refuses; the code of any other reason."""
    return reason.row or reason.code


def list_row_names(*nodes: dict[str, Any]) -> list[str]:
    return [get_row_name(reason) for reason in reasons(*nodes)]


def links(resolved_chain: ResolvedChain, node_id: str) -> dict[str, list[str]]:
    """Inputs of a node as `{"sft": ["validator.sft"]}`, a control marked with a star."""
    inputs: dict[Port, Any] = resolved_chain.node(node_id).inputs
    return {
        port.value: [f"{s.node_id}.{s.port.value}{'*' if s.control else ''}" for s in sources]
        for port, sources in inputs.items()
    }
