"""Latent reasoning in a chain: steps in words, then thoughts in their place next to their control, evaluated and
deployed as one adapter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.flows.chain_runs import complete_nodes, fill_working_folder, read_record
from trainyard.settings import settings
from trainyard.stores.adapters import AdapterRegistry

pytestmark = pytest.mark.usefixtures("prefect")


@pytest.mark.slow
def test_thoughts_after_words_become_a_version_that_is_live(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums = [(n, 2 * n, 2 * n + 1) for n in range(60)]
    rows = [
        {"question": f"{n} + {n} + 1?", "steps": [f"{n} + {n} = {twice}", f"{twice} + 1 = {end}"], "answer": str(end)}
        for n, twice, end in sums
    ]
    fill_working_folder(tmp_path, tiny_model, monkeypatch, {"data.jsonl": rows})
    hyper = {"batch_size": 8, "max_length": 128, "learning_rate": 5e-3}
    latent = {"type": "coconut", "max_stage": 2, "epochs_per_stage": 1, "first_stage": 1}
    trainer = {"stage": {"type": "sft", "latent": latent}, "hyperparameters": hyper}
    control = {"control": "pauses"}
    result = complete_nodes(
        {"type": "data_source", "config": {"path": "data.jsonl"}},
        {"type": "validator", "config": {"near_duplicates": None}},
        {"type": "trainer", "config": {"stage": "sft", "hyperparameters": {**hyper, "max_steps": 5}}},
        {"type": "trainer", "id": "thoughts", "needs": ["trainer", "validator"], "config": trainer},
        {"type": "trainer", "id": "pauses", "needs": ["trainer", "validator"], "config": {**trainer, **control}},
        {"type": "evaluator", "needs": ["thoughts", "pauses"], "config": {"benchmarks": [{"name": "heldout_loss"}]}},
        {"type": "deployer", "config": {"role": "thinker", "few_rows": "allow"}},
    )
    (output,) = result.node("thoughts").outputs.values()
    assert read_record(result, "thoughts")["epochs"] == 3
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
