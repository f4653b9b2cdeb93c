"""A run with a limit of money: it stops with a checkpoint, says why, and its cost is in its result."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import State

from flows.chain import chain
from tests.flows.chain_runs import fill_working_folder, read_run_result, twice
from trainyard.app.run_records import read_events
from trainyard.settings import settings
from trainyard.spec.chain import ChainSpec

pytestmark = pytest.mark.usefixtures("prefect")


def build_spec(max_spend: str | None, steps: int) -> ChainSpec:
    hyper = {"max_steps": steps, "batch_size": 1, "max_length": 64, "learning_rate": 1e-3}
    nodes = [
        {"type": "data_source", "config": {"path": "data.jsonl"}},
        {"type": "trainer", "config": {"hyperparameters": hyper, "device": "cpu"}},
    ]
    limit = {} if max_spend is None else {"max_spend": max_spend}
    return ChainSpec.model_validate({"name": "paid", "nodes": nodes, **limit})


def run(spec: ChainSpec) -> State[Any]:
    async def call() -> State[Any]:
        return await chain(spec, return_state=True)

    return asyncio.run(call())


@pytest.fixture
def paid(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_PRICE_PER_HOUR", "3600")  # a dollar a second
    fill_working_folder(tmp_path, tiny_model, monkeypatch, {"data.jsonl": twice(60)})


@pytest.mark.slow
@pytest.mark.usefixtures("paid")
def test_a_run_stops_at_its_limit_with_a_checkpoint_and_says_so() -> None:
    spec = build_spec("30", 1_000_000)
    state = run(spec)
    assert (state.name, state.is_failed()) == ("SpendingLimit", True)
    result = read_run_result(state)
    assert "its checkpoint is kept. max_spend of the chain is reached: " in result.node("trainer").message
    assert result.cost is not None
    assert Decimal(30) <= result.cost.usd < 50
    assert result.cost.source.startswith("3,600.00 USD per hour (this machine's price_per_hour")
    folder = settings().runs / result.run_id
    (job,) = [event for event in read_events(folder) if event["event"] == "job"]
    assert list((Path(job["folder"]) / "checkpoints").glob("*"))


@pytest.mark.usefixtures("paid")
def test_a_run_within_its_limit_has_its_cost_in_the_result() -> None:
    state = run(build_spec("60", 3))
    assert state.is_completed(), state.message
    cost = read_run_result(state).cost
    assert cost is not None
    assert 0 < cost.usd < 60


def test_a_limit_without_a_price_is_refused(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_working_folder(tmp_path, tiny_model, monkeypatch, {"data.jsonl": twice(60)})
    state = run(build_spec("60", 3))
    assert state.is_failed()
    assert "max_spend 60 has no effect: trainings of backend native have no price here." in str(state.message)


def test_an_estimate_above_the_limit_is_refused(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    price = '{"native": {"usd": "0.5", "per": "step", "source": "a list", "date": "2026-11-01"}}'
    monkeypatch.setenv("TRAINYARD_PRICES", price)
    fill_working_folder(tmp_path, tiny_model, monkeypatch, {"data.jsonl": twice(60)})
    state = run(build_spec("1", 3))
    assert state.is_failed()
    assert "E-SPEND max_spend: The estimate is 1.50 USD, and max_spend of the chain is 1.00 USD." in str(state.message)
