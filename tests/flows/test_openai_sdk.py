"""OpenAI's SDK, the newest and the one before it, against a real server, worker and model server with the starter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.conftest import REPOSITORY
from tests.flows.real_stack import Stack, standing, wait_until
from trainyard.app.services import running
from trainyard.serve.embedded import find_running

pytestmark = [
    pytest.mark.slow, pytest.mark.network, pytest.mark.timeout(1500), pytest.mark.xdist_group("stack faults"),
]  # fmt: skip

VERSIONS = ("3.57.0", "3.56.0")
PROGRAM = REPOSITORY / "tests" / "openai_program.py"
PARAMETERS = REPOSITORY / "tests" / "resources" / "openai_parameters.json"
"""Those of the newest version, which docs/openai.md lists."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Stack]:
    served = {"TRAINYARD_SERVE_MODELS": '["starter"]'}
    with standing(
        tmp_path_factory.mktemp("openai"), tiny_model, lambda stack: stack.environment.update(served)
    ) as stack:
        yield stack


@pytest.fixture
def sdk(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The interpreter of an environment with one version of the SDK."""
    environment = tmp_path / "sdk"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True, timeout=120)
    python = environment / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "-q", f"openai=={request.param}"], check=True, timeout=300)
    return python


@pytest.mark.parametrize("sdk", VERSIONS, indirect=True)
def test_a_whole_job_by_the_calls_of_the_sdk(stack: Stack, sdk: Path) -> None:
    name = f"sdk-{sdk.parents[2].name[-1]}"
    token = stack.json("tokens", "create", "--name", name, "--scope", "run")["token"]
    api = running(stack.settings, "api")
    assert api is not None
    environment = {
        "PATH": os.environ["PATH"], "OPENAI_BASE_URL": f"{api.url}/openai/v1", "OPENAI_API_KEY": token,
    }  # fmt: skip
    argv = [str(sdk), "-P", str(PROGRAM)]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["steps"] == 12
    parameters = json.loads(PARAMETERS.read_text())
    if parameters.pop("sdk") == f"openai {report['version']}":
        assert report["parameters"] == parameters
    assert report["messages"][0] == "The job has successfully completed"
    assert report["refused"] == {
        "tools": [400, None, "tools"],
        "functions": [400, "unsupported_parameter", "functions"],
        "n": [400, None, "n"],
        "messages": [400, None, "messages[0].content"],
        "chat": [404, "model_not_found", "model"],
        "cancel": [400, "invalid_job_state", None],
        "embeddings": [404, "unsupported_endpoint", None],
        "responses": [404, "unknown_url", None],
        "model": [400, "model_not_available", "model"],
    }


@pytest.fixture(scope="module")
def wire(stack: Stack) -> Iterator[httpx.Client]:
    """A client of the wire with a token of the default tenant."""
    token = stack.json("tokens", "create", "--name", "wire", "--scope", "run")["token"]
    with open_wire(stack, token) as client:
        yield client


def open_wire(stack: Stack, token: str) -> httpx.Client:
    api = running(stack.settings, "api")
    assert api is not None
    headers = {"authorization": f"Bearer {token}"}
    return httpx.Client(base_url=f"{api.url}/openai/v1", headers=headers, trust_env=False, timeout=60)


def train(wire: httpx.Client) -> dict[str, Any]:
    """Train a small job to its end and return it."""
    turns = [{"role": "user", "content": "Say yes."}, {"role": "assistant", "content": "Yes."}]
    rows = b"".join(json.dumps({"messages": turns}).encode() + b"\n" for _ in range(12))
    file = wire.post("/files", files={"file": ("yes.jsonl", rows)}, data={"purpose": "fine-tune"}).json()["id"]
    hyperparameters = {"n_epochs": 1, "batch_size": 4}
    body = {"model": "starter", "training_file": file, "hyperparameters": hyperparameters}
    job = wire.post("/fine_tuning/jobs", json=body).json()
    ended = ("succeeded", "failed", "cancelled")
    wait_until(lambda: wire.get(f"/fine_tuning/jobs/{job['id']}").json()["status"] in ended, 300, "the job", every_s=1)
    shown: dict[str, Any] = wire.get(f"/fine_tuning/jobs/{job['id']}").json()
    assert shown["status"] == "succeeded", shown
    return shown


def test_another_tenant_finds_nothing_of_a_job(stack: Stack, wire: httpx.Client) -> None:
    job = train(wire)
    token = stack.json("tokens", "create", "--name", "blue", "--scope", "run", "--tenant", "blue")["token"]
    path, model = f"/fine_tuning/jobs/{job['id']}", job["fine_tuned_model"]
    question = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    assert wire.post("/chat/completions", json=question).status_code == 200
    with open_wire(stack, token) as blue:
        answers = [
            *(blue.get(f"{path}{part}") for part in ("", "/events", "/checkpoints")),
            *(blue.post(f"{path}/{verb}") for verb in ("cancel", "pause", "resume")),
            *(blue.get(f"/files/{file}") for file in (job["training_file"], *job["result_files"])),
            *(blue.request(method, f"/models/{model}") for method in ("GET", "DELETE")),
            blue.post("/chat/completions", json=question),
        ]  # fmt: skip
        assert [answer.status_code for answer in answers] == [404] * len(answers)
        assert blue.get("/fine_tuning/jobs").json()["data"] == []
        assert model not in {entry["id"] for entry in blue.get("/models").json()["data"]}
    assert wire.post("/chat/completions", json=question).status_code == 200


def test_a_client_that_leaves_in_the_middle_of_a_stream_leaves_nothing(stack: Stack, wire: httpx.Client) -> None:
    url = find_running(stack.settings)
    assert url is not None
    body = {"model": "starter", "prompt": "A chain", "max_tokens": 400, "stream": True, "logit_bias": {"40": 100}}

    def read_gauge(name: str) -> float:
        lines = httpx.get(f"{url}/metrics", trust_env=False).text.splitlines()
        return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])

    def count_connections() -> int:
        port = int(url.rpartition(":")[2])
        api = running(stack.settings, "api")
        assert api is not None
        connections = psutil.Process(api.pid).net_connections("tcp")
        return sum(bool(entry.raddr) and entry.raddr.port == port for entry in connections)

    left = read_gauge("trainyard_server_cancelled_total")
    with wire.stream("POST", "/completions", json=body) as answer:
        events = answer.iter_lines()
        assert next(events).startswith("data: ")
        assert count_connections() == 1
    wait_until(lambda: read_gauge("trainyard_server_cancelled_total") == left + 1, 10, "the end of the generation")
    assert read_gauge("trainyard_server_running") == 0
    wait_until(lambda: count_connections() == 0, 10, "the end of the connection")
    assert wire.post("/completions", json={**body, "stream": False, "max_tokens": 2}).status_code == 200
