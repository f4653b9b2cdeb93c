"""The server reads with sparse attention or hidden thoughts, for a whole model and for one of several adapters."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from fastapi.testclient import TestClient
from transformers import AutoModelForCausalLM

from trainyard.serve.answers import Answers
from trainyard.serve.inference import Generation, ModelRunner, Worker
from trainyard.serve.served import ServedBase, ServedModels
from trainyard.serve.server import build_app
from trainyard.spec.axes.stages import Stage
from trainyard.stores.models import ModelSource
from trainyard.train.latent import table
from trainyard.train.methods.adapters import inject

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # PEFT asks transformers

PROMPT = [5, 9, 17, 30, 7, 21, 40, 11, 33, 2, 8, 50]
TECHNIQUES: dict[str, dict[str, Any]] = {
    "tokens": {"type": "dsa", "granularity": {"type": "token", "top_k": 2, "index_heads": 2, "index_dim": 8}},
    "heads": {"type": "dsa", "granularity": {"type": "head", "active": 2}},
    "quiet_star": {"type": "quiet_star", "thought_tokens": 3},
}


def network(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder).eval()


@pytest.fixture(params=list(TECHNIQUES))
def technique(request: pytest.FixtureRequest, tiny_model: Path) -> Any:
    """The weights of a technique that change what the model says."""
    settings: Any = Stage.SFT.settings(latent=TECHNIQUES[request.param])
    tokenizer = ModelRunner(tiny_model).tokenizer
    technique_weights = table.prepare(network(tiny_model), tokenizer, settings.latent, seed=3)
    torch.manual_seed(4)
    for weight in technique_weights.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    return technique_weights


@pytest.fixture
def adapter(tiny_model: Path, technique: Any, tmp_path: Path) -> Path:
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    inject(network(tiny_model), config, "default").save_pretrained(str(tmp_path / "adapter"))
    table.save(technique, tmp_path / "adapter")
    return tmp_path / "adapter"


@pytest.fixture
def whole(tiny_model: Path, technique: Any, tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    table.save(technique, folder)
    return folder


def logprobs(engine: ModelRunner, adapter: str | None = None) -> list[float]:
    """Log-probabilities of the tokens of a greedy answer."""
    generation = Generation(list(PROMPT), 5, temperature=0, adapter=adapter, top_logprobs=0)
    return [step.logprob.logprob for step in engine.generate(generation) if step.logprob is not None]


def test_a_model_and_an_adapter_answer_with_the_technique_and_others_without(
    tiny_model: Path, whole: Path, adapter: Path
) -> None:
    engine = ModelRunner(tiny_model)
    dense, expected = logprobs(engine), logprobs(ModelRunner(whole))
    assert expected != pytest.approx(dense, abs=1e-4)
    engine.load_adapter("own", adapter)
    assert logprobs(engine, "own") == pytest.approx(expected, abs=1e-5)
    assert logprobs(engine) == dense
    engine.unload_adapter("own")
    assert logprobs(engine) == dense


def test_a_chat_shows_the_words_alone(whole: Path) -> None:
    engine, worker = ModelRunner(whole), Worker()
    models = ServedModels([ServedBase(ModelSource("own", whole, "0" * 64), engine, worker)], [])
    body = {"model": "own", "messages": [{"role": "user", "content": "Why?"}], "max_tokens": 4, "temperature": 0}
    with TestClient(build_app(models, Answers(models, max_tokens=100), token=None, hosts=["testserver"])) as client:
        answers = [client.post("/v1/chat/completions", json=body).json() for _ in range(2)]
    worker.stop()
    assert answers[0]["usage"]["completion_tokens"] <= 4
    assert answers[0]["choices"][0]["message"] == answers[1]["choices"][0]["message"]
