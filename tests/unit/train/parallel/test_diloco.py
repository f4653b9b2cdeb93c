"""DiLoCo over every strategy that may share an island: counted bytes, equal replicas, and a resume to the same bits.

The processes are real, with one thread each, and talk over gloo.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.train.parallel.conftest import ONE, Ask, Ran, case
from trainyard.spec.axes.devices import Device
from trainyard.spec.axes.strategies import PSEUDO_GRADIENT_BYTES
from trainyard.spec.estimate.memory import outer_bytes
from trainyard.spec.training import LaunchSettings

pytestmark = pytest.mark.integration

LAYOUTS = {"ddp": 2, "zero1": 4, "zero2": 4, "fsdp_hybrid": 4}
RESUMED = {"ddp": 4, "zero2": 4, "fsdp_hybrid": 4}
TWO = {"num_islands": 2, "inner_steps": 2}
PART = {"batch": 4, "gradient_accumulation": 2, "engine": {"batching": "padded"}, "diloco": TWO}
EVERY_STEP = {"num_islands": 2, "inner_steps": 1, "outer_lr": 1.0, "outer_momentum": 0.0}
SGD = {"optimizer": "sgd", "max_grad_norm": 1e6, "batch": 4, "engine": {"batching": "padded"}}
DTYPES = tuple(PSEUDO_GRADIENT_BYTES)


@pytest.fixture(scope="module")
def ran(ask: Ask, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    root = tmp_path_factory.mktemp("checkpoints")
    cases = {f"steps {strategy}": case("whole_run", strategy, size, diloco=TWO) for strategy, size in LAYOUTS.items()}
    for dtype in DTYPES:
        diloco = {**TWO, "pseudo_gradient_dtype": dtype}
        cases[f"sent {dtype}"] = case("whole_run", "ddp", 2, diloco=diloco)
    cases["sgd"] = case("whole_run", "ddp", 2, diloco=EVERY_STEP, **SGD)
    cases["sgd alone"] = case("whole_run", ONE, **SGD)
    cases["apart"] = case("whole_run", "ddp", 2, diloco={**TWO, "inner_steps": 3})
    for strategy, size in RESUMED.items():
        at: dict[str, Any] = {**PART, "root": str(root / strategy)}
        straight = {**at, "root": str(root / "straight" / strategy)}
        cases[f"straight {strategy}"] = case("part_of_run", strategy, size, **straight)
        cases[f"stopped {strategy}"] = case("part_of_run", strategy, size, **at, stop_after=5)
        cases[f"resumed {strategy}"] = case("part_of_run", strategy, size, **at, resumed=True)
    return ask(cases)


def digests(run: Ran) -> list[str]:
    return [rank["digest"] for rank in run.ranks]


@pytest.mark.parametrize("strategy", LAYOUTS)
def test_all_islands_have_the_same_weights_after_an_exchange(strategy: str, ran: dict[str, Ran]) -> None:
    values = digests(ran[f"steps {strategy}"])
    half = len(values) // 2
    assert values[:half] == values[half:]
    assert [rank["facts"]["outer_step"] for rank in ran[f"steps {strategy}"].ranks] == [2] * len(values)


@pytest.mark.parametrize("dtype", DTYPES)
def test_counted_bytes_are_those_of_the_formula(dtype: str, ran: dict[str, Ran]) -> None:
    """2 (n - 1) / n * P * b in each exchange; P is filled up to whole blocks of every island."""
    rank = ran[f"sent {dtype}"].ranks[0]
    unit = 2 * (4096 if dtype == "int8" else 1)
    numbers = -(-rank["parameters"] // unit) * unit
    exchanges = rank["facts"]["outer_step"]
    assert rank["facts"]["outer_bytes_sent"] == 2 * 1 / 2 * numbers * PSEUDO_GRADIENT_BYTES[dtype] * exchanges
    assert len(set(digests(ran[f"sent {dtype}"]))) == 1


def test_processes_of_an_island_share_what_is_sent(ran: dict[str, Ran]) -> None:
    alone, shared = (ran[f"steps {strategy}"].ranks for strategy in ("ddp", "zero2"))
    sent = [rank["facts"]["outer_bytes_sent"] for rank in shared]
    assert sum(sent[:2]) == pytest.approx(alone[0]["facts"]["outer_bytes_sent"], abs=64)


@pytest.mark.parametrize(
    ("strategy", "size", "dtype"), [*((name, size, "fp32") for name, size in LAYOUTS.items()), ("ddp", 2, "int8")]
)
def test_the_outer_state_takes_what_is_estimated(strategy: str, size: int, dtype: str, ran: dict[str, Ran]) -> None:
    """A process has parts that are filled up to whole blocks, at most a few bytes more than its share."""
    name = f"steps {strategy}" if dtype == "fp32" else f"sent {dtype}"
    launch = LaunchSettings(
        strategy=strategy, processes=size, diloco={**TWO, "type": "native", "pseudo_gradient_dtype": dtype}
    )
    largest = max(rank["parameters"] for rank in ran[name].ranks)  # a shard may have a row more than another
    trained = largest * (2 if strategy == "fsdp_hybrid" else 1)
    expected = outer_bytes(launch, trained, Device.CPU, freed=1 << 40)
    for rank in ran[name].ranks:
        assert expected <= rank["outer"] <= expected + 8 * 4 * 4096 * (dtype == "int8") + 128


def test_with_one_sgd_step_between_exchanges_it_is_ordinary_training(ran: dict[str, Ran]) -> None:
    """An outer rate of 1 without momentum takes the mean of the islands' weights: that of their gradients."""
    weights, expected = ran["sgd"].weights, ran["sgd alone"].weights
    assert all(float((weights[name] - expected[name]).abs().max()) <= 1e-6 for name in expected)


def test_a_training_that_ends_between_exchanges_ends_with_one(ran: dict[str, Ran]) -> None:
    """Four steps, exchanged every three."""
    ranks = ran["apart"].ranks
    assert [rank["facts"]["inner_step"] for rank in ranks] == [0, 0]
    assert ranks[0]["digest"] == ranks[1]["digest"]


@pytest.mark.parametrize("strategy", RESUMED)
def test_a_stop_between_exchanges_goes_on_to_the_same_bits(strategy: str, ran: dict[str, Ran]) -> None:
    """Stopped after three steps, when the islands have different weights."""
    straight, stopped, resumed = (ran[f"{name} {strategy}"] for name in ("straight", "stopped", "resumed"))
    assert len(stopped.ranks[0]["losses"]) == 3
    assert len(set(digests(stopped))) > 1
    assert resumed.ranks[0]["losses"] == straight.ranks[0]["losses"]
    assert resumed.ranks[0]["state"] == straight.ranks[0]["state"]
    assert digests(resumed) == digests(straight)
