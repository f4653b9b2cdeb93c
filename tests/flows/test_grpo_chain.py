"""Stage grpo in a chain: it continues what sft has left, and its adapter is evaluated and deployed as any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.flows.chain_runs import complete_nodes, fill_working_folder, read_record, twice
from trainyard.settings import settings
from trainyard.stores.adapters import AdapterRegistry

pytestmark = pytest.mark.usefixtures("prefect")


@pytest.fixture
def work(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with sixty questions, and the tiny model as the default base."""
    return fill_working_folder(tmp_path, tiny_model, monkeypatch, {"data.jsonl": twice(60)})


def trainer(stage: str, **config: Any) -> dict[str, Any]:
    hyper = {"batch_size": 8, "max_length": 128, **config.pop("hyperparameters")}
    return {"type": "trainer", "config": {"backend": "trl", "stage": stage, "hyperparameters": hyper, **config}}


@pytest.mark.slow
def test_grpo_after_sft_becomes_a_version_that_is_live(work: Path) -> None:
    rewards = [{"type": "contains", "text": "Twice"}, {"type": "length", "max_tokens": 12, "weight": 0.2}]
    rollouts = {"num_generations": 4, "max_completion_length": 16, "rewards": rewards}
    result = complete_nodes(
        {"type": "data_source", "config": {"path": "data.jsonl"}},
        {"type": "validator", "config": {"near_duplicates": None}},
        trainer("sft", hyperparameters={"max_steps": 40, "learning_rate": 5e-3}),
        trainer("grpo", hyperparameters={"max_steps": 5, "learning_rate": 1e-4}, rollouts=rollouts),
        {"type": "evaluator", "config": {}},
        {"type": "deployer", "config": {"role": "counter", "few_rows": "allow"}},
    )
    trained = result.node("trainer-2")
    record = read_record(result, "trainer-2")
    assert (record["stage"], [ancestor["stage"] for ancestor in record["lineage"]]) == ("grpo", [None, "sft"])
    tokens = trained.facts["data"]["tokens"]
    assert tokens["read"] == sum(tokens[part] for part in ("trained", "masked", "truncated", "dropped"))
    assert AdapterRegistry(settings().adapters).show("default/counter").name == "default/counter/v1"
