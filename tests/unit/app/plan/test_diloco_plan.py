"""`diloco simulate`: the formulas at numbers worked out by hand, and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from trainyard.app.context import Context
from trainyard.app.plan.diloco import simulate
from trainyard.errors import InvalidInput
from trainyard.operations.diloco import SimulateIslandsInput, simulation_text
from trainyard.settings import load_settings
from trainyard.spec.estimate.islands import IslandSimulation


def run(**fields: Any) -> IslandSimulation:
    request = SimulateIslandsInput(**{"parameters": 1e9, "step_s": 2.0, **fields})
    return simulate(request, Context(load_settings())).simulation


def test_two_islands_on_a_fast_link() -> None:
    """1e9 numbers of 4 bytes are 4 GB out of each island: 32 s at 1 Gbit/s and two rounds of 50 ms, every 200 s."""
    result = run(mbit_per_s=(1000.0,))
    assert result.bytes_per_exchange == 4_000_000_000
    assert result.diloco.exchange_s == pytest.approx(32.1)
    assert result.diloco.utilisation == pytest.approx(200 / 232.1)
    assert result.synchronous.utilisation == pytest.approx(2 / 34.1)
    assert (result.saving, result.factor) == (pytest.approx(0.99), pytest.approx(100))


@pytest.mark.parametrize(("dtype", "factor"), [("fp32", 100), ("bf16", 200), ("fp16", 200), ("int8", 399.6)])
def test_the_factor_is_steps_times_bytes(dtype: str, factor: float) -> None:
    assert run(pseudo_gradient_dtype=dtype).factor == pytest.approx(factor, rel=1e-3)


def test_the_slowest_link_decides_and_processes_share_what_leaves_an_island() -> None:
    result = run(mbit_per_s=(1000.0, 100.0), processes=4)
    assert result.bytes_per_exchange == 2_000_000_000
    assert result.diloco.exchange_s == pytest.approx(320.1)


def test_steps_that_the_period_does_not_divide_end_with_an_exchange() -> None:
    result = run(steps=101)
    assert result.exchanges == 2
    assert "2 exchanges in 101 steps" in simulation_text(simulate_result(steps=101))


def simulate_result(**fields: Any) -> Any:
    return simulate(SimulateIslandsInput(parameters=1e9, step_s=2.0, **fields), Context(load_settings()))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mbit_per_s": (0.0,)}, "mbit_per_s is 0"),
        ({"latency_ms": (-1.0,)}, "latency_ms is -1"),
        ({"processes": 5}, "5 processes are not 2 islands"),
        ({"num_islands": 3, "mbit_per_s": (1.0, 2.0)}, "mbit_per_s has 2 values for 3 islands"),
    ],
)
def test_what_does_not_fit_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=f"E-PARAMETER: {message}"):
        run(**fields)
