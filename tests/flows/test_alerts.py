"""Alerts on a real server: a webhook block posts to a listener, a notification block gets subject and text."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from uuid import uuid4

import pytest
from prefect.blocks.core import Block
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.blocks.system import Secret
from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.states import Completed, Failed

from flows.qa_pipeline import qa_pipeline
from trainyard.compute.monitor import GpuMonitor, read_nvidia
from trainyard.errors import InvalidInput
from trainyard.prefect_api import alerts, server
from trainyard.prefect_api.alerts import DiskWatch, GpuWatch
from trainyard.settings import Settings, load_settings, settings
from trainyard.testing.gpu_tools import SimulatedGpu, SimulatedNvml

pytestmark = pytest.mark.usefixtures("prefect")
WAIT_S = 60.0


class Listener:
    """A loopback server that keeps the JSON bodies that are posted to it."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        bodies = self.bodies

        class Keep(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self.http = HTTPServer(("127.0.0.1", 0), Keep)
        self.url = f"http://127.0.0.1:{self.http.server_port}/"

    def wait(self, text: str) -> dict[str, Any]:
        """The first body that contains a text."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            if matching := [body for body in self.bodies if text in json.dumps(body)]:
                return matching[0]
            time.sleep(0.1)
        raise AssertionError(f"nothing with {text!r} arrived: {self.bodies}")


@pytest.fixture
def listener() -> Iterator[Listener]:
    listening = Listener()
    thread = threading.Thread(target=listening.http.serve_forever)
    thread.start()
    yield listening
    listening.http.shutdown()
    thread.join()
    listening.http.server_close()


@pytest.fixture
def prefect_client() -> Iterator[SyncPrefectClient]:
    with get_client(sync_client=True) as client:
        yield client


def save(block: Block) -> str:
    name = f"b-{uuid4().hex[:8]}"
    block.save(name)
    return f"{block.get_block_type_slug()}/{name}"


@pytest.fixture
def alerting(home: Any, listener: Listener, prefect_client: SyncPrefectClient) -> Iterator[Settings]:
    """A server with alerts by a webhook and by a notification block, and a deployment without a worker."""
    notification = CustomWebhookNotificationBlock(
        name="chat", url=listener.url, json_data={"chat": "{{subject}}", "says": "{{body}}"}
    )
    alert_settings = load_settings(alerts=(save(Webhook(url=listener.url)), save(notification)))
    server.bootstrap(alert_settings)
    alerts.ensure_alerts(alert_settings)
    deployment = qa_pipeline.to_deployment(name="alerting")
    deployment.entrypoint = "flows/qa_pipeline.py:qa_pipeline"
    deployment.apply(work_pool_name=alert_settings.work_pool)
    yield alert_settings
    alerts.ensure_alerts(settings())


def read_automations(client: SyncPrefectClient) -> dict[str, dict[str, Any]]:
    automations = client.request("POST", "/automations/filter", json={}).json()
    return {
        automation["name"]: automation for automation in automations if automation["name"].startswith(alerts.PREFIX)
    }


def test_a_failed_run_arrives_and_a_finished_one_does_not(
    alerting: Settings, listener: Listener, prefect_client: SyncPrefectClient
) -> None:
    deployment = prefect_client.read_deployment_by_name("qa-pipeline/alerting")
    parameters = {"documents": "documents", "count": 1}
    good, bad = (prefect_client.create_flow_run_from_deployment(deployment.id, parameters=parameters) for _ in range(2))
    prefect_client.set_flow_run_state(good.id, Completed(message="done"), force=True)
    prefect_client.set_flow_run_state(bad.id, Failed(message='trainer: "E-DATA"\nNext: …'), force=True)
    alert = listener.wait("alert")
    assert alert == {
        "alert": "run failed",
        "subject": f"Trainyard: the run {bad.name} has failed",
        "text": f'Failed: trainer: "E-DATA"\nNext: …\nRead `trainyard jobs logs {bad.id}`.',
    }
    chat = listener.wait("chat")
    assert (chat["chat"], chat["says"]) == (alert["subject"], alert["text"])
    time.sleep(1)
    assert good.name not in json.dumps(listener.bodies)


def test_a_low_disk_arrives_once(alerting: Settings, listener: Listener) -> None:
    watch = DiskWatch(alerting.model_copy(update={"min_free_mb": 1 << 40}))
    (message,) = watch.look()
    assert watch.look() == []
    alert = listener.wait("disk low")
    assert alert["text"].startswith(message)
    assert str(alerting.home) in alert["subject"]


def test_the_memory_pressure_of_a_gpu_arrives_once_per_episode(alerting: Settings, listener: Listener) -> None:
    nvml = SimulatedNvml([SimulatedGpu(total_mb=1000, used_mb=960), SimulatedGpu(total_mb=1000, used_mb=10)])
    now = [0.0]
    watch = GpuWatch(alerting, GpuMonitor((lambda: read_nvidia(lambda: nvml),), lambda: now[0]))

    def look(used_mb: int) -> list[str]:
        nvml.devices[0].used_mb = used_mb
        now[0] += 10.0
        return watch.look()

    (message,) = look(960)
    assert message == "GPU 0 (NVIDIA A100 80GB) uses 960 of 1,000 MiB."
    alert = listener.wait("gpu memory")
    assert alert["text"].startswith(message)
    assert f"GPU 0 of {alerting.home}" in alert["subject"]
    assert [look(used) for used in (999, 940, 960, 901, 950)] == [[]] * 5, "it goes up and down at the threshold"
    assert look(899) == []
    assert len(look(950)) == 1, "a new episode"
    off = GpuWatch(alerting.model_copy(update={"gpu_memory_alert_percent": 0}), watch.monitor)
    assert off.look() == []
    assert server.GPU_FULL in {automation.name for automation in [server.gpu_automation()]}


@pytest.mark.slow
def test_a_pool_without_a_worker_arrives(
    alerting: Settings, listener: Listener, prefect_client: SyncPrefectClient
) -> None:
    """The server's own event: its foreman looks every 15 s for workers whose heartbeats have ended."""
    prefect_client.request(
        "POST", "/work_pools/{name}/workers/heartbeat", path_params={"name": alerting.work_pool},
        json={"name": "gone", "heartbeat_interval_seconds": 1},
    )  # fmt: skip
    alert = listener.wait("worker gone")
    assert alert["subject"] == f"Trainyard: no worker serves the pool {alerting.work_pool}"


def test_a_missing_night_arrives(alerting: Settings, listener: Listener, prefect_client: SyncPrefectClient) -> None:
    event = {
        "id": str(uuid4()), "occurred": "2031-06-03T04:00:00+00:00", "event": server.NO_SUCCESS,
        "resource": {"prefect.resource.id": "prefect.deployment.x", "prefect.resource.name": "two-phase"},
        "payload": {"due": "2031-06-03T06:00:00+02:00"},
    }  # fmt: skip
    prefect_client.request("POST", "/events", json=[event])
    alert = listener.wait("night skipped")
    assert alert["subject"] == "Trainyard: no night of two-phase succeeded by six"
    assert "2031-06-03T06:00:00+02:00" in alert["text"]


def test_an_alert_that_is_off_stays_off_and_without_blocks_there_is_none(
    alerting: Settings, prefect_client: SyncPrefectClient
) -> None:
    automations = read_automations(prefect_client)
    assert set(automations) == {alerts.PREFIX + alert.name for alert in alerts.ALERTS}
    automation = automations[f"{alerts.PREFIX}disk low"]
    prefect_client.request("PATCH", "/automations/{id}", path_params={"id": automation["id"]}, json={"enabled": False})
    alerts.ensure_alerts(alerting.model_copy(update={"alerts": alerting.alerts[:1]}))
    changed = read_automations(prefect_client)[automation["name"]]
    assert (changed["id"], changed["enabled"], len(changed["actions"])) == (automation["id"], False, 1)
    alerts.ensure_alerts(settings())
    assert read_automations(prefect_client) == {}


@pytest.mark.parametrize(("make", "problem"), [(False, "does not have"), (True, "cannot send an alert")])
def test_a_block_that_is_missing_or_silent_is_refused(home: Any, make: bool, problem: str) -> None:
    name = save(Secret(value="x")) if make else "webhook/nobody"
    with pytest.raises(InvalidInput, match=f"E-SETTINGS.*{name}.*{problem}"):
        alerts.ensure_alerts(load_settings(alerts=(name,)))
