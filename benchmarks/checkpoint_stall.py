"""What does a checkpoint every 20 steps cost a training?

Two hundred steps of SFT over chat rows (8 a step; a random Llama of 5.3 M parameters, all of which move: 63 MB of
weights and AdamW's moments) for each way of saving, in five rounds of forty steps. Every round has the same batches.
A save is timed from the call to its return, with everything that training waits for; and the rounds as a whole, which
also shows what the writing behind its back takes away.

    none        no checkpoints
    ours        the engine's writer: a copy in memory, then a thread that checks, hashes, writes and syncs
    torch.save  the same state, written before training goes on
    dcp         torch.distributed.checkpoint.async_save of the same state
    memcpy      one copy of as many bytes into memory that is there already: what no saving can do without

    python -m benchmarks.checkpoint_stall
"""

from __future__ import annotations

import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed import checkpoint as dcp

from benchmarks.harness import Row, alternate, finish, median
from benchmarks.sft_speed import chat_row
from benchmarks.trainers import LONGEST, assembled, build_model, chat_length, quiet, save_nothing
from trainyard.backends.native_program import Run, save_checkpoint
from trainyard.data.rows import SftRow
from trainyard.spec.axes import Port
from trainyard.train.loop import Progress, done, train
from trainyard.train.resume.tiers import bytes_of
from trainyard.train.resume.writer import CheckpointWriter, load_checkpoint, newest
from trainyard.train.session import Session

BATCH, STEPS, ROUNDS, EVERY = 8, 40, 5, 20
Save = Callable[[Session, Progress], None]
MILLISECONDS = 1000.0


class Ways:
    """The ways of saving, with the seconds that each call of each took."""

    def __init__(self, folder: Path, writer: CheckpointWriter) -> None:
        self.folder, self.writer = folder, writer
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)
        self._pending: Any = None
        self._source, self._target = torch.empty(0), torch.empty(0)

    def timed(self, name: str, work: Callable[[], object]) -> None:
        started = time.perf_counter()
        work()
        self.seconds[name].append(time.perf_counter() - started)

    def ours(self, session: Session, progress: Progress) -> None:
        self.timed("ours", lambda: save_checkpoint(self.writer, session, progress))

    def torch_save(self, session: Session, _progress: Progress) -> None:
        """Each call is preceded by the plain copy, for which this is as good a moment as any."""
        self.copy(bytes_of(session.snapshot().flat()[0]))
        path = self.folder / "torch.pt"
        self.timed("torch.save", lambda: torch.save(session.snapshot().parts, path))

    def copy(self, size: int) -> None:
        if self._source.numel() != size:
            self._source, self._target = (torch.zeros(size, dtype=torch.uint8) for _ in range(2))
        self._source.add_(1)
        self.timed("memcpy", lambda: self._target.copy_(self._source))

    def dcp(self, session: Session, _progress: Progress) -> None:
        if self._pending is not None:
            self._pending.result()
        place = self.folder / "dcp"
        shutil.rmtree(place, ignore_errors=True)

        def save() -> None:
            self._pending = dcp.async_save(session.snapshot().flat()[0], checkpoint_id=str(place), no_dist=True)

        self.timed("dcp.async_save", save)

    def settle(self) -> None:
        self.writer.wait()
        if self._pending is not None:
            self._pending.result()

    def median_ms(self, name: str) -> float:
        return MILLISECONDS * statistics.median(self.seconds[name])


def rows() -> list[SftRow]:
    """An epoch is a round."""
    chance = random.Random(0)
    return [chat_row(chance, chat_length(chance)) for _ in range(BATCH * STEPS)]


def further(run: Run, save: Save) -> Callable[[], float]:
    """Train the steps of a round, with a save after its 10th and its 30th."""

    def at_ten(session: Session, progress: Progress) -> None:
        if done(session) % EVERY:
            save(session, progress)

    def variant() -> float:
        train(
            run.session, run.feed, run.progress, total_steps=done(run.session) + STEPS, save=at_ten,
            save_steps=EVERY // 2, stop=lambda: False,
        )  # fmt: skip
        return STEPS

    return variant


def main() -> int:
    quiet()
    hyper = {"max_steps": 10_000, "batch_size": BATCH, "learning_rate": 2e-5, "max_length": LONGEST}
    config = {"stage": "sft", "method": "full", "hyperparameters": hyper}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = assembled(folder / "run", build_model(folder / "model"), Port.SFT, rows(), config)
        with CheckpointWriter(folder / "checkpoints") as writer:
            ways = Ways(folder, writer)
            saves = {"none": save_nothing, "ours": ways.ours, "torch.save": ways.torch_save, "dcp": ways.dcp}
            samples = alternate({way: further(run, save) for way, save in saves.items()}, rounds=ROUNDS)
            ways.settle()
        load_checkpoint(newest(folder / "checkpoints", None).path or folder)  # every byte compared
    wall = {way: median(taken, "wall_s") for way, taken in samples.items()}
    cpu = {way: median(taken, "cpu_s") for way, taken in samples.items()}
    blocked, every = ways.median_ms("ours"), f"every {EVERY} steps"
    table = [
        Row.ratio_at_most("blocked ms a checkpoint", blocked, ways.median_ms("memcpy"), "memcpy", 1.3),
        Row.ratio_at_most("blocked ms a checkpoint", blocked, ways.median_ms("torch.save"), "torch.save", 1),
        Row.ratio_at_most("blocked ms a checkpoint", blocked, ways.median_ms("dcp.async_save"), "dcp.async_save", 1),
        Row.ratio_at_most(f"seconds of training, saved {every}", wall["ours"], wall["none"], "never", 1.03),
        Row.ratio_at_most(f"CPU seconds, saved {every}", cpu["ours"], cpu["none"], "never", 1.03),
        Row.ratio_at_most(f"CPU seconds, saved {every}", cpu["ours"], cpu["dcp"], "dcp.async_save", 1.03),
    ]
    return finish("checkpoint_stall", table, samples)


if __name__ == "__main__":
    sys.exit(main())
