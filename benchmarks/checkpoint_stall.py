"""What does a checkpoint every 20 steps cost a training?

SFT over chat rows, 16 a step (about 2,000 tokens), all weights of a random Llama of 5.3 M parameters: a state of 63 MB.

How long training waits for one save, each after a step of training, the ways in turn:

    ours        the engine's writer: a copy in memory; a thread then checks, hashes, writes and syncs
    memcpy      the same tensors copied into memory that is there already: what no saving can do without
    torch.save  the same state written before training goes on, neither hashed nor synced
    dcp         torch.distributed.checkpoint.async_save of the same state

How long 200 steps take with a checkpoint every 20 and without any, in five rounds of 40 steps over the same rows. That
includes what the writing takes away behind training's back.

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed import checkpoint as dcp

from benchmarks.harness import Row, alternate, finish, median, size
from benchmarks.sft_speed import chat_row
from benchmarks.trainers import LONGEST, assembled, build_model, chat_length, quiet, save_nothing
from trainyard.backends.native.assembly import NativeRun
from trainyard.backends.native.program import save_checkpoint
from trainyard.data.rows import SftRow
from trainyard.spec.axes.data import Port
from trainyard.train.checkpoint.writer import CheckpointWriter, find_newest, load_checkpoint
from trainyard.train.loop import count_done, train
from trainyard.train.progress import SavedProgress
from trainyard.train.session.session import Session

BATCH, STEPS, ROUNDS, EVERY, SINGLE_SAVES = size(16, 2), size(40, 4), 5, size(20, 2), 11
MILLISECONDS = 1000.0
Save = Callable[[Session, SavedProgress], None]


class Ways:
    """The ways of saving, and how long each call of each held training up."""

    def __init__(self, folder: Path, writer: CheckpointWriter) -> None:
        self.folder, self.writer = folder, writer
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)
        self.buffers: dict[str, torch.Tensor] = {}
        self.unfinished: Any = None

    def run_ours(self, session: Session, progress: SavedProgress) -> None:
        with self.clock("ours"):
            save_checkpoint(self.writer, session, progress)

    def memcpy(self, session: Session, _progress: SavedProgress) -> None:
        tensors, _ = session.snapshot().flat()
        self.buffers = self.buffers or {name: torch.zeros_like(value) for name, value in tensors.items()}
        with self.clock("memcpy"):
            for name, value in tensors.items():
                self.buffers[name].copy_(value)

    def torch_save(self, session: Session, _progress: SavedProgress) -> None:
        with self.clock("torch.save"):
            torch.save(session.snapshot().parts, self.folder / "torch.pt")

    def dcp(self, session: Session, _progress: SavedProgress) -> None:
        path = self.folder / "dcp"
        shutil.rmtree(path, ignore_errors=True)
        with self.clock("dcp"):
            self.unfinished = dcp.async_save(session.snapshot().flat()[0], checkpoint_id=str(path), no_dist=True)

    @contextmanager
    def clock(self, way: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[way].append(time.perf_counter() - started)

    def settle(self) -> None:
        """Whatever is still being written comes to its end."""
        self.writer.wait()
        if self.unfinished is not None:
            self.unfinished.result()

    def median_ms(self, way: str) -> float:
        return MILLISECONDS * statistics.median(self.seconds[way])


def rows() -> list[SftRow]:
    """An epoch is a round."""
    chance = random.Random(0)
    return [chat_row(chance, chat_length(chance)) for _ in range(BATCH * STEPS)]


def further(run: NativeRun, steps: int, save: Save, save_steps: int) -> None:
    """Train so many steps more."""
    train(
        run.session, run.feed, run.progress, total_steps=count_done(run.session) + steps, save=save,
        save_steps=save_steps, stop=lambda: False,
    )  # fmt: skip


def a_round(run: NativeRun, save: Save) -> Callable[[], float]:
    """Forty steps with a save after the 10th and the 30th."""

    def every_other(session: Session, progress: SavedProgress) -> None:
        if count_done(session) % EVERY:
            save(session, progress)

    def variant() -> float:
        further(run, STEPS, every_other, EVERY // 2)
        return STEPS

    return variant


def single_save(run: NativeRun, save: Save, ways: Ways) -> Callable[[], float]:
    """A step, which changes every tensor of the state; a save; and its end, out of the way of the next."""

    def variant() -> float:
        further(run, 1, save_nothing, STEPS)
        save(run.session, run.progress)
        ways.settle()
        return 1

    return variant


def measure(folder: Path) -> int:
    hyper = {"max_steps": 10_000, "batch_size": BATCH, "learning_rate": 2e-5, "max_length": LONGEST}
    config = {"stage": "sft", "method": "full", "hyperparameters": hyper}
    run = assembled(folder / "run", build_model(folder / "model"), Port.SFT, rows(), config)
    with CheckpointWriter(folder / "checkpoints") as writer:
        ways = Ways(folder, writer)
        each = {"ours": ways.run_ours, "memcpy": ways.memcpy, "torch.save": ways.torch_save, "dcp": ways.dcp}
        saves = alternate({way: single_save(run, save, ways) for way, save in each.items()}, rounds=SINGLE_SAVES)
        further(run, -count_done(run.session) % STEPS, save_nothing, STEPS)  # to the end of the epoch
        saving, without = a_round(run, ways.run_ours), a_round(run, save_nothing)
        rounds = alternate({"saving": saving, "never": without}, rounds=ROUNDS, warm_up=False)
    load_checkpoint(find_newest(folder / "checkpoints", None).path or folder)  # compares every byte with its hash
    wall, cpu = ({way: median(samples, figure) for way, samples in rounds.items()} for figure in ("wall_s", "cpu_s"))
    blocked, overhead = "ms that training waits for a save", f"for 40 steps, saved every {EVERY}"
    our_ms = ways.median_ms("ours")
    table = [
        Row.ratio_at_most(blocked, our_ms, ways.median_ms("memcpy"), "memcpy", 1.3),
        Row.ratio_at_most(blocked, our_ms, ways.median_ms("torch.save"), "torch.save", 1),
        Row.ratio_at_most(blocked, our_ms, ways.median_ms("dcp"), "dcp.async_save", 1),
        Row.ratio_at_most(f"seconds {overhead}", wall["saving"], wall["never"], "never", 1.03),
        Row.ratio_at_most(f"CPU seconds {overhead}", cpu["saving"], cpu["never"], "never", 1.03),
    ]
    return finish("checkpoint_stall", table, {**saves, **rounds})


def main() -> int:
    quiet()
    with tempfile.TemporaryDirectory() as folder:
        return measure(Path(folder))


if __name__ == "__main__":
    sys.exit(main())
