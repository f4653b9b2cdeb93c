"""Requests of every kind that the OpenAPI document allows, and does not allow: schemathesis, all of its checks.

A real Prefect server with the worker stopped, so that what is started waits. `pip` finds no packages, so that the
installation of a trainer fails; all trainers but one have an environment of somebody else, so that it is refused before
a virtual environment is made, which takes four seconds of a core. 422 and 424 are answers to what a schema cannot say:
a chain that is refused, a model that is not here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.flows.real_stack import Stack, standing, wait_until
from trainyard.app.services import stop
from trainyard.backends.environments import INSTALLABLE
from trainyard.compute.services import free_port, is_healthy
from trainyard.spec.axes.backends import ServerName

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(1500), pytest.mark.xdist_group("stack faults")]

INSTALLED = ServerName.VLLM
"""Whose installation is carried out, and fails."""
EXAMPLES = os.environ.get("EXAMPLES", "50")
CONFIG = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "3xx", 401, 403, 404, 409, 413, 415, 422, 424, 429, 503]

# The coverage of a chain's schema alone is 11,000 requests; the other phases call these operations, too.
[[operations]]
include-operation-id = ["chains_create", "chains_update"]
phases.coverage.enabled = false
"""
SUMMARY = re.compile(r"(\d+) generated, (\d+) passed")


@pytest.fixture
def stack(tmp_path: Path, tiny_model: Path) -> Iterator[Stack]:
    with standing(tmp_path, tiny_model) as stack:
        for name in ("watchdog", "worker", "api"):
            assert stop(stack.settings, name)
        yield stack


@pytest.fixture
def url(stack: Stack, tmp_path: Path) -> Iterator[str]:
    """A service of the stack's home whose limits do not matter."""
    pip = tmp_path / "user" / ".config" / "pip" / "pip.conf"
    pip.parent.mkdir(parents=True)
    pip.write_text("[global]\nno-index = true\n")
    limits = {"TRAINYARD_API_REQUESTS_PER_S": "100000", "TRAINYARD_API_HEAVY_CALLS": "64"}
    limits["TRAINYARD_API_FAILED_LOGINS"] = "1000000"
    named = {
        backend.value: str(tmp_path / "theirs" / backend.value) for backend in INSTALLABLE if backend is not INSTALLED
    }
    limits["TRAINYARD_BACKEND_ENVS"] = json.dumps(named)
    environment = {**stack.environment, **limits, "HOME": str(tmp_path / "user")}
    port = free_port(18_898)
    argv = [sys.executable, "-m", "trainyard", "serve", "--port", str(port)]
    with (tmp_path / "api.log").open("wb") as log:
        child = subprocess.Popen(argv, cwd=stack.work, env=environment, stdout=log, stderr=log)
    wait_until(lambda: is_healthy(f"http://127.0.0.1:{port}"), 60, "the service")
    yield f"http://127.0.0.1:{port}"
    child.terminate()
    child.wait(30)


def require_ready(url: str, token: str) -> None:
    """The document is there, and a request installs nothing: most of it is refused at once."""
    codes = {}
    with httpx.Client(headers={"authorization": f"Bearer {token}"}, timeout=60) as client:
        for backend in INSTALLABLE:
            answer = client.post(f"{url}/api/v1/backends/install", json={"names": [backend.value]})
            codes[backend] = (answer.status_code, answer.json()["code"])
        document = client.get(f"{url}/api/v1/openapi.json")  # made at first, in seconds
        assert document.status_code == 200
    refused = dict.fromkeys(INSTALLABLE, (409, "E-BACKEND-CONFIG"))
    assert codes == {**refused, INSTALLED: (424, "E-INSTALL")}


def test_no_request_fails_the_service_or_its_document(stack: Stack, url: str, tmp_path: Path) -> None:
    token = stack.json("tokens", "create", "--name", "fuzz", "--scope", "admin")["token"]
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    require_ready(url, token)
    argv = [
        sys.executable, "-m", "schemathesis.cli", "--config-file", "schemathesis.toml",
        "run", f"{url}/api/v1/openapi.json",
        "--url", url, "--header", f"Authorization: Bearer {token}", "--phases", "examples,coverage,fuzzing,stateful",
        "--max-examples", EXAMPLES, "--continue-on-failure", "--request-timeout", "60", "--no-color",
    ]  # fmt: skip
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=1400)
    assert done.returncode == 0, done.stdout[done.stdout.find("= FAILURES =") :][:8000]
    match = SUMMARY.search(done.stdout)
    assert match is not None
    assert match[1] == match[2]
    assert int(match[1]) > 1000
    assert "E-BUG" not in (tmp_path / "api.log").read_text()
    assert "Traceback" not in (tmp_path / "api.log").read_text()
