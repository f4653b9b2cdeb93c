"""A rented machine at work: it joins as a Prefect worker, is looked at every poll, and leaves at its first limit."""

from __future__ import annotations

import asyncio
import os
import shlex
from urllib.parse import urlsplit

import httpx

from trainyard.app.context import Context
from trainyard.app.services import require_api_url
from trainyard.compute.rent.joining import connect, forward_back, read_host_key, read_login, set_deadline, start_script
from trainyard.compute.rent.rentals import Rental, normalize_gpu
from trainyard.compute.rent.renting import Renter
from trainyard.errors import TrainyardError, Unavailable
from trainyard.locations import checkout
from trainyard.settings import Settings
from trainyard.stores.auth_string import CLIENT_VARIABLE, auth_header, read_auth

REACHABLE_S = 900.0
"""Time for a machine to start before it is given up."""
TIMEOUT_S = 10.0
CONFLICT = 409


def attach_machine(rental: Rental, renter: Renter, context: Context) -> None:
    """Let a machine work until a limit, its end or an interrupt; who called releases it."""
    asyncio.run(work_remotely(rental, renter, context))


def name_queue(rental: Rental) -> str:
    """Return the work queue of a host class, such as `gpu-1x-h10080gb`."""
    return f"gpu-{rental.offer.gpus}x-{normalize_gpu(rental.offer.gpu) or 'any'}"


async def work_remotely(rental: Rental, renter: Renter, context: Context) -> None:
    settings = context.settings
    api, queue = require_api_url(settings), name_queue(rental)
    rental = await wait_for_address(rental, renter)
    async with connect(read_login(rental.ssh, settings.rent_ssh_key, rental.host_key)) as connection:
        rental = renter.store.put(rental.model_copy(update={"host_key": read_host_key(connection)}))
        await set_deadline(connection, rental.limits.max_duration_s - rental.age_s, settings.rent_shutdown)
        await asyncio.to_thread(create_queue, api, queue, settings)
        port = await forward_back(connection, urlsplit(api).port or 80)
        worker = await start_script(connection, worker_lines(rental, settings, queue),
                                    worker_environment(rental, settings, port))  # fmt: skip
        context.say(f"{rental.key} works for the queue {queue} of the pool {settings.work_pool}: {rental.ssh}")
        while rental.is_open:
            done, _ = await asyncio.wait([asyncio.ensure_future(worker.wait_closed())], timeout=renter.poll_s)
            if done:
                raise Unavailable(
                    f"The worker on {rental.name} ended with {worker.exit_status}.",
                    why=(await worker.stderr.read())[-500:].strip(), do="Correct rent_setup, then rent again.",
                    code="E-SSH",
                )  # fmt: skip
            rental = await asyncio.to_thread(look, rental, renter, api, queue, settings)
    context.say(f"{rental.key} was released: {rental.reason}")


async def wait_for_address(rental: Rental, renter: Renter) -> Rental:
    """Return the rental once its machine has an address. Raises `Unavailable` (`E-RENT`)."""
    start_age = rental.age_s
    while rental.is_open and not rental.ssh:
        if rental.age_s - start_age > REACHABLE_S:
            break
        await asyncio.sleep(min(renter.poll_s, 10.0))
        rental = await asyncio.to_thread(renter.check, rental)
    if not rental.ssh or not rental.is_open:
        raise Unavailable(f"{rental.name} did not become reachable: {rental.reason or 'no address'}.",
                          do="Rent again, perhaps from another provider.", code="E-RENT")  # fmt: skip
    return rental


def look(rental: Rental, renter: Renter, api: str, queue: str, settings: Settings) -> Rental:
    """Look at a machine, and whether it works; a service that fails is asked again at the next poll."""
    try:
        return renter.check(rental, busy=is_busy(api, queue, settings))
    except TrainyardError as error:
        renter.say(f"{rental.name}: {error}")
        return rental


def is_busy(api: str, queue: str, settings: Settings) -> bool:
    """Return whether a run of the queue is running; True where Prefect does not answer, so that no work is lost."""
    body = {
        "work_pool_queues": {"name": {"any_": [queue]}},
        "flow_runs": {"state": {"type": {"any_": ["RUNNING", "PENDING", "CANCELLING"]}}},
    }
    try:
        reply = httpx.post(f"{api}/flow_runs/count", json=body, headers=headers(settings), timeout=TIMEOUT_S)
        return not reply.is_success or int(reply.json()) > 0
    except (httpx.HTTPError, ValueError):
        return True


def create_queue(api: str, queue: str, settings: Settings) -> None:
    """Make the queue of a host class in this home's pool; one that is there stays."""
    address = f"{api}/work_pools/{settings.work_pool}/queues"
    reply = httpx.post(address, json={"name": queue}, headers=headers(settings), timeout=TIMEOUT_S)
    if not reply.is_success and reply.status_code != CONFLICT:
        raise Unavailable(
            f"Prefect made no queue {queue}: {reply.status_code} {reply.text[:200]}", do="Run `trainyard up` first.",
            code="E-RENT",
        )  # fmt: skip


def headers(settings: Settings) -> dict[str, str]:
    return dict(auth_header(read_login_string(settings)))


def read_login_string(settings: Settings) -> str | None:
    """Return what opens the Prefect server: the caller's own, else that of this home."""
    return os.environ.get(CLIENT_VARIABLE) or read_auth(settings)


def worker_lines(rental: Rental, settings: Settings, queue: str, *, deadline_s: int = 0) -> list[str]:
    """Return the script that installs Trainyard and starts the worker, which may end after a time.

    Runs carry the folders of this home: they are made there, and this checkout's is a link to the installed one.
    """
    home, work, project = (shlex.quote(str(path)) for path in (settings.home, settings.working_folder, checkout()))
    installed = "$(python3 -c 'from trainyard.locations import checkout; print(checkout())')"
    name = f"rented-{rental.key}"
    start = f"prefect worker start --type process --pool {settings.work_pool} --work-queue {queue} --name {name}"
    start = f"timeout {deadline_s} {start}" if deadline_s else start
    return [
        settings.rent_setup,
        f"mkdir -p {home} {work}",
        f'[ -e {project} ] || {{ mkdir -p "$(dirname {project})" && ln -s "{installed}" {project}; }}',
        f"exec {start}",
    ]


def worker_environment(rental: Rental, settings: Settings, port: int) -> dict[str, str]:
    """Return the variables of the worker, whose way to Prefect is a port of its own machine."""
    return worker_variables(rental, f"http://127.0.0.1:{port}/api") | worker_secrets(settings)


def worker_secrets(settings: Settings) -> dict[str, str]:
    """Return what opens the Prefect server."""
    auth = read_login_string(settings)
    return {CLIENT_VARIABLE: auth} if auth else {}


def worker_variables(rental: Rental, url: str) -> dict[str, str]:
    """Return the way of the worker to Prefect, and its price, so that runs know what they cost."""
    return {
        "PREFECT_API_URL": url,
        "TRAINYARD_PRICE_PER_HOUR": str(rental.offer.usd_per_hour / rental.offer.gpus),
        "TRAINYARD_PRICE_DATE": str(rental.offer.date),
    }
