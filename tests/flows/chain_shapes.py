"""Chains of any shape for tests of the walker: nodes that only write a file, wait, or fail."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prefect import flow, task
from prefect.client.schemas.objects import State

from flows.walker import FLOW, task_runner, walk
from nodes.runner import NODE_TASK, Make, NodeContext, RunInfo, Upstream, run_node
from trainyard.errors import InvalidInput, NotDeployed
from trainyard.spec.axes.data import Port
from trainyard.spec.chain import ResolvedChain, ResolvedNode, digest
from trainyard.spec.nodes import DataSourceConfig
from trainyard.stores.artifacts import NodeOutput, Produced, ProducedSet

FAILING: set[str] = set()
CRASHING: set[str] = set()
CLOSED: set[str] = set()
"""Nodes that end as a deployer does whose gate says no."""
REPORTING: set[str] = set()
"""Nodes that report progress, and do nothing else, until they are stopped."""
SLOW: dict[str, float] = {}
MADE: list[str] = []
"""Ids of the nodes that did work, in the order in which they ended."""
SPANS: dict[str, tuple[float, float]] = {}
_lock = threading.Lock()


def reset() -> None:
    for collection in (FAILING, CRASHING, CLOSED, REPORTING, SLOW, MADE, SPANS):
        collection.clear()


def prepare(context: NodeContext) -> Make:
    node_id = context.node.id

    def make(folder: Path) -> Produced:
        started = time.monotonic()
        time.sleep(SLOW.get(node_id, 0.0))
        while node_id in REPORTING:
            context.report(0.5, "at work")
            time.sleep(0.05)
        if node_id in FAILING:
            raise InvalidInput("Line 3 is not JSON.", why="A brace is missing.", do="Correct it.", code="E-TEST")
        if node_id in CLOSED:
            raise NotDeployed(
                "Not better.", reasons=["loss/a: worse.", "f1/b: worse."], passed=["em/c: fine"], do="Train."
            )
        if node_id in CRASHING:
            raise ZeroDivisionError("a fault of ours")
        (folder / "documents").mkdir()
        (folder / "documents" / "text").write_text(node_id)
        with _lock:
            MADE.append(node_id)
            SPANS[node_id] = (started, time.monotonic())
        return Produced(outputs={Port.DOCUMENTS: ProducedSet(folder="documents", rows=1)}, facts={"id": node_id})

    return make


@task(name="data_source", **NODE_TASK)
def imitation(node: ResolvedNode, upstream: Upstream, run: RunInfo) -> State[NodeOutput]:
    return run_node(node, upstream, run, prepare)


@flow(name="shape", task_runner=task_runner(), **FLOW)
async def shape(chain: ResolvedChain) -> State[dict[str, Any]]:
    return await walk(chain, {"data_source": imitation})


def build_chain(edges: Mapping[str, Sequence[str]], path: Path) -> ResolvedChain:
    """A chain whose nodes read `path`; `edges` maps each id to the ids before it, in topological order."""
    path.mkdir(parents=True, exist_ok=True)
    nodes = tuple(
        ResolvedNode(
            id=node_id,
            type="data_source",
            config=DataSourceConfig(path=str(path), max_rows=index + 1),
            needs=tuple(needs),
            produces=(Port.DOCUMENTS,),
        )
        for index, (node_id, needs) in enumerate(edges.items())
    )
    name = digest({node.id: list(node.needs) for node in nodes})
    return ResolvedChain(name="shape", tenant="default", nodes=nodes, order=tuple(edges), digest=name)


def walk_shape(chain: ResolvedChain) -> State[dict[str, Any]]:
    """Run the chain as a flow and return its final state."""
    return asyncio.run(shape(chain, return_state=True))
