"""A rented machine is a Prefect worker of its queue, and is released when idle.

It is joined over a real SSH connection, or started by an engine, whose double runs the worker as a real process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path
from threading import Event, Thread

import psutil
import pytest
from prefect.client.orchestration import get_client

from flows.chain import chain
from tests.flows.conftest import FlowServer
from tests.sshd import NOT_HERE, SSHD, Sshd
from trainyard.app.context import Context
from trainyard.app.stack.rented import attach_machine, create_queue, name_queue
from trainyard.compute.child import kill
from trainyard.compute.rent.prime import PrimeService
from trainyard.compute.rent.rentals import OfferQuery, RentalLimits, RentalService, RentalStore
from trainyard.compute.rent.renting import Renter
from trainyard.locations import checkout
from trainyard.prefect_api import server, watching
from trainyard.settings import Settings, settings
from trainyard.stores.auth_string import CLIENT_VARIABLE, read_auth
from trainyard.surfaces.invocation import build_request, execute_operation
from trainyard.testing.prime_server import PrimeDouble
from trainyard.testing.rent_account import Machine, Task
from trainyard.testing.rental_campaign import DOUBLES

pytestmark = [
    pytest.mark.usefixtures("prefect"),
    pytest.mark.slow,
]
LIMITS = RentalLimits(max_price=Decimal(2), max_duration_s=900, max_spend=Decimal(3), idle_duration_s=300)


@pytest.fixture
def deployed(home: Path) -> Settings:
    """A server that knows `chain/rented`, without a worker that would run it."""
    server.bootstrap(settings())
    deployment = chain.to_deployment(
        name="rented", work_pool_name=settings().work_pool, job_variables={"working_dir": str(checkout())}
    )
    deployment.entrypoint = "flows/chain.py:chain"
    deployment.apply(work_pool_name=settings().work_pool)
    return settings()


@pytest.mark.skipif(SSHD is None, reason=NOT_HERE)
def test_a_run_of_its_queue_is_done_and_the_idle_machine_released(
    deployed: Settings, flow_server: FlowServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data.jsonl").write_text('{"instruction": "Say one", "output": "One"}\n' * 3)
    sshd = Sshd(tmp_path)
    sshd.start()
    with get_client(sync_client=True) as client:
        monkeypatch.setenv("PREFECT_API_URL", str(client.api_url))
    assert flow_server.settings is not None
    monkeypatch.setenv(CLIENT_VARIABLE, read_auth(flow_server.settings) or "")
    own = deployed.model_copy(
        update={
            "working_folder": tmp_path,
            "rent_ssh_key": sshd.key_file,
            "rent_setup": f"export PATH={Path(sys.executable).parent}:$PATH",
            "rent_shutdown": f"touch {tmp_path}/ended",  # in place of the end of this machine
        }
    )
    double, lines = PrimeDouble(address=sshd.address), list[str]()
    try:
        with double.serve() as url, PrimeService(url, double.key) as service:
            renter = Renter(service, RentalStore(own.rentals), poll_s=1.0, say=lines.append)
            rental = renter.rent("desk", OfferQuery(gpu="h100"), LIMITS, 0.2)
            double.now += 100  # it has started
            queue = name_queue(rental)
            create_queue(str(client.api_url).rstrip("/"), queue, own)
            spec = {"name": "there", "nodes": [{"type": "data_source", "config": {"path": "data.jsonl"}}]}
            run = watching.start_run("chain/rented", {"spec": spec}, settings=own, queue=queue)
            ended = list[str]()

            def wait_then_idle() -> None:
                deadline = time.monotonic() + 120
                with get_client(sync_client=True) as reader:
                    while time.monotonic() < deadline and not ended:
                        state = reader.read_flow_run(run.run_id).state
                        if state is not None and state.is_final():
                            ended.append(f"{state.name}: {state.message}")
                        time.sleep(0.5)
                double.now += 400

            watcher = Thread(target=wait_then_idle)
            watcher.start()
            with renter.attach(rental):
                attach_machine(rental, renter, Context(own, say=lines.append))
            watcher.join()
    finally:
        sshd.process.terminate()
        sshd.process.wait()
        deadlines = [
            process for process in psutil.process_iter(["cmdline"])
            if f"touch {tmp_path}/ended" in " ".join(process.info["cmdline"] or ())
        ]  # fmt: skip
        for process in deadlines:
            kill([*process.children(), process])
    assert len(deadlines) == 1
    assert ended[0].startswith("Completed"), (ended, lines)
    assert not double.running()
    assert renter.store.get("desk").reason == "idle for 300 s"
    assert renter.store.get("desk").host_key.startswith("ssh-ed25519 ")


class Machines:
    """Machines of an engine's double, each a process tree of this machine."""

    def __init__(self, home: Path) -> None:
        self.home, self.processes = home, dict[str, subprocess.Popen[bytes]]()

    def start(self, machine: Machine, task: Task) -> None:
        names = {name: os.environ[name] for name in ("HOME", "LANG", "LC_ALL") if name in os.environ}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        with (self.home / f"{machine.id}.log").open("wb") as log:
            self.processes[machine.id] = subprocess.Popen(
                ["bash", "-c", task.command], cwd=self.home, stdout=log, stderr=log,
                env={**names, "PATH": path, **task.variables},
            )  # fmt: skip

    def end(self, machine: Machine) -> None:
        if (process := self.processes.pop(machine.id, None)) is not None:
            tree = psutil.Process(process.pid)
            kill([*tree.children(recursive=True), tree])
            process.wait()


