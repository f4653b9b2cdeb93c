"""The flow behind `chain/adhoc`: run any chain that is given as a spec."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Failed
from pydantic import ValidationError

from flows.notes import tag_job
from flows.walker import FLOW, quietly, run_chain, task_runner
from trainyard.app.plan.parse import parse_chain
from trainyard.errors import TrainyardError
from trainyard.spec.chain import ChainSpec

UNCHECKED: dict[str, Any] = {**FLOW, "validate_parameters": False}
"""The flow parses its chain itself: Prefect would end a wrong one before the run is tagged as a job."""


@flow(name="chain", task_runner=task_runner(), **UNCHECKED)
async def chain(spec: ChainSpec) -> State[dict[str, Any]]:
    """Carry out a chain of nodes.

    Args:
        spec: The chain: named nodes, in a line or with `needs` as a graph.
    """
    if not isinstance(spec, ChainSpec):
        await quietly(tag_job(spec))
        try:
            spec = parse_spec(spec)
        except TrainyardError as error:
            return Failed(message=str(error))
    return await run_chain(spec)


def parse_spec(spec: Any) -> ChainSpec:
    """Return the chain in a parameter. Raises `Refused` with every reason."""
    try:
        return ChainSpec.model_validate(spec)
    except ValidationError:
        return parse_chain(spec)
