"""Chains through a Kubernetes work pool: Prefect's own worker and observer on a double of the cluster's API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.flows.real_stack import Stack, standing, wait_until
from trainyard.compute.services import free_port
from trainyard.testing.kubernetes.api import ClusterDouble, serve_cluster, write_kubeconfig

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(900)]
IMAGE = "registry.example.com/trainyard:1"
LOGIN = "yard:the-login-of-prefect"
LONG_S = 300
"""A worker looks at its pods every few seconds, and waits a minute for one that does not start."""


@dataclass
class PodStack:
    """A stack whose runs are pods of a cluster."""

    stack: Stack
    cluster: ClusterDouble

    def find_job(self, run_id: str) -> dict[str, Any]:
        (job,) = self.cluster.store.select("jobs", "", f"prefect.io/flow-run-id={run_id}")
        return job

    def jobs_of(self, run_id: str) -> list[str]:
        jobs = self.cluster.store.select("jobs", "", f"prefect.io/flow-run-id={run_id}")
        return [job["metadata"]["name"] for job in jobs]


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[PodStack]:
    folder, cluster = tmp_path_factory.mktemp("pods"), ClusterDouble(images={IMAGE}, gpus=1)
    cluster.add_secret("trainyard", {"PREFECT_API_AUTH_STRING": LOGIN})
    with serve_cluster(cluster) as address:
        write_kubeconfig(folder / "kubeconfig", address)

        def prepare(stack: Stack) -> None:
            port = free_port(4700)
            stack.settings.home.mkdir()
            lines = {
                "work_pool": "pods", "work_pool_type": "kubernetes", "image": IMAGE, "image_folder": str(REPOSITORY),
                "pool_api_url": f"http://127.0.0.1:{port}/api", "prefect_port": port, "serve_models": [], "threads": 1,
                "default_base_model": str(tiny_model), "data_roots": [str(stack.work)],
            }  # fmt: skip
            text = "\n".join(f"{name} = {json.dumps(value)}" for name, value in lines.items())
            (stack.settings.home / "trainyard.toml").write_text(
                f'{text}\n[host_classes.two-gpus]\ngpus = "2"\n[host_classes.unpushed]\nimage = "{IMAGE}0"\n'
                '[host_classes.elsewhere]\nnamespace = "nowhere"\n'
            )
            for name in ("TRAINYARD_PREFECT_PORT", "TRAINYARD_DEFAULT_BASE_MODEL", "TRAINYARD_THREADS"):
                stack.environment.pop(name)
            stack.environment |= {"KUBECONFIG": str(folder / "kubeconfig"), "PREFECT_SERVER_API_AUTH_STRING": LOGIN}

        with standing(folder, tiny_model, prepare) as stack:
            yield PodStack(stack, cluster)


def test_a_chain_runs_in_a_pod(pods: PodStack) -> None:
    run_id = pods.stack.start_job(max_steps=4)
    assert pods.stack.finish(run_id)
    wait_until(lambda: pods.find_job(run_id)["status"].get("succeeded") == 1, LONG_S, "the end of the run's pod")
    job = pods.find_job(run_id)
    assert LOGIN not in json.dumps(job), "the login comes from the secret"
    assert {name.rpartition(".")[2] for name in pods.cluster.unknown_fields} <= {"parallelism", "completions"}


def test_a_pod_that_is_evicted_saves_and_another_one_continues(pods: PodStack) -> None:
    run_id = pods.stack.start_job(max_steps=300)
    pods.stack.wait_for_step(run_id, 30)
    (job,) = pods.jobs_of(run_id)
    pods.cluster.evict(job)
    pods.stack.finish(run_id)
    assert len(pods.jobs_of(run_id)) == 2
    assert pods.stack.events(run_id, "stopped"), "the training saved before its pod ended"


def test_a_run_that_is_cancelled_ends_its_pod(pods: PodStack) -> None:
    run_id = pods.stack.start_job(max_steps=4000)
    pods.stack.wait_for_step(run_id, 5)
    assert pods.stack.command("jobs", "cancel", run_id).returncode == 0
    pods.stack.wait_for_state(run_id, "CANCELLED", seconds=LONG_S)
    wait_until(lambda: pods.find_job(run_id)["status"].get("active") == 0, LONG_S, "the end of the pod")
    assert pods.stack.events(run_id, "stopped"), "the training saved before its pod ended"


def test_an_image_that_cannot_be_pulled_fails_the_run_with_the_reason(pods: PodStack) -> None:
    run_id = start_in(pods, "unpushed")
    pods.stack.wait_for_state(run_id, "FAILED", "CRASHED", seconds=LONG_S)
    assert "ImagePullBackOff" in pods.stack.state_of(run_id)["message"]
    assert f"{IMAGE}0" in pods.stack.state_of(run_id)["message"]
    wait_until(lambda: not pods.jobs_of(run_id), LONG_S, "the end of the job")


def test_a_namespace_that_is_missing_fails_the_run_with_the_reason(pods: PodStack) -> None:
    run_id = start_in(pods, "elsewhere")
    pods.stack.wait_for_state(run_id, "FAILED", "CRASHED", seconds=LONG_S)
    assert 'namespaces "nowhere" not found' in pods.stack.state_of(run_id)["message"]


def test_a_gpu_that_no_node_has_is_waited_for_and_named(pods: PodStack) -> None:
    run_id = start_in(pods, "two-gpus")
    wait_until(lambda: "Insufficient nvidia.com/gpu" in pods.stack.command("jobs", "logs", run_id).stdout, LONG_S)
    assert pods.stack.state_of(run_id)["type"] == "PENDING"
    assert pods.stack.command("jobs", "cancel", run_id).returncode == 0


def start_in(pods: PodStack, queue: str) -> str:
    options = ("-p", "dataset.path=data.jsonl", "-p", "hyperparameters.max_steps=3", "--refresh", "--queue", queue)
    return str(pods.stack.json("run", "training-job", *options)["run_id"])
