"""The mirror: what is there is whole, what is fetched is verified, and a slow or broken one holds nobody up."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from trainyard.errors import InvalidInput, Unavailable
from trainyard.testing.object_server import ObjectServer
from trainyard.train.checkpoint.checkpoints import checkpoints, find_damage
from trainyard.train.checkpoint.mirror import (
    STORES,
    FolderMirror,
    fetch,
    list_mirrored_steps,
    open_store,
    prune,
    upload,
)
from trainyard.train.checkpoint.writer import CheckpointWriter, find_newest, load_checkpoint

WAIT_S = 30


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return tmp_path / "here"


@pytest.fixture
def there(tmp_path: Path) -> Path:
    return tmp_path / "the re"


def address(folder: Path) -> str:
    return folder.as_uri()


def make_state(value: float) -> dict[str, torch.Tensor]:
    return {"weights": torch.full((64,), value)}


def write(here: Path, there: Path, steps: list[int], **settings: Any) -> list[dict[str, Any]]:
    reports: list[dict[str, Any]] = []
    with CheckpointWriter(here, mirror=address(there), report=reports.append, **settings) as writer:
        for step in steps:
            writer.save(step, make_state(step), {"step": step})
            writer.wait()
    return reports


def test_every_checkpoint_is_copied_whole_and_both_places_are_pruned(here: Path, there: Path) -> None:
    points: list[str] = []
    reports = write(here, there, [1, 2, 3], at=points.append)
    assert sorted(path.name for path in there.iterdir()) == ["step-0000000002", "step-0000000003"]
    assert all(find_damage(path) is None for path in there.iterdir())
    assert [step for _, step in checkpoints(here)] == [3, 2]
    assert [(record["tier"], record["step"]) for record in reports] == [
        (tier, step) for step in (1, 2, 3) for tier in ("disk", "mirror")
    ]
    assert reports[0]["bytes"] == reports[1]["bytes"]
    assert points.count("checkpoint.mirrored") == 3


def test_lost_disk_goes_on_from_the_mirror(here: Path, there: Path) -> None:
    write(here, there, [1, 2])
    shutil.rmtree(here)
    checkpoint = find_newest(here, address(there))
    assert (checkpoint.step, checkpoint.fetched_from, checkpoint.quarantined) == (2, address(there), ())
    tensors, values = load_checkpoint(checkpoint.path or here)
    assert torch.equal(tensors["weights"], make_state(2.0)["weights"])
    assert values == {"step": 2}
    assert [path.name for path in here.iterdir()] == ["step-0000000002"]


def test_newer_checkpoint_here_is_preferred_and_nothing_is_fetched(here: Path, there: Path) -> None:
    write(here, there, [1, 2])
    shutil.rmtree(there / "step-0000000002")
    checkpoint = find_newest(here, address(there))
    assert (checkpoint.step, checkpoint.fetched_from) == (2, "")


def flip(folder: Path) -> None:
    path = folder / "state.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")


def lose(folder: Path) -> None:
    (folder / "state.json").unlink()


def scribble(folder: Path) -> None:
    (folder / "manifest.json").write_text("{")


def escape(folder: Path) -> None:
    """A manifest that names a file outside of the folder."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["../../escaped"] = manifest["files"]["state.json"]
    (folder.parent / "escaped").write_text("x")
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("damage", "damage_text"),
    [
        (flip, "state.safetensors has other bytes"),
        (lose, "state.json is missing"),
        (scribble, "its manifest cannot be read"),
        (escape, r"its manifest names '../../escaped'"),
    ],
)
def test_altered_copy_is_put_aside_and_the_one_before_it_is_used(
    here: Path, there: Path, damage: Callable[[Path], None], damage_text: str
) -> None:
    write(here, there, [1, 2])
    shutil.rmtree(here)
    damage(there / "step-0000000002")
    checkpoint = find_newest(here, address(there))
    assert (checkpoint.step, checkpoint.fetched_from) == (1, address(there))
    assert damage_text in checkpoint.quarantined[0]
    assert (here / "quarantine" / "step-0000000002").is_dir()
    assert not (here.parent / "escaped").exists()


def test_half_copied_checkpoint_does_not_exist_and_is_cleared_by_the_next(here: Path, there: Path) -> None:
    write(here, there, [1])
    torn = there / "step-0000000002"
    torn.mkdir()
    (torn / "state.safetensors").write_bytes(b"half")
    (torn / ".state.json.tmp").write_bytes(b"half")
    assert list_mirrored_steps(FolderMirror(there)) == {2: False, 1: True}
    shutil.rmtree(here)
    assert find_newest(here, address(there)).step == 1
    write(here, there, [3])
    assert sorted(path.name for path in there.iterdir()) == ["step-0000000001", "step-0000000003"]


