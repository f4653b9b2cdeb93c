"""The server reads a model's latent technique before it answers, and shows nothing of its thoughts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from fastapi.testclient import TestClient
from transformers import AutoModelForCausalLM, AutoTokenizer

from trainyard.errors import Corrupt
from trainyard.evals.cases import Case
from trainyard.evals.model import HuggingFaceModel
from trainyard.serve.answers import Answers
from trainyard.serve.inference import Generation, ModelRunner, Worker
from trainyard.serve.served import ServedBase, ServedModels
from trainyard.serve.server import build_app
from trainyard.spec.axes.stages import Stage
from trainyard.stores.models import ModelSource
from trainyard.train.contracts import Sampling
from trainyard.train.latent import table
from trainyard.train.methods.adapters import inject
from trainyard.train.model.sampling import sample

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # PEFT asks transformers
TECHNIQUES: dict[str, dict[str, Any]] = {
    "coconut": {"type": "coconut", "max_stage": 3},
    "pause": {"type": "pause", "count": 3},
    "codi": {"type": "codi", "thoughts": 2},
}
"""Those with thoughts between prompt and answer; the others are in `test_served_selection`."""
PROMPT = [5, 9, 17, 30]


def prepare_latent(model: Any, **latent: Any) -> Any:
    settings: Any = Stage.SFT.settings(latent=latent)
    return table.prepare(model, None, settings.latent, seed=3)


def network(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder).eval()


@pytest.fixture(scope="module", params=list(TECHNIQUES))
def technique(request: pytest.FixtureRequest) -> dict[str, Any]:
    return TECHNIQUES[request.param]


@pytest.fixture(scope="module")
def thinking(tiny_model: Path, technique: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with the weights of a technique next to its own."""
    folder = tmp_path_factory.mktemp("thinking") / "model"
    shutil.copytree(tiny_model, folder)
    table.save(prepare_latent(network(tiny_model), **technique), folder)
    return folder


@pytest.fixture(scope="module")
def expected(thinking: Path) -> list[int]:
    """What the session's sampling gives, with the thoughts."""
    model = network(thinking)
    technique_weights = table.load_technique(thinking, model, None)
    assert technique_weights is not None
    tokenizer = AutoTokenizer.from_pretrained(thinking)
    with torch.no_grad():
        return sample(model, tokenizer, [PROMPT], Sampling(max_new_tokens=6, temperature=0), reader=technique_weights)[
            0
        ].ids


def generate_served(engine: ModelRunner, adapter: str | None = None) -> list[int]:
    generation = Generation(list(PROMPT), 6, temperature=0, adapter=adapter)
    return [step.token for step in engine.generate(generation) if step.token >= 0]


def test_a_model_is_served_with_its_thoughts(thinking: Path, tiny_model: Path, expected: list[int]) -> None:
    assert generate_served(ModelRunner(thinking)) == [
        token for token in expected if token not in ModelRunner(thinking).eos_ids
    ]
    assert generate_served(ModelRunner(tiny_model)) != generate_served(ModelRunner(thinking))


@pytest.fixture
def adapter(tiny_model: Path, technique: dict[str, Any], tmp_path: Path) -> Path:
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    inject(network(tiny_model), config, "default").save_pretrained(str(tmp_path / "adapter"))
    table.save(prepare_latent(network(tiny_model), **technique), tmp_path / "adapter")
    return tmp_path / "adapter"


def test_each_adapter_has_its_own_thoughts(tiny_model: Path, adapter: Path, expected: list[int]) -> None:
    engine = ModelRunner(tiny_model)
    before = generate_served(engine)
    engine.load_adapter("thinker", adapter)
    assert generate_served(engine, "thinker") == [token for token in expected if token not in engine.eos_ids]
    assert generate_served(engine) == before
    engine.unload_adapter("thinker")
    assert generate_served(engine) == before
    assert list(engine.latent) == [None]


def test_an_adapter_with_a_broken_technique_is_not_loaded(tiny_model: Path, adapter: Path) -> None:
    (adapter / table.WEIGHTS_FILE).write_bytes(b"nothing")
    engine = ModelRunner(tiny_model)
    with pytest.raises(Corrupt, match="cannot be loaded"):
        engine.load_adapter("thinker", adapter)
    assert engine.adapters == {}


@pytest.fixture
def client(thinking: Path) -> Iterator[TestClient]:
    engine, worker = ModelRunner(thinking), Worker()
    models = ServedModels([ServedBase(ModelSource("thinker", thinking, "0" * 64), engine, worker)], [])
    with TestClient(
        build_app(models, Answers(models, max_tokens=100), token=None, hosts=["testserver"])
    ) as test_client:
        yield test_client
    worker.stop()


def test_a_chat_counts_and_shows_the_words_alone(client: TestClient) -> None:
    body = {"model": "thinker", "messages": [{"role": "user", "content": "Why?"}], "max_tokens": 4, "temperature": 0}
    answer = client.post("/v1/chat/completions", json=body).json()
    assert set(answer["choices"][0]["message"]) >= {"role", "content"}
    assert answer["usage"]["completion_tokens"] <= 4


def test_an_evaluation_scores_and_answers_after_the_thoughts(thinking: Path) -> None:
    model, tokenizer = network(thinking), AutoTokenizer.from_pretrained(thinking)
    technique_weights = table.load_technique(thinking, model, tokenizer)
    case = Case("rows.jsonl:1", "a", prompt=[{"role": "user", "content": "Why?"}], answer={"content": "Because."})
    says = {"role": "assistant", "content": "Because."}
    plain, latent = HuggingFaceModel(model, tokenizer), HuggingFaceModel(model, tokenizer, latent=technique_weights)
    (without,), (with_thoughts,) = (scorer.answers([(case, says)]) for scorer in (plain, latent))
    assert without is not None
    assert with_thoughts is not None
    assert without.tokens == with_thoughts.tokens
    assert without.nll != pytest.approx(with_thoughts.nll, abs=1e-6)
    (answered,) = latent.timed([case], 4)
    assert (answered.text, answered.seconds > 0) == (latent.generate([case], 4)[0], True)
    assert 1 + 5 <= answered.tokens <= 4 + 5
    assert latent.timed([case], 4) == [answered]
    assert plain.timed([case], 4)[0].tokens <= 4
