"""Jobs at a cloud provider by `trainyard jobs create|list|pause|resume|cancel`, on a real server and worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.flows.real_stack import Stack, standing, wait_until
from trainyard import Chain, TrainingManager
from trainyard.app.services import running
from trainyard.app.training_logs import find_training_logs
from trainyard.backends.manager import Options
from trainyard.settings import settings
from trainyard.spec.states import JobState
from trainyard.testing.loopback import serving
from trainyard.testing.providers.double import COST_USD, KEY, Call, Refusal, Reply
from trainyard.testing.providers.openai import OpenAiDouble
from trainyard.testing.providers.together import TogetherDouble
from trainyard.testing.providers.weights import make_adapter_files

pytest.importorskip("together")
pytest.importorskip("openai")
pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(600)]
GPT = "gpt-4o-mini-2024-07-18"
ENDLESS = ("validating_files", *("running",) * 10_000, "succeeded")


class FullOpenAi(OpenAiDouble):
    """OpenAI on an account whose storage ends at a number of files."""

    most_files = 10**6

    def take_file(self, call: Call) -> Reply:
        if len(self.files) >= self.most_files:
            raise Refusal(403, "The organization has reached its storage quota.")
        return super().take_file(call)


class Providers:
    """Two doubles, and a stack whose worker knows them."""

    def __init__(self, stack: Stack, openai: FullOpenAi, together: TogetherDouble) -> None:
        self.stack, self.openai, self.together = stack, openai, together

    def create(self, name: str, **values: Any) -> dict[str, Any]:
        """Create a job from a file; return what the command prints."""
        body = {"name": name, "backend": "openai", "base_model": GPT, "dataset": {"path": f"{name}.jsonl"}, **values}
        self.stack.write_data(f"{name}.jsonl", rows=8)
        (self.stack.work / f"{name}.json").write_text(json.dumps(body))
        return self.stack.json("jobs", "create", f"{name}.json")

    def row(self, name: str) -> dict[str, Any]:
        """Return a job as `jobs list` shows it."""
        jobs = self.stack.json("jobs", "list")["jobs"]
        return next(job for job in jobs if job["name"].startswith(name))

    def wait(self, run_id: str, *types: str) -> str:
        """Wait for the end of a run, and return its message."""
        self.stack.wait_for_state(run_id, *types, seconds=90)
        return str(self.stack.state_of(run_id)["message"])


@pytest.fixture(scope="module")
def providers(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Providers]:
    with (
        serving(FullOpenAi()) as openai,
        serving(TogetherDouble(weights=make_adapter_files(tiny_model))) as together,
    ):
        assert isinstance(openai, FullOpenAi)
        assert isinstance(together, TogetherDouble)

        def prepare(stack: Stack) -> None:
            stack.environment |= {
                "OPENAI_BASE_URL": f"{openai.url}/v1", "OPENAI_API_KEY": KEY, "TOGETHER_API_KEY": KEY,
                "TOGETHER_BASE_URL": f"{together.url}/v1", "TRAINYARD_PROVIDER_POLL_S": "0.1",
                "TRAINYARD_PROVIDER_SETTLE_S": "0.1",
            }  # fmt: skip

        with standing(tmp_path_factory.mktemp("stack"), tiny_model, prepare) as stack:
            yield Providers(stack, openai, together)


@pytest.fixture(autouse=True)
def quiet(providers: Providers) -> None:
    """Let each test begin at a provider without jobs that ends each soon."""
    providers.openai.prepare(None, None)
    providers.openai.walk, providers.openai.most_files = OpenAiDouble.walk, 10**6
    providers.openai.file_limit = OpenAiDouble.file_limit


def test_a_job_ends_with_its_cost_in_the_list(providers: Providers, tiny_model: Path) -> None:
    job = providers.create(
        "bill", backend="together", base_model=str(tiny_model), service={"base_model": "meta-llama/Llama-3-8b"}
    )
    providers.wait(job["run_id"], "COMPLETED")
    row = providers.row("bill")
    assert (row["state"], row["backend"], row["step"]) == ("completed", "together", 3)
    assert float(row["cost"]["usd"]) == COST_USD
    assert providers.stack.weights(job["run_id"])


def test_a_paused_job_is_cancelled_at_its_provider(providers: Providers) -> None:
    providers.openai.walk = ENDLESS
    job = providers.create("pausing")
    wait_until(lambda: providers.openai.jobs, 60, "the submission")
    stack = providers.stack
    assert stack.json("jobs", "pause", job["id"])["state"] == "paused"
    (remote,) = providers.openai.jobs.values()
    assert remote.word == "running"
    assert stack.json("jobs", "resume", job["id"])["state"] in ("pending", "running")
    wait_until(lambda: providers.row("pausing")["state"] == "running", 60, "the resumed job")
    assert stack.json("jobs", "pause", job["id"])["state"] == "paused"
    assert stack.json("jobs", "cancel", job["id"])["state"] == "canceled"
    assert remote.word == "cancelled"
    assert len(providers.openai.jobs) == 1
    again = stack.command("jobs", "cancel", job["id"])
    assert (again.returncode, "E-JOB-STATE" in again.stderr) == (4, True)


def test_a_running_job_is_cancelled_at_its_provider(providers: Providers) -> None:
    providers.openai.walk = ENDLESS
    job = providers.create("running")
    wait_until(lambda: providers.openai.jobs, 60, "the submission")
    assert providers.stack.json("jobs", "cancel", job["id"])["state"] == "canceled"
    assert [remote.word for remote in providers.openai.jobs.values()] == ["cancelled"]


def test_a_quota_that_ends_between_two_files_leaves_no_job_and_a_resume_uploads_the_rest(providers: Providers) -> None:
    providers.openai.most_files = 1
    providers.stack.write_data("held.jsonl", rows=8)
    job = providers.create("quota", dataset={"path": "quota.jsonl", "heldout": {"path": "held.jsonl"}},
                           eval={"set": "heldout"})  # fmt: skip
    message = providers.wait(job["run_id"], "FAILED", "COMPLETED")
    assert "storage quota" in message
    assert (len(providers.openai.files), len(providers.openai.jobs)) == (1, 0)
    providers.openai.most_files = 2
    assert providers.stack.json("jobs", "resume", job["id"], "--watch")["state"] == "completed"
    assert (len(providers.openai.files), len(providers.openai.jobs)) == (2, 1)


def test_what_the_provider_refuses_is_said_and_leaves_no_job(providers: Providers) -> None:
    providers.openai.file_limit = 64
    large = providers.create("large")
    message = providers.wait(large["run_id"], "FAILED", "COMPLETED")
    assert "answered 413" in message
    assert "Use fewer rows" in message
    providers.openai.file_limit = OpenAiDouble.file_limit
    unknown = providers.create("unknown", base_model="gpt-9-nano")
    message = providers.wait(unknown["run_id"], "FAILED", "COMPLETED")
    assert "The model gpt-9-nano does not exist." in message
    assert "Correct the name" in message
    assert providers.row("unknown")["state"] == "failed"
    assert not providers.openai.jobs


def test_another_trainyard_trains_by_openais_wire_and_gives_no_weights(
    providers: Providers, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process is one Trainyard, with a home of its own; the stack is the other."""
    stack = providers.stack
    api = running(stack.settings, "api")
    assert api is not None
    token = stack.json("tokens", "create", "--name", "other", "--scope", "run")["token"]
    endpoint = {"other": {"base_url": f"{api.url}/openai/v1", "api_key_env": "OTHER_KEY"}}
    for name, value in {"ENDPOINTS": json.dumps(endpoint), "PROVIDER_POLL_S": "1", "PROVIDER_SETTLE_S": "1"}.items():
        monkeypatch.setenv(f"TRAINYARD_{name}", value)
    monkeypatch.setenv("OTHER_KEY", token)
    monkeypatch.setenv("TRAINYARD_WORKING_FOLDER", str(tmp_path))
    settings.cache_clear()
    turns = [{"role": "user", "content": "Say yes."}, {"role": "assistant", "content": "Yes."}]
    (tmp_path / "rows.jsonl").write_text((json.dumps({"messages": turns}) + "\n") * 12)
    trainer = {"backend": "openai", "base_model": str(tiny_model), "hyperparameters": {"epochs": 1, "batch_size": 4}}
    service = {"endpoint": "other", "base_model": str(tiny_model)}
    manager = TrainingManager(options=Options(poll_s=0.2))
    manager.submit_local({**trainer, "service": service, "dataset": {"path": "rows.jsonl"}}, name="there")
    assert manager.wait("there", 200).state is JobState.COMPLETED, manager.status("there").reason
    served = manager.download("there", tmp_path / "out").served_model
    models = httpx.get(f"{api.url}/openai/v1/models", headers={"authorization": f"Bearer {token}"}).json()["data"]
    assert served in {model["id"] for model in models}
    nodes = [
        {"type": "data_source", "config": {"path": "rows.jsonl"}},
        {"type": "trainer", "config": {**trainer, "service": service}},
        {"type": "deployer", "config": {"role": "home", "unevaluated": True}},
    ]
    (reason,) = Chain.of({"name": "home", "nodes": nodes}).check().reasons
    assert (reason["code"], reason["row"]) == ("R-PROVIDER", "provider-served")
    assert "gives no weights out" in reason["because"]


def test_no_file_of_the_home_has_the_key(providers: Providers) -> None:
    """Last: after everything that this module has run."""
    home = providers.stack.settings.home
    files = [path for path in home.rglob("*") if path.is_file() and path.stat().st_size < 5_000_000]
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []
    assert find_training_logs(home / "runs" / providers.row("bill")["run_id"])
