"""Sparse attention and Quiet-STaR in a chain: trained, evaluated, deployed, and read by the embedded server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.flows.chain_runs import complete_nodes, fill_working_folder, twice
from trainyard.serve.inference import Generation, ModelRunner

pytestmark = [
    pytest.mark.usefixtures("prefect"),
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning"),  # PEFT asks transformers
]

TECHNIQUES: dict[str, dict[str, Any]] = {
    "tokens": {"type": "dsa", "granularity": {"type": "token", "top_k": 6, "index_heads": 2, "index_dim": 8}},
    "heads": {"type": "dsa", "granularity": {"type": "head", "active": 2}},
    "quiet": {"type": "quiet_star", "thought_tokens": 2, "ahead": 2},
}


@pytest.fixture
def work(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with forty questions, and the tiny model as the default base."""
    return fill_working_folder(tmp_path, tiny_model, monkeypatch, {"data.jsonl": twice(40)})


@pytest.mark.slow
@pytest.mark.parametrize(("name", "method"), [("tokens", "lora"), ("heads", "full"), ("quiet", "lora")])
def test_a_technique_is_trained_evaluated_and_deployed(name: str, method: str, work: Path, tiny_model: Path) -> None:
    hyper = {"epochs": 2, "batch_size": 8, "max_length": 128, "learning_rate": 1e-3}
    stage = {"type": "sft", "latent": TECHNIQUES[name]}
    result = complete_nodes(
        {"type": "data_source", "config": {"path": "data.jsonl"}},
        {"type": "validator", "config": {"near_duplicates": None}},
        {"type": "trainer", "config": {"stage": stage, "method": method, "hyperparameters": hyper, "device": "cpu"}},
        {"type": "evaluator", "config": {"samples": 4}},
    )
    (output,) = result.node("trainer").outputs.values()
    record = json.loads((output.path / "latent.json").read_text())
    assert record["latent"]["type"] == TECHNIQUES[name]["type"]
    assert result.node("evaluator").facts is not None

    runner = ModelRunner(tiny_model if method == "lora" else output.path)
    adapter = "own" if method == "lora" else None
    if adapter is not None:
        runner.load_adapter(adapter, output.path)
    assert runner.latent[adapter] is not None
    prompt = runner.tokenizer.encode("What is twice 3?")
    generation = Generation(prompt=prompt, max_tokens=8, adapter=adapter, temperature=0.0)
    tokens = [step.token for step in runner.generate(generation)]
    again = [step.token for step in runner.generate(Generation(prompt, 8, adapter, temperature=0.0))]
    assert 0 < len(tokens) <= 9
    assert tokens == again
