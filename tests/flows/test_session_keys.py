"""Sessions that are created with an idempotency key on a real server: one session and one run, whatever is killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter

from flows.sessions.worker import session
from trainyard.app.context import OWNER, Caller, Context
from trainyard.backends.sessions.records import STATUS_FILE, SessionState, folder_of_session, write_status
from trainyard.errors import Conflict
from trainyard.prefect_api import server
from trainyard.settings import Settings, settings
from trainyard.surfaces.invocation import build_request, execute_operation

pytestmark = pytest.mark.usefixtures("prefect")
BODY = {"hyperparameters": {"learning_rate": 0.01}}
Do = Callable[..., Any]


@pytest.fixture
def deployed(flow_server: Any, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """The home of a server that knows `session/worker`, without a worker that would run it."""
    monkeypatch.setenv("TRAINYARD_HOME", str(flow_server.settings.home))
    monkeypatch.setenv("TRAINYARD_DEFAULT_BASE_MODEL", str(tiny_model))
    monkeypatch.setenv("TRAINYARD_MIN_FREE_MB", "0")
    settings.cache_clear()
    server.bootstrap(settings())
    deployment = session.to_deployment(name="worker", work_pool_name=settings().work_pool)
    deployment.entrypoint = "flows/sessions/worker.py:session"
    deployment.apply(work_pool_name=settings().work_pool)
    yield settings()
    settings.cache_clear()


@pytest.fixture
def do(deployed: Settings) -> Do:
    def call(operation: str, key: str = "", caller: Caller = OWNER, **fields: Any) -> Any:
        context = Context(deployed, say=lambda _: None, caller=caller, idempotency_key=key)
        return execute_operation(operation, build_request(operation, fields), context)

    return call


def count_runs(session_id: str) -> int:
    with get_client(sync_client=True) as prefect:
        tagged = FlowRunFilter.model_validate({"tags": {"all_": [session_id]}})
        return len(prefect.read_flow_runs(flow_run_filter=tagged))


def test_a_session_with_a_key_is_created_once(deployed: Settings, do: Do) -> None:
    first = do("sessions create", "k", parameters=BODY)
    again = do("sessions create", "k", parameters=BODY)
    assert (again, count_runs(first.id)) == (first, 1)
    status = folder_of_session(deployed, first.id) / STATUS_FILE
    status.unlink()  # as after a kill between the creation of the run and this file
    assert do("sessions create", "k", parameters=BODY) == first
    assert count_runs(first.id) == 1
    with pytest.raises(Conflict, match="E-CONFLICT: The idempotency key belongs to a session"):
        do("sessions create", "k", parameters={"hyperparameters": {"learning_rate": 0.02}})
    acme_session = do("sessions create", "k", replace(OWNER, tenant="acme"), parameters=BODY)
    other_ids = {do("sessions create", parameters=BODY).id for _ in range(2)}
    assert len({first.id, acme_session.id, *other_ids}) == 4


def test_a_session_that_has_ended_is_what_its_key_created(deployed: Settings, do: Do) -> None:
    first = do("sessions create", "ended", parameters=BODY)
    write_status(folder_of_session(deployed, first.id), SessionState.ENDED, "idle", first.run)
    again = do("sessions create", "ended", parameters=BODY)
    assert (again.id, again.state, again.run) == (first.id, SessionState.ENDED, first.run)
    resumed = do("sessions resume", "ended", session=first.id)
    assert resumed.run != first.run, "a key of another operation"
    write_status(folder_of_session(deployed, first.id), SessionState.ENDED, "idle", first.run)
    assert do("sessions resume", "ended", session=first.id).run == resumed.run
    assert count_runs(first.id) == 2
