"""What islands send and how long they wait for it, before a job runs (DiLoCo, arXiv 2311.08105).

P trained weights in n islands of m processes, b bytes a number, H steps between two exchanges:

    DiLoCo        2 (n - 1) / n * P * b bytes leave an island every H steps, in two rounds of messages
    synchronous   2 (n - 1) / n * P * 4 bytes leave an island at every step, in 2 (n - 1) rounds of a ring
    seconds       bytes / bandwidth of the slowest link + rounds * its latency
    utilisation   seconds of computing / seconds in all

Processes of an island share what leaves it. Batches and checkpoints, which rank 0 exchanges with other islands in
addition, are not counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pydantic import Field

from trainyard.spec.axes.axis import Strict
from trainyard.spec.axes.strategies import PSEUDO_GRADIENT_BYTES, DilocoSettings

GRADIENT_BYTES = 4
"""Bytes of a gradient that a synchronous training sends: fp32."""
BLOCK = 4096
"""Numbers of an int8 pseudo-gradient that share a scale."""
ROUNDS = 2
"""Rounds of messages in an exchange: changes to who adds them up, and means back."""


@dataclass(frozen=True)
class IslandLink:
    """The link of an island to the others."""

    mbit_per_s: float
    latency_ms: float

    def seconds(self, num_bytes: float, rounds: int) -> float:
        return num_bytes * 8 / (self.mbit_per_s * 1e6) + rounds * self.latency_ms / 1e3


class Traffic(Strict):
    """One way to train: what leaves an island, and the time."""

    bytes_per_step: float = Field(description="Bytes that leave an island, on average of the steps.")
    exchange_s: float = Field(description="Seconds of one exchange.")
    wall_clock_s: float
    utilisation: float = Field(description="Share of the time in which islands compute.")


class IslandSimulation(Strict):
    """DiLoCo next to a synchronous training of the same steps."""

    num_islands: int
    island_size: int
    parameters: int
    steps: int
    inner_steps: int
    pseudo_gradient_dtype: str
    exchanges: int
    bytes_per_exchange: int = Field(description="Bytes that one process sends in an exchange.")
    diloco: Traffic
    synchronous: Traffic
    saving: float = Field(description="Share of the synchronous training's bytes that is not sent.")
    factor: float = Field(description="Synchronous bytes over DiLoCo's.")


def count_exchange_bytes(parameters: int, islands: int, island_size: int, dtype: str) -> int:
    """Return bytes that one process sends in an exchange; weights are filled up to equal parts."""
    unit = islands * island_size * (BLOCK if dtype == "int8" else 1)
    numbers = -(-parameters // unit) * unit // island_size
    return round(2 * (islands - 1) / islands * numbers * PSEUDO_GRADIENT_BYTES[dtype])


def simulate_islands(
    settings: DilocoSettings, parameters: int, island_size: int, *, step_s: float, steps: int, links: list[IslandLink]
) -> IslandSimulation:
    """Return what `steps` steps of `step_s` seconds send and take over the slowest of the links."""
    islands, dtype = settings.num_islands, settings.pseudo_gradient_dtype
    per_process = count_exchange_bytes(parameters, islands, island_size, dtype)
    exchanges, computing = math.ceil(steps / settings.inner_steps), steps * step_s
    exchange_s = max(link.seconds(per_process * island_size, ROUNDS) for link in links)
    ring = 2 * (islands - 1) / islands * parameters * GRADIENT_BYTES
    ring_s = max(link.seconds(ring, 2 * (islands - 1)) for link in links)
    diloco = make_traffic(per_process * island_size * exchanges / steps, exchange_s, exchanges, computing)
    synchronous = make_traffic(ring, ring_s, steps, computing)
    return IslandSimulation(
        num_islands=islands,
        island_size=island_size,
        parameters=parameters,
        steps=steps,
        inner_steps=settings.inner_steps,
        pseudo_gradient_dtype=dtype,
        exchanges=exchanges,
        bytes_per_exchange=per_process,
        diloco=diloco,
        synchronous=synchronous,
        saving=1 - diloco.bytes_per_step / synchronous.bytes_per_step,
        factor=synchronous.bytes_per_step / diloco.bytes_per_step,
    )


def make_traffic(bytes_per_step: float, exchange_s: float, exchanges: int, computing: float) -> Traffic:
    wall_clock_s = computing + exchanges * exchange_s
    return Traffic(
        bytes_per_step=bytes_per_step,
        exchange_s=exchange_s,
        wall_clock_s=wall_clock_s,
        utilisation=computing / wall_clock_s,
    )


def describe_islands(settings: DilocoSettings, parameters: int, island_size: int, step_s: float | None) -> str:
    """Return a line of the plan: bytes, saving, and the time on two links."""
    links = {"1 Gbit/s": IslandLink(1000, 50), "100 Mbit/s": IslandLink(100, 50)}
    simulations = {
        name: simulate_islands(settings, parameters, island_size, step_s=step_s or 1.0, steps=10_000, links=[link])
        for name, link in links.items()
    }
    first = next(iter(simulations.values()))
    times = [
        f"{simulation.diloco.exchange_s:,.2f} s at {name}"
        + (f" (computing {simulation.diloco.utilisation:.0%} of the time)" if step_s else "")
        for name, simulation in simulations.items()
    ]
    return (
        f"islands: {settings.num_islands} of {island_size}; each process sends {first.bytes_per_exchange:,} bytes "
        f"every {settings.inner_steps:,} steps, 1/{first.factor:,.0f} of synchronous training; an exchange takes "
        f"{' or '.join(times)} and 50 ms (`trainyard diloco simulate` has other links)"
    )
