"""What rents machines: Prime Intellect, called from here, or the server of SkyPilot or dstack; and the work on them.

native             the machine is joined over SSH, which also carries its way to Prefect (`rented.py`)
skypilot, dstack   the engine runs the worker itself: SkyPilot's API reports no address, and dstack's leads through
                   hosts of its own, so the machine has to reach this home's Prefect server
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from trainyard.compute.pools import is_loopback_address
from trainyard.compute.rent.dstack import DstackService
from trainyard.compute.rent.prime import PrimeService
from trainyard.compute.rent.rentals import Rental, RentalService, RentalStore, Work
from trainyard.compute.rent.renting import Renter, is_never_busy
from trainyard.compute.rent.skypilot import SkyPilotService
from trainyard.compute.rent.wire import RentService
from trainyard.errors import Denied, InvalidInput, TrainyardError, Unavailable
from trainyard.settings import Settings

SERVICES: dict[str, RentalService] = {"native": "prime", "skypilot": "skypilot", "dstack": "dstack"}
"""Engine -> the service whose offers it rents."""
CLIENTS: dict[RentalService, type[RentService]] = {
    "prime": PrimeService,
    "skypilot": SkyPilotService,
    "dstack": DstackService,
}
OF_NATIVE = ("rent_ssh_key", "rent_shutdown")
OF_OTHERS = ("rent_prefect_url",)


def choose_service(engine: str, settings: Settings) -> RentalService:
    """Return the service of an engine, else of the one that is set."""
    return SERVICES[engine or settings.rent_engine]


def open_service(service: RentalService, settings: Settings) -> RentService:
    """Return the client of a service. Raises `Denied` (`E-RENT`) without its key."""
    client = CLIENTS[service]
    key = os.environ.get(client.key_name, "")
    if not key and service != "skypilot":  # a SkyPilot server on loopback needs none
        raise Denied(f"There is no key of {client.title}.", do=f"Set {client.key_name}.", code="E-RENT")
    plan = partial(plan_work, settings=settings)
    if service == "skypilot":
        return SkyPilotService(settings.skypilot_url, key, plan)
    if service == "dstack":
        return DstackService(settings.dstack_url, key, settings.dstack_project, plan)
    return PrimeService(settings.prime_url, key)


@contextmanager
def open_renter(service: RentalService, settings: Settings, say: Callable[[str], None]) -> Iterator[Renter]:
    """Yield the renter of a service; whether a machine of an engine works is known to Prefect alone."""
    is_busy = is_never_busy if service == "prime" else partial(has_work, settings=settings)
    with open_service(service, settings) as client:
        yield Renter(client, RentalStore(settings.rentals), say=say, is_busy=is_busy)


def reap_all(
    rentals: Iterable[Rental], settings: Settings, say: Callable[[str], None]
) -> tuple[list[str], TrainyardError | None]:
    """Look at the machines of every service that has one.

    Returns what could not be looked at; and the last error, if no service could be opened.
    """
    services = list(dict.fromkeys(rental.offer.service for rental in rentals))
    problems: list[str] = []
    errors: list[TrainyardError] = []
    for service in services:
        assert service != "catalog", "the catalog rents nothing"
        try:
            with open_renter(service, settings, say) as renter:
                problems += renter.reap()
        except TrainyardError as error:
            errors.append(error)
            problems.append(f"{service}: {error}")
    return problems, errors[-1] if errors and len(errors) == len(services) else None


def require_effect(service: RentalService, settings: Settings) -> None:
    """Refuse settings that have no effect with the engine of this home (`E-SETTINGS`)."""
    engine = settings.rent_engine
    if SERVICES[engine] != service:  # a request for another engine: the settings are those of this home's
        return
    names, other = (OF_OTHERS, "skypilot or dstack") if engine == "native" else (OF_NATIVE, "native")
    for name in names:
        if getattr(settings, name) != type(settings).model_fields[name].default:
            raise InvalidInput(
                f"The setting {name} has no effect: rent_engine is {engine}.",
                do=f"Remove it, or set rent_engine to {other}.", code="E-SETTINGS",
            )  # fmt: skip


def require_way_back(service: RentalService, settings: Settings) -> None:
    """Refuse an order whose machine could not reach Prefect (`E-SETTINGS`, and as `require_api_url`)."""
    if service != "prime":
        from trainyard.app.services import require_api_url  # only an order asks the server

        find_prefect_url(settings, require_api_url(settings))


def find_prefect_url(settings: Settings, url: str) -> str:
    """Return the address of Prefect for a rented machine. Raises `InvalidInput` (`E-SETTINGS`) for loopback."""
    if not settings.rent_prefect_url and is_loopback_address(url):
        raise InvalidInput(
            f"A machine that an engine rents cannot reach the Prefect server at {url}.",
            why="SkyPilot and dstack run the worker themselves, without a connection from here.",
            do="Start it by `trainyard up --expose` and set rent_prefect_url, or use the engine native (SSH).",
            code="E-SETTINGS",
        )  # fmt: skip
    return settings.rent_prefect_url or url


def plan_work(rental: Rental, settings: Settings) -> Work:
    """Return the worker of a rental, which ends at max_duration automatically, and make its queue."""
    from trainyard.app.services import resolve_api_url  # only an order asks the server
    from trainyard.app.stack import rented  # joins machines over SSH, too

    url, queue = resolve_api_url(settings), rented.name_queue(rental)
    address = find_prefect_url(settings, url)
    rented.create_queue(url, queue, settings)
    lines = rented.worker_lines(rental, settings, queue, deadline_s=int(rental.limits.max_duration_s))
    return Work(
        script="\n".join(["set -e", *lines]), variables=rented.worker_variables(rental, address),
        secrets=rented.worker_secrets(settings),
    )  # fmt: skip


def has_work(rental: Rental, settings: Settings) -> bool:
    """Return whether a run of the machine's queue is running; True where Prefect cannot be asked."""
    from trainyard.app.services import api_url  # only a look at a machine asks the server
    from trainyard.app.stack import rented  # joins machines over SSH, too

    url = api_url(settings)
    return url is None or rented.is_busy(url, rented.name_queue(rental), settings)


def stay(rental: Rental, renter: Renter) -> None:
    """Look at a machine of an engine until it is released. Raises `Unavailable` (`E-RENT`) if none ever was there."""
    renter.say(f"{rental.key} is with {renter.service.title}, which starts its worker: {rental.name}")
    while rental.is_open:
        renter.sleep(renter.poll_s)
        try:
            rental = renter.check(rental)
        except TrainyardError as error:
            renter.say(f"{rental.name}: {error}")
    renter.say(f"{rental.key} was released: {rental.reason}")
    if rental.age_s == 0:
        raise Unavailable(f"{renter.service.title} rented no machine: {rental.reason}.", do="Ask for offers again.",
                          code="E-RENT")  # fmt: skip
