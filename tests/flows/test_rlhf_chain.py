"""The template `rlhf` as it comes: examples, a reward model, PPO with its scores, an evaluation and a live version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.flows.chain_runs import complete, fill_working_folder, read_record, twice
from trainyard.app.run_records import NodeState
from trainyard.settings import settings
from trainyard.spec.templates import build_template
from trainyard.stores.adapters import AdapterRegistry

pytestmark = pytest.mark.usefixtures("prefect")


@pytest.fixture
def work(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with sixty examples and sixty preferences, and the tiny model as the default base."""
    pairs = [
        {"prompt": f"What is thrice {n}?", "chosen": f"Thrice {n} is {3 * n}.", "rejected": f"No idea, {n} or so."}
        for n in range(60)
    ]
    files = {"examples.jsonl": twice(60), "pairs.jsonl": pairs}
    return fill_working_folder(tmp_path, tiny_model, monkeypatch, files)


@pytest.mark.slow
def test_the_policy_descends_from_the_examples_and_knows_its_reward_model(work: Path) -> None:
    parameters: dict[str, Any] = {
        "sft": "examples.jsonl",
        "preference": "pairs.jsonl",
        "training": {"max_steps": 30, "learning_rate": 5e-3, "batch_size": 8, "rank": 4, "max_length": 128},
        "reward": {"max_steps": 20, "learning_rate": 5e-3, "batch_size": 8},
        "ppo": {"max_steps": 4, "batch_size": 8, "completions": 2, "max_completion_length": 16},
        "publish": {"role": "aligned"},
    }
    result = complete(build_template("rlhf", parameters))
    assert [node.state for node in result.nodes] == [NodeState.COMPLETED] * len(result.nodes)
    sft, reward, ppo = (read_record(result, name) for name in ("trainer", "trainer-2", "trainer-3"))
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
