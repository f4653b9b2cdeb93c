"""Idempotency keys: carried out once, whatever comes twice, at the same time, or after a failure."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trainyard.app.context import OWNER, Caller
from trainyard.errors import Conflict, InvalidInput, NotFound
from trainyard.operations.jobs import JobInput
from trainyard.surfaces.rest.replays import KEPT_S, Replays

ONE, OTHER = JobInput(job="one"), JobInput(job="other")


class Counted:
    """Work that counts how often it is done."""

    def __init__(self) -> None:
        self.num_done = 0

    def __call__(self) -> bytes:
        self.num_done += 1
        return str(self.num_done).encode()


def test_the_same_request_gets_the_first_answer(tmp_path: Path) -> None:
    replays, work = Replays(tmp_path / "r.sqlite3"), Counted()
    answers = [replays.once(OWNER, "jobs pause", ONE, "k", work) for _ in range(3)]
    assert (answers, work.num_done) == ([b"1"] * 3, 1)
    assert Replays(tmp_path / "r.sqlite3").once(OWNER, "jobs pause", ONE, "k", work) == b"1"
    assert (tmp_path / "r.sqlite3").stat().st_mode & 0o077 == 0


def test_keys_are_apart_by_caller_and_operation(tmp_path: Path) -> None:
    replays, work = Replays(tmp_path / "r.sqlite3"), Counted()
    replays.once(OWNER, "jobs pause", ONE, "k", work)
    replays.once(Caller("ci"), "jobs pause", ONE, "k", work)
    replays.once(OWNER, "jobs cancel", ONE, "k", work)
    assert work.num_done == 3


def test_a_key_with_another_request_is_refused(tmp_path: Path) -> None:
    replays, work = Replays(tmp_path / "r.sqlite3"), Counted()
    replays.once(OWNER, "jobs pause", ONE, "k", work)
    with pytest.raises(InvalidInput, match="another request"):
        replays.once(OWNER, "jobs pause", OTHER, "k", work)
    assert work.num_done == 1


def test_a_failure_is_not_kept(tmp_path: Path) -> None:
    replays, work = Replays(tmp_path / "r.sqlite3"), Counted()

    def fail() -> bytes:
        raise NotFound("gone")

    with pytest.raises(NotFound):
        replays.once(OWNER, "jobs pause", ONE, "k", fail)
    assert replays.once(OWNER, "jobs pause", ONE, "k", work) == b"1"


def test_a_request_that_is_worked_on_is_not_begun_twice(tmp_path: Path) -> None:
    replays, started, finish = Replays(tmp_path / "r.sqlite3"), threading.Event(), threading.Event()

    def slow() -> bytes:
        started.set()
        finish.wait(120)
        return b"slow"

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(replays.once, OWNER, "jobs pause", ONE, "k", slow)
        started.wait(60)
        with pytest.raises(Conflict, match="still worked on"):
            replays.once(OWNER, "jobs pause", ONE, "k", slow)
        finish.set()
        assert first.result() == b"slow"


def test_a_key_whose_service_was_killed_is_carried_out_again(tmp_path: Path) -> None:
    killed, work = Replays(tmp_path / "r.sqlite3"), Counted()
    connection = killed.connect()
    assert killed.claim(connection, ("owner", "jobs pause", "k"), "digest") is None

    with pytest.raises(InvalidInput):  # the digest differs: another request
        Replays(tmp_path / "r.sqlite3").once(OWNER, "jobs pause", ONE, "k", work)
    after = Replays(tmp_path / "r.sqlite3")
    connection = after.connect()
    assert after.claim(connection, ("owner", "jobs pause", "k"), "digest") is None


def test_keys_are_forgotten_after_a_day(tmp_path: Path) -> None:
    now = [1000.0]
    replays, work = Replays(tmp_path / "r.sqlite3", lambda: now[0]), Counted()
    replays.once(OWNER, "jobs pause", ONE, "k", work)
    now[0] += KEPT_S + 1
    assert replays.once(OWNER, "jobs pause", ONE, "k", work) == b"2"
