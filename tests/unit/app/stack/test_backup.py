"""`trainyard backup` and `trainyard restore`: a home in one file, whole or not at all."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.selection import choose_by_default
from trainyard.app.context import Context
from trainyard.app.stack.backup import back_up, restore
from trainyard.backends.manager import TrainingManager
from trainyard.errors import Conflict, Corrupt, InvalidInput, NotFound, TrainyardError
from trainyard.operations.stack import BackupInput, RestoreInput, backup_text, restored_text
from trainyard.settings import load_settings
from trainyard.spec.states import JobState
from trainyard.stores.adapters import AdapterRegistry
from trainyard.stores.graph.local import LadybugGraph
from trainyard.stores.graph.remote import graph_file
from trainyard.stores.secret_files import TokenFile
from trainyard.stores.whole import describe_files

pytestmark = pytest.mark.integration


def context(home: Path) -> Context:
    return Context(load_settings(home=home), say=lambda _text: None)


@pytest.fixture
def used_home(home: Path, tmp_path: Path) -> Path:
    """The home of an earlier version with its paused job and its adapter, a database that is in use, and a graph."""
    with tarfile.open(REPOSITORY / "tests" / "resources" / "homes" / "4b25bfd.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    for path in (*home.glob("jobs/*.json"), *home.glob("runs/training/*/spec.json")):
        path.write_text(path.read_text().replace("/srv/trainyard", str(tmp_path)))
    for name in ("envs/trl/python", "services/worker.log", "models/big/model.safetensors", "artifacts/.half/x"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("left out")
    (home / "prefect-auth-string").write_text("secret")
    (home / "artifacts" / "ab" / "empty").mkdir(parents=True)
    (home / "tenants" / "acme").mkdir(parents=True)
    (home / "tenants" / "acme" / "uv.lock").write_text("a user's file")
    (home / "prefect").mkdir()
    with closing(sqlite3.connect(home / "prefect" / "prefect.db")) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE runs (number INTEGER)")
        database.commit()
    return home


@pytest.fixture
def backup(used_home: Path, tmp_path: Path) -> Path:
    path = tmp_path / "backup.tar.gz"
    back_up(BackupInput(file=path), context(used_home))
    return path


def test_a_restored_home_lists_its_jobs_and_loads_its_adapters(used_home: Path, tmp_path: Path) -> None:
    with LadybugGraph(graph_file(load_settings(home=used_home))) as graph:
        graph.has(())
        path = tmp_path / "busy.tar.gz"
        with pytest.raises(Conflict, match="E-GRAPH-BUSY"):
            back_up(BackupInput(file=path), context(used_home))
        assert not path.exists()
    before = describe_files(used_home)
    path = tmp_path / "backup.tar.gz"
    backup = back_up(BackupInput(file=path), context(used_home))
    assert "left out: envs, models, prefect-auth-string, services" in backup_text(backup)
    shutil.rmtree(used_home)
    restored = restore(RestoreInput(file=path), context(used_home))
    assert "next: trainyard up" in restored_text(restored)
    after = describe_files(used_home)
    manifest = "adapters/acme/helper/v1/manifest.json"  # says now that the version was not run here
    out = ("prefect", "graph/", "envs/", "services/", "models/", "artifacts/.half/", "adapters/acme/helper/.lock")
    out = (*out, manifest)
    assert {name: facts for name, facts in before.items() if not name.startswith(out)} == {
        name: facts for name, facts in after.items() if not name.startswith(out)
    }
    assert {name for name in after if name.startswith(out)} == {
        "graph/knowledge.lbug", "prefect/prefect.db", "services/worker.log", manifest, "adapters/acme/helper/.lock",
    }  # fmt: skip
    assert (used_home / "artifacts" / "ab" / "empty").is_dir()
    assert (used_home / "tenants" / "acme" / "uv.lock").read_text() == "a user's file"
    assert (used_home.stat().st_mode & 0o777) == 0o700
    manager = TrainingManager(load_settings(home=used_home))
    (record,) = manager.list_jobs(JobState.PAUSED)
    assert manager.status(record.id).progress.step == 3
    registry = AdapterRegistry(used_home / "adapters")
    registry.verify(registry.live("acme", "helper") and registry.show("acme/helper"))
    with LadybugGraph(graph_file(load_settings(home=used_home))) as graph:
        assert graph.has(()) == set()


def test_the_database_is_one_moment_while_it_is_written(used_home: Path, tmp_path: Path) -> None:
    """Each transaction writes two rows: a copy with an odd count would be torn."""
    stop = threading.Event()

    def write() -> None:
        with closing(sqlite3.connect(used_home / "prefect" / "prefect.db", timeout=60)) as database:
            number = 0
            while not stop.is_set():
                database.execute("INSERT INTO runs VALUES (?), (?)", (number, number))
                database.commit()
                number += 1

    writer = threading.Thread(target=write)
    writer.start()
    for turn in range(5):
        back_up(BackupInput(file=tmp_path / f"{turn}.tar.gz"), context(used_home))
    stop.set()
    writer.join()
    shutil.rmtree(used_home)
    restore(RestoreInput(file=tmp_path / "4.tar.gz"), context(used_home))
    assert not [*used_home.glob("prefect/*-wal")]
    with closing(sqlite3.connect(used_home / "prefect" / "prefect.db")) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        ((count, different),) = database.execute("SELECT count(*), count(DISTINCT number) FROM runs")
    assert count == 2 * different > 0


def test_models_are_included_on_request(used_home: Path, tmp_path: Path) -> None:
    back_up(BackupInput(file=tmp_path / "b.tar.gz", with_models=True), context(used_home))
    with tarfile.open(tmp_path / "b.tar.gz") as archive:
        assert "home/models/big/model.safetensors" in archive.getnames()


@pytest.mark.parametrize(
    ("target", "kind", "code"),
    [
        ("there.tar.gz", Conflict, "E-FILE-EXISTS"),
        ("no/folder/b.tar.gz", NotFound, "E-BACKUP"),
        ("home/b.tar.gz", InvalidInput, "E-BACKUP"),
    ],
)
def test_a_place_that_does_not_fit_is_refused(
    used_home: Path, tmp_path: Path, target: str, kind: type[TrainyardError], code: str
) -> None:
    (tmp_path / "there.tar.gz").touch()
    with pytest.raises(kind, match=code):
        back_up(BackupInput(file=tmp_path / target), context(used_home))


def test_an_empty_home_has_nothing_to_back_up(home: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="E-BACKUP"):
        back_up(BackupInput(file=tmp_path / "b.tar.gz"), context(home))


def members(path: Path) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(path) as archive:
        for member in archive:
            stream = archive.extractfile(member)
            yield member, stream.read() if stream else b""


def change_archive(path: Path, change: Callable[[str, bytes], tuple[str, bytes] | None]) -> None:
    """Write the archive again with other members."""
    entries = list(members(path))
    with tarfile.open(path, "w:gz") as archive:
        for member, data in entries:
            new = change(member.name, data)
            if new is not None:
                member.name, member.size = new[0], len(new[1])
                archive.addfile(member, io.BytesIO(new[1]))


def damage_bytes(name: str, data: bytes) -> tuple[str, bytes] | None:
    return name, data[:-1] + b"?" if name.endswith("safetensors") else data


def lose_a_file(name: str, data: bytes) -> tuple[str, bytes] | None:
    return None if name.endswith("safetensors") else (name, data)


def lose_the_manifest(name: str, data: bytes) -> tuple[str, bytes] | None:
    return None if name == "manifest.json" else (name, data)


def lead_outside(name: str, data: bytes) -> tuple[str, bytes] | None:
    return ("home/../../outside.txt" if name.endswith("live.json") else name), data


def be_of_a_later_version(name: str, data: bytes) -> tuple[str, bytes] | None:
    return name, json.dumps({**json.loads(data), "backup": 99}).encode() if name == "manifest.json" else data


@pytest.mark.parametrize("change", [damage_bytes, lose_a_file, lose_the_manifest, lead_outside, be_of_a_later_version])
def test_a_changed_backup_is_refused_and_leaves_nothing(
    backup: Path, home: Path, tmp_path: Path, change: Callable[[str, bytes], tuple[str, bytes] | None]
) -> None:
    change_archive(backup, change)
    shutil.rmtree(home)
    with pytest.raises(Corrupt, match="E-BACKUP"):
        restore(RestoreInput(file=backup), context(home))
    assert not home.exists()
    assert not (tmp_path / ".home.restoring").exists()
    assert not (tmp_path.parent / "outside.txt").exists()


def add_member(path: Path, member: tarfile.TarInfo, data: bytes = b"") -> None:
    """Put a member before the others, and its digest into the manifest."""
    before = list(members(path))
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
        for other, content in before:
            if other.name == "manifest.json":
                manifest = json.loads(content)
                manifest["files"][member.name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
                content = json.dumps(manifest).encode()
                other.size = len(content)
            archive.addfile(other, io.BytesIO(content))


@pytest.mark.parametrize(
    "name",
    [
        "home/prefect-auth-string", "home/envs/trl/bin/python", "home/services/server.json", "home/live/jobs.sqlite3",
        "home/jobs", "home/prefect/prefect.db", "home/prefect/prefect.db/x", f"home/{'x' * 300}",
    ],
)  # fmt: skip
def test_members_that_no_backup_contains_are_refused(backup: Path, home: Path, name: str) -> None:
    """A login text, programs, records of processes; one name twice, a file as a folder, a name that is too long."""
    add_member(backup, tarfile.TarInfo(name), b"x")
    shutil.rmtree(home)
    with pytest.raises(Corrupt, match="is not a valid backup"):
        restore(RestoreInput(file=backup), context(home))
    assert not home.exists()


@pytest.mark.parametrize(
    "change", [{"files": []}, {"made": None}, {"files": {"home/x": {"sha256": 1}}}, {"home": 3}, {"more": 1}]
)
def test_a_manifest_that_no_backup_writes_is_refused(backup: Path, home: Path, change: dict[str, object]) -> None:
    def change_manifest(name: str, data: bytes) -> tuple[str, bytes]:
        return name, json.dumps({**json.loads(data), **change}).encode() if name == "manifest.json" else data

    change_archive(backup, change_manifest)
    shutil.rmtree(home)
    with pytest.raises(Corrupt, match="Its manifest is wrong at"):
        restore(RestoreInput(file=backup), context(home))
    assert not home.exists()


@pytest.mark.parametrize("kind", ["manifest", "header"])
def test_an_archive_that_would_fill_the_memory_is_refused(home: Path, tmp_path: Path, kind: str) -> None:
    """Some kilobytes that unpack to a manifest, or to the header of a long name, of 300 MB."""
    member, zeros = tarfile.TarInfo("manifest.json" if kind == "manifest" else "././@LongLink"), bytes(1 << 20)
    member.type, member.size = tarfile.REGTYPE if kind == "manifest" else tarfile.GNUTYPE_LONGNAME, 300 << 20
    with gzip.open(tmp_path / "bomb.tar.gz", "wb", compresslevel=1) as stream:
        stream.write(member.tobuf())
        for _ in range(300):
            stream.write(zeros)
    with pytest.raises(Corrupt, match=r"314,572,800 bytes"):
        restore(RestoreInput(file=tmp_path / "bomb.tar.gz"), context(home))


def test_a_restore_reports_the_tokens_and_settings_that_it_brings(used_home: Path, tmp_path: Path) -> None:
    TokenFile(used_home).create("ci", "read", "", 30)
    (used_home / "trainyard.toml").write_text("threads = 1\n")
    back_up(BackupInput(file=tmp_path / "b.tar.gz"), context(used_home))
    shutil.rmtree(used_home)
    restored = restore(RestoreInput(file=tmp_path / "b.tar.gz"), context(used_home))
    assert (restored.tokens, restored.settings) == (1, True)
    assert "its 1 access tokens are valid here now" in restored_text(restored)


@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.999])
def test_a_file_that_is_cut_is_refused(backup: Path, home: Path, keep: float) -> None:
    data = backup.read_bytes()
    backup.write_bytes(data[: int(keep if keep >= 1 else keep * len(data))])
    shutil.rmtree(home)
    with pytest.raises(Corrupt, match="is not a valid backup"):
        restore(RestoreInput(file=backup), context(home))
    assert not home.exists()


@pytest.mark.parametrize("content", [b"hello", b"{}" * 1000, b"\x1f\x8b" + bytes(100)])
def test_a_file_that_is_not_a_backup_is_refused(home: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "other").write_bytes(content)
    with pytest.raises(Corrupt, match="is not a valid backup"):
        restore(RestoreInput(file=tmp_path / "other"), context(home))


def test_a_missing_file_and_a_full_home_are_refused(backup: Path, home: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="E-BACKUP"):
        restore(RestoreInput(file=tmp_path / "none"), context(tmp_path / "elsewhere"))
    before = describe_files(home)
    with pytest.raises(Conflict, match="is not empty"):
        restore(RestoreInput(file=backup), context(home))
    assert describe_files(home) == before


def test_another_place_is_refused_and_a_link_to_it_is_not(backup: Path, home: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="Set TRAINYARD_HOME="):
        restore(RestoreInput(file=backup), context(tmp_path / "elsewhere"))
    assert not (tmp_path / "elsewhere").exists()
    shutil.rmtree(home)
    (tmp_path / "new-disk").mkdir()
    home.symlink_to(tmp_path / "new-disk")
    restore(RestoreInput(file=backup), context(home))
    assert (tmp_path / "new-disk" / "adapters").is_dir()
    assert home.is_symlink()


def command(home: Path, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TRAINYARD_HOME": str(home), **options.pop("env", {})}  # type: ignore[dict-item]
    return subprocess.run(
        [sys.executable, "-m", "trainyard", *arguments],
        env=environment, capture_output=True, text=True, check=False, **options,  # type: ignore[call-overload]
    )  # fmt: skip


@pytest.mark.parametrize("point", choose_by_default(["restore.verified"], ["restore.unpacked", "restore.verified"]))
def test_a_killed_restore_leaves_no_home_and_can_be_repeated(backup: Path, home: Path, point: str) -> None:
    before = describe_files(home / "adapters")
    shutil.rmtree(home)
    killed = command(home, "restore", str(backup), env={"TRAINYARD_FAULT": point})
    assert killed.returncode == -signal.SIGKILL
    assert not home.exists()
    assert command(home, "restore", str(backup)).returncode == 0
    restored = describe_files(home / "adapters")
    changed = {name for name, facts in restored.items() if before.get(name) != facts}
    assert {Path(name).name for name in changed} <= {"manifest.json", ".lock"}
    assert not [*home.parent.glob(".*.restoring")]


def test_a_killed_backup_has_no_name(used_home: Path, tmp_path: Path) -> None:
    killed = command(used_home, "backup", str(tmp_path / "b.tar.gz"), env={"TRAINYARD_FAULT": "backup.written"})
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "b.tar.gz").exists()


LARGEST = 100_000
"""Bytes of a file; the index of SQLite's log has 32 KiB."""


def limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST, LARGEST))


def test_a_full_disk_leaves_neither_a_backup_nor_a_home(used_home: Path, home: Path, tmp_path: Path) -> None:
    """A limit on the size of files is EFBIG, which is handled as ENOSPC is."""
    (used_home / "tenants" / "acme" / "data").write_bytes(random.Random(0).randbytes(3 * LARGEST))
    backup = tmp_path / "backup.tar.gz"
    back_up(BackupInput(file=backup), context(home))
    refused = command(home, "backup", str(tmp_path / "second.tar.gz"), preexec_fn=limit_files)
    assert refused.returncode == 6, refused.stderr
    assert "E-DISK-FULL" in refused.stderr
    shutil.rmtree(home)
    refused = command(home, "restore", str(backup), preexec_fn=limit_files)
    assert refused.returncode == 6, refused.stderr
    assert "E-DISK-FULL" in refused.stderr
    assert sorted(path.name for path in tmp_path.iterdir() if "second" in path.name or "home" in path.name) == []
