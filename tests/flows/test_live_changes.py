"""What is live changes only for the better, in real flows with a tiny model."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from prefect import tags
from prefect.client.schemas.objects import State

from flows.chain import chain
from tests.flows.chain_runs import fill_working_folder, read_run_result, twice
from trainyard.app.run_records import RunResult
from trainyard.settings import settings
from trainyard.spec.chain import ChainSpec
from trainyard.stores.adapters import AdapterRegistry
from trainyard.stores.live.job_ids import TENANT_TAG

pytestmark = pytest.mark.usefixtures("prefect")


@pytest.fixture
def work(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with rows whose form is soon learned."""
    folder = tmp_path / "work"
    folder.mkdir()
    files = {"sums.jsonl": twice(120), "few.jsonl": twice(24)}
    return fill_working_folder(folder, tiny_model, monkeypatch, files)


def run(path: str, *, steps: int = 4, baseline: str = "both", **deployer: Any) -> State[Any]:
    training = {"max_steps": steps, "learning_rate": 5e-3, "max_length": 64}
    judging = {"benchmarks": [{"name": "heldout_loss"}], "baseline": baseline, "samples": 0}
    nodes = [
        {"type": "data_source", "config": {"path": path}},
        {"type": "validator", "config": {"holdout": {"documents": 0.3}, "near_duplicates": None, "decontaminate": 0}},
        {"type": "trainer", "config": {"hyperparameters": training}},
        {"type": "evaluator", "config": judging},
        {"type": "deployer", "config": deployer},
    ]
    spec = ChainSpec.model_validate({"name": "test", "nodes": nodes})

    async def carry_out() -> State[Any]:
        return await chain(spec, return_state=True)

    return asyncio.run(carry_out())


def live(role: str = "sums") -> str:
    return AdapterRegistry(settings().adapters).show(f"default/{role}").name


@pytest.mark.slow
def test_an_older_adapter_never_replaces_a_newer_one(work: Path) -> None:
    first = run("sums.jsonl")
    assert first.is_completed(), first.message
    assert live() == "default/sums/v1"
    better = run("sums.jsonl", steps=40)
    assert better.is_completed(), better.message
    assert live() == "default/sums/v2"
    assert read_run_result(better).node("evaluator").facts["live"] == "default/sums/v1"

    again = read_run_result(run("sums.jsonl"))  # its trainer is reused, and judged against what is live now
    assert [node.state for node in again.nodes[:3]] == ["reused"] * 3
    assert "over default/sums/v2, which is live and stays" in again.message
    assert live() == "default/sums/v2"

    alone = read_run_result(run("sums.jsonl", baseline="base"))  # better than its base, which is all that this asks
    assert alone.node("evaluator").facts["better"] is True
    assert alone.node("deployer").message.startswith("default/sums/v2 stays live: this adapter is default/sums/v1")
    assert live() == "default/sums/v2"

    same = read_run_result(run("sums.jsonl", steps=40))  # what is live is not compared with itself
    assert [node.state for node in same.nodes[:3]] == ["reused"] * 3
    assert "default/sums/v2 is live" in same.node("deployer").message


def test_a_gate_that_could_not_decide_stops_before_the_training(work: Path) -> None:
    state = run("few.jsonl")
    assert state.is_failed()
    assert "E-FEW-ROWS trainer: 12 rows to train on are not enough to say; at least 30 are needed" in str(state.message)


def run_nodes(nodes: list[dict[str, Any]]) -> RunResult:
    spec = ChainSpec.model_validate({"name": "test", "nodes": nodes})

    async def call() -> State[Any]:
        with tags(f"{TENANT_TAG}default"):  # as a surface starts it, which has read what it had the time for
            return await chain(spec, return_state=True)

    return read_run_result(asyncio.run(call()))


PAIR = {"prompt": "What is twice {}?", "chosen": "Twice {} is a number.", "rejected": "No {}."}
TRAINING = {"max_steps": 2, "max_length": 64}
SFT = {"type": "trainer", "config": {"hyperparameters": TRAINING}}
DPO = {"type": "trainer", "id": "dpo", "config": {"stage": "dpo", "hyperparameters": TRAINING}}


@pytest.mark.parametrize("stages", [[SFT], [SFT, DPO]], ids=["judged", "before the judged one"])
def test_rows_that_only_the_run_reads_stop_every_trainer(work: Path, stages: list[dict[str, Any]]) -> None:
    """Rows that `check` had no time to read: the chain is completed, not deployed, and nothing was trained."""
    pairs = [{name: text.format(n) for name, text in PAIR.items()} for n in range(24)]
    (work / "pairs.jsonl").write_text("\n".join(json.dumps(row) for row in pairs))
    sets = {"sft": {"path": "sums.jsonl"}, "preference": {"path": "pairs.jsonl"}}
    result = run_nodes(
        [
            {"type": "data_source", "config": {"sets": sets} if len(stages) > 1 else {"path": "few.jsonl"}},
            {"type": "validator", "config": {"near_duplicates": None, "decontaminate": 0}},
            *stages,
            {"type": "evaluator", "config": {"samples": 0}},
            {"type": "deployer"},
        ]
    )
    assert (result.state, result.detail, result.exit_code) == ("completed", "not deployed", 9), result.message
    assert result.gate is not None
    assert result.gate.line == "not enough rows to say; nothing was trained"
    assert "at least 30 are needed" in result.gate.reasons[0]
    assert [node.state for node in result.nodes if node.type not in ("data_source", "validator", "trainer")] == [
        "skipped", "skipped"
    ]  # fmt: skip
    assert not [node.id for node in result.nodes if "time" in node.facts]
    assert not list(settings().adapters.glob("*/*/v*"))


@pytest.mark.slow
def test_few_rows_are_trained_and_deployed_when_that_is_allowed(work: Path) -> None:
    state = run("few.jsonl", steps=30, few_rows="allow")
    assert state.is_completed(), state.message
    result = read_run_result(state)
    assert result.node("evaluator").message.startswith("not enough rows to say")
    assert live("few") == "default/few/v1"
