"""A rented machine works: over a real SSH connection it is a Prefect worker of its queue, and is released when idle."""

from __future__ import annotations

import sys
import time
from decimal import Decimal
from pathlib import Path
from threading import Thread

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
from trainyard.compute.rent.rentals import OfferQuery, RentalLimits, RentalStore
from trainyard.compute.rent.renting import Renter
from trainyard.locations import checkout
from trainyard.prefect_api import server, watching
from trainyard.settings import Settings, settings
from trainyard.stores.auth_string import CLIENT_VARIABLE, read_auth
from trainyard.testing.prime_server import PrimeDouble

pytestmark = [
    pytest.mark.usefixtures("prefect"),
    pytest.mark.slow,
    pytest.mark.skipif(SSHD is None, reason=NOT_HERE),
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
