"""Rented machines against the double of the service: one order, limits, and nothing left."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from trainyard.app.context import Context
from trainyard.app.gpus import rent_machine
from trainyard.compute.rent.dstack import DstackService
from trainyard.compute.rent.rentals import Offer, OfferQuery, RentalLimits, RentalService, RentalState, RentalStore
from trainyard.compute.rent.renting import Renter
from trainyard.compute.rent.wire import Pod, RentService, ReplyLost
from trainyard.errors import Conflict, Corrupt, Denied, InvalidInput, LimitExceeded, NotFound, Unavailable
from trainyard.operations.gpus import RentInput
from trainyard.settings import Settings
from trainyard.testing.rent_account import RentAccount
from trainyard.testing.rental_campaign import DOUBLES, open_account, run_seed

LIMITS = RentalLimits(max_price=Decimal(2), max_duration_s=3600, max_spend=Decimal(1), idle_duration_s=600)
QUERY = OfferQuery(gpu="h100")


class World:
    """An account at a service, and a renter on its clock."""

    def __init__(self, folder: Path, account: RentAccount, service: RentService, url: str) -> None:
        self.account, self.folder, self.service, self.url = account, folder, service, url
        self.renter = Renter(service, RentalStore(folder), now=lambda: account.now, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        self.account.now += seconds


@pytest.fixture(params=DOUBLES)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with open_account(request.param) as (account, service, url):
        yield World(tmp_path, account, service, url)


def test_the_cheapest_offer_in_stock_is_rented_and_released(world: World) -> None:
    rental = world.renter.rent("desk1", QUERY, LIMITS, 0.5)
    assert (rental.offer.instance, rental.offer.usd_per_hour) == ("h100-b", Decimal("1.5"))
    with world.renter.attach(rental):
        world.sleep(120)
        rental = world.renter.check(rental, busy=True)
        assert rental.usd == Decimal("0.05")
    assert not world.account.running()
    assert world.renter.store.get("desk1").state is RentalState.RELEASED


def test_the_same_key_rents_once(world: World) -> None:
    first = world.renter.rent("desk1", QUERY, LIMITS, 0.5)
    assert world.renter.rent("desk1", QUERY, LIMITS, 0.5).pod_id == first.pod_id
    assert world.account.creates == 1


@pytest.mark.parametrize("world", ["prime"], indirect=True)
def test_two_renters_of_one_key_order_once(world: World) -> None:
    """As two processes that have both seen no record yet."""
    second = World(world.folder, world.account, world.service, world.url).renter
    choose = second.choose

    def rent_first(query: OfferQuery, limits: RentalLimits, hours: float) -> Offer:
        world.renter.rent("desk1", query, limits, hours)
        return choose(query, limits, hours)

    second.choose = rent_first  # type: ignore[method-assign]
    assert second.rent("desk1", QUERY, LIMITS, 0.5).pod_id == world.renter.store.get("desk1").pod_id
    assert (world.account.creates, len(world.account.running())) == (1, 1)


@pytest.mark.parametrize("world", ["prime"], indirect=True)
def test_a_release_by_another_process_stays_as_it_was_recorded(world: World) -> None:
    early = world.renter.rent("desk1", QUERY, LIMITS, 0.5)
    world.sleep(120)
    other = World(world.folder, world.account, world.service, world.url).renter
    released = other.release(other.check(early), "released by a command")
    assert world.renter.check(early) == released
    assert (released.usd, world.renter.store.get("desk1").reason) == (Decimal("0.05"), "released by a command")


@pytest.mark.parametrize("world", ["prime"], indirect=True)
@pytest.mark.parametrize("text", ["", "[]", '{"key": "desk1"}'])
def test_a_damaged_record_is_told_and_its_machine_released(world: World, text: str) -> None:
    world.renter.rent("desk1", QUERY, LIMITS, 0.5)
    world.renter.rent("desk2", QUERY, LIMITS, 0.5)
    world.renter.store.path("desk1").write_text(text)
    (problem,) = world.renter.reap()
    assert "desk1.json of a rental cannot be read" in problem
    assert len(world.account.running()) == 1
    with pytest.raises(Corrupt, match="Move it away"):
        world.renter.rent("desk1", QUERY, LIMITS, 0.5)


def test_a_time_without_a_zone_is_in_utc() -> None:
    with open_account("prime") as (_, service, _):
        pod = Pod.model_validate({"id": "a", "name": "a", "created_at": "2026-11-30T10:00:00"})
        service.time = datetime(2026, 11, 30, 10, 1, tzinfo=UTC)
        assert service.read_age(pod) == 60


def test_open_rentals_count_against_the_limit_of_a_month(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_account("prime") as (account, service, url):
        monkeypatch.setenv("PRIME_API_KEY", service.headers["Authorization"].split()[-1])
        context = Context(Settings(home=tmp_path, prime_url=url, max_spend_per_month=Decimal("1.5")))
        request = RentInput(gpu="h100", hours=0.5, max_price=Decimal(2), max_spend=Decimal(1))
        assert rent_machine(request, context).state is RentalState.ACTIVE
        with pytest.raises(LimitExceeded, match=r"leaves 0.50 USD next to 1 open rentals"):
            rent_machine(request, context)
        assert account.creates == 1


def test_a_lost_reply_is_answered_by_the_name(world: World) -> None:
    world.account.faults.lose_create_reply = True
    assert world.renter.rent("desk1", QUERY, LIMITS, 0.5).state is RentalState.ACTIVE
    assert (world.account.creates, len(world.account.running())) == (1, 1)


def test_an_order_without_a_machine_is_not_repeated(world: World) -> None:
    world.account.faults.drop_create = True
    with pytest.raises(ReplyLost, match="not ordered a second time"):
        world.renter.rent("desk1", QUERY, LIMITS, 0.5)
    assert world.account.creates == 1
    assert world.renter.store.get("desk1").state is RentalState.REQUESTED
    world.sleep(601)
    world.renter.reap()
    assert world.renter.store.get("desk1").reason == "no machine appeared"


@pytest.mark.parametrize("world", ["prime", "dstack"], indirect=True)
def test_a_price_that_rose_is_not_paid(world: World) -> None:
    world.account.faults.price_factor = 2.0
    with pytest.raises(LimitExceeded, match=r"released at once: its price rose to 3.00 USD an hour"):
        world.renter.rent("desk1", QUERY, LIMITS, 0.5)
    assert not world.account.running()


@pytest.mark.parametrize("world", ["skypilot"], indirect=True)
def test_a_price_that_the_service_tells_later_is_paid_for_one_look(world: World) -> None:
    world.account.faults.price_factor = 2.0
    rental = world.renter.rent("desk1", QUERY, LIMITS, 0.5)
    world.sleep(30)
    rental = world.renter.check(rental, busy=True)
    assert (rental.state, rental.reason[:24]) == (RentalState.RELEASED, "its price rose to 3.00 U")
    assert not world.account.running()


def test_a_dead_renter_leaves_a_record_that_the_next_command_finds(world: World) -> None:
    world.renter.rent("desk1", QUERY, LIMITS, 0.5)
    later = Renter(world.service, RentalStore(world.folder), now=lambda: world.account.now)
    for _ in range(30):
        world.sleep(30)
        later.reap()
    assert not world.account.running()
    assert later.store.get("desk1").reason == "idle for 600 s"


def test_a_machine_of_this_home_without_a_record_is_released(world: World) -> None:
    rental = world.renter.rent("desk1", QUERY, LIMITS, 0.5)
    world.renter.store.path(rental.key).unlink()
    world.renter.reap()
    world.sleep(30)  # dstack needs a while to end a run
    world.renter.reap()
    assert world.service.list_pods(world.renter.store.prefix) == []
    assert not world.account.running()


def test_limits_refuse_before_an_order(world: World) -> None:
    with pytest.raises(NotFound, match=r"E-OFFERS.*The cheapest costs 1.50 USD"):
        world.renter.rent("desk1", QUERY, LIMITS.model_copy(update={"max_price": Decimal(1)}), 0.5)
    with pytest.raises(LimitExceeded, match=r"E-SPEND: 0.9 hours of the cheapest offer cost 1.35 USD"):
        world.renter.rent("desk1", QUERY, LIMITS, 0.9)
    assert (world.account.creates, world.renter.store.list()) == (0, [])


def test_a_wrong_key_is_refused_and_not_shown(world: World) -> None:
    world.account.key = "another"
    with pytest.raises(Denied, match="refuses the key") as caught:
        world.service.list_offers(QUERY)
    assert all(key not in str(caught.value) for key in ("another", *world.service.headers.values()))


def test_a_machine_that_the_provider_takes_back_closes_its_record(world: World) -> None:
    world.account.faults.vanish_after_s = 300
    rental = world.renter.rent("desk1", QUERY, LIMITS, 0.5)
    for _ in range(12):
        world.sleep(30)
        rental = world.renter.check(rental, busy=True)
    assert (rental.state, world.account.creates) == (RentalState.RELEASED, 1)
    assert Decimal("0.11") < rental.usd < Decimal("0.13")


def test_a_machine_that_is_late_is_waited_for(world: World) -> None:
    world.account.faults.late_s = 200
    rental = world.renter.rent("desk1", QUERY, LIMITS, 0.5)
    world.sleep(240)
    rental = world.renter.check(rental, busy=True)
    age_s = 240 if world.service.service == "prime" else 40  # an engine tells when the machine was there
    assert (rental.is_open, rental.age_s, world.account.creates) == (True, age_s, 1)
    assert world.renter.release(rental, "test").state is RentalState.RELEASED
    assert not world.account.running()


def test_a_service_that_fails_orders_nothing_twice(world: World) -> None:
    rental = world.renter.rent("desk1", QUERY, LIMITS, 0.5)
    world.account.faults.fail = lambda _method, _path: True
    with pytest.raises(ReplyLost, match="503"):
        world.renter.check(rental)
    assert world.renter.reap() != []
    world.account.faults.fail = lambda _method, _path: False
    assert world.renter.release_now("desk1").state is RentalState.RELEASED
    assert (world.account.creates, world.account.running()) == (1, [])


@pytest.mark.parametrize("world", ["skypilot", "dstack"], indirect=True)
def test_an_order_that_finds_no_machine_says_why(world: World) -> None:
    def sell_out(_method: str, path: str) -> bool:
        world.account.faults.no_offers = path.endswith(("/launch", "runs/apply"))
        return False

    world.account.faults.fail = sell_out
    with pytest.raises(Unavailable, match=r"rented no machine: .*(Failed to provision|No offers matching)"):
        world.renter.rent("desk1", QUERY, LIMITS, 0.5)
    world.renter.reap()
    assert world.service.list_pods(world.renter.store.prefix) == []
    assert world.renter.store.get("desk1").state is RentalState.RELEASED


@pytest.mark.parametrize("world", ["dstack"], indirect=True)
def test_a_project_that_is_not_there_does_not_mean_that_a_machine_is_gone(world: World) -> None:
    rental = world.renter.rent("desk1", QUERY, LIMITS, 0.5)
    assert isinstance(world.service, DstackService)
    world.service.project = "another"
    with pytest.raises(Denied, match=r"dstack has no project 'another'.*Set dstack_project"):
        world.renter.check(rental)
    assert world.renter.store.get("desk1").is_open
    world.service.project = "main"
    with pytest.raises(InvalidInput, match="too long a key for dstack"):
        world.renter.rent("d" * 23, QUERY, LIMITS, 0.5)


@pytest.mark.parametrize("service", ["skypilot", "dstack"])
def test_an_engine_ends_a_machine_by_itself_at_its_deadline(service: RentalService, tmp_path: Path) -> None:
    with open_account(service) as (account, client, url):
        world = World(tmp_path, account, client, url)
        world.renter.rent("desk1", QUERY, LIMITS, 0.5)
        world.sleep(LIMITS.max_duration_s + 120)  # and no command of this home looks
        assert not account.running()


def test_a_key_of_one_engine_is_not_rented_by_another(tmp_path: Path) -> None:
    with open_account("dstack") as (account, service, url), open_account("skypilot") as (other, other_service, _):
        World(tmp_path, account, service, url).renter.rent("desk1", QUERY, LIMITS, 0.5)
        second = World(tmp_path, other, other_service, "")
        with pytest.raises(Conflict, match="one of dstack, not of skypilot"):
            second.renter.rent("desk1", QUERY, LIMITS, 0.5)
        assert second.renter.reap() == []
        assert (len(account.running()), other.creates) == (1, 0)


@pytest.mark.parametrize("service", DOUBLES)
@pytest.mark.parametrize("seed", range(4))
def test_seeded_faults_break_no_limit(seed: int, service: RentalService, tmp_path: Path) -> None:
    assert run_seed(seed, tmp_path, service).broken == ()
