"""Work folders of the artifact store: what a killed process leaves is swept, what a living one makes is not."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainyard.spec.axes.data import Port
from trainyard.stores.artifacts import ArtifactStore, Produced, ProducedSet

KEY, OTHER = "a" * 64, "b" * 64


def make_produced(text: str) -> Produced:
    return Produced(outputs={Port.TEXT: ProducedSet(folder="text", rows=1)}, facts={"text": text})


def write(text: str, folder: Path) -> Produced:
    (folder / "text").mkdir()
    (folder / "text" / "rows.txt").write_text(text, encoding="utf-8")
    return make_produced(text)


def produce_forever(root: Path) -> None:
    def make(folder: Path) -> Produced:
        write("half", folder)
        (root / "ready").touch()
        time.sleep(600)
        raise AssertionError("the test ends this process before")

    ArtifactStore(root).produce(KEY, make)


@pytest.fixture
def producing(tmp_path: Path) -> Iterator[multiprocessing.process.BaseProcess]:
    child = multiprocessing.get_context("fork").Process(target=produce_forever, args=(tmp_path,))
    child.start()
    deadline = time.monotonic() + 30
    while not (tmp_path / "ready").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    yield child
    child.kill()
    child.join()


def work_folders(root: Path) -> list[Path]:
    return [path for path in root.glob(".*") if path.is_dir()]


def test_a_living_process_keeps_its_work_folder(tmp_path: Path, producing: multiprocessing.process.BaseProcess) -> None:
    ArtifactStore(tmp_path).produce(OTHER, lambda folder: write("whole", folder))
    assert len(work_folders(tmp_path)) == 1


def test_what_a_killed_process_left_is_swept_by_the_next_one(
    tmp_path: Path, producing: multiprocessing.process.BaseProcess
) -> None:
    assert producing.pid is not None
    os.kill(producing.pid, signal.SIGKILL)
    producing.join()
    assert len(work_folders(tmp_path)) == 1
    ArtifactStore(tmp_path).produce(OTHER, lambda folder: write("whole", folder))
    assert list(tmp_path.glob(".*")) == []


def test_replace_exchanges_a_result(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    store.produce(KEY, lambda folder: write("old", folder))
    fresh = store.produce(KEY, lambda folder: write("new", folder), replace=True)
    found_artifact = store.find(KEY)
    assert found_artifact is not None
    assert found_artifact.outputs == fresh.outputs
    assert (found_artifact.outputs[Port.TEXT].path / "rows.txt").read_text(encoding="utf-8") == "new"
    assert list(tmp_path.glob(".*")) == []


def test_a_replacement_that_fails_leaves_the_old_result(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    store.produce(KEY, lambda folder: write("old", folder))

    def fail(folder: Path) -> Produced:
        write("half", folder)
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="disk is full"):
        store.produce(KEY, fail, replace=True)
    found_artifact = store.find(KEY)
    assert found_artifact is not None
    assert found_artifact.facts == {"text": "old"}


def test_without_replace_the_first_result_is_kept(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    store.produce(KEY, lambda folder: write("old", folder))
    artifact = store.produce(KEY, lambda folder: write("new", folder))
    assert artifact.facts == {"text": "old"}
