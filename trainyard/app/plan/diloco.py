"""What islands would send, before a job runs."""

from __future__ import annotations

from trainyard.app.context import Context
from trainyard.app.responses import Response
from trainyard.errors import InvalidInput
from trainyard.operations.diloco import SimulateIslandsInput
from trainyard.spec.axes.strategies import DILOCO_SETTINGS, DilocoEngine
from trainyard.spec.estimate.islands import IslandLink, IslandSimulation, simulate_islands


class SimulationResult(Response):
    simulation: IslandSimulation


def simulate(request: SimulateIslandsInput, _context: Context) -> SimulationResult:
    """Compute bytes, wall clock and utilisation. Raises `InvalidInput` (`E-PARAMETER`) for islands or links that do not
    fit together.
    """
    processes = request.processes or request.num_islands
    if processes % request.num_islands:
        below = max(1, processes // request.num_islands) * request.num_islands
        raise InvalidInput(
            f"{processes} processes are not {request.num_islands} islands of the same size.",
            do=f"Use {below} or {below + request.num_islands} processes, or another number of islands.",
            code="E-PARAMETER",
        )
    fields = {name: getattr(request, name) for name in ("num_islands", "inner_steps", "pseudo_gradient_dtype")}
    settings = DILOCO_SETTINGS[DilocoEngine.NATIVE](type=DilocoEngine.NATIVE, **fields)
    simulation = simulate_islands(
        settings,
        max(1, round(request.parameters)),
        processes // request.num_islands,
        step_s=request.step_s,
        steps=request.steps,
        links=read_links(request),
    )
    return SimulationResult(simulation=simulation)


def read_links(request: SimulateIslandsInput) -> list[IslandLink]:
    """Return the link of each island."""
    numbers = {"mbit_per_s": request.mbit_per_s, "latency_ms": request.latency_ms}
    for name, values in numbers.items():
        if len(values) not in (1, request.num_islands):
            raise InvalidInput(
                f"{name} has {len(values)} values for {request.num_islands} islands.",
                do="Give one for all links, or one for each island.",
                code="E-PARAMETER",
            )
    require_range("mbit_per_s", request.mbit_per_s, 1e-3, 1e9)
    require_range("latency_ms", request.latency_ms, 0.0, 1e6)
    speeds, delays = (values * (request.num_islands if len(values) == 1 else 1) for values in numbers.values())
    return [IslandLink(speed, delay) for speed, delay in zip(speeds, delays, strict=True)]


def require_range(name: str, values: tuple[float, ...], least: float, most: float) -> None:
    """Raise `InvalidInput` (`E-PARAMETER`) for a link that sends nothing, or a number out of range."""
    for value in values:
        if not least <= value <= most:
            raise InvalidInput(
                f"{name} is {value:g}.",
                why="A link without speed never ends an exchange." if value == 0 else "",
                do=f"Use a number from {least:g} to {most:g}.",
                code="E-PARAMETER",
            )
