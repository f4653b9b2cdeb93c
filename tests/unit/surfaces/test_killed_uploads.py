"""Killed uploads and deletions: the next upload and `gc` remove what they left, never what is being written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest

pytestmark = pytest.mark.integration

MIB = 1 << 20
HOLD = """
import sys
from pathlib import Path
from trainyard.stores.processes import claim_file, claim_folder
with claim_file(Path(sys.argv[1])) as file, claim_folder(Path(sys.argv[2])):
    file.write(b"half")
    file.flush()
    print("locked", flush=True)
    sys.stdin.read()
"""


def trainyard(home: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trainyard", *arguments, "--json"],
        env={**os.environ, "TRAINYARD_HOME": str(home), "TRAINYARD_UPLOADS_MB": "5", **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def uploads(home: Path) -> Path:
    (folder,) = home.glob("tenants/*/uploads")
    return folder


def list_hidden(home: Path) -> list[str]:
    return sorted(path.name.rpartition(".")[2] for path in uploads(home).rglob(".*"))


@contextmanager
def writer(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process in the middle of an upload and of a deletion."""
    names = (folder / ".slow.jsonl.0123abcd.tmp", folder / ".0123456789abcdef.removed")
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, *map(str, names)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Three MiB of rows, of which two files are more than the uploads may take."""
    file = tmp_path / "rows.jsonl"
    line = b'{"prompt": "What does it cost?", "completion": "Three euros."}\n'
    file.write_bytes(line * (3 * MIB // len(line)))
    return file


@pytest.fixture
def killed(home: Path, rows: Path) -> Path:
    """A home in which an upload into a folder and the deletion of a file were killed."""
    short = rows.with_name("short.jsonl")
    short.write_bytes(rows.read_bytes()[: MIB // 4])
    assert trainyard(home, "data", "upload", str(short)).returncode == 0
    for command in (
        {"arguments": ("data", "upload", str(rows), "--folder", "set"), "point": "upload.block#2"},
        {"arguments": ("data", "delete", "short.jsonl"), "point": "delete.renamed"},
    ):
        ended = trainyard(home, *command["arguments"], TRAINYARD_FAULT=str(command["point"]))
        assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert list_hidden(home) == ["removed", "tmp"]
    return home


def test_the_next_upload_has_the_space_of_killed_ones(killed: Path, rows: Path) -> None:
    ended = trainyard(killed, "data", "upload", str(rows))
    assert ended.returncode == 0, ended.stdout
    assert list_hidden(killed) == []
    assert (uploads(killed) / "rows.jsonl").read_bytes() == rows.read_bytes()
    full = trainyard(killed, "data", "upload", str(rows), "--name", "other.csv")
    assert (full.returncode, "E-DISK-FULL" in full.stdout + full.stderr) == (6, True), "the limit is kept"


def test_gc_removes_what_killed_uploads_have_left(killed: Path) -> None:
    preview = orjson.loads(trainyard(killed, "gc", "--dry-run").stdout)
    assert {item["kind"] for item in preview["items"]} == {"unfinished upload"}
    assert preview["bytes"] > MIB
    assert list_hidden(killed) == ["removed", "tmp"]
    done = orjson.loads(trainyard(killed, "gc").stdout)
    assert [item["path"] for item in done["items"]] == [item["path"] for item in preview["items"]]
    assert list_hidden(killed) == []


def test_what_a_process_writes_stays_until_it_is_killed(killed: Path, rows: Path) -> None:
    with writer(uploads(killed)) as process:
        assert trainyard(killed, "gc").returncode == 0
        assert trainyard(killed, "data", "upload", str(rows)).returncode == 0
        assert list_hidden(killed) == ["removed", "tmp"]
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert len(orjson.loads(trainyard(killed, "gc").stdout)["items"]) == 2
    assert list_hidden(killed) == []


def test_hidden_files_of_users_stay(killed: Path) -> None:
    for name in (".notes.tmp", ".old.removed", ".htaccess"):
        (uploads(killed) / name).write_text("mine")
    (uploads(killed) / ".0123456789abcdef.removed").symlink_to("/etc")
    assert trainyard(killed, "gc").returncode == 0
    assert len(list_hidden(killed)) == 4
