"""How long does training on a card wait for a checkpoint?

A state of 7 GB: all weights of a Qwen3 shape of 0.6 billion, with AdamW's moments. Each save follows a step that
changes every tensor; what is timed lasts until the next step could begin.

    ours        a copy on the card; a side stream brings it to pinned memory, a thread writes it
    host        the same without room on the card: training waits for pinned memory
    memcpy      the state copied into pinned memory that is there already
    torch.save  the state written before training continues, neither hashed nor synced

    python -m benchmarks.gpu stall
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.engine import assembled, config, train_steps
from benchmarks.gpu.models import full_rows, random_weights, write_config
from benchmarks.gpu.platform import PLATFORM, WHY, Platform, result_name
from benchmarks.harness import OK, Row, finish
from trainyard.backends.native.assembly import NativeRun
from trainyard.backends.native.program import save_checkpoint
from trainyard.spec.axes.data import Port
from trainyard.train.checkpoint import host_buffer
from trainyard.train.checkpoint.writer import CheckpointWriter

ROUNDS, MILLISECONDS = 5, 1000.0
NO_ROOM = 1e12
Way = Callable[[NativeRun], None]


class Ways:
    """The ways of saving a state."""

    def __init__(self, folder: Path, writer: CheckpointWriter, platform: Platform) -> None:
        self.folder, self.writer, self.platform = folder, writer, platform
        self.buffers: dict[str, torch.Tensor] = {}

    def run_ours(self, run: NativeRun) -> None:
        save_checkpoint(self.writer, run.session, run.progress)

    def host(self, run: NativeRun) -> None:
        spare, host_buffer.SPARE = host_buffer.SPARE, NO_ROOM
        try:
            save_checkpoint(self.writer, run.session, run.progress)
        finally:
            host_buffer.SPARE = spare

    def memcpy(self, run: NativeRun) -> None:
        for name, value in run.session.snapshot().flat()[0].items():
            self.buffers[name].copy_(value, non_blocking=True)

    def reserve(self, run: NativeRun) -> None:
        tensors = run.session.snapshot().flat()[0]
        pinned = not self.platform.rehearsal
        self.buffers = {
            name: torch.empty_like(value, device="cpu", pin_memory=pinned) for name, value in tensors.items()
        }

    def torch_save(self, run: NativeRun) -> None:
        torch.save(run.session.snapshot().parts, self.folder / "torch.pt")

    def table(self) -> dict[str, Way]:
        return {"ours": self.run_ours, "host": self.host, "memcpy": self.memcpy, "torch.save": self.torch_save}


def seconds_of(way: Way, run: NativeRun, platform: Platform) -> float:
    """How long training waits: until the default stream is free for the next step."""
    train_steps(run, 1)
    platform.synchronize()
    started = time.perf_counter()
    way(run)
    if not platform.rehearsal:
        torch.cuda.current_stream().synchronize()
    return time.perf_counter() - started


def measure(platform: Platform, folder: Path) -> dict[str, list[float]]:
    """Seconds that training waits, of every way, in turn."""
    base = write_config(folder / "base", "qwen3-0.6b", platform)
    length = 64 if platform.rehearsal else 512
    trainer_config: Any = config(platform, "sft", "full", max_length=length, max_steps=1000, learning_rate=1e-6)
    with random_weights():
        run = assembled(folder / "run", base, {Port.SFT: full_rows(64, length)}, trainer_config, platform)
    train_steps(run, 2)
    with CheckpointWriter(folder / "checkpoints", keep=1) as writer:
        ways = Ways(folder, writer, platform)
        ways.reserve(run)
        stalls_s: dict[str, list[float]] = {name: [] for name in ways.table()}
        for turn in range(ROUNDS + 1):
            for name, way in ways.table().items():
                seconds = seconds_of(way, run, platform)
                writer.wait()
                if turn:  # the first touches the memory
                    stalls_s[name].append(seconds)
    return stalls_s


def main() -> int:
    if PLATFORM is None:
        print(f"stall: {WHY}")
        return OK
    with tempfile.TemporaryDirectory() as folder:
        stalls_s = measure(PLATFORM, Path(folder))
    held = {name: MILLISECONDS * statistics.median(seconds) for name, seconds in stalls_s.items()}
    bars = PLATFORM.bars({"host": 0.5, "memcpy": 0.5, "torch.save": 0.1})
    metric = "ms that training waits for a save"
    rows = [Row.ratio_at_most(metric, held["ours"], held[name], name, bar) for name, bar in bars.items()]
    return finish(result_name("gpu_stall", PLATFORM), rows, {})


if __name__ == "__main__":
    sys.exit(main())
