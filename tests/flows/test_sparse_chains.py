"""Sparse attention and Quiet-STaR in a chain: trained, evaluated, deployed, and read by the embedded server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import State

from flows.chain import chain
from trainyard.app.run_records import RunResult, read_result
from trainyard.serve.inference import Generation, ModelRunner
from trainyard.settings import settings
from trainyard.spec.chain import ChainSpec

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
    rows = [{"instruction": f"What is twice {n}?", "output": f"Twice {n} is {2 * n}."} for n in range(40)]
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


@pytest.mark.slow
@pytest.mark.parametrize(("name", "method"), [("tokens", "lora"), ("heads", "full"), ("quiet", "lora")])
def test_a_technique_is_trained_evaluated_and_deployed(name: str, method: str, work: Path, tiny_model: Path) -> None:
    hyper = {"epochs": 2, "batch_size": 8, "max_length": 128, "learning_rate": 1e-3}
    stage = {"type": "sft", "latent": TECHNIQUES[name]}
    result = carried_out(
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
