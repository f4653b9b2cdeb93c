"""DiLoCo before a job runs: what islands send, and how long they wait. Request, text and row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from trainyard.operations.base import Request
from trainyard.operations.fields import Option
from trainyard.operations.table import Operation, Scope
from trainyard.operations.tables import format_table

if TYPE_CHECKING:
    from trainyard.app.plan.diloco import SimulationResult


class SimulateIslandsInput(Request):
    parameters: float = Field(ge=1, le=1e15, description="Trained weights, such as 1.1e9; of an adapter, its own.")
    step_s: float = Field(gt=0, le=1e6, description="Seconds of a step of one island.")
    num_islands: int = Field(2, ge=2, le=1024, description="Islands.")
    processes: int | None = Field(None, ge=2, le=1024, description="Processes of all islands; default: one each.")
    inner_steps: int = Field(100, ge=1, le=100_000, description="Steps between two exchanges.")
    pseudo_gradient_dtype: Literal["fp32", "bf16", "fp16", "int8"] = Field(
        "fp32", description="Type of the values that are sent."
    )
    mbit_per_s: Annotated[tuple[float, ...], Option("--mbit-per-s")] = Field(
        (100.0,), min_length=1, max_length=1024, description="Speed of every link, or of each island's in turn."
    )
    latency_ms: Annotated[tuple[float, ...], Option("--latency-ms")] = Field(
        (50.0,), min_length=1, max_length=1024, description="Delay of every link, or of each island's in turn."
    )
    steps: int = Field(10_000, ge=1, le=10_000_000, description="Steps of the training.")


def simulation_text(result: SimulationResult) -> str:
    """Format DiLoCo and a synchronous training next to each other."""
    simulation = result.simulation
    rows = [
        [
            name,
            f"{traffic.bytes_per_step:,.0f}",
            f"{traffic.exchange_s:,.3f}",
            f"{traffic.wall_clock_s:,.0f}",
            f"{traffic.utilisation:.1%}",
        ]
        for name, traffic in (("diloco", simulation.diloco), ("synchronous", simulation.synchronous))
    ]
    lines = [
        f"{simulation.num_islands} islands of {simulation.island_size}, {simulation.parameters:,} parameters, "
        f"{simulation.pseudo_gradient_dtype} every {simulation.inner_steps} steps: {simulation.exchanges:,} exchanges "
        f"in {simulation.steps:,} steps",
        format_table(rows, ("", "bytes/step", "s/exchange", "wall clock s", "computing")),
        f"each process sends {simulation.bytes_per_exchange:,} bytes in an exchange; {simulation.saving:.2%} less than "
        f"synchronous training with fp32 gradients, {simulation.factor:,.1f} times",
    ]
    return "\n".join(lines)


ROWS: dict[str, Operation] = {
    "diloco simulate": Operation(
        "What islands would send and how long they would wait, next to synchronous training; nothing is started.",
        request=SimulateIslandsInput, run="app.plan.diloco:simulate", text=simulation_text, scope=Scope.READ,
        example="trainyard diloco simulate --parameters 1.1e9 --step-s 2 --num-islands 4 --mbit-per-s 200",
        route="POST /api/v1/diloco/simulate", tenants=True, only_answers=True,
    ),
}  # fmt: skip
"""Name -> row, in the order of the help."""
