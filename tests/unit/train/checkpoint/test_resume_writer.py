"""The background writer: what comes back is what was there when `save` was called, or an error says so."""

from __future__ import annotations

import json
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from trainyard.errors import Corrupt, TrainyardError
from trainyard.stores.whole import file_sha256
from trainyard.train.checkpoint.checkpoints import checkpoints, commit, list_prunable, newest_valid
from trainyard.train.checkpoint.host_buffer import has_room
from trainyard.train.checkpoint.writer import CheckpointWriter, find_newest, load_checkpoint

WAIT_S = 30


def make_state(value: float) -> dict[str, torch.Tensor]:
    return {
        "weights/a": torch.full((64, 8), value),
        "optimizer/step": torch.tensor(value),
        "rng": torch.get_rng_state(),
    }


def steps(root: Path) -> list[int]:
    return [step for _, step in checkpoints(root)]


def test_what_was_saved_comes_back_to_the_bit_although_training_went_on(tmp_path: Path) -> None:
    losses = [[1, 0.1, float("nan")]]
    tensors, values = make_state(1.0), {"losses": losses, "best": float("inf"), "word": "ü"}
    before = {name: value.clone() for name, value in tensors.items()}
    with CheckpointWriter(tmp_path) as writer:
        staged = writer.save(7, tensors, values)
        for value in tensors.values():
            value.zero_()
        losses.clear()
    loaded, back = load_checkpoint(find_newest(tmp_path).path or tmp_path)
    assert loaded.keys() == before.keys()
    assert all(torch.equal(loaded[name], before[name]) for name in before)
    assert json.dumps(back) == json.dumps({"losses": [[1, 0.1, float("nan")]], "best": float("inf"), "word": "ü"})
    assert (staged.step, staged.bytes) == (7, sum(value.nbytes for value in before.values()))
    assert staged.blocked_s >= staged.waited_s >= 0


DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64]
DTYPES += [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.bool]


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=12).filter(lambda name: name != "__metadata__" and name.isprintable()),
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=3)),
        max_size=6,
    )
)
def test_any_mix_of_types_and_shapes_is_a_file_that_safetensors_reads(
    tmp_path_factory: pytest.TempPathFactory, shapes: dict[str, tuple[torch.dtype, list[int]]]
) -> None:
    root = tmp_path_factory.mktemp("root")
    tensors = {name: torch.ones(shape).mul(3).to(dtype) for name, (dtype, shape) in shapes.items()}
    with CheckpointWriter(root) as writer:
        writer.save(0, tensors, {})
    loaded = load_file(root / "step-0000000000" / "state.safetensors")
    assert {name: (value.dtype, value.shape) for name, value in loaded.items()} == {
        name: (value.dtype, value.shape) for name, value in tensors.items()
    }
    assert all(bool((loaded[name].to(torch.complex64) == tensors[name].to(torch.complex64)).all()) for name in tensors)


def test_strided_and_shared_tensors_are_stored_by_value(tmp_path: Path) -> None:
    base = torch.arange(12.0).view(3, 4)
    tensors = {"whole": base, "turned": base.t(), "row": base[1], "trained": torch.nn.Parameter(base[:, 1])}
    with CheckpointWriter(tmp_path) as writer:
        writer.save(1, tensors, {})
    loaded, _ = load_checkpoint(tmp_path / "step-0000000001")
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)
    assert not loaded["trained"].requires_grad


def test_manifest_holds_the_true_digests_step_and_metric(tmp_path: Path) -> None:
    with CheckpointWriter(tmp_path) as writer:
        writer.save(3, make_state(1.0), {}, metric=0.5)
    folder = tmp_path / "step-0000000003"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["step"], manifest["metric"]) == (3, 0.5)
    for name in ("state.safetensors", "state.json"):
        size = (folder / name).stat().st_size
        assert manifest["files"][name] == {"sha256": file_sha256(folder / name), "bytes": size}


