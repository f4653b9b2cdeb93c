from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainyard.app.access.audit import AuditRow, list_audit, verify_audit
from trainyard.app.context import OWNER, Caller, Context
from trainyard.callbacks import ignore
from trainyard.errors import Denied, NotFound, TrainyardError
from trainyard.operations.access import AuditInput
from trainyard.operations.base import Nothing
from trainyard.operations.table import OPERATIONS, Scope
from trainyard.settings import settings
from trainyard.stores.audit import AuditLog
from trainyard.surfaces.invocation import build_request, changes_something, execute_operation
from trainyard.surfaces.sdk.surface import here


@pytest.fixture
def context(home: Path) -> Context:
    home.mkdir()
    (home / "trainyard.toml").touch()
    return Context(settings(), say=ignore, caller=Caller("ci", remote=True), surface="rest", trace="abc")


def list_entries(context: Context, **filters: Any) -> tuple[AuditRow, ...]:
    assert verify_audit(Nothing(), context).problems == ()
    return list_audit(AuditInput(**filters), context).entries


def ask(operation: str, context: Context, /, **fields: Any) -> Any:
    return execute_operation(operation, build_request(operation, fields), context)


def test_what_is_looked_at_has_no_entry_and_what_is_changed_has_one(context: Context) -> None:
    ask("templates", context)
    ask("tokens list", context)
    assert list_entries(context) == ()
    with pytest.raises(NotFound):
        ask("tokens revoke", context, name="x")
    (entry,) = list_entries(context)
    assert entry.model_dump(exclude={"id", "time", "seconds", "request"}) == {
        "caller": "ci", "tenant": "", "surface": "rest", "operation": "tokens revoke", "fields": {"name": "x"},
        "trace": "abc", "outcome": "failed", "code": "E-NOT-FOUND", "targets": {"name": "x"},
    }  # fmt: skip


def test_every_surface_and_the_filters(context: Context) -> None:
    with pytest.raises(NotFound):
        here.tokens.revoke(name="a")
    cli_context = replace(context, caller=OWNER, surface="cli")
    ask("tokens create", cli_context, name="b", scope="run")
    with pytest.raises(Denied):
        ask("tokens create", context, name="c")
    with pytest.raises(Denied):
        ask("gc", replace(context, caller=Caller("small", Scope.READ, "blue", remote=True)))
    rows = [(entry.surface, entry.caller, entry.operation, entry.outcome) for entry in list_entries(context)]
    assert rows == [
        ("rest", "small", "gc", "denied"), ("rest", "ci", "tokens create", "denied"),
        ("cli", "owner", "tokens create", "done"), ("python", "owner", "tokens revoke", "failed"),
    ]  # fmt: skip
    assert len(list_entries(context, caller="owner")) == 2
    assert len(list_entries(context, operation="tokens create", outcome="denied")) == 1
    assert len(list_entries(context, tenant="blue")) == 1
    assert len(list_entries(context, limit=3)) == 3
    assert len(list_entries(context, hours=1)) == 4
    assert list_entries(context, hours=1e-9) == ()


def test_a_call_that_was_killed_is_unfinished(context: Context) -> None:
    AuditLog(context.settings.home / "audit").append(
        {
            "id": "a", "phase": "begun", "time": 1.0, "caller": "ci", "tenant": "", "surface": "rest", "trace": "",
            "operation": "jobs cancel", "request": "", "fields": {},
        }
    )  # fmt: skip
    (entry,) = list_entries(context)
    assert entry.outcome == "unfinished"
    assert list_entries(context, outcome="unfinished") == (entry,)


def test_a_token_is_not_in_the_entry_of_its_creation(context: Context) -> None:
    token = ask("tokens create", replace(context, caller=OWNER), name="b", scope="run")
    assert token.token not in str(list_entries(context))


def test_without_a_log_nothing_is_done_for_the_network_and_all_for_the_owner(context: Context) -> None:
    (context.settings.home / "audit").symlink_to("/dev/null")
    messages: list[str] = []
    with pytest.raises((TrainyardError, OSError)):
        ask("tokens revoke", context, name="x")
    cli_context = replace(context, caller=OWNER, say=messages.append)
    ask("tokens create", cli_context, name="b", scope="run")
    assert "tokens create is not in the audit log" in messages[0]


def test_a_failure_makes_no_home(home: Path) -> None:
    with pytest.raises(TrainyardError):
        ask("restore", Context(settings(), say=ignore), file="none.tar.gz")
    assert not home.exists()


def test_what_changes_something_is_what_needs_more_than_reading() -> None:
    changing = {name for name in OPERATIONS if changes_something(name)}
    assert {"run", "up", "gc", "tokens create", "adapters promote", "jobs cancel", "chains delete"} <= changing
    assert not {"doctor", "check", "plan", "tokens list", "audit list", "jobs list"} & changing
