"""What a run is asked and granted while it works: whether to go on, and the device slot."""

from __future__ import annotations

import base64
import logging
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import lru_cache
from json import JSONDecodeError

import certifi
import httpx
import psutil
from prefect.client.schemas.actions import GlobalConcurrencyLimitUpdate
from prefect.client.schemas.objects import State, StateType
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_KEY,
    PREFECT_API_SSL_CERT_FILE,
    PREFECT_API_TLS_INSECURE_SKIP_VERIFY,
    PREFECT_API_URL,
)
from pydantic import ValidationError

from trainyard.api.runs.server import client, ensure_limit, limit_name
from trainyard.backends.results import TrainingStopped
from trainyard.compute.lease import device_lock, holder, wait_until_empty
from trainyard.compute.supervise import Wanted, always_run
from trainyard.errors import Conflict, Unavailable
from trainyard.serve import embedded
from trainyard.settings import Settings

WANTED_EVERY_S = 1.0
"""How often a training asks Prefect whether it should go on (a pause is noticed within this)."""
ASK_TIMEOUT_S = 3.0
"""A server that does not answer must not hold the loop that watches a child."""
LIMIT_WAIT_S = 10.0
"""One wait for the server's limit; between two, a pause is noticed."""
SERVER_PATIENCE_S = 600.0
"""How long a node that is about to start waits for a server that is away."""

INTERRUPTED = threading.Event()
"""This process was asked to end by SIGTERM: a machine is taken back, or a worker is stopped."""

logger = logging.getLogger(__name__)


def wanted_by(run_id: str, *, first_after_s: float = 0.0) -> Callable[[], Wanted]:
    """A function that says whether the run should go on, asking the server at most once a second.

    A server that does not answer for a while changes nothing: two hours of training outlive a restart of it.
    """
    asked_at, answer = time.monotonic() - WANTED_EVERY_S + first_after_s, Wanted.RUN
    told = False

    def wanted() -> Wanted:
        nonlocal asked_at, answer, told
        interrupted = INTERRUPTED.is_set() and not told
        if interrupted or time.monotonic() - asked_at >= WANTED_EVERY_S:
            asked_at, told = time.monotonic(), INTERRUPTED.is_set()
            answer = ask_wanted(run_id, answer)
        return Wanted.PREEMPT if answer is Wanted.RUN and INTERRUPTED.is_set() else answer

    return wanted


def ask_wanted(run_id: str, otherwise: Wanted) -> Wanted:
    state = state_now(run_id)
    if state is None:
        return otherwise
    if state.type is StateType.PAUSED:
        return Wanted.PAUSE
    return Wanted.CANCEL if state.type in (StateType.CANCELLING, StateType.CANCELLED) else Wanted.RUN


def state_now(run_id: str) -> State | None:
    """The run's state by one quick question; None if the server is away or does not know the run."""
    try:
        answer = asker(str(PREFECT_API_URL.value()).rstrip("/")).get(f"/flow_runs/{run_id}")
        return State.model_validate(answer.raise_for_status().json()["state"])
    except (httpx.HTTPError, ValidationError, JSONDecodeError):
        return None


@lru_cache(maxsize=2)
def asker(api_url: str) -> httpx.Client:
    """A connection that stays open for this process.

    Prefect's own client would do, but asks again for minutes when a server is away, which holds the loop that watches
    a child; and to open one, or to tell it not to, takes 30 to 100 ms each time.
    """
    headers, password = {}, PREFECT_API_AUTH_STRING.value()
    if key := PREFECT_API_KEY.value():
        headers["Authorization"] = f"Bearer {key.get_secret_value()}"
    elif password:
        secret = base64.b64encode(password.get_secret_value().encode()).decode()
        headers["Authorization"] = f"Basic {secret}"
    trusted = PREFECT_API_SSL_CERT_FILE.value() or certifi.where()
    verify = ssl.create_default_context(cafile=trusted) if api_url.startswith("https") else False
    if PREFECT_API_TLS_INSECURE_SKIP_VERIFY.value():
        verify = False
    return httpx.Client(base_url=api_url, headers=headers, timeout=ASK_TIMEOUT_S, verify=verify)


