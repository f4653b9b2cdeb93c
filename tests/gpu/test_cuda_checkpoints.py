"""Checkpoints of a card: the state at the moment of the save, and a training that hardly waits for it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from benchmarks.gpu.platform import Platform
from trainyard.train.checkpoint import host_buffer
from trainyard.train.checkpoint.host_buffer import HostBuffer
from trainyard.train.checkpoint.writer import CheckpointWriter, load_checkpoint

pytestmark = pytest.mark.gpu
LARGE = 1 << 30
"""Bytes of a state whose copy into host memory is measurable: about 40 ms."""


def make_state(platform: Platform, size: int = 1 << 20) -> dict[str, torch.Tensor]:
    return {
        "a": torch.randn(size, device=platform.device),
        "b": torch.arange(7, device=platform.device),
        "c": torch.ones(3),
        "d": torch.randn(64, 64, device=platform.device, dtype=torch.bfloat16).t(),
    }


@pytest.mark.parametrize("room", [True, False])
def test_what_was_saved_comes_back_although_training_went_on(
    room: bool, platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not room:
        monkeypatch.setattr(host_buffer, "SPARE", 1e12)  # no card has the room for a copy
    tensors = make_state(platform)
    before = {name: value.cpu().clone() for name, value in tensors.items()}
    with CheckpointWriter(tmp_path) as writer:
        for step in (1, 2):
            writer.save(step, tensors, {})
        for value in tensors.values():
            value.zero_()
    for step in (1, 2):
        loaded, _ = load_checkpoint(tmp_path / f"step-{step:010d}")
        assert all(torch.equal(loaded[name], before[name]) for name in before)


def test_a_state_of_a_card_goes_through_a_copy_there_and_pinned_memory(card: Platform) -> None:
    buffer, tensors = HostBuffer(), make_state(card, 1 << 24)
    buffer.stage(tensors)
    used = torch.cuda.memory_allocated()
    assert buffer.data_N.is_pinned()
    buffer.settle()
    assert torch.cuda.memory_allocated() <= used - tensors["a"].nbytes
    assert all(torch.equal(value, tensors[name].cpu()) for name, value in buffer.tensors().items())


def test_without_room_on_the_card_no_copy_is_made_there(card: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_buffer, "SPARE", 1e12)
    buffer, tensors = HostBuffer(), make_state(card, 1 << 24)
    used = torch.cuda.memory_allocated()
    buffer.stage(tensors)
    assert torch.cuda.memory_allocated() == used
    assert all(torch.equal(value, tensors[name].cpu()) for name, value in buffer.tensors().items())


def test_training_waits_for_the_copy_on_the_card_and_not_for_the_host(card: Platform) -> None:
    buffer, tensors = HostBuffer(), {"a": torch.randn(LARGE // 4, device=card.device)}
    buffer.stage(tensors)  # takes the memory
    buffer.settle()
    card.synchronize()
    started = time.perf_counter()
    buffer.tensors()["a"].copy_(tensors["a"], non_blocking=True)
    card.synchronize()
    whole = time.perf_counter() - started
    started = time.perf_counter()
    buffer.stage(tensors)
    torch.cuda.current_stream().synchronize()
    waited = time.perf_counter() - started
    buffer.settle()
    assert waited < whole / 4, f"waited {waited:.4f} s; the way to the host takes {whole:.4f} s"
