"""`trainyard gc`: what is needed stays, also when the collection is killed or a run starts meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.selection import choose_by_default
from tests.unit.stores.test_artifact_folders import write
from trainyard.app.context import Context
from trainyard.app.run_records import RunRecord, RunResult
from trainyard.app.stack import gc
from trainyard.app.stack.gc import Collection, LeftoverKind, collect
from trainyard.backends.sessions.records import lock_of_session
from trainyard.compute.lease import device_lock
from trainyard.operations.stack import GcInput, gc_text
from trainyard.settings import load_settings
from trainyard.stores.adapters import AdapterRegistry
from trainyard.stores.artifacts import ArtifactStore

YEAR_S = 365 * 86_400.0
DONE, FAILED, PAUSED = (f"{letter * 8}-0000-4000-8000-000000000000" for letter in "abc")
KEYS = {
    name: letter * 64 for name, letter in zip(("done", "failed", "paused", "adapter", "free"), "12345", strict=True)
}
WORKS = {name: letter * 32 for name, letter in zip(("failed", "paused", "night"), "678", strict=True)}


def age(folder: Path) -> None:
    """Make everything below a folder a year old, files before their folders."""
    then = time.time() - YEAR_S
    for path in sorted(folder.rglob("*"), reverse=True):
        os.utime(path, (then, then), follow_symlinks=False)


def run(home: Path, run_id: str, name: str, state: str | None) -> None:
    record = RunRecord(home / "runs" / run_id)
    record.begin({"nodes": []})
    record.emit("data", "finished", key=KEYS[name])
    if name in WORKS:
        work = home / "runs" / "training" / WORKS[name]
        record.emit("trainer", "job", folder=str(work))
    if state:
        record.finish(RunResult(run_id=run_id, name=name, chain="c", digest="d", state=state, message=""))


@pytest.fixture
def old_home(home: Path) -> Path:
    """Three runs with an artifact each, two of them with a training; a night's training; an adapter; leftovers."""
    store = ArtifactStore(home / "artifacts")
    for name, key in KEYS.items():
        store.produce(key, lambda folder, name=name: write(name, folder))
    for name, work in WORKS.items():
        folder = home / "runs" / "training" / work
        (folder / "checkpoints" / "step-4").mkdir(parents=True)
        (folder / "spec.json").write_text(json.dumps({"run": {"failed": FAILED, "paused": PAUSED}.get(name, "night")}))
    run(home, DONE, "done", "completed")
    run(home, FAILED, "failed", "failed")
    run(home, PAUSED, "paused", None)
    source = home.parent / "adapter"
    source.mkdir()
    (source / "adapter_model.safetensors").write_bytes(b"weights")
    AdapterRegistry(home / "adapters").register("acme", "bot", source, facts={"trainer": KEYS["adapter"]})
    for name in ("quarantine/set.quarantine.jsonl", "services/worker.log.1", "services/worker.log", "envs/.trl-1/x"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("x")
    (home / "envs" / ".trl-2").mkdir()
    (home / "envs" / "trl").symlink_to(".trl-2")
    age(home)
    return home


def list_leftovers(home: Path, ended: Iterable[str]) -> dict[LeftoverKind, list[str]]:
    names: dict[LeftoverKind, list[str]] = {}
    for leftover in Collection(load_settings(home=home), 30, lambda ids: set(ids) & set(ended)).look():
        names.setdefault(leftover.kind, []).append(leftover.path.name)
    return names


def test_what_ended_runs_alone_need_goes_and_nothing_else(old_home: Path) -> None:
    assert list_leftovers(old_home, [DONE, FAILED]) == {
        LeftoverKind.RUN: [DONE, FAILED],
        LeftoverKind.TRAINING: [WORKS["failed"]],
        LeftoverKind.ARTIFACT: [KEYS["done"], KEYS["failed"], KEYS["free"]],
        LeftoverKind.QUARANTINE: ["set.quarantine.jsonl"],
        LeftoverKind.LOG: ["worker.log.1"],
        LeftoverKind.ENVIRONMENT: [".trl-1"],
    }


def test_sessions_go_unless_one_is_running_or_has_saved_something(home: Path) -> None:
    settings = load_settings(home=home)
    names = {
        state: f"session-{letter * 12}" for state, letter in zip(("ended", "saved", "running"), "abc", strict=True)
    }
    for name in names.values():
        folder = home / "sessions" / name
        (folder / "saved").mkdir(parents=True)
        (folder / "session.json").write_text("{}")
    (home / "sessions" / names["saved"] / "saved" / "one").mkdir()
    (home / "live" / "curves").mkdir(parents=True)
    (home / "live" / "curves" / "a.sqlite3").touch()
    age(home)
    (home / "live" / "curves" / "b.sqlite3").touch()
    with device_lock(lock_of_session(settings, names["running"])):
        assert list_leftovers(home, []) == {LeftoverKind.SESSION: [names["ended"]], LeftoverKind.CURVE: ["a.sqlite3"]}
        collection = Collection(settings, 30, lambda _: set())
        assert not collection.remove_session(home / "sessions" / names["running"])
    collect(GcInput(days=30), Context(settings, say=print))
    assert sorted(path.name for path in (home / "sessions").glob("session-*")) == [names["saved"]]
    assert [path.name for path in (home / "live" / "curves").iterdir()] == ["b.sqlite3"]


def test_without_a_server_only_completed_runs_have_ended(old_home: Path) -> None:
    names = list_leftovers(old_home, [])
    assert names[LeftoverKind.RUN] == [DONE]
    assert names[LeftoverKind.ARTIFACT] == [KEYS["done"], KEYS["free"]]
    assert LeftoverKind.TRAINING not in names


def test_what_was_used_lately_stays(old_home: Path) -> None:
    assert ArtifactStore(old_home / "artifacts").find(KEYS["free"])
    RunRecord(old_home / "runs" / DONE).emit("data", "note", text="again")
    names = list_leftovers(old_home, [DONE])
    assert LeftoverKind.RUN not in names
    assert LeftoverKind.ARTIFACT not in names


def test_an_artifact_that_a_kept_one_names_stays(old_home: Path) -> None:
    manifest = old_home / "artifacts" / KEYS["paused"][:2] / KEYS["paused"] / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"text": "paused"', f'"text": "{KEYS["free"]}"'))
    age(old_home)
    assert KEYS["free"] not in list_leftovers(old_home, [DONE, FAILED])[LeftoverKind.ARTIFACT]


def test_a_dry_run_says_how_much_and_removes_nothing(old_home: Path) -> None:
    before = sorted(old_home.rglob("*"))
    preview = collect(GcInput(dry_run=True), Context(load_settings(home=old_home), say=lambda _text: None))
    assert sorted(old_home.rglob("*")) == before
    assert preview.bytes == sum(item.bytes for item in preview.items) > 0
    assert set(preview.open_runs) == {FAILED, PAUSED}
    assert "would be removed" in gc_text(preview)
    done = collect(GcInput(), Context(load_settings(home=old_home), say=lambda _text: None))
    assert [item.path for item in done.items] == [item.path for item in preview.items]
    assert not any(item.path.exists() for item in done.items)
    assert "nothing is older than 30 days" in gc_text(
        collect(GcInput(), Context(load_settings(home=old_home), say=lambda _text: None))
    )


def command(home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trainyard", "gc", "--json"],
        env={**os.environ, "TRAINYARD_HOME": str(home), **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("passes", choose_by_default([1], [1, 2]))
@pytest.mark.parametrize("point", ["gc.renamed", "gc.removed"])
def test_a_killed_collection_leaves_everything_whole(old_home: Path, point: str, passes: int) -> None:
    assert command(old_home, TRAINYARD_FAULT=f"{point}#{passes}").returncode == -signal.SIGKILL
    store = ArtifactStore(old_home / "artifacts")
    for name in ("failed", "paused", "adapter"):
        assert store.folder(KEYS[name]).is_dir()
    for key in KEYS.values():
        assert store.find(key) is not None or not store.folder(key).exists()
    age(old_home)
    assert command(old_home).returncode == 0
    assert not [*old_home.glob("*/.removing/*")]
    assert {path.name for path in old_home.glob("artifacts/??/*")} == {KEYS[n] for n in ("failed", "paused", "adapter")}
    assert (old_home / "runs" / "training" / WORKS["paused"] / "checkpoints" / "step-4").is_dir()


def test_a_run_that_starts_meanwhile_keeps_what_it_finds(old_home: Path) -> None:
    """A finder either has the whole result, or there is none and it makes it again."""
    store, folder = ArtifactStore(old_home / "artifacts"), ArtifactStore(old_home / "artifacts").folder(KEYS["free"])
    collection = Collection(load_settings(home=old_home), 30, lambda _ids: set())
    (leftover,) = [candidate for candidate in collection.look() if candidate.path == folder]
    assert store.find(KEYS["free"]) is not None
    assert collection.remove(leftover) is False
    assert store.find(KEYS["free"]) is not None

    lost, stop = [], threading.Event()

    def use() -> None:
        while not stop.is_set():
            if store.find(KEYS["done"]) is None:
                store.produce(KEYS["done"], lambda target: write("done", target))
            lost.append(not (store.folder(KEYS["done"]) / "text" / "rows.txt").is_file())

    age(old_home)
    items = [*Collection(load_settings(home=old_home), 30, lambda _ids: set()).look()]
    user = threading.Thread(target=use)
    user.start()
    for item in items:
        collection.remove(item)
    stop.set()
    user.join()
    assert lost
    assert not any(lost)


def test_a_training_that_is_running_again_stays(old_home: Path) -> None:
    settings = load_settings(home=old_home)
    collection = Collection(settings, 30, lambda ids: set(ids) & {FAILED})
    items = [item for item in collection.look() if item.kind is LeftoverKind.TRAINING]
    with device_lock(settings.services / "works" / f"{WORKS['failed']}.lock"):
        assert [collection.remove(item) for item in items] == [False]
    assert [collection.remove(item) for item in items] == [True]


def test_a_run_that_is_resumed_between_look_and_removal_stays(old_home: Path) -> None:
    answers = [{FAILED}, set[str]()]
    collection = Collection(load_settings(home=old_home), 30, lambda _ids: answers.pop(0))
    (item,) = [candidate for candidate in collection.look() if candidate.path.name == FAILED]
    assert collection.remove(item) is False
    assert item.path.is_dir()


def test_an_earlier_home_loses_neither_its_paused_training_nor_its_adapter(tmp_path: Path) -> None:
    with tarfile.open(REPOSITORY / "tests" / "resources" / "homes" / "4b25bfd.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    home = tmp_path / "home"
    (record,) = home.glob("jobs/*.json")
    record.write_text(record.read_text().replace("/srv/trainyard", str(tmp_path)))
    age(home)
    before = {path for path in home.rglob("*") if "training" in path.parts or "adapters" in path.parts}
    collect(GcInput(days=1), Context(load_settings(home=home), say=lambda _text: None))
    assert {path for path in before if not path.exists()} == set()
    (version,) = AdapterRegistry(home / "adapters").list()
    AdapterRegistry(home / "adapters").verify(version)


def test_a_home_that_is_not_there_has_nothing_to_remove(home: Path) -> None:
    context = Context(load_settings(home=home), say=lambda _text: None)
    assert collect(GcInput(dry_run=True), context).items == ()
    assert not home.exists(), "a look makes nothing"


def test_space_that_another_name_keeps_is_not_counted(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100)
    assert gc.measure_size(tmp_path / "a") == 100
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    assert gc.measure_size(tmp_path) == 0
