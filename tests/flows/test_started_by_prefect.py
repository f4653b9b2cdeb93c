"""Runs that Prefect's own commands and pages start: a refused one is a job with its error, and a relative path starts
where `trainyard up` was called.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.flows.real_stack import Stack, standing, wait_until
from trainyard.app.services import running
from trainyard.stores.auth_string import read_auth
from trainyard.stores.live.job_ids import derive_job_id

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(900), pytest.mark.xdist_group("stack faults")]

SEEN_S = 10.0
"""How soon a job is in the lists of a running service; the test prints the measured time."""
PAGE = "# The amber station\n\nThe amber station has seven platforms. A ticket costs twelve crowns.\n"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Stack]:
    """A stack that was started in a folder with documents."""
    with standing(tmp_path_factory.mktemp("stack"), tiny_model, write_documents) as stack:
        yield stack


def write_documents(stack: Stack) -> None:
    (stack.work / "handbook").mkdir()
    (stack.work / "handbook" / "amber.md").write_text(PAGE)


def deploy_run(stack: Stack, name: str, folder: Path, **parameters: Any) -> str:
    """Start a run as a user of Prefect does, from a folder of the user's; return the run's id."""
    variables = stack.json("env")["variables"]
    pairs = [word for key, value in parameters.items() for word in ("-p", f"{key}={json.dumps(value)}")]
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "deployment", "run", name, *pairs],
        cwd=folder, env={**stack.environment, **variables, "NO_PROXY": "127.0.0.1"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return next(line.split()[-1] for line in done.stdout.splitlines() if "UUID" in line)


def start_on_page(stack: Stack, name: str, **parameters: Any) -> str:
    """Start a run as Prefect's page does; return the run's id."""
    address = f"{stack.api_url()}/deployments/{stack.request_prefect(f'deployments/name/{name}')['id']}/create_flow_run"
    answer = httpx.post(address, json={"parameters": parameters}, headers=stack.credentials(), timeout=60)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def wait_for_failure(stack: Stack, run_id: str) -> str:
    """Wait until a run has failed and return its message."""
    stack.wait_for_state(run_id, "FAILED", "CRASHED", "COMPLETED", seconds=180)
    state = stack.state_of(run_id)
    assert state["type"] == "FAILED", state
    return str(state["message"])


def require_everywhere(stack: Stack, run_id: str, error: str) -> None:
    """The job with its error: over REST, where the dashboard reads it, in `jobs list` and in `jobs show`."""
    job_id = derive_job_id(run_id)

    def list_job() -> dict[str, Any]:
        return find_row(stack_client.get("/jobs").json()["jobs"], job_id)

    with rest(stack) as stack_client:
        took = wait_until(lambda: list_job().get("state") == "failed", SEEN_S, "the REST list")
        print(f"failed in the REST list {took:.2f} s after its end")
        rows = [list_job(), stack_client.get(f"/jobs/{job_id}").json()]
    rows += [find_row(stack.json("jobs", "list")["jobs"], job_id)]
    rows += [stack.json("jobs", "show", run_id[:8])]
    for row in rows:
        assert row["run_id"] == run_id
        assert row["state"] == "failed"
        assert error in row["message"]


def rest(stack: Stack) -> httpx.Client:
    api = running(stack.settings, "api")
    assert api is not None
    headers = {"authorization": f"Bearer {str(read_auth(stack.settings)).partition(':')[2]}"}
    return httpx.Client(base_url=f"{api.url}/api/v1", headers=headers, timeout=60)


def find_row(rows: list[dict[str, Any]], job_id: str) -> dict[str, Any]:
    return next((row for row in rows if row["id"] == job_id), {})


def test_a_template_that_prefect_starts_and_that_is_refused_is_a_job(stack: Stack, tmp_path: Path) -> None:
    run_id = deploy_run(stack, "rag-tuning/local", tmp_path, documents="missing")
    message = wait_for_failure(stack, run_id)
    assert "E-DATA-NOT-FOUND data-source.config.path: There is no file or folder 'missing'." in message
    assert f"It was looked for in {stack.work}" in message, "the folder where `up` was called"
    require_everywhere(stack, run_id, "E-DATA-NOT-FOUND")


@pytest.mark.parametrize(
    ("node", "error"),
    [
        ({"type": "data_source", "config": {"path": "missing.jsonl"}}, "E-DATA-NOT-FOUND"),
        ({"type": "data_source", "needs": ["nobody"], "config": {"path": "data.jsonl"}}, "nobody"),
    ],
    ids=["refused", "not a chain"],
)
def test_a_chain_that_prefect_starts_and_that_is_refused_is_a_job(
    stack: Stack, node: dict[str, Any], error: str
) -> None:
    run_id = start_on_page(stack, "chain/adhoc", spec={"nodes": [node, {"type": "trainer"}]})
    assert error in wait_for_failure(stack, run_id)
    require_everywhere(stack, run_id, error)


def test_a_chain_without_a_trainer_is_no_job(stack: Stack) -> None:
    source = {"type": "data_source", "config": {"path": "missing.jsonl"}}
    run_id = start_on_page(stack, "chain/adhoc", spec={"nodes": [source]})
    assert "E-DATA-NOT-FOUND" in wait_for_failure(stack, run_id)
    with rest(stack) as client:
        assert not find_row(client.get("/jobs").json()["jobs"], derive_job_id(run_id))


def test_a_relative_path_means_the_same_to_prefect_and_to_rest(stack: Stack) -> None:
    """Both start where `up` was called; the whole path is inside a root for both, too."""
    for path in ("handbook", str(stack.work / "handbook")):
        spec = {"name": "read", "nodes": [{"type": "data_source", "config": {"path": path}}]}
        run_id = start_on_page(stack, "chain/adhoc", spec=spec)
        stack.wait_for_state(run_id, "FAILED", "CRASHED", "COMPLETED", seconds=180)
        assert stack.state_of(run_id)["type"] == "COMPLETED", stack.state_of(run_id)["message"]
        with rest(stack) as client:
            plan = client.post("/plan", json={"target": spec})
            assert plan.status_code == 200, plan.text
            assert plan.json()["refusals"] == []


def test_a_second_up_elsewhere_keeps_the_folder_and_names_it(stack: Stack, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trainyard", "up"],
        cwd=tmp_path, env=stack.environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"start at {stack.work}, where the services were started" in done.stdout + done.stderr