@contextmanager
def gpu_slot(
    settings: Settings, *, run: str = "", device: int = 0, wanted: Callable[[], Wanted] = always_run
) -> Iterator[None]:
    """The right to compute on a device of this host: one training at a time, on a CPU too.

    A local file lock is taken first (its holder's death frees it, and the next one gets it within 0.2 s), then the
    server's limit with a lease, which other hosts and Prefect's pages see; then nobody else may be found on the
    device. A server that is away for a minute does not end a training of hours: a lease that cannot be renewed or
    given back is only logged, and runs out by itself.

    Raises `TrainingStopped` when the run is paused or cancelled while it waits, and `Conflict` (`E-DEVICE-OCCUPIED`).
    """

    def give_up() -> bool:
        return wanted() is not Wanted.RUN

    with ExitStack() as held:
        try:
            lock = settings.services / f"slot-{device}.lock"
            held.enter_context(device_lock(lock, run=run, wait_s=float("inf"), give_up=give_up))
            hold_limit(held, limit_name(device), settings.lease_duration_s, give_up)
            wait_until_empty(device, ours=lambda: own_services(settings), give_up=give_up)
        except Conflict:
            if not give_up():
                raise
            raise TrainingStopped(
                "The run was stopped while it waited for the device.",
                why=wanted().value,
                do="Resume it: nothing was lost.",
            ) from None
        yield


def hold_limit(held: ExitStack, name: str, lease_s: float, give_up: Callable[[], bool]) -> None:
    """Take a slot of the server's limit, waiting for a holder however long it takes, and for a server for minutes."""
    patience = time.monotonic() + SERVER_PATIENCE_S
    while True:
        try:
            with client() as prefect:
                ensure_limit(prefect, name)
            slot = concurrency(
                name,
                strict=True,
                lease_duration=lease_s,
                timeout_seconds=LIMIT_WAIT_S,
                raise_on_lease_renewal_failure=False,
            )
            held.enter_context(given_back(slot))
            return
        except TimeoutError:
            patience = time.monotonic() + SERVER_PATIENCE_S  # the server answers: somebody has the slot
        except (Unavailable, httpx.HTTPError, PrefectHTTPStatusError, ConcurrencySlotAcquisitionError) as error:
            if time.monotonic() > patience:
                raise
            logger.warning("The device's limit cannot be asked for, trying again: %s", error)
            time.sleep(1.0)
        if give_up():
            raise Conflict("The run was stopped while it waited for the device's limit.", code="E-DEVICE-BUSY")


def free_unheld_slot(settings: Settings, device: int = 0) -> bool:
    """Empty a device's limit whose slot nobody on this host holds; whether there was one.

    Its lease should have freed it. A server that kept its leases in memory and was killed has forgotten them, and would
    keep every later run waiting. For the server of this home, while no run of this home works.
    """
    if holder(settings.services / f"slot-{device}.lock") is not None:
        return False
    name = limit_name(device)
    with client() as prefect:
        ensure_limit(prefect, name)
        if prefect.read_global_concurrency_limit_by_name(name).active_slots == 0:
            return False
        prefect.update_global_concurrency_limit(name, GlobalConcurrencyLimitUpdate(active_slots=0))
    return True


@contextmanager
def given_back(slot: AbstractContextManager[None]) -> Iterator[None]:
    """The slot; that it cannot be given back is no failure of what was done in it."""
    taken = ExitStack()
    taken.enter_context(slot)
    try:
        yield
    finally:
        try:
            taken.close()
        except (httpx.HTTPError, PrefectHTTPStatusError) as error:
            logger.warning("The device's limit could not be given back; its lease runs out by itself: %s", error)


def own_services(settings: Settings) -> frozenset[int]:
    """Pids of the model server that `trainyard up` started here: it may share the device with a training."""
    found = embedded.instance(settings)
    process = found.process() if found is not None else None
    if process is None:
        return frozenset()
    try:
        return frozenset({process.pid, *(child.pid for child in process.children(recursive=True))})
    except psutil.NoSuchProcess:
        return frozenset()
