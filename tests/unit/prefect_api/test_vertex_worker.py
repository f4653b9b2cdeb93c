"""Prefect's worker for Vertex AI with the template of `deployments/pools`, on a double of the job service."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from prefect.client.schemas.objects import FlowRun
from prefect.settings import PREFECT_API_URL, PREFECT_LOGGING_TO_API_ENABLED, temporary_settings
from prefect_gcp.credentials import GcpCredentials
from tenacity import RetryError

from trainyard.compute.pools import run_variables
from trainyard.prefect_api.pools import render_template
from trainyard.settings import Settings
from trainyard.testing.vertex_jobs import VertexJobsDouble, serve_jobs

pytestmark = pytest.mark.integration
WHY = "the client of Vertex AI is not installed: it needs google-genai below 3, and this environment has a newer one"
gapic = pytest.importorskip("google.cloud.aiplatform.gapic", reason=WHY)
transports = pytest.importorskip("google.cloud.aiplatform_v1.services.job_service.transports", reason=WHY)
vertex = pytest.importorskip("prefect_gcp.workers.vertex", reason=WHY)
IMAGE, ACCOUNT = "europe-docker.pkg.dev/p/yard/trainyard:1", "yard@project.iam.gserviceaccount.com"
POOL = Settings(
    work_pool_type="vertex-ai", image=IMAGE, pool_variables={"region": "europe-west4", "service_account_name": ACCOUNT},
    host_classes={"a100": {"machine_type": "a2-highgpu-1g", "accelerator_type": "NVIDIA_TESLA_A100"}},
)  # fmt: skip


class LoopbackCredentials(GcpCredentials):
    """Credentials whose client speaks to the double."""

    _block_type_name = "Loopback Credentials"
    _block_type_slug = "loopback-credentials"
    address: str = ""

    def get_job_service_async_client(self, client_options: Any = None) -> Any:
        channel = grpc.aio.insecure_channel(self.address)
        return gapic.JobServiceAsyncClient(transport=transports.JobServiceGrpcAsyncIOTransport(channel=channel))


@pytest.fixture(autouse=True)
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A service account of nobody, with a key of its own; and no Prefect server."""
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    content = {"type": "service_account", "project_id": "project", "client_email": ACCOUNT,
               "private_key": key.private_bytes(*form).decode(),
               "token_uri": "http://127.0.0.1:9/token"}  # fmt: skip
    path = tmp_path / "account.json"
    path.write_text(json.dumps(content))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api", PREFECT_LOGGING_TO_API_ENABLED: False}):
        yield


def configure(address: str, queue: str = "", **job_variables: Any) -> tuple[FlowRun, Any]:
    run = FlowRun(id=uuid4(), flow_id=uuid4(), name="guide-1")
    values = {**run_variables(POOL, queue), "job_watch_poll_interval": 0.1, "env": {"YARD": "1"}, **job_variables}
    making = vertex.VertexAIWorkerJobConfiguration.from_template_and_values(render_template(POOL), values)
    configuration = asyncio.run(making)
    configuration.credentials = LoopbackCredentials(address=address)
    configuration.prepare_for_flow_run(run)
    return run, configuration


def run_job(double: VertexJobsDouble, queue: str = "", **job_variables: Any) -> int:
    """Run a command in a job; return the worker's status of it."""
    with serve_jobs(double) as address:
        run, configuration = configure(address, queue, **job_variables)
        return asyncio.run(vertex.VertexAIWorker(work_pool_name="cloud").run(run, configuration)).status_code


def read_refusal(double: VertexJobsDouble, queue: str = "") -> str:
    """Return the service's answer to a job that it does not take, and let go of the client, whose thread ends then."""
    try:
        run_job(double, queue)
    except RetryError as error:
        return str(error.__cause__)
    finally:
        gc.collect()
    return "it took the job"


def test_a_job_has_the_image_the_machine_and_the_process_of_a_run() -> None:
    double = VertexJobsDouble({"europe-west4": {"NVIDIA_L4"}})
    assert run_job(double, command="python -c 'import os; assert os.environ[\"YARD\"]'") == 0
    (job,) = double.jobs.values()
    (pool,) = job.job_spec.worker_pool_specs
    assert job.name.startswith("projects/project/locations/europe-west4/")
    assert (pool.container_spec.image_uri, pool.machine_spec.machine_type) == (IMAGE, "g2-standard-8")
    assert (pool.machine_spec.accelerator_type.name, pool.machine_spec.accelerator_count) == ("NVIDIA_L4", 1)
    assert job.job_spec.scheduling.timeout.total_seconds() == 86_400
    assert job.job_spec.service_account == ACCOUNT


def test_a_run_is_a_process_that_gets_the_signals_itself() -> None:
    _, configuration = configure("127.0.0.1:1")
    (pool,) = vertex.VertexAIWorker(work_pool_name="cloud")._build_job_spec(configuration).worker_pool_specs
    assert list(pool.container_spec.command) == ["python", "-P", "-m", "prefect.engine"]


def test_a_job_that_fails_is_no_success() -> None:
    assert run_job(VertexJobsDouble({"europe-west4": {"NVIDIA_L4"}}), command="python -c 'raise SystemExit(3)'") == 1


def test_a_region_without_the_accelerator_is_named() -> None:
    double = VertexJobsDouble({"europe-west4": {"NVIDIA_L4"}})
    text = read_refusal(double, "a100")
    assert "NVIDIA_TESLA_A100 is not supported for custom training in region europe-west4" in text
    assert not double.jobs


def test_an_expired_login_is_named_and_not_shown() -> None:
    text = read_refusal(VertexJobsDouble({"europe-west4": {"NVIDIA_L4"}}, valid_login=False))
    assert "invalid authentication credentials" in text
    assert "PRIVATE KEY" not in text
