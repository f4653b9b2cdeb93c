"""Seeded rentals against the double of a service: faults of service, clock and renter, then what must be true.

A run rents, works, and releases; it may be killed at any call or write. After it, another command looks once a poll, as
the watchdog of `trainyard up` does. `benchmarks/rent.py` runs hundreds of seeds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx

from trainyard.compute.rent.dstack import DstackService
from trainyard.compute.rent.prime import PrimeService
from trainyard.compute.rent.rentals import OfferQuery, Rental, RentalLimits, RentalService, RentalStore, Work
from trainyard.compute.rent.renting import Renter
from trainyard.compute.rent.skypilot import SkyPilotService
from trainyard.compute.rent.wire import RentService
from trainyard.errors import TrainyardError
from trainyard.testing.dstack_server import DstackDouble
from trainyard.testing.prime_server import PrimeDouble
from trainyard.testing.rent_account import RentAccount, RentFaults
from trainyard.testing.skypilot_server import SkyPilotDouble

POLL_S = 30.0
FAULTS = ("none", "lost reply", "no machine", "late machine", "vanished", "price change", "killed", "clock step",
          "no offer", "failing service")  # fmt: skip


DOUBLES: dict[RentalService, type[RentAccount]] = {
    "prime": PrimeDouble,
    "skypilot": SkyPilotDouble,
    "dstack": DstackDouble,
}


class Killed(BaseException):
    """The renter's process ended here."""


@dataclass
class RentalOutcome:
    """One seeded run, and what it broke."""

    seed: int
    faults: tuple[str, ...]
    machines: int
    usd: float
    lived_s: float
    broken: tuple[str, ...]


class MortalStore(RentalStore):
    """Store whose process may be killed before or after a write."""

    step: Callable[[], None] = staticmethod(lambda: None)

    def put(self, rental: Rental) -> Rental:
        self.step()
        written = super().put(rental)
        self.step()
        return written


class MortalClient(httpx.Client):
    """HTTP client whose process may be killed before or after a request."""

    step: Callable[[], None] = staticmethod(lambda: None)

    def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        self.step()
        reply = super().send(request, **options)
        self.step()
        return reply


def plan_nothing(rental: Rental) -> Work:
    """Return a worker for a machine that there is not."""
    return Work(script="prefect worker start", variables={"RENTAL": rental.key}, secrets={"LOGIN": "secret"})


def make_service(
    service: RentalService, url: str, account: RentAccount, client: httpx.Client | None = None
) -> RentService:
    """Return the client of an account at a account."""
    if service == "skypilot":
        return SkyPilotService(url, account.key, plan_nothing, client)
    if service == "dstack":
        return DstackService(url, account.key, "main", plan_nothing, client)
    return PrimeService(url, account.key, client)


@contextmanager
def open_account(service: RentalService) -> Iterator[tuple[RentAccount, RentService, str]]:
    """Yield an account at the double of a service, its client, and its address."""
    account = DOUBLES[service]()
    with account.serve() as url, make_service(service, url, account) as client:
        yield account, client, url


