"""Stage grpo in a chain: it continues what sft has left, and its adapter is evaluated and deployed as any other."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import State

from flows.chain import chain
from trainyard.app.run_records import RunResult, read_result
from trainyard.settings import settings
from trainyard.spec.chain import ChainSpec
from trainyard.stores.adapters import AdapterRegistry

pytestmark = pytest.mark.usefixtures("prefect")


@pytest.fixture
def work(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with sixty questions, and the tiny model as the default base."""
    rows = [{"instruction": f"What is twice {n}?", "output": f"Twice {n} is {2 * n}."} for n in range(60)]
    (tmp_path / "data.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    monkeypatch.setenv("TRAINYARD_WORKING_FOLDER", str(tmp_path))
    monkeypatch.setenv("TRAINYARD_DEFAULT_BASE_MODEL", str(tiny_model))
    monkeypatch.setenv("TRAINYARD_THREADS", "1")
    settings.cache_clear()
    return tmp_path


def carried_out(*nodes: dict[str, Any]) -> RunResult:
    spec = ChainSpec.model_validate({"name": "test", "nodes": nodes})

    async def carry_out() -> State[Any]:
        return await chain(spec, return_state=True)

    state = asyncio.run(carry_out())
    assert state.is_completed(), state.message
    result = read_result(settings().runs / str(state.state_details.flow_run_id))
    assert result is not None
    return result


def trainer(stage: str, **config: Any) -> dict[str, Any]:
    hyper = {"batch_size": 8, "max_length": 128, **config.pop("hyperparameters")}
    return {"type": "trainer", "config": {"backend": "trl", "stage": stage, "hyperparameters": hyper, **config}}


@pytest.mark.slow
def test_grpo_after_sft_becomes_a_version_that_is_live(work: Path) -> None:
    rewards = [{"type": "contains", "text": "Twice"}, {"type": "length", "max_tokens": 12, "weight": 0.2}]
    rollouts = {"num_generations": 4, "max_completion_length": 16, "rewards": rewards}
    result = carried_out(
        {"type": "data_source", "config": {"path": "data.jsonl"}},
        {"type": "validator", "config": {"near_duplicates": None}},
        trainer("sft", hyperparameters={"max_steps": 40, "learning_rate": 5e-3}),
        trainer("grpo", hyperparameters={"max_steps": 5, "learning_rate": 1e-4}, rollouts=rollouts),
        {"type": "evaluator", "config": {}},
        {"type": "deployer", "config": {"role": "counter", "few_rows": "allow"}},
    )
    trained = result.node("trainer-2")
    (output,) = trained.outputs.values()
    record = json.loads((output.path / "training.json").read_text())
    assert (record["stage"], [ancestor["stage"] for ancestor in record["lineage"]]) == ("grpo", [None, "sft"])
    tokens = trained.facts["data"]["tokens"]
    assert tokens["read"] == sum(tokens[part] for part in ("trained", "masked", "truncated", "dropped"))
    assert AdapterRegistry(settings().adapters).show("default/counter").name == "default/counter/v1"