def test_copy_of_the_same_step_is_exchanged(here: Path, there: Path) -> None:
    write(here, there, [1])
    with CheckpointWriter(here, mirror=address(there)) as writer:
        writer.save(1, make_state(5.0), {})
    assert find_damage(there / "step-0000000001") is None
    shutil.rmtree(here)
    checkpoint = find_newest(here, address(there))
    assert torch.equal(load_checkpoint(checkpoint.path or here)[0]["weights"], make_state(5.0)["weights"])


def test_mirror_that_fails_is_told_and_training_goes_on(here: Path, there: Path) -> None:
    there.write_text("a file, not a folder")
    reports = write(here, there, [1, 2, 3])
    assert [record["code"] for record in reports if record["tier"] == "mirror"] == ["E-MIRROR"] * 3
    assert find_newest(here).step == 3
    there.unlink()
    write(here, there, [4])
    assert find_newest(here, address(there)).step == 4


class Slow:
    """Holds the copy of the first checkpoint until it is told to go on."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, point: str) -> None:
        if point == "checkpoint.mirrored" and not self.reached.is_set():
            self.reached.set()
            assert self.opened.wait(WAIT_S)


def test_slow_mirror_does_not_hold_the_disk_up_and_skips_to_the_newest(here: Path, there: Path) -> None:
    slow, reports = Slow(), list[dict[str, Any]]()
    writer = CheckpointWriter(here, keep=1, mirror=address(there), at=slow, report=reports.append)
    writer.save(1, make_state(1.0), {})
    assert slow.reached.wait(WAIT_S)
    for step in (2, 3, 4, 5):
        assert writer.save(step, make_state(step), {}).waited_s < WAIT_S / 2
    deadline = time.monotonic() + WAIT_S
    while [step for _, step in checkpoints(here)] != [5, 1] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [step for _, step in checkpoints(here)] == [5, 1]
    slow.opened.set()
    writer.close()
    assert [step for _, step in checkpoints(here)] == [5]
    overtaken = [(record["step"], record["overtaken_by"]) for record in reports if "overtaken_by" in record]
    assert overtaken == [(2, 3), (3, 4), (4, 5)]
    assert [path.name for path in there.iterdir()] == ["step-0000000005"]


def test_pruning_the_mirror_goes_by_the_metric_too(here: Path, there: Path) -> None:
    store = FolderMirror(there)
    with CheckpointWriter(here, keep=9) as writer:
        for step, metric in enumerate([0.5, 0.9, 0.7], start=1):
            writer.save(step, make_state(step), {}, metric=metric)
    for path, _ in checkpoints(here):
        assert upload(store, path) == sum(file.stat().st_size for file in path.iterdir())
    prune(store, 3, keep=1, best=min)
    assert list_mirrored_steps(store) == {3: True, 1: True}


@pytest.mark.parametrize(
    "mirror", ["s3://bucket/x", "/plain/path", "backup", "file:", "file:backup", "file://host/share", "file:///"]
)
def test_address_without_a_store_is_refused_at_once(tmp_path: Path, mirror: str) -> None:
    with pytest.raises(InvalidInput, match="E-MIRROR"):
        CheckpointWriter(tmp_path, mirror=mirror)
    assert isinstance(open_store("file://localhost/backup%20disk"), FolderMirror)


def test_a_bucket_is_a_mirror_from_which_a_lost_disk_comes_back(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("google.cloud.storage", reason="needs the gcs extra")
    with ObjectServer() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        bucket, reports = "gs://weights/runs/one", []
        with CheckpointWriter(here, mirror=bucket, report=reports.append) as writer:
            for step in (1, 2, 3):
                writer.save(step, make_state(step), {"step": step})
                writer.wait()
        assert not [record for record in reports if "error" in record]
        assert list_mirrored_steps(open_store(bucket)) == {3: True, 2: True}
        shutil.rmtree(here)
        here.mkdir()
        checkpoint = find_newest(here, bucket)
        assert (checkpoint.step, checkpoint.fetched_from) == (3, bucket)
        assert checkpoint.path is not None
        assert find_damage(checkpoint.path) is None
        prune(open_store(bucket), 3, keep=1, best=min)
        assert list_mirrored_steps(open_store(bucket)) == {3: True}


class UnreadableStore(FolderMirror):
    def get(self, name: str, path: Path) -> None:
        raise ConnectionResetError(f"{name}: connection reset")


def test_mirror_that_cannot_be_read_is_an_error_not_an_older_checkpoint(
    here: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(here, there, [1, 2])
    shutil.rmtree(here / "step-0000000002")
    monkeypatch.setitem(STORES, "unreadable", lambda _: UnreadableStore(there))
    with pytest.raises(Unavailable, match=r"E-MIRROR: .*connection reset"):
        find_newest(here, "unreadable://x")
    assert [path.name for path in here.iterdir()] == ["step-0000000001"]


def test_fetch_leaves_nothing_behind(here: Path, there: Path) -> None:
    write(here, there, [1])
    shutil.rmtree(here)
    here.mkdir()
    assert fetch(FolderMirror(there), 1, here) is None
    assert [path.name for path in here.iterdir()] == ["step-0000000001"]
