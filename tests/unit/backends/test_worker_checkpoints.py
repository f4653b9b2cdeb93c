"""A worker's checkpoints are those of `stores.whole.write_folder`: same manifest, same flushes, same exchange."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from trainyard.stores.whole import MANIFEST
from trainyard.train.checkpoint import checkpoints
from trainyard.workers.trainyard_worker import files as worker

Commit = Callable[[Path, int, str], None]


def fill(folder: Path, text: str) -> None:
    (folder / "adapter" / "part").mkdir(parents=True)
    (folder / "state.json").write_text(text)
    (folder / "adapter" / "weights").write_text(text * 3)
    (folder / "adapter" / "part" / "config").write_text(text * 2)


def commit_as_worker(folder: Path, step: int, text: str) -> None:
    temporary, _ = worker.checkpoint_places(folder, step)
    temporary.mkdir(parents=True)
    fill(temporary, text)
    worker.commit(folder, step, {"step": step})


def commit_as_store(folder: Path, step: int, text: str) -> None:
    checkpoints.commit(
        folder / worker.CHECKPOINT_FOLDER, step, lambda temporary: fill(temporary, text), facts={"step": step}
    )


BOTH = pytest.mark.parametrize("commit", [commit_as_worker, commit_as_store])


def content(root: Path) -> dict[str, object]:
    """Relative name -> text, of a manifest its value."""
    paths = [path for path in sorted(root.rglob("*")) if path.is_file()]
    texts = {path.relative_to(root).as_posix(): path.read_text() for path in paths}
    return {name: json.loads(text) if name.endswith(MANIFEST) else text for name, text in texts.items()}


def test_both_leave_the_same_checkpoints(tmp_path: Path) -> None:
    for step, text in ((3, "three"), (6, "six"), (9, "nine"), (9, "nine again")):
        commit_as_worker(tmp_path / "worker", step, text)
        commit_as_store(tmp_path / "store", step, text)
        assert content(tmp_path / "worker") == content(tmp_path / "store")
    newest = checkpoints.newest_valid(tmp_path / "worker" / worker.CHECKPOINT_FOLDER)
    assert (newest.step, newest.quarantined) == (9, ())
    names = sorted(path.name for path in (tmp_path / "worker" / worker.CHECKPOINT_FOLDER).iterdir())
    assert names == ["step-0000000006", "step-0000000009"]


@BOTH
def test_everything_is_flushed_before_the_rename(
    commit: Commit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        flushed.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    commit(tmp_path, 3, "three")
    root = tmp_path / worker.CHECKPOINT_FOLDER
    names = ("state.json", "adapter", "adapter/weights", "adapter/part", "adapter/part/config")
    inside = {str(root / ".step-0000000003.tmp" / name) for name in names}
    manifest = str(root / ".step-0000000003.tmp" / f".{MANIFEST}.{os.getpid()}.tmp")
    before = flushed[: flushed.index(manifest)]
    assert inside <= set(before)
    assert flushed[-1] == str(root), "the name of the checkpoint"
    assert str(root / ".step-0000000003.tmp") in flushed[flushed.index(manifest) :], "the name of the manifest"


@BOTH
def test_an_exchange_that_was_interrupted_is_settled(commit: Commit, tmp_path: Path) -> None:
    """Between the two renames the process dies: the earlier checkpoint of that step is put back."""
    commit(tmp_path, 3, "three")
    root = tmp_path / worker.CHECKPOINT_FOLDER
    (root / "step-0000000003").rename(root / ".step-0000000003.replaced")
    assert checkpoints.newest_valid(root).step == 3
    commit(tmp_path, 3, "again")
    assert (root / "step-0000000003" / "state.json").read_text() == "again"
    assert [path.name for path in root.iterdir()] == ["step-0000000003"]