def run_seed(seed: int, folder: Path, service: RentalService = "prime") -> RentalOutcome:
    """Run one seed and check it."""
    draw = random.Random(seed)
    faults = tuple(sorted({draw.choice(FAULTS), draw.choice(FAULTS)}))
    limits = RentalLimits(
        max_price=Decimal(draw.choice(["1.5", "2", "3"])), max_duration_s=draw.choice([1800.0, 3600.0, 7200.0]),
        max_spend=Decimal(draw.choice(["0.8", "1.5", "6"])), idle_duration_s=draw.choice([300.0, 900.0]),
    )  # fmt: skip
    skew = {"s": 0.0}
    store = MortalStore(folder)
    with ExitStack() as stack:
        account, later_service, url = stack.enter_context(open_account(service))
        account.faults = choose_faults(faults, draw, account)
        client = MortalClient(timeout=30.0)
        mortal_service = stack.enter_context(make_service(service, url, account, client))
        left = draw.randrange(1, 60) if "killed" in faults else 10**9

        def step() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed

        def pass_time(seconds: float) -> None:
            account.now += seconds
            if "clock step" in faults and draw.random() < 0.2:
                skew["s"] = draw.choice([-7200.0, -600.0, 600.0, 7200.0])

        client.step = store.step = step
        renter = Renter(mortal_service, store, poll_s=POLL_S, now=lambda: account.now + skew["s"], sleep=pass_time)
        work(renter, limits, draw)
        client.step = store.step = lambda: None
        account.faults.fail = lambda _method, _path: False
        for _ in range(int(limits.max_duration_s / POLL_S) + 60):  # another command, once a poll
            later = Renter(later_service, RentalStore(folder), poll_s=POLL_S,
                           now=lambda: account.now + skew["s"], sleep=pass_time)  # fmt: skip
            later.reap()
            if not account.running() and not any(rental.is_open for rental in later.store.list()):
                break
            pass_time(POLL_S)
        return judge(seed, faults, account, limits, RentalStore(folder))


def choose_faults(faults: tuple[str, ...], draw: random.Random, account: RentAccount) -> RentFaults:
    failing = "failing service" in faults
    return RentFaults(
        lose_create_reply="lost reply" in faults,
        drop_create="no machine" in faults,
        late_s=draw.choice([20.0, 70.0, 200.0]) if "late machine" in faults else 0.0,
        vanish_after_s=draw.choice([100.0, 900.0]) if "vanished" in faults else 0.0,
        price_factor=draw.choice([0.8, 1.2, 2.5]) if "price change" in faults else 1.0,
        no_offers="no offer" in faults,
        fail=lambda method, path: failing and account.is_read(method, path) and draw.random() < 0.1,
    )


def work(renter: Renter, limits: RentalLimits, draw: random.Random) -> None:
    """Rent a machine and use it for a while, as `gpus rent --attach` does; end as a killed process does."""
    query, hours = OfferQuery(gpu="H100", gpus=1), draw.choice([0.1, 0.25, 0.5])
    looks, busy_share = draw.randrange(1, 300), draw.choice([0.0, 0.5, 1.0])
    try:
        rental = renter.rent("seeded", query, limits, hours)
        with renter.attach(rental):
            for _ in range(looks):
                renter.sleep(POLL_S)
                try:
                    rental = renter.check(rental, busy=draw.random() < busy_share)
                except TrainyardError:
                    continue
                if not rental.is_open:
                    return
    except (TrainyardError, Killed):
        return


def judge(
    seed: int, faults: tuple[str, ...], account: RentAccount, limits: RentalLimits, store: RentalStore
) -> RentalOutcome:
    """Return what a run broke: at most one machine, nothing left, no limit passed by more than one poll."""
    broken = []
    lived = max((machine.lived(account.now) for machine in account.machines), default=0.0)
    usd = sum(machine.cost(account.now) for machine in account.machines)
    interval = max((machine.price for machine in account.machines), default=0.0) * POLL_S / 3600
    if len(account.machines) > 1 or account.creates > 1:
        broken.append(f"{len(account.machines)} machines, {account.creates} orders")
    if account.running():
        broken.append("a machine is left")
    if lived > limits.max_duration_s + POLL_S:
        broken.append(f"lived {lived:.0f} s of {limits.max_duration_s:.0f} s")
    if usd > float(limits.max_spend) + interval:
        broken.append(f"spent {usd:.4f} of {limits.max_spend}")
    rentals = store.list()
    if any(rental.is_open for rental in rentals):
        broken.append("a record is left open")
    if account.machines and not rentals:
        broken.append("a machine without a record")
    recorded = float(sum(rental.usd for rental in rentals))
    if recorded > usd + 0.0001 or ("vanished" not in faults and usd - recorded > 3 * interval + 0.0001):
        broken.append(f"recorded {recorded:.4f} of {usd:.4f}")
    return RentalOutcome(seed, faults, len(account.machines), usd, lived, tuple(broken))