def test_points_are_passed_in_order_and_each_checkpoint_is_told_once(tmp_path: Path) -> None:
    points: list[str] = []
    reports: list[dict[str, Any]] = []
    with CheckpointWriter(tmp_path, at=points.append, report=reports.append) as writer:
        writer.save(1, make_state(1.0), {})
        writer.wait()
        writer.save(1, make_state(2.0), {})
    first = ["checkpoint.written", "checkpoint.synced", "checkpoint.manifest", "checkpoint.renamed"]
    assert points == [*first, *first[:3], "checkpoint.replaced", "checkpoint.renamed"]
    assert [(record["tier"], record["step"]) for record in reports] == [("disk", 1), ("disk", 1)]
    folder = tmp_path / "step-0000000001"
    assert reports[-1]["bytes"] == sum(path.stat().st_size for path in folder.iterdir())
    assert load_checkpoint(folder)[0]["optimizer/step"] == 2.0


class Gate:
    """Holds the background thread at a point until it is opened."""

    def __init__(self, point: str) -> None:
        self.point, self.reached, self.opened = point, threading.Event(), threading.Event()

    def __call__(self, point: str) -> None:
        if point == self.point:
            self.reached.set()
            assert self.opened.wait(WAIT_S)


def test_training_goes_on_while_one_save_is_written_and_waits_for_it_at_the_third(tmp_path: Path) -> None:
    gate = Gate("checkpoint.written")
    with CheckpointWriter(tmp_path, at=gate) as writer:
        writer.save(1, make_state(1.0), {})
        assert gate.reached.wait(WAIT_S)
        assert writer.save(2, make_state(2.0), {}).waited_s < WAIT_S / 2
        assert steps(tmp_path) == []
        threading.Timer(0.2, gate.opened.set).start()
        assert writer.save(3, make_state(3.0), {}).waited_s >= 0.1
    assert steps(tmp_path) == [3, 2]
    assert [load_checkpoint(path)[0]["optimizer/step"].item() for path, _ in checkpoints(tmp_path)] == [3.0, 2.0]


def test_newest_and_best_are_kept_and_nothing_goes_before_its_successor_is_there(tmp_path: Path) -> None:
    seen: list[list[int]] = []
    writer = CheckpointWriter(
        tmp_path, keep=2, at=lambda point: seen.append(steps(tmp_path)) if "manifest" in point else None
    )
    for step, metric in enumerate([0.9, 0.1, 0.5, float("nan"), 0.4], start=1):
        writer.save(step, make_state(step), {}, metric=metric)
    writer.close()
    assert steps(tmp_path) == [5, 4, 2]
    assert seen == [[], [1], [2, 1], [3, 2], [4, 3, 2]]
    again = CheckpointWriter(tmp_path, keep=1, best=max)
    again.save(6, make_state(6), {})
    again.close()
    assert steps(tmp_path) == [6, 5]


@given(st.dictionaries(st.integers(0, 30), st.none() | st.floats(0, 1)), st.integers(1, 4))
def test_pruning_keeps_the_newest_and_one_best(metrics: dict[int, float | None], keep: int) -> None:
    pruned = list_prunable(metrics, keep, min)
    left = sorted(metrics.keys() - set(pruned), reverse=True)
    assert left[:keep] == sorted(metrics, reverse=True)[:keep]
    assert len(left) <= keep + 1
    measured = [metric for metric in metrics.values() if metric is not None]
    assert not measured or min(measured) in [metrics[step] for step in left]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e5m2])
def test_state_with_nan_is_not_written_and_the_next_call_says_so(
    tmp_path: Path, bad: float, dtype: torch.dtype
) -> None:
    writer = CheckpointWriter(tmp_path)
    writer.save(1, make_state(1.0), {})
    broken = torch.ones(100).to(dtype)
    broken[70] = torch.tensor(bad).to(dtype)
    writer.save(2, {**make_state(2.0), "weights/b": broken}, {})
    with pytest.raises(TrainyardError, match=r"E-NON-FINITE: .*step 2 .* first in weights/b\."):
        writer.wait()
    writer.save(3, make_state(3.0), {})
    writer.close()
    assert steps(tmp_path) == [3, 1]


