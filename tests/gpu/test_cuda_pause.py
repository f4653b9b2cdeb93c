"""A pause frees the card: the child saves, ends, and its memory is free again, in 15 seconds."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu.engine import CHECKPOINTS, config, make_job
from benchmarks.gpu.models import full_rows, write_base
from benchmarks.gpu.platform import Platform
from trainyard.backends.job import TrainingJob
from trainyard.backends.native.backend import BACKEND
from trainyard.backends.programs import command, environment
from trainyard.compute.child import SPEC_FILE
from trainyard.compute.events import Event
from trainyard.compute.gpus import MIB
from trainyard.compute.supervise import DesiredState, Outcome, Status, supervise
from trainyard.spec.axes.data import Port
from trainyard.stores.whole import write_json_durably
from trainyard.train.checkpoint.writer import find_newest

pytestmark = pytest.mark.gpu
REPOSITORY = Path(__file__).parents[2]
FREE_S, LIMIT_S = 15.0, 240.0
PAUSE_AFTER, ROWS = 3, 16
STEPS = {False: 40, True: 600}
"""Rehearsal or not -> steps; those of a tiny model take milliseconds, and a pause has to come between them."""
NOTHING_MB = 64
"""Difference of the card's memory that a driver makes."""


class Watcher:
    """Asks for a pause after a step, and notes when it was requested."""

    def __init__(self, pause_after: int | None) -> None:
        self.pause_after, self.step, self.asked_at = pause_after, 0, 0.0
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)
        if event["event"] == "progress":
            self.step = int(event["step"])

    def read_desired_state(self) -> DesiredState:
        if self.pause_after is None or self.step < self.pause_after:
            return DesiredState.RUN
        self.asked_at = self.asked_at or time.monotonic()
        return DesiredState.PAUSE


def measure_used_mb(platform: Platform) -> int:
    """Memory in use on the card by any process."""
    if platform.rehearsal:
        return 0
    free, total = torch.cuda.mem_get_info()
    return (total - free) // MIB


def run_child(job: TrainingJob, folder: Path, watcher: Watcher) -> Outcome:
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH", ""))))
    return supervise(
        command(job, BACKEND.target, folder), folder, env={**environment(job), "PYTHONPATH": path},
        desired_state=watcher.read_desired_state, on_event=watcher.on_event, budget_s=LIMIT_S, poll_s=0.1,
    )  # fmt: skip


@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_paused_training_frees_the_card_and_continues(method: str, platform: Platform, tmp_path: Path) -> None:
    """The full method saves 7 GB, the adapter little: both within the time."""
    base = write_base(tmp_path / "base", "qwen3-0.6b", platform)
    gc.collect()
    torch.cuda.empty_cache()
    length, steps = 64 if platform.rehearsal else 512, STEPS[platform.rehearsal]
    trainer_config: Any = config(platform, "sft", method, max_length=length, max_steps=steps, learning_rate=1e-5)
    job = make_job(tmp_path / "rows", base, {Port.SFT: full_rows(ROWS, length)}, trainer_config)
    folder, before = tmp_path / "work", measure_used_mb(platform)
    folder.mkdir()
    write_json_durably(folder / SPEC_FILE, job.model_dump(mode="json"))

    paused = Watcher(PAUSE_AFTER)
    outcome = run_child(job, folder, paused)
    freed_s = time.monotonic() - paused.asked_at
    assert (outcome.status, outcome.reason, outcome.killed) == (Status.STOPPED, "pause", False), outcome
    assert measure_used_mb(platform) <= before + NOTHING_MB
    assert freed_s <= FREE_S, f"{freed_s:.1f} s from the request to the free card"
    assert find_newest(folder / CHECKPOINTS, None).path is not None

    rest = Watcher(None)
    outcome = run_child(job, folder, rest)
    assert outcome.status is Status.DONE, outcome
    assert rest.step == steps
    begin_event = next(event for event in rest.events if event["event"] == "begin")
    assert begin_event["restarted_from"], "it began from the checkpoint"
    assert list((folder / "result").rglob("*.safetensors"))
