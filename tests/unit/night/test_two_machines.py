"""One night on two machines: two homes, an object store between them, and nothing else that both can see."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.selection import slow
from trainyard.data.corpora import Corpora
from trainyard.night.training import tenant_root
from trainyard.serve import embedded
from trainyard.settings import Settings
from trainyard.stores.adapters import AdapterRegistry
from trainyard.stores.signing.keys import SigningKeys
from trainyard.testing.object_server import ObjectServer
from trainyard.testing.vllm_server import vllm_server

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).parents[3]
NAME = "acme/engineering/v1"
Serving = Callable[[Path, Path], AbstractContextManager[tuple[dict[str, str], str]]]


def command(home: Path, store: ObjectServer, *arguments: str) -> subprocess.Popen[str]:
    """A `trainyard` command of one machine."""
    hidden = [name for name in os.environ if name.startswith("TRAINYARD_")]
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {
        "TRAINYARD_HOME": str(home),
        "TRAINYARD_THREADS": "1",
        "TRAINYARD_MIN_FREE_MB": "0",
        "TRAINYARD_WEIGHTS_STORE": "gs://weights/night",
        "STORAGE_EMULATOR_HOST": store.url,
        "PYTHONPATH": str(REPOSITORY),
    }
    argv = [sys.executable, "-m", "trainyard", *arguments]
    return subprocess.Popen(
        argv, env=environment, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def read_printed(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What a command with `--json` printed."""
    out, err = process.communicate(timeout=1_400)
    assert process.returncode == 0, err
    value: dict[str, Any] = json.loads(out)
    return value


def config(home: Path, model: Path, **phase2: Any) -> str:
    training = {
        "base_model": str(model),
        "method": {"type": "lora", "rank": 4},
        "device": "cpu",
        # Enough to learn to answer: the random model writes line ends alone, which is no answer to the canary prompt.
        "hyperparameters": {
            "max_steps": 30,
            "batch_size": 2,
            "max_length": 64,
            "precision": "fp32",
            "learning_rate": 0.03,
        },
    }
    value: Mapping[str, Any] = {
        "tenant": "acme",
        "streams": [{"name": "contacts", "globs": ["contacts/**/*.json"]}],
        "buckets": [{"name": "engineering", "method": "sft", "threshold": 4}],
        "phase2": {"poll_s": 1, "gate": "none", "training": training, **phase2},
    }
    home.mkdir(exist_ok=True)
    path = home / "nightly.yaml"
    path.write_text(yaml.safe_dump(value), encoding="utf-8")
    return str(path)


@contextmanager
def vllm_at_home(home: Path, model: Path) -> Iterator[tuple[dict[str, str], str]]:
    """A double of vLLM on the first machine: its target, and its address."""
    with vllm_server(base=str(model)) as double:
        yield {"type": "vllm", "url": double.url}, double.url


@contextmanager
def embed_at_home(home: Path, model: Path) -> Iterator[tuple[dict[str, str], str]]:
    """The embedded server of the first machine."""
    settings = Settings(home=home)
    try:
        yield {"type": "embedded"}, embedded.start(settings, str(model), threads=1)
    finally:
        embedded.stop(settings)


@pytest.mark.timeout(1_500)  # three processes import torch
@pytest.mark.parametrize("serving", [vllm_at_home, slow(embed_at_home)])
def test_a_marker_of_one_machine_is_trained_by_another_and_served_by_the_first(
    serving: Serving, tmp_path: Path, tiny_model: Path
) -> None:
    pytest.importorskip("google.cloud.storage", reason="needs the gcs extra")
    first, second = tmp_path / "first", tmp_path / "second"
    corpora = Corpora(tenant_root(Settings(home=first), "acme") / "corpora")
    corpora.add("engineering", "sft", [{"diff": f"+{n}", "message": f"Change {n}"} for n in range(6)])
    polling = config(second, tiny_model)  # mode inline: a worker sees the store's markers all the same
    with ObjectServer() as store, serving(first, tiny_model) as (target, url):
        order = config(first, tiny_model, mode="remote", targets=[target])
        worker = command(second, store, "nightly", "worker", "--config", polling)
        try:
            stranger = json.loads(command(first, store, "nightly", "run", "--config", order, "--json").communicate()[0])
            refused = AdapterRegistry(first / "adapters").list()
            SigningKeys(first).trust(SigningKeys(second).own().pem, "trainer")
            report = read_printed(command(first, store, "nightly", "run", "--config", order, "--json"))
        finally:
            worker.terminate()
            worker.communicate(timeout=60)
        status = read_printed(command(second, store, "nightly", "status", "--config", polling, "--json"))
        body = {"model": NAME, "messages": [{"role": "user", "content": "+1"}], "max_tokens": 4}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    assert (stranger["state"], stranger["phase2"]["failure"]["code"], refused) == ("failed", "E-SIGNATURE", [])
    assert stranger["phase1"]["done"] > 0
    assert [training["version"] for training in stranger["phase2"]["trainings"]] == [NAME]
    assert report["state"] == "completed"
    assert report["phase2"]["fetched"] == [NAME]
    assert list(status["markers"].values()) == ["completed"]
    fetched, trained = (AdapterRegistry(home / "adapters").show("acme/engineering") for home in (first, second))
    assert (fetched.name, fetched.sha256) == (NAME, trained.sha256)
    assert answer.status_code == 200, answer.text
    assert not (tenant_root(Settings(home=second), "acme") / "documents.jsonl").exists()  # it only trained
