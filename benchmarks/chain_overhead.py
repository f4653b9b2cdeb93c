"""What does a chain cost beyond its nodes' own work?

Ours: a chain of six nodes that do nothing, through the real walker: run record, keys, store, six tasks, name and tags,
three artifacts; the trainer names a tiny model, which no node loads. Peer: a stock synchronous Prefect flow that calls
six empty tasks. Both on one running server, in one process, in turn. Every result is made anew each time (nothing is
found in the store).

    python -m benchmarks.chain_overhead
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from prefect import flow, tags, task
from prefect.client.schemas.objects import State

from benchmarks.harness import Row, alternate, finish, median
from flows.walker import FLOW, run_chain, task_runner
from nodes.runner import NODE_TASK, Make, NodeContext, RunInfo, Upstream, run_node
from nodes.table import NODES
from trainyard.app.run_records import FEW_ROWS_TAG
from trainyard.app.services import service_environment, start_server, stop
from trainyard.settings import Settings, settings
from trainyard.spec.graph import ResolvedNode
from trainyard.spec.templates import build_template
from trainyard.stores.artifacts import NodeOutput, Produced, ProducedSet
from trainyard.testing.tiny import build_tiny_model

BAR, NODE_COUNT, ROUNDS = 0.6, 6, 9
MODEL = "BENCHMARK_MODEL"
"""Environment variable with the folder of the model: the keys of a chain are made of what its base model is."""


def prepare(context: NodeContext) -> Make:
    def make(folder: Path) -> Produced:
        for port in context.node.produces:
            (folder / port.value).mkdir()
        return Produced(outputs={port: ProducedSet(folder=port.value) for port in context.node.produces})

    return make


@task(name="empty", **NODE_TASK)
def empty_node(node: ResolvedNode, upstream: Upstream, run: RunInfo) -> State[NodeOutput]:
    return run_node(node, upstream, run, prepare)


@flow(name="empty-chain", task_runner=task_runner(), **FLOW)
async def empty_chain() -> State[dict[str, Any]]:
    spec = build_template("qa-pipeline", {"documents": "SECURITY.md", "base_model": os.environ[MODEL]})
    assert len(spec.nodes) == NODE_COUNT
    return await run_chain(spec, dict.fromkeys(NODES, empty_node))


@task
def stock_task(before: int) -> int:
    return before + 1


@flow(name="stock")
def stock() -> int:
    count = 0
    for _ in range(NODE_COUNT):
        count = stock_task(count)
    return count


async def carry_out_chain() -> State[Any]:
    with tags(FEW_ROWS_TAG):  # the documents are one short file, and no node reads it
        return await empty_chain(return_state=True)


def run_ours() -> float:
    shutil.rmtree(settings().artifacts, ignore_errors=True)
    state = asyncio.run(carry_out_chain())
    assert state.is_completed(), state.message
    return NODE_COUNT


def peer() -> float:
    assert stock() == NODE_COUNT
    return NODE_COUNT


def measure() -> int:
    """In a process whose environment names the server."""
    samples = alternate({"chain": run_ours, "stock": peer}, rounds=ROUNDS)
    walls = {name: median(variant_samples, "wall_s") for name, variant_samples in samples.items()}
    rows = [
        Row.ratio_at_most("empty chain of 6 nodes, seconds", walls["chain"], walls["stock"], "stock flow", BAR),
        Row.at_most("seconds of CPU, server excepted", median(samples["chain"], "cpu_s"), 1.0),
    ]
    return finish("chain_overhead", rows, samples)


def main() -> int:
    """A server of its own for the measurement, then the measurement in a process that knows it."""
    with tempfile.TemporaryDirectory() as folder:
        here = Settings(home=Path(folder) / "home", prefect_port=0)
        model = build_tiny_model(here.home / "models" / "tiny")
        url = start_server(here, print).url
        environment = {**service_environment(here, url), "PREFECT_LOGGING_LEVEL": "CRITICAL", MODEL: str(model)}
        try:
            return subprocess.run(
                [sys.executable, "-m", "benchmarks.chain_overhead", "measure"], env=environment, check=False
            ).returncode
        finally:
            stop(here, "server")


if __name__ == "__main__":
    sys.exit(measure() if sys.argv[1:] == ["measure"] else main())
