"""The audit log is covered by the ledger: lines that are changed, cut or written anew are noticed."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from trainyard.app.access.audit import commit_if_due, record_event, verify_audit
from trainyard.app.artifacts.ledger import verify
from trainyard.app.context import Context
from trainyard.app.live.service_threads import keep_audited
from trainyard.operations import ledger as requests
from trainyard.operations.base import Nothing
from trainyard.settings import Settings
from trainyard.stores.audit import AuditLog
from trainyard.stores.ledger.audit_stream import commit_audit
from trainyard.stores.ledger.log import Ledger

CALLER = "canary-of-a-caller"


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """Six lines of the audit log, of which the ledger covers the first four by two entries."""
    context = Context(Settings(home=tmp_path))
    for count in (3, 1):
        log_in(context, count)
        assert commit_audit(Ledger.at_home(tmp_path))
    log_in(context, 2)
    return context


def log_in(context: Context, times: int) -> None:
    for _ in range(times):
        record_event(context.settings, "login", CALLER, "trace")


def audit_file(context: Context) -> Path:
    return context.settings.home / "audit" / "audit-000001.jsonl"


def write_anew(context: Context, lines: int) -> None:
    """Write a whole audit log in which every line fits the one before, as who has the disk can."""
    shutil.rmtree(context.settings.home / "audit")
    log_in(context, lines)


def list_problems(context: Context) -> list[str]:
    problems = verify_audit(Nothing(), context).problems
    ledger_problems = verify(requests.LedgerVerifyInput(), context).problems
    assert bool([text for text in problems if "of the ledger" in text]) == bool(ledger_problems)
    return list(problems)


def test_the_ledger_covers_the_lines(context: Context) -> None:
    assert list_problems(context) == []
    check = verify_audit(Nothing(), context)
    assert (check.lines, check.committed) == (6, 4)
    ledger = Ledger.at_home(context.settings.home)
    head = ledger.head()
    covered = [(head.entry(seq)["first"], head.entry(seq)["last"]) for seq in range(1, head.size)]
    assert covered == [(1, 3), (4, 4)]
    assert CALLER.encode() not in b"".join(path.read_bytes() for path in ledger.folder.rglob("*") if path.is_file())
    assert commit_audit(ledger)
    assert not commit_audit(ledger)


def test_a_log_that_was_written_anew_is_noticed(context: Context) -> None:
    write_anew(context, 6)
    assert list_problems(context) == [
        "line 3 of the audit log is not the one that entry 1 of the ledger names",
        "line 4 of the audit log is not the one that entry 2 of the ledger names",
    ]


def test_a_log_that_was_cut_with_its_head_is_noticed(context: Context) -> None:
    lines = audit_file(context).read_bytes().splitlines(keepends=True)
    audit_file(context).write_bytes(b"".join(lines[:3]))
    (context.settings.home / "audit" / "head.json").unlink()
    assert "line 4 of the audit log, which entry 2 of the ledger names, is missing" in list_problems(context)


def test_a_log_that_was_removed_is_noticed_and_a_new_one_covered(context: Context) -> None:
    write_anew(context, 1)
    assert commit_audit(Ledger.at_home(context.settings.home))
    assert list_problems(context) == [
        "the audit log was begun again before entry 3 of the ledger: what it had is not here"
    ]
    log_in(context, 1)
    assert commit_audit(Ledger.at_home(context.settings.home))
    assert len(list_problems(context)) == 1


def test_a_service_covers_its_lines_when_it_ends(tmp_path: Path) -> None:
    context, said = Context(Settings(home=tmp_path)), list[str]()
    with keep_audited(context.settings, said.append):
        log_in(context, 2)
    assert (verify_audit(Nothing(), context).committed, said) == (2, [])
    Ledger.at_home(tmp_path).key_file.unlink()
    with keep_audited(context.settings, said.append):
        log_in(context, 1)
    assert "the audit log is not in the ledger: E-CONFLICT" in said[0]


def test_a_command_covers_its_line_when_a_minute_has_passed(context: Context) -> None:
    home = context.settings.home
    commit_if_due(home)
    assert verify_audit(Nothing(), context).committed == 4
    os.utime(home / "ledger" / "checkpoint", (1, 1))
    commit_if_due(home)
    assert verify_audit(Nothing(), context).committed == 6
    other = home / "without a ledger"
    AuditLog(other / "audit").append({"id": "a", "phase": "ended", "time": 1.0})
    commit_if_due(other)
    assert not (other / "ledger").exists()


def test_an_index_without_the_entries_hides_nothing(context: Context) -> None:
    write_anew(context, 6)
    index = context.settings.home / "ledger" / "index.sqlite"
    with closing(sqlite3.connect(index)) as connection, connection:
        connection.execute("DELETE FROM entries WHERE kind = 'audited' AND seq < 2")
        connection.execute("UPDATE entries SET kind = 'trained' WHERE kind = 'audited'")
    assert list_problems(context)
