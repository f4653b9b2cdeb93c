"""Any chain: the flow behind `chain/adhoc`, and `python -m flows.chain FILE` for a run without a worker."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from flows.walker import FLOW, run_chain, task_runner
from trainyard.errors import TrainyardError
from trainyard.spec.chain import ChainSpec
from trainyard.spec.load.files import load_chain


@flow(name="chain", task_runner=task_runner(), **FLOW)
async def chain(spec: ChainSpec) -> State[dict[str, Any]]:
    """Carry out a chain of nodes.

    Args:
        spec: The chain: named nodes, in a line or with `needs` as a graph.
    """
    return await run_chain(spec)


async def carry_out(spec: ChainSpec) -> State[Any]:
    return await chain(spec, return_state=True)


def main(arguments: list[str]) -> int:
    """`python -m flows.chain FILE`: run a chain file in this process, with a temporary server if none is up."""
    try:
        spec = load_chain(Path(arguments[0]))
    except IndexError:
        print("usage: python -m flows.chain FILE", file=sys.stderr)
        return 2
    except TrainyardError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    state = asyncio.run(carry_out(spec))
    print(state.message)
    return 0 if state.is_completed() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
