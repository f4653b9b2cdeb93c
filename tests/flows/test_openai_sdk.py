"""OpenAI's SDK, the newest and the one before it, against a real server, worker and model server with the starter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.flows.real_stack import Stack, standing
from trainyard.app.services import running

pytestmark = [
    pytest.mark.slow, pytest.mark.network, pytest.mark.timeout(1500), pytest.mark.xdist_group("stack faults"),
]  # fmt: skip

VERSIONS = ("3.57.0", "3.56.0")
PROGRAM = REPOSITORY / "tests" / "openai_program.py"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Stack]:
    with standing(tmp_path_factory.mktemp("openai"), tiny_model) as stack:
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
    token = stack.json("tokens", "create", "--name", sdk.parents[2].name[:40], "--scope", "run")["token"]
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
    assert report["messages"][0] == "The job has successfully completed"
    assert report["refused"] == {
        "chat": [404, "model_not_found"],
        "cancel": [400, "invalid_job_state"],
        "embeddings": [404, "unsupported_endpoint"],
        "responses": [404, "unknown_url"],
        "model": [400, "model_not_available"],
    }
