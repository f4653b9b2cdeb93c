"""The flow behind `chain/adhoc`: run any chain that is given as a spec."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from flows.walker import FLOW, run_chain, task_runner
from trainyard.spec.chain import ChainSpec


@flow(name="chain", task_runner=task_runner(), **FLOW)
async def chain(spec: ChainSpec) -> State[dict[str, Any]]:
    """Carry out a chain of nodes.

    Args:
        spec: The chain: named nodes, in a line or with `needs` as a graph.
    """
    return await run_chain(spec)
