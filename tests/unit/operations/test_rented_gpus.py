"""`gpus offers`, `rent`, `ps` and `release` against the double of the service, and a stored catalog."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainyard.app.context import Caller, Context
from trainyard.compute.rent.rentals import RentalStore
from trainyard.errors import Denied, InvalidInput, LimitExceeded, Unavailable
from trainyard.operations.table import OPERATIONS, Scope
from trainyard.settings import Settings
from trainyard.surfaces.invocation import build_request, execute_operation
from trainyard.testing.prime_server import PrimeDouble

RENT = {"gpu": "H100", "hours": 0.5, "max_price": "2", "max_spend": "3", "key": "desk"}


class Desk:
    """A home with an account at the double."""

    def __init__(self, home: Path, url: str, double: PrimeDouble) -> None:
        self.home, self.url, self.double, self.lines = home, url, double, list[str]()

    def call(
        self, name: str, caller: Caller | None = None, settings: dict[str, Any] | None = None, **fields: Any
    ) -> Any:
        own = Settings(home=self.home, prime_url=self.url, **(settings or {}))
        context = Context(own, say=self.lines.append, **({"caller": caller} if caller else {}))
        response = execute_operation(name, build_request(name, fields), context)
        return response, OPERATIONS[name].text(response)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    double = PrimeDouble()
    monkeypatch.setenv("PRIME_API_KEY", double.key)
    with double.serve() as url:
        yield Desk(tmp_path, url, double)


def write_catalog(folder: Path) -> Path:
    """A stored copy of the catalog with one provider, as gpuhunt publishes it."""
    names = ("instance_name", "location", "price", "cpu", "memory", "gpu_count", "gpu_name", "gpu_memory", "spot",
             "disk_size", "gpu_vendor", "flags", "cpu_arch", "provider_data")  # fmt: skip
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(names)
    writer.writerow(["gpu_1x_h100", "us-1", 1.99, 26, 200, 1, "H100", 80, False, 512, "nvidia", "", "x86", "{}"])
    writer.writerow(["gpu_8x_h100", "us-1", 15.9, 208, 1800, 8, "H100", 80, False, 512, "nvidia", "", "x86", "{}"])
    version = folder / "lambdalabs" / "20261101-7"
    version.mkdir(parents=True)
    (folder / "lambdalabs" / "version").write_text("20261101-7\n")
    with zipfile.ZipFile(version / "catalog.zip", "w") as packed:
        packed.writestr("lambdalabs.csv", text.getvalue())
    return folder


def test_offers_of_both_services_are_ordered_by_price_times_hours(desk: Desk, tmp_path: Path) -> None:
    catalog = {"gpu_catalog": str(write_catalog(tmp_path / "catalog"))}
    result, text = desk.call("gpus offers", settings=catalog, gpu="h100", hours=2)
    prices = [(offer.service, offer.instance, str(offer.usd_per_hour)) for offer in result.offers]
    assert prices == [("prime", "h100-b", "1.5"), ("catalog", "gpu_1x_h100", "1.99"), ("prime", "h100-a", "2.0")]
    assert "3.98" in text
    assert "gpuhunt catalog, 2026-11-01" in text


def test_a_service_that_fails_is_named_and_the_other_answers(desk: Desk, tmp_path: Path) -> None:
    result, text = desk.call("gpus offers", settings={"gpu_catalog": str(tmp_path / "nothing")}, gpu="h100")
    assert {offer.service for offer in result.offers} == {"prime"}
    assert "catalog: E-OFFERS" in text
    with pytest.raises(Unavailable, match="E-OFFERS"):
        desk.call("gpus offers", settings={"gpu_catalog": str(tmp_path / "nothing")}, service="catalog")


def test_a_machine_is_rented_listed_and_released(desk: Desk) -> None:
    rental, text = desk.call("gpus rent", **RENT)
    assert "desk: active, 1 x H100_80GB at 1.500 USD/h of double" in text
    desk.double.now += 120
    listed, text = desk.call("gpus ps")
    assert [r.key for r in listed.rentals] == ["desk"]
    assert "0.0500 USD of 3.00, 120 s of 14400" in text
    released, _ = desk.call("gpus release", key="desk")
    assert (released.state, desk.double.running()) == ("released", [])
    assert rental.pod_id == released.pod_id
    kinds = [entry.entry["kind"] for entry in desk.call("ledger log")[0].entries]
    assert kinds[:2] == ["paid", "rented"]
    desk.call("gpus ps")
    assert [entry.entry["kind"] for entry in desk.call("ledger log")[0].entries] == kinds  # each is recorded once
    assert desk.call("ledger verify")[0].problems == ()


def test_a_rental_without_a_price_or_a_sum_is_refused(desk: Desk) -> None:
    with pytest.raises(InvalidInput, match=r"A rental needs max_price.*rent_max_price in trainyard.toml"):
        desk.call("gpus rent", gpu="H100")
    with pytest.raises(LimitExceeded, match=r"E-SPEND: The rental may spend 3.00 USD, and max_spend_per_month"):
        desk.call("gpus rent", settings={"max_spend_per_month": "2"}, **RENT)
    assert desk.double.creates == 0


def test_renting_needs_the_scope_admin_and_a_key(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Denied, match="E-SCOPE"):
        desk.call("gpus rent", caller=Caller("agent", Scope.RUN, remote=True), **RENT)
    monkeypatch.delenv("PRIME_API_KEY")
    with pytest.raises(Denied, match="Set PRIME_API_KEY"):
        desk.call("gpus rent", **RENT)


def test_any_later_command_releases_what_is_over(desk: Desk) -> None:
    desk.call("gpus rent", **RENT)
    store = RentalStore(desk.home / "rentals")
    rental = store.get("desk")
    store.put(rental.model_copy(update={"created": rental.created - 100, "checked": rental.checked - 100}))
    desk.double.now += 1000
    settings = Settings(home=desk.home, prime_url=desk.url)
    context = Context(settings, say=desk.lines.append, surface="cli")
    execute_operation("templates", build_request("templates", {}), context)
    assert not desk.double.running()
    assert store.get("desk").reason == "idle for 900 s"