def test_large_but_finite_numbers_and_named_exceptions_pass_the_gate(tmp_path: Path) -> None:
    tensors = {"weights/a": torch.full((4,), 3e38), "weights/h": torch.full((4,), 6e4).half()}
    with CheckpointWriter(tmp_path, may_overflow=("gradients/",)) as writer:
        writer.save(1, {**tensors, "gradients/a": torch.tensor([float("inf")])}, {})
    assert steps(tmp_path) == [1]


@contextmanager
def small_files(limit: int) -> Iterator[None]:
    """No file may grow beyond the limit: the kernel answers as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_full_disk_is_raised_by_the_next_call_and_the_last_checkpoint_stays(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path)
    writer.save(1, make_state(1.0), {})
    writer.wait()
    with small_files(1 << 16):
        writer.save(2, {"weights": torch.zeros(1 << 16)}, {})
        with pytest.raises(TrainyardError, match=r"E-DISK-FULL: .* bytes are needed, [\d,]+ are free"):
            writer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000000001"]


def test_type_that_a_checkpoint_cannot_hold_is_refused_at_once(tmp_path: Path) -> None:
    with CheckpointWriter(tmp_path) as writer:
        with pytest.raises(TypeError, match=r"weights is torch\.complex128"):
            writer.save(1, {"weights": torch.ones(2, dtype=torch.complex128)}, {})
        writer.save(2, make_state(1.0), {})
    assert steps(tmp_path) == [2]


def test_replacing_a_checkpoint_never_loses_it(tmp_path: Path) -> None:
    class Crash(BaseException):
        pass

    def die(point: str) -> None:
        if point == "checkpoint.replaced":
            raise Crash

    with CheckpointWriter(tmp_path) as writer:
        writer.save(1, make_state(1.0), {})
    broken = CheckpointWriter(tmp_path, at=die)
    broken.save(1, make_state(2.0), {})
    with pytest.raises(Crash):
        broken.close()
    assert steps(tmp_path) == []
    assert find_newest(tmp_path).step == 1
    assert load_checkpoint(tmp_path / "step-0000000001")[0]["optimizer/step"] == 1.0
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000000001"]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["state.safetensors", "state.json"])
@pytest.mark.parametrize("damage", [flip, Path.unlink])
def test_damaged_checkpoint_is_never_loaded(tmp_path: Path, name: str, damage: Callable[[Path], None]) -> None:
    with CheckpointWriter(tmp_path) as writer:
        writer.save(1, make_state(1.0), {})
        writer.save(2, make_state(2.0), {})
    path = tmp_path / "step-0000000002"
    damage(path / name)
    with pytest.raises(Corrupt, match=f"E-CHECKPOINT-CORRUPT: The checkpoint step-0000000002 is damaged: {name}"):
        load_checkpoint(path)
    checkpoint = find_newest(tmp_path)
    assert (checkpoint.step, checkpoint.fetched_from) == (1, "")
    assert "The checkpoint of step 2 is damaged" in checkpoint.quarantined[0]


def test_checkpoint_of_another_backend_or_version_is_refused(tmp_path: Path) -> None:
    commit(tmp_path, 1, lambda folder: save_file(make_state(1.0), folder / "adapter.safetensors"))
    with pytest.raises(Corrupt, match=r"E-CHECKPOINT-MISMATCH: .* has format None; this version reads format 1"):
        load_checkpoint(newest_valid(tmp_path).path or tmp_path)


def test_reserved_memory_is_used_by_the_first_save_and_again_by_later_ones(tmp_path: Path) -> None:
    tensors = make_state(1.0)
    with CheckpointWriter(tmp_path) as writer:
        writer.reserve(tensors)
        (address,) = (buffer.data_N.data_ptr() for buffer in writer._free)
        for step in range(3):
            writer.save(step, tensors, {})
            writer.wait()
        assert [buffer.data_N.data_ptr() for buffer in writer._free] == [address]


@pytest.mark.parametrize(
    ("size", "capacity", "peak", "fits"), [(8, 100, 80, True), (8, 100, 90, False), (8, 100, 0, True), (0, 1, 1, False)]
)
def test_a_copy_on_the_gpu_needs_room_next_to_the_peak(size: int, capacity: int, peak: int, fits: bool) -> None:
    assert has_room(size, capacity, peak) is fits
