"""Rented machines against the double of the service: one order, limits, and nothing left."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from trainyard.compute.rent.prime import PrimeService, ReplyLost
from trainyard.compute.rent.rentals import OfferQuery, RentalLimits, RentalState, RentalStore
from trainyard.compute.rent.renting import Renter
from trainyard.errors import Denied, LimitExceeded, NotFound
from trainyard.testing.prime_server import PrimeDouble
from trainyard.testing.rental_campaign import run_seed

LIMITS = RentalLimits(max_price=Decimal(2), max_duration_s=3600, max_spend=Decimal(1), idle_duration_s=600)
QUERY = OfferQuery(gpu="h100")


class World:
    """A double, and a renter on its clock."""

    def __init__(self, folder: Path, url: str, double: PrimeDouble, service: PrimeService) -> None:
        self.double, self.url, self.folder, self.service = double, url, folder, service
        self.renter = Renter(self.service, RentalStore(folder), now=lambda: double.now, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        self.double.now += seconds


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    double = PrimeDouble()
    with double.serve() as url, PrimeService(url, double.key) as service:
        yield World(tmp_path, url, double, service)


def test_the_cheapest_offer_in_stock_is_rented_and_released(world: World) -> None:
    rental = world.renter.rent("desk1", QUERY, LIMITS, 0.5)
    assert (rental.offer.instance, rental.offer.usd_per_hour) == ("h100-b", Decimal("1.5"))
    with world.renter.attach(rental):
        world.sleep(120)
        rental = world.renter.check(rental, busy=True)
        assert (rental.ssh, rental.usd) == ("root@127.0.0.1 -p 22", Decimal("0.05"))
    assert not world.double.running()
    assert world.renter.store.get("desk1").state is RentalState.RELEASED


def test_the_same_key_rents_once(world: World) -> None:
    first = world.renter.rent("desk1", QUERY, LIMITS, 0.5)
    assert world.renter.rent("desk1", QUERY, LIMITS, 0.5).pod_id == first.pod_id
    assert world.double.creates == 1


def test_a_lost_reply_is_answered_by_the_name(world: World) -> None:
    world.double.faults.lose_create_reply = True
    assert world.renter.rent("desk1", QUERY, LIMITS, 0.5).pod_id == "pod-0"
    assert (world.double.creates, len(world.double.running())) == (1, 1)


def test_an_order_without_a_machine_is_not_repeated(world: World) -> None:
    world.double.faults.drop_create = True
    with pytest.raises(ReplyLost, match="not ordered a second time"):
        world.renter.rent("desk1", QUERY, LIMITS, 0.5)
    assert world.double.creates == 1
    assert world.renter.store.get("desk1").state is RentalState.REQUESTED
    world.sleep(601)
    world.renter.reap()
    assert world.renter.store.get("desk1").reason == "no machine appeared"


def test_a_price_that_rose_is_not_paid(world: World) -> None:
    world.double.faults.price_factor = 2.0
    with pytest.raises(LimitExceeded, match=r"released at once: its price rose to 3.00 USD an hour"):
        world.renter.rent("desk1", QUERY, LIMITS, 0.5)
    assert not world.double.running()


def test_a_dead_renter_leaves_a_record_that_the_next_command_finds(world: World) -> None:
    world.renter.rent("desk1", QUERY, LIMITS, 0.5)
    later = Renter(world.service, RentalStore(world.folder), now=lambda: world.double.now)
    for _ in range(30):
        world.sleep(30)
        later.reap()
    assert not world.double.running()
    assert later.store.get("desk1").reason == "idle for 600 s"


def test_a_machine_of_this_home_without_a_record_is_released(world: World) -> None:
    rental = world.renter.rent("desk1", QUERY, LIMITS, 0.5)
    world.renter.store.path(rental.key).unlink()
    world.renter.reap()
    assert not world.double.running()


def test_limits_refuse_before_an_order(world: World) -> None:
    with pytest.raises(NotFound, match=r"E-OFFERS.*The cheapest costs 1.50 USD"):
        world.renter.rent("desk1", QUERY, LIMITS.model_copy(update={"max_price": Decimal(1)}), 0.5)
    with pytest.raises(LimitExceeded, match=r"E-SPEND: 0.9 hours of the cheapest offer cost 1.35 USD"):
        world.renter.rent("desk1", QUERY, LIMITS, 0.9)
    assert (world.double.creates, world.renter.store.list()) == (0, [])


def test_a_wrong_key_is_refused_and_not_shown(world: World) -> None:
    with (
        PrimeService(world.url, "secret-of-mine") as service,
        pytest.raises(Denied, match="refuses the key") as caught,
    ):
        service.list_offers(QUERY)
    assert "secret-of-mine" not in str(caught.value)


@pytest.mark.parametrize("seed", range(4))
def test_seeded_faults_break_no_limit(seed: int, tmp_path: Path) -> None:
    assert run_seed(seed, tmp_path).broken == ()
