"""The template `rlhf` as it comes: examples, a reward model, PPO with its scores, an evaluation and a live version."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import State

from flows.chain import chain
from trainyard.app.run_records import NodeState, RunResult, read_result
from trainyard.settings import settings
from trainyard.spec.templates import build_template
from trainyard.stores.adapters import AdapterRegistry

pytestmark = pytest.mark.usefixtures("prefect")


@pytest.fixture
def work(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with sixty examples and sixty preferences, and the tiny model as the default base."""
    examples = [{"instruction": f"What is twice {n}?", "output": f"Twice {n} is {2 * n}."} for n in range(60)]
    pairs = [
        {"prompt": f"What is thrice {n}?", "chosen": f"Thrice {n} is {3 * n}.", "rejected": f"No idea, {n} or so."}
        for n in range(60)
    ]
    for name, rows in (("examples.jsonl", examples), ("pairs.jsonl", pairs)):
        (tmp_path / name).write_text("\n".join(json.dumps(row) for row in rows))
    monkeypatch.setenv("TRAINYARD_WORKING_FOLDER", str(tmp_path))
    monkeypatch.setenv("TRAINYARD_DEFAULT_BASE_MODEL", str(tiny_model))
    monkeypatch.setenv("TRAINYARD_THREADS", "1")
    settings.cache_clear()
    return tmp_path


def carried_out(**parameters: Any) -> RunResult:
    async def carry_out() -> State[Any]:
        return await chain(build_template("rlhf", parameters), return_state=True)

    state = asyncio.run(carry_out())
    assert state.is_completed(), state.message
    result = read_result(settings().runs / str(state.state_details.flow_run_id))
    assert result is not None
    return result


def record_of(result: RunResult, node: str) -> dict[str, Any]:
    (output,) = result.node(node).outputs.values()
    record: dict[str, Any] = json.loads((output.path / "training.json").read_text())
    return record


@pytest.mark.slow
def test_the_policy_descends_from_the_examples_and_knows_its_reward_model(work: Path) -> None:
    result = carried_out(
        sft="examples.jsonl",
        preference="pairs.jsonl",
        training={"max_steps": 30, "learning_rate": 5e-3, "batch_size": 8, "rank": 4, "max_length": 128},
        reward={"max_steps": 20, "learning_rate": 5e-3, "batch_size": 8},
        ppo={"max_steps": 4, "batch_size": 8, "completions": 2, "max_completion_length": 16},
        publish={"role": "aligned"},
    )
    assert [node.state for node in result.nodes] == [NodeState.COMPLETED] * len(result.nodes)
    sft, reward, ppo = (record_of(result, name) for name in ("trainer", "trainer-2", "trainer-3"))
    assert (sft["stage"], reward["stage"], ppo["stage"]) == ("sft", "reward", "ppo")
    assert (
        [ancestor["stage"] for ancestor in ppo["lineage"]]
        == [ancestor["stage"] for ancestor in reward["lineage"]]
        == [None, "sft"]
    )
    (scorer,) = result.node("trainer-2").outputs.values()
    assert ppo["reward_model_sha256"] == scorer.sha256
    assert reward["losses"][-1][1] < reward["losses"][0][1]
    assert ppo["steps"] == 4
    compared = result.node("evaluator").facts["benchmarks"]["pairwise_reward_accuracy/unseen_documents"]
    assert compared["candidate"] > compared["baseline"]
    assert AdapterRegistry(settings().adapters).show("default/aligned").name == "default/aligned/v1"
