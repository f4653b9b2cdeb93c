"""Latent reasoning in a chain: steps in words, then thoughts in their place next to their control, evaluated and
deployed as one adapter."""

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


def carried_out(*nodes: dict[str, Any]) -> RunResult:
    spec = ChainSpec.model_validate({"name": "test", "nodes": nodes})

    async def carry_out() -> State[Any]:
        return await chain(spec, return_state=True)

    state = asyncio.run(carry_out())
    assert state.is_completed(), state.message
    result = read_result(settings().runs / str(state.state_details.flow_run_id))
    assert result is not None
    return result


@pytest.mark.slow
def test_thoughts_after_words_become_a_version_that_is_live(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums = [(n, 2 * n, 2 * n + 1) for n in range(60)]
    rows = [
        {"question": f"{n} + {n} + 1?", "steps": [f"{n} + {n} = {twice}", f"{twice} + 1 = {end}"], "answer": str(end)}
        for n, twice, end in sums
    ]
    (tmp_path / "data.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    monkeypatch.setenv("TRAINYARD_WORKING_FOLDER", str(tmp_path))
    monkeypatch.setenv("TRAINYARD_DEFAULT_BASE_MODEL", str(tiny_model))
    monkeypatch.setenv("TRAINYARD_THREADS", "1")
    settings.cache_clear()
    hyper = {"batch_size": 8, "max_length": 128, "learning_rate": 5e-3}
    latent = {"type": "coconut", "max_stage": 2, "epochs_per_stage": 1, "first_stage": 1}
    trainer = {"stage": {"type": "sft", "latent": latent}, "hyperparameters": hyper}
    control = {"control": "pauses"}
    result = carried_out(
        {"type": "data_source", "config": {"path": "data.jsonl"}},
        {"type": "validator", "config": {"near_duplicates": None}},
        {"type": "trainer", "config": {"stage": "sft", "hyperparameters": {**hyper, "max_steps": 5}}},
        {"type": "trainer", "id": "thoughts", "needs": ["trainer", "validator"], "config": trainer},
        {"type": "trainer", "id": "pauses", "needs": ["trainer", "validator"], "config": {**trainer, **control}},
        {"type": "evaluator", "needs": ["thoughts", "pauses"], "config": {"benchmarks": [{"name": "heldout_loss"}]}},
        {"type": "deployer", "config": {"role": "thinker", "few_rows": "allow"}},
    )
    (output,) = result.node("thoughts").outputs.values()
    record = json.loads((output.path / "training.json").read_text())
    assert record["epochs"] == 3
    assert json.loads((output.path / "latent.json").read_text())["latent"]["max_stage"] == 2
    (paused,) = result.node("pauses").outputs.values()
    assert json.loads((paused.path / "latent.json").read_text())["latent"]["feedback"] is False
    (judged,) = result.node("evaluator").outputs.values()
    report = json.loads((judged.path / "report.json").read_text())
    lines = {line["name"]: line for line in report["benchmarks"]}
    assert lines["heldout_loss"]["control"] != pytest.approx(lines["heldout_loss"]["candidate"], abs=1e-6)
    assert not any("`control: pauses`" in note for note in report["notes"])
    registry = AdapterRegistry(settings().adapters)
    version = registry.show("default/thinker")
    assert (registry.path(version) / "latent.safetensors").is_file()
