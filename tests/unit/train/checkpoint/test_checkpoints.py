"""Checkpoints exist whole and verified, or not at all."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from trainyard.errors import TrainyardError
from trainyard.stores.whole import is_disk_full
from trainyard.train.checkpoint.checkpoints import checkpoints, commit, newest_valid, require_space


def writer(text: str = "x" * 100) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "inner").mkdir()
        (folder / "inner" / "model").write_text(text)
        (folder / "state").write_text("{}")

    return write


@contextmanager
def small_files(limit: int) -> Iterator[None]:
    """No file may grow beyond the limit: the kernel answers as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_newest_two_are_kept_and_the_newest_is_found(tmp_path: Path) -> None:
    assert newest_valid(tmp_path / "none").path is None
    for step in (5, 10, 15):
        commit(tmp_path, step, writer())
    assert [step for _, step in checkpoints(tmp_path)] == [15, 10]
    newest_whole = newest_valid(tmp_path)
    assert (newest_whole.step, newest_whole.quarantined) == (15, ())


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.sampled_from(["inner/model", "state", "manifest.json"]), st.sampled_from(["flip", "cut", "delete", "add"]))
def test_damage_of_any_file_is_found_and_put_aside(tmp_path: Path, name: str, damage: str) -> None:
    commit(tmp_path, 1, writer())
    newest = commit(tmp_path, 2, writer())
    path, content = newest / name, (newest / name).read_bytes()
    if damage == "flip":
        path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    elif damage == "cut":
        path.write_bytes(content[:-1])
    elif damage == "delete":
        path.unlink()
    else:
        (newest / "external").write_text("")
    newest_whole = newest_valid(tmp_path)
    assert newest_whole.step == 1
    assert "The checkpoint of step 2 is damaged" in newest_whole.quarantined[0]
    assert not newest.exists()
    assert (tmp_path / "quarantine").is_dir()


def test_unfinished_checkpoint_does_not_exist(tmp_path: Path) -> None:
    class Crash(BaseException):
        pass

    def die(point: str) -> None:
        if point == "checkpoint.manifest":
            raise Crash

    commit(tmp_path, 1, writer())
    with pytest.raises(Crash):
        commit(tmp_path, 2, writer(), at=die)
    assert list(tmp_path.glob(".step-*"))
    assert newest_valid(tmp_path).step == 1
    assert not list(tmp_path.glob(".step-*"))


def save_tensors(folder: Path) -> None:
    save_file({"weight": torch.zeros(1 << 16)}, folder / "adapter_model.safetensors")


def save_optimizer(folder: Path) -> None:
    torch.save({"exp_avg": torch.zeros(1 << 16)}, folder / "optimizer.pt")


def save_text(folder: Path) -> None:
    (folder / "state.json").write_text("x" * (1 << 18))


@pytest.mark.parametrize("write", [save_tensors, save_optimizer, save_text])
def test_full_disk_leaves_the_last_checkpoint_and_says_what_it_needs(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    commit(tmp_path, 1, writer())
    with (
        small_files(1 << 16),
        pytest.raises(TrainyardError, match=r"E-DISK-FULL: .* bytes are needed, [\d,]+ are free"),
    ):
        commit(tmp_path, 2, write)
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000000001"]
    assert newest_valid(tmp_path).step == 1


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    def raise_broken(_: Path) -> None:
        raise ValueError("not the disk")

    with pytest.raises(ValueError, match="not the disk"):
        commit(tmp_path, 1, raise_broken)
    assert list(tmp_path.iterdir()) == []
    assert not is_disk_full(PermissionError(13, "denied"))


def test_start_is_refused_when_the_result_could_not_be_saved(tmp_path: Path) -> None:
    require_space(tmp_path, 1)
    with pytest.raises(TrainyardError, match="E-DISK-FULL"):
        require_space(tmp_path, 1 << 62)
