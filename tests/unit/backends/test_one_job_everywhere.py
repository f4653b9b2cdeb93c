"""One job file at the double of every provider: accepted, or refused by a named row; bodies fit the client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

from benchmarks.providers import ADDRESSES, DOUBLES, MODELS, VARIABLES
from trainyard.app.jobs.training_manager import prepare
from trainyard.backends.cloud import program
from trainyard.compute.child import EVENTS_FILE, SPEC_FILE, Events
from trainyard.errors import Refused
from trainyard.json_types import JsonObject
from trainyard.loading import load_object
from trainyard.settings import settings
from trainyard.spec.axes.backends import CLOUD_PROVIDERS
from trainyard.spec.axes.providers import PROVIDERS
from trainyard.testing.loopback import serving
from trainyard.testing.providers.double import KEY, ProviderDouble
from trainyard.testing.providers.weights import make_adapter_files

for package in ("together", "fireworks", "openai", "boto3", "google.genai"):
    pytest.importorskip(package)
pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # clients end with their child
]
LLAMA = "meta-llama/Llama-3-8b"
JOB: JsonObject = {
    "name": "handbook", "dataset": {"path": "train.jsonl", "heldout": {"path": "eval.jsonl"}},
    "eval": {"set": "heldout"}, "hyperparameters": {"epochs": 3}, "service": {"suffix": "handbook"},
}  # fmt: skip
RATE: JsonObject = {"hyperparameters": {"epochs": 3, "learning_rate": 1e-5}}
PAIRS: JsonObject = {"stage": {"type": "dpo", "beta": 0.2}, "dataset": {"path": "pairs.jsonl"}, "eval": None}
RATE_FIELD, RANK_FIELD = "config.hyperparameters.learning_rate", "config.method.rank"
REFUSED: dict[str, dict[str, str]] = {
    "openai": {"rate": RATE_FIELD, "rank": RANK_FIELD},
    "vertex": {"rate": RATE_FIELD},
    "bedrock": {"rank": RANK_FIELD, "pairs": "config.stage"},
}
"""Provider -> name of a change to the job file -> field that it has no place for."""
CHANGES: dict[str, JsonObject] = {
    "none": {}, "rate": RATE, "rank": {"method": {"type": "lora", "rank": 16}}, "pairs": PAIRS,
}  # fmt: skip


@pytest.fixture(scope="module")
def weights(tiny_model: Path) -> dict[str, bytes]:
    return make_adapter_files(tiny_model)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINYARD_WORKING_FOLDER", str(tmp_path))
    monkeypatch.setenv("TRAINYARD_PROVIDER_POLL_S", "0.01")
    monkeypatch.setenv("TRAINYARD_PROVIDER_SETTLE_S", "0.01")
    settings.cache_clear()
    turns = [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "A node."}]
    row = json.dumps({"messages": turns}) + "\n"
    pair = json.dumps({"prompt": "What is it?", "chosen": "A node.", "rejected": "No idea."}) + "\n"
    for name, line in {"train": row, "eval": row, "pairs": pair}.items():
        (tmp_path / f"{name}.jsonl").write_text(line * 4)
    return tmp_path


@pytest.fixture(params=[name.value for name in CLOUD_PROVIDERS])
def provider(
    request: pytest.FixtureRequest, folder: Path, weights: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, ProviderDouble]]:
    """A provider's name and its double, at which this process is pointed."""
    name: str = request.param
    with serving(load_object(DOUBLES[name])(None, weights)) as server:
        assert isinstance(server, ProviderDouble)
        for variable, value in {**VARIABLES, PROVIDERS[name].key: KEY}.items():
            monkeypatch.setenv(variable, value)
        monkeypatch.setenv(PROVIDERS[name].address, server.url + ADDRESSES.get(name, ""))
        for constant in ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_EXPERIMENTAL_WARNING"):  # read from variables at import
            monkeypatch.setattr(huggingface_hub.constants, constant, constant != "HF_HUB_OFFLINE")
        yield name, server


def submit(name: str, change: JsonObject, folder: Path, base: Path) -> None:
    """Check the job file for a provider and train it in this process. Raises `Refused`."""
    served = {"base_model": str(base), "service": {**JOB["service"], "base_model": MODELS.get(name, LLAMA)}}
    body = {**JOB, "backend": name, **served, **change}
    job = prepare({key: value for key, value in body.items() if value is not None}, settings())
    work = folder / f"{name}-work"
    work.mkdir()
    (work / SPEC_FILE).write_text(job.model_dump_json())
    events = Events(work / EVENTS_FILE)
    try:
        program.train(work, events)
    finally:
        events.close()


@pytest.mark.parametrize("change", CHANGES)
def test_the_job_is_trained_or_refused_by_its_row(
    change: str, provider: tuple[str, ProviderDouble], folder: Path, tiny_model: Path
) -> None:
    name, server = provider
    expected = REFUSED.get(name, {}).get(change, "")
    if expected:
        with pytest.raises(Refused) as refused:
            submit(name, CHANGES[change], folder, tiny_model)
        assert [(reason.row, reason.field) for reason in refused.value.reasons] == [("backend-setting", expected)]
        assert not server.jobs
        return
    submit(name, CHANGES[change], folder, tiny_model)
    (job,) = server.jobs.values()
    text = json.dumps(job.body)
    assert "ty-" in text
    assert ('beta": 0.2' in text.replace("\\", "")) == (change == "pairs")
    result: dict[str, Any] = json.loads((folder / f"{name}-work" / "result" / "adapter" / "training.json").read_text())
    assert (result["provider"]["job"].rpartition("/")[2], result["rows"]) == (
        job.id.rpartition("/")[2], {"trained": 4},
    )  # fmt: skip