QUEUES: dict[RentalService, tuple[str, str]] = {
    "skypilot": ("SKYPILOT_SERVICE_ACCOUNT_TOKEN", "gpu-1x-h10080gb"),
    "dstack": ("DSTACK_TOKEN", "gpu-1x-h100"),
}
"""Engine -> the variable of its key, and the queue of the machine that it rents."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("engine", QUEUES)
def test_an_engine_starts_the_worker_and_the_idle_machine_is_released(
    engine: RentalService, deployed: Settings, flow_server: FlowServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_name, queue = QUEUES[engine]
    (tmp_path / "data.jsonl").write_text('{"instruction": "Say one", "output": "One"}\n' * 3)
    assert flow_server.settings is not None
    monkeypatch.setenv("PREFECT_API_URL", flow_server.url)
    monkeypatch.setenv(CLIENT_VARIABLE, read_auth(flow_server.settings) or "")
    double, machines, lines = DOUBLES[engine](stops_s=0.0), Machines(tmp_path), list[str]()
    double.start_task, double.end_task = machines.start, machines.end
    monkeypatch.setenv(key_name, double.key)
    ended, released = list[str](), Event()

    def wait_then_idle(run_id: str) -> None:
        with get_client(sync_client=True) as reader:
            while not ended and not released.is_set():
                state = reader.read_flow_run(run_id).state
                if state is not None and state.is_final():
                    ended.append(f"{state.name}: {state.message}")
                time.sleep(0.5)
        double.now += 1000  # the run has ended: nothing works any more

    with double.serve() as url:
        own = deployed.model_copy(update={
            "working_folder": tmp_path, "rent_engine": engine, f"{engine}_url": url, "rent_setup": "true",
            "rent_prefect_url": flow_server.url,
        })  # fmt: skip
        create_queue(flow_server.url, queue, own)
        spec = {"name": "there", "nodes": [{"type": "data_source", "config": {"path": "data.jsonl"}}]}
        run = watching.start_run("chain/rented", {"spec": spec}, settings=own, queue=queue)
        watcher = Thread(target=wait_then_idle, args=(run.run_id,))
        watcher.start()
        request = build_request(
            "gpus rent", {"gpu": "h100", "hours": 0.2, "max_price": 2, "max_spend": 3, "key": "desk", "attach": True}
        )
        try:
            rental = execute_operation("gpus rent", request, Context(own, say=lines.append))
        finally:
            released.set()
            watcher.join()
            for machine in double.machines:
                machines.end(machine)
    log = (tmp_path / "pod-0.log").read_text()[-2000:]
    assert ended[0].startswith("Completed"), (ended, lines, log)
    assert (rental.state, rental.reason, double.creates) == ("released", "idle for 900 s", 1)
    assert not double.running()
