"""`gpus offers`, `rent`, `ps` and `release` with SkyPilot or dstack as the engine, against their doubles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from trainyard.app.context import Context
from trainyard.compute.rent.rentals import RentalService
from trainyard.errors import Denied, InvalidInput, NotFound
from trainyard.inherited import child_environment, service_environment
from trainyard.operations.table import OPERATIONS
from trainyard.settings import Settings
from trainyard.surfaces.invocation import build_request, execute_operation
from trainyard.testing.rent_account import RentAccount, Task
from trainyard.testing.rental_campaign import DOUBLES

RENT: dict[str, Any] = {"gpu": "H100", "hours": 0.5, "max_price": "2", "max_spend": "3", "key": "desk"}
KEYS = {"prime": "PRIME_API_KEY", "skypilot": "SKYPILOT_SERVICE_ACCOUNT_TOKEN", "dstack": "DSTACK_TOKEN"}
PREFECT = "https://desk.example/api"


class PrefectApi(BaseHTTPRequestHandler):
    """What an order asks of a Prefect server: whether it is there, for a queue, and how many runs it has."""

    runs = 0
    queues: list[str]

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""

    def reply(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.endswith("/queues"):
            self.queues.append(body.decode())
        data = str(self.runs).encode() if self.path.endswith("/count") else b"true"
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = reply


@contextmanager
def serve_prefect() -> Iterator[tuple[str, type[PrefectApi]]]:
    handler = type("Handler", (PrefectApi,), {"queues": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/api", handler
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class EngineDesk:
    """A home whose engine is SkyPilot or dstack."""

    def __init__(
        self, home: Path, engine: RentalService, url: str, account: RentAccount, prefect: type[PrefectApi]
    ) -> None:
        self.home, self.engine, self.url, self.account, self.prefect = home, engine, url, account, prefect
        self.lines = list[str]()
        self.tasks = list[Task]()
        account.start_task = lambda _machine, task: self.tasks.append(task)

    def call(self, name: str, settings: dict[str, Any] | None = None, **fields: Any) -> Any:
        own = {
            "home": self.home,
            "rent_engine": self.engine,
            "rent_prefect_url": PREFECT,
            f"{self.engine}_url": self.url,
        }
        context = Context(Settings(**(own | (settings or {}))), say=self.lines.append)
        response = execute_operation(name, build_request(name, fields), context)
        return response, OPERATIONS[name].text(response)


@pytest.fixture(params=["skypilot", "dstack"])
def desk(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineDesk]:
    account = DOUBLES[request.param](stops_s=0.0)  # the clock of a release is this machine's own
    monkeypatch.setenv(KEYS[request.param], account.key)
    with serve_prefect() as (prefect_url, prefect), account.serve() as url:
        monkeypatch.setenv("PREFECT_API_URL", prefect_url)
        monkeypatch.setenv("PREFECT_API_AUTH_STRING", "admin:prefect-login")
        yield EngineDesk(tmp_path, request.param, url, account, prefect)


def test_offers_are_those_of_the_engine_with_source_and_date(desk: EngineDesk) -> None:
    result, text = desk.call("gpus offers", gpu="h100", hours=2, service=desk.engine)
    prices = [(offer.service, offer.instance, str(offer.usd_per_hour)) for offer in result.offers]
    assert prices == [(desk.engine, "h100-b", "1.5"), (desk.engine, "h100-a", "2.0")]
    source = {"skypilot": "SkyPilot catalog", "dstack": "dstack offers"}[desk.engine]
    assert f"{source}, {result.offers[0].date}" in text
    with pytest.raises(InvalidInput, match=f"The engine {desk.engine} has no offers of prime"):
        desk.call("gpus offers", service="prime")


def test_a_machine_is_rented_works_and_is_released(desk: EngineDesk) -> None:
    _, text = desk.call("gpus rent", **RENT)
    assert "desk: active, 1 x H100" in text
    desk.prefect.runs = 1
    desk.account.now += 1200  # longer than idle_duration, but a run of its queue is running
    listed, text = desk.call("gpus ps")
    assert [(rental.key, rental.state) for rental in listed.rentals] == [("desk", "active")]
    assert "0.5000 USD of 3.00, 1200 s of 14400" in text
    assert listed.rentals[0].offer.service == desk.engine
    desk.account.now += 100
    released, _ = desk.call("gpus release", key="desk")
    assert (released.state, desk.account.running(), desk.account.creates) == ("released", [], 1)
    kinds = [entry.entry["kind"] for entry in desk.call("ledger log")[0].entries]
    assert kinds[:2] == ["paid", "rented"]


def test_the_task_is_the_worker_with_its_deadline_and_its_way_to_prefect(desk: EngineDesk) -> None:
    desk.call("gpus rent", **RENT, max_duration_s=3600)
    (task,) = desk.tasks
    queue = {"skypilot": "gpu-1x-h10080gb", "dstack": "gpu-1x-h100"}[desk.engine]
    assert f"timeout 3600 prefect worker start --type process --pool trainyard --work-queue {queue}" in task.command
    assert (task.variables["PREFECT_API_URL"], task.variables["PREFECT_API_AUTH_STRING"]) == (
        PREFECT, "admin:prefect-login",
    )  # fmt: skip
    assert "prefect-login" not in task.command
    assert desk.prefect.queues == [f'{{"name":"{queue}"}}']
    assert task.variables["TRAINYARD_PRICE_PER_HOUR"] == "1.5"


def test_an_idle_machine_is_released_by_the_next_command(desk: EngineDesk) -> None:
    desk.call("gpus rent", **RENT)
    desk.account.now += 1000
    listed, _ = desk.call("gpus ps")
    assert [(rental.state, rental.reason) for rental in listed.rentals] == [("released", "idle for 900 s")]
    assert not desk.account.running()


def test_a_machine_that_could_not_reach_prefect_is_not_ordered(desk: EngineDesk) -> None:
    with pytest.raises(
        InvalidInput, match=r"E-SETTINGS: A machine that an engine rents cannot reach.*rent_prefect_url"
    ):
        desk.call("gpus rent", settings={"rent_prefect_url": ""}, **RENT)
    assert desk.account.creates == 0


def test_settings_of_another_engine_are_refused(desk: EngineDesk, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=f"rent_ssh_key has no effect: rent_engine is {desk.engine}"):
        desk.call("gpus rent", settings={"rent_ssh_key": tmp_path / "key"}, **RENT)
    with pytest.raises(InvalidInput, match="rent_prefect_url has no effect: rent_engine is native"):
        desk.call("gpus rent", settings={"rent_engine": "native"}, **RENT)
    assert desk.account.creates == 0


def test_without_an_offer_a_cloud_or_a_key_the_reason_is_named(
    desk: EngineDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.account.faults.no_offers = True
    with pytest.raises(NotFound, match="No offer has 1 × H100"):
        desk.call("gpus rent", **RENT)
    monkeypatch.setenv(KEYS[desk.engine], "wrong-key")
    with pytest.raises(Denied, match=f"refuses the key.*{KEYS[desk.engine]}") as caught:
        desk.call("gpus rent", **RENT)
    assert "wrong-key" not in str(caught.value)


def test_the_keys_of_engines_go_to_what_rents_and_releases_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in KEYS.values():
        monkeypatch.setenv(name, "key-of-mine")
    settings = Settings(home=tmp_path)
    holders = {
        service: sorted(set(KEYS.values()) & service_environment(service, settings).keys())
        for service in ("api", "watchdog", "worker", "dashboard")
    }
    assert holders == {"api": sorted(KEYS.values()), "watchdog": sorted(KEYS.values()), "worker": [], "dashboard": []}
    assert not set(KEYS.values()) & child_environment().keys()
