"""Desired state of a running run: whether it should continue."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from json import JSONDecodeError

import certifi
import httpx
from prefect import settings as prefect_settings
from prefect.client.schemas.objects import State, StateType
from pydantic import ValidationError

from trainyard.compute.supervise import DesiredState
from trainyard.stores.auth_string import auth_header

WANTED_EVERY_S = 1.0
"""How often a training asks Prefect whether it should continue (a pause is noticed within this time)."""
ASK_TIMEOUT_S = 3.0
"""A server that does not answer must not block the loop that watches a child."""

WANTED = dict.fromkeys((StateType.CANCELLING, StateType.CANCELLED), DesiredState.CANCEL)
WANTED[StateType.PAUSED] = DesiredState.PAUSE
"""What a state of the run asks of its training; any other asks it to run."""
INTERRUPTED = threading.Event()
"""This process was asked to end by SIGTERM: a machine is taken back, or a worker is stopped."""


def make_state_reader(run_id: str, *, first_after_s: float = 0.0) -> Callable[[], DesiredState]:
    """Return a function that says whether the run should continue; it asks the server at most once a second.

    A server that does not answer for a while changes nothing: two hours of training outlive a restart of it.
    """
    asked_at, answer = time.monotonic() - WANTED_EVERY_S + first_after_s, DesiredState.RUN
    asked_after_interrupt = False

    def read_desired_state() -> DesiredState:
        nonlocal asked_at, answer, asked_after_interrupt
        interrupted = INTERRUPTED.is_set() and not asked_after_interrupt
        if interrupted or time.monotonic() - asked_at >= WANTED_EVERY_S:
            asked_at, asked_after_interrupt = time.monotonic(), INTERRUPTED.is_set()
            state = read_state(run_id)
            answer = answer if state is None else WANTED.get(state.type, DesiredState.RUN)
        return DesiredState.PREEMPT if answer is DesiredState.RUN and INTERRUPTED.is_set() else answer

    return read_desired_state


def read_state(run_id: str) -> State | None:
    """Return the run's state by one quick question; None if the server is away or does not know the run."""
    try:
        answer = asker(str(prefect_settings.PREFECT_API_URL.value()).rstrip("/")).get(f"/flow_runs/{run_id}")
        return State.model_validate(answer.raise_for_status().json()["state"])
    except (httpx.HTTPError, ValidationError, JSONDecodeError):
        return None


@lru_cache(maxsize=2)
def asker(api_url: str) -> httpx.Client:
    """Return a connection that stays open for this process.

    Prefect's own client would retry for minutes when a server is away, which blocks the loop that watches a child;
    and opening one, or configuring it not to retry, takes 30 to 100 ms each time.
    """
    headers, auth = {}, prefect_settings.PREFECT_API_AUTH_STRING.value()
    if auth:  # first, as in Prefect's own client: a key of Prefect Cloud may be in the environment, too
        headers = auth_header(auth)
    elif key := prefect_settings.PREFECT_API_KEY.value():
        headers = {"Authorization": f"Bearer {key}"}
    trusted = prefect_settings.PREFECT_API_SSL_CERT_FILE.value() or certifi.where()
    verify = ssl.create_default_context(cafile=trusted) if api_url.startswith("https") else False
    if prefect_settings.PREFECT_API_TLS_INSECURE_SKIP_VERIFY.value():
        verify = False
    return httpx.Client(base_url=api_url, headers=headers, timeout=ASK_TIMEOUT_S, verify=verify)
