"""A stopped training continues where it stopped, and comes out as if it had never been stopped.

A step is reported after its end was decided, so what is asked at the report of step 2 happens at the end of step 3.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.selection import choose_by_default
from tests.small_jobs import Jobs, Ran, train_as_child, train_here
from trainyard.backends.job import TrainingJob
from trainyard.backends.results import TrainingStopped
from trainyard.compute.child import Stopped
from trainyard.compute.supervise import DesiredState
from trainyard.spec.axes.data import Port


def weights(ran: Ran) -> dict[str, torch.Tensor]:
    name = "adapter_model.safetensors" if ran.folder.name == "adapter" else "model.safetensors"
    return load_file(ran.folder / name)


def assert_same_result(first: Ran, second: Ran) -> None:
    """The same loss at every step and the same weights, bit by bit."""
    assert first.record["losses"] == second.record["losses"]
    first_weights, second_weights = weights(first), weights(second)
    assert first_weights.keys() == second_weights.keys()
    assert all(torch.equal(first_weights[name], second_weights[name]) for name in first_weights)


def make_job(kind: str, jobs: Jobs, sft_run: Ran) -> TrainingJob:
    kinds: dict[str, dict[str, Any]] = {
        "lora": {"method": {"type": "lora", "dropout": 0.1}},
        "full": {"method": "full", "hyperparameters": {"gradient_accumulation": 2, "learning_rate": 1e-3}},
        "dpo": {"port": Port.PREFERENCE, "adapter": sft_run.folder},
        "kto": {"port": Port.LABELLED, "stage": "kto", "adapter": sft_run.folder},
        "reward": {"port": Port.PREFERENCE, "stage": "reward", "method": {"type": "lora", "dropout": 0.1}},
    }
    return jobs(**kinds[kind])


@pytest.mark.parametrize("kind", choose_by_default(["lora"], ["lora", "full", "dpo", "kto", "reward"]))
def test_stopped_run_ends_bit_by_bit_like_an_uninterrupted_one(
    kind: str, jobs: Jobs, sft_run: Ran, tmp_path: Path
) -> None:
    job = make_job(kind, jobs, sft_run)
    whole = train_here(job, tmp_path / "whole")
    for steps in (2, 4):
        with pytest.raises(Stopped, match="a checkpoint is saved"):
            train_here(job, tmp_path / "parts", stop_after=steps)
    parts = train_here(job, tmp_path / "parts")
    assert [event["step"] for event in parts.of("restart")] == [3, 5]
    assert parts.of("begin")[-1]["restarted_from"] == {"step": 5}
    assert_same_result(whole, parts)


@pytest.mark.slow
def test_damaged_newest_checkpoint_is_put_aside_and_the_one_before_is_used(jobs: Jobs, tmp_path: Path) -> None:
    job = jobs()
    whole = train_here(job, tmp_path / "whole")
    for steps in (2, 4):
        with pytest.raises(Stopped):
            train_here(job, tmp_path / "parts", stop_after=steps)
    (damaged,) = (tmp_path / "parts" / "checkpoints").glob("step-0000000005/checkpoint-5/optimizer.pt")
    damaged.write_bytes(damaged.read_bytes()[:-1])
    parts = train_here(job, tmp_path / "parts")
    (warning,) = parts.of("warning")
    assert warning["code"] == "E-CHECKPOINT-CORRUPT"
    assert "checkpoint of step 5 is damaged (checkpoint-5/optimizer.pt has other bytes" in warning["text"]
    assert parts.of("begin")[-1]["restarted_from"] == {"step": 3}
    assert_same_result(whole, parts)


def test_restart_without_a_checkpoint_says_that_it_starts_from_zero(jobs: Jobs, tmp_path: Path) -> None:
    job = jobs(hyperparameters={"max_steps": 3})
    with pytest.raises(Stopped):
        train_here(job, tmp_path, stop_after=1)
    for path in sorted((tmp_path / "checkpoints").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    ran = train_here(job, tmp_path)
    assert "starts again from zero" in ran.of("restart")[0]["text"]
    assert ran.of("begin")[-1]["restarted_from"] == "zero"


@pytest.mark.slow
def test_pause_of_a_supervised_run_keeps_a_checkpoint_and_the_same_job_continues(jobs: Jobs, tmp_path: Path) -> None:
    """By SIGTERM, through `run_training`, as a chain meets it."""
    job = jobs(hyperparameters={"max_steps": 150})
    reported: list[int] = []

    def pause_after_first_step() -> DesiredState:
        return DesiredState.PAUSE if reported else DesiredState.RUN

    def note(event: dict[str, Any]) -> None:
        if event["event"] == "progress":
            reported.append(event["step"])

    with pytest.raises(TrainingStopped, match=r"E-STOPPED: The training stopped at step \d+; its checkpoint") as error:
        train_as_child(job, tmp_path, desired_state=pause_after_first_step, note=note, poll_s=0.01)
    assert error.value.reason == "pause"
    (work,) = (tmp_path / "home" / "runs" / "training").iterdir()
    (checkpoint,) = (work / "checkpoints").glob("step-*")
    ran = train_as_child(job, tmp_path)
    assert ran.of("begin")[0]["restarted_from"] == {"step": int(checkpoint.name[5:])}
    assert [step for step, _, _ in ran.record["losses"]] == list(range(1, 151))
    assert sorted(path.name for path in work.iterdir()) == ["child.log", "events.jsonl", "spec.json", "work.lock"]
