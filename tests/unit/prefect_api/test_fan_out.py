"""What a piece's task takes with it."""

from __future__ import annotations

from contextvars import Context
from typing import Any
from uuid import uuid4

import cloudpickle
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext, get_settings_context, serialize_context
from prefect.flows import flow
from prefect.results import ResultStore
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_DATABASE_CONNECTION_URL,
    PREFECT_API_KEY,
    PREFECT_API_URL,
    temporary_settings,
)
from prefect.task_runners import ThreadPoolTaskRunner

from trainyard.app.plan.workers import list_versions
from trainyard.errors import Unavailable
from trainyard.prefect_api.fan_out import enter_piece_context, require_versions

SETTINGS = {
    PREFECT_API_AUTH_STRING: "admin:word-of-the-api", PREFECT_API_KEY: "key-of-the-api",
    PREFECT_API_URL: "http://127.0.0.1:9/api",
    PREFECT_API_DATABASE_CONNECTION_URL: "postgresql+asyncpg://u:word-of-the-database@h/p",
}  # fmt: skip


@flow
def with_a_chain(spec: dict[str, str]) -> None:
    """Stand for the flow of a chain."""


def pickle_context(*, is_remote: bool) -> bytes:
    """Return what travels with a piece of a run whose chain has a text of its own."""
    runner: ThreadPoolTaskRunner[Any] = ThreadPoolTaskRunner(max_workers=1)
    spec = {"rows": "text-of-the-chain"}
    run = FlowRunContext.model_construct(
        flow=with_a_chain, flow_run=FlowRun(id=uuid4(), flow_id=uuid4(), name="tidy-run", parameters={"spec": spec}),
        client=get_client(sync_client=True), parameters={"spec": spec}, result_store=ResultStore(), task_runner=runner,
    )  # fmt: skip
    context = Context()
    context.run(enter_piece_context, get_settings_context(), run, runner, is_remote=is_remote)
    return cloudpickle.dumps(context.run(serialize_context))


def test_no_secret_and_no_chain_leave_this_machine() -> None:
    with temporary_settings(SETTINGS):
        remote, local = pickle_context(is_remote=True), pickle_context(is_remote=False)
    assert b"tidy-run" in remote
    assert not [word for word in (b"word-of-the", b"key-of-the-api", b"text-of-the-chain") if word in remote]
    assert b"word-of-the-api" in local
    assert b"text-of-the-chain" not in local


def test_a_worker_with_other_versions_does_no_piece() -> None:
    require_versions(list_versions())
    with pytest.raises(Unavailable, match=r"other versions than the run: pyarrow \S+ on .*, 1\.0 here"):
        require_versions({**list_versions(), "pyarrow": "1.0"})
