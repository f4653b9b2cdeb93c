from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from trainyard.errors import LimitExceeded
from trainyard.stores.audit import AuditLog, log_files, verify_log

WRITER = """
import sys
from pathlib import Path
from trainyard.stores.audit import AuditLog
log = AuditLog(Path(sys.argv[1]), max_file_bytes=4_000)
for number in range(60):
    log.append({"writer": sys.argv[2], "number": number})
"""


@pytest.fixture
def log(tmp_path: Path) -> AuditLog:
    """Ten lines in a file."""
    audit_log = AuditLog(tmp_path / "audit")
    for number in range(10):
        audit_log.append({"number": number, "text": "ü"})
    return audit_log


def test_lines_come_back_in_both_orders(log: AuditLog) -> None:
    assert [line["number"] for line in log.lines()] == list(range(10))
    assert [line["number"] for line in log.lines(newest_first=True)] == list(range(9, -1, -1))
    audit_check = verify_log(log.folder)
    assert (audit_check.lines, audit_check.first, audit_check.last, audit_check.problems) == (10, 1, 10, ())


def test_nobody_else_may_read_it(log: AuditLog) -> None:
    assert log.folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o077 for path in log.folder.glob("audit*")} == {0}
    log.folder.chmod(0o755)
    log.append({})
    assert log.folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("line", range(10))
def test_a_line_that_was_removed_is_noticed(log: AuditLog, line: int) -> None:
    (path,) = log_files(log.folder)
    rows = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(rows[:line] + rows[line + 1 :]))
    problems = verify_log(log.folder).problems
    assert problems == (("the last 1 lines are missing: 10 were written, 9 are there",) if line == 9 else problems)
    assert problems


def test_every_change_of_a_byte_is_noticed(log: AuditLog) -> None:
    (path,) = log_files(log.folder)
    whole = path.read_bytes()
    for offset in range(0, len(whole), 7):
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 1]) + whole[offset + 1 :])
        assert verify_log(log.folder).problems, offset
    path.write_bytes(whole)
    assert not verify_log(log.folder).problems


@pytest.mark.parametrize("order", [[1, 0, *range(2, 10)], [*range(10), 3], [*range(5), 4, *range(5, 10)]])
def test_lines_that_were_moved_or_doubled_are_noticed(log: AuditLog, order: list[int]) -> None:
    (path,) = log_files(log.folder)
    rows = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(rows[number] for number in order))
    assert verify_log(log.folder).problems


def test_a_forged_line_needs_the_hash_of_the_one_before(log: AuditLog) -> None:
    (path,) = log_files(log.folder)
    rows = path.read_bytes().splitlines()
    forged = json.loads(rows[4]) | {"number": 400}
    path.write_bytes(b"\n".join([*rows[:4], json.dumps(forged).encode(), *rows[5:]]) + b"\n")
    assert "audit-000001.jsonl:5 was changed after it was written" in verify_log(log.folder).problems


def test_a_line_that_a_power_cut_took_half_of_is_named_and_the_log_continues(log: AuditLog) -> None:
    (path,) = log_files(log.folder)
    path.write_bytes(path.read_bytes()[:-30])
    log.append({"number": 10})
    audit_check = verify_log(log.folder)
    assert audit_check.problems[0] == "audit-000001.jsonl:10 is not a whole line: cut off by a power cut, or changed"
    assert [line["number"] for line in log.lines()] == [*range(9), 10]


def test_a_missing_file_and_a_missing_head_are_noticed(log: AuditLog) -> None:
    log.max_file_bytes = 1
    log.append({"number": 10})
    first, second = log_files(log.folder)
    assert not verify_log(log.folder).problems
    (log.folder / "head.json").rename(log.folder / "kept")
    assert verify_log(log.folder).problems == ("head.json is missing, which names the last line",)
    (log.folder / "kept").rename(log.folder / "head.json")
    data = first.read_bytes()
    first.unlink()
    assert verify_log(log.folder).problems
    first.write_bytes(data)
    second.unlink()
    assert verify_log(log.folder).problems == ("the last 1 lines are missing: 11 were written, 10 are there",)


def test_processes_take_turns_over_several_files(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    running = [subprocess.Popen([sys.executable, "-c", WRITER, str(folder), name]) for name in "ab"]
    assert [process.wait(60) for process in running] == [0, 0]
    audit_check = verify_log(folder)
    assert (audit_check.lines, audit_check.problems) == (120, ())
    assert audit_check.files > 3
    assert all(path.stat().st_size < 4_600 for path in log_files(folder))


def test_a_writer_that_was_killed_between_line_and_head_is_no_problem(log: AuditLog) -> None:
    head = log.folder / "head.json"
    before = head.read_bytes()
    log.append({"number": 10})
    head.write_bytes(before)
    assert not verify_log(log.folder).problems


def test_a_full_disk_is_said_so_and_leaves_no_half_line(log: AuditLog) -> None:
    (path,) = log_files(log.folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, hard))  # Python ignores SIGXFSZ
    try:
        with pytest.raises(LimitExceeded, match="E-DISK-FULL: The audit log was not written"):
            log.append({"number": 10})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    log.append({"number": 10})
    assert not verify_log(log.folder).problems
