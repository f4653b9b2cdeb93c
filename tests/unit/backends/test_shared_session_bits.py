"""Sessions that several processes share against the same jobs, bit for bit: with micro-batches whose rows the processes
do not divide, a schedule, clipping, two backwards a step, and a process that is killed on the way.

Each process has one thread.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from tests.small_jobs import Jobs, conversation, train_as_child
from tests.unit.backends.session_host import HostedSession, host_session, make_record
from trainyard.backends.sessions.records import SessionState, read_status
from trainyard.compute.rank_process import read_notes, running
from trainyard.compute.supervise import Status
from trainyard.data.rows import write_rows
from trainyard.settings import Settings, load_settings
from trainyard.spec.axes.data import Port
from trainyard.train.losses.table import STAGES
from trainyard.train.rows.batching import BatchPlan, choose_cut

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(900)]

STEPS = 4
HYPER = {
    "learning_rate": 1e-2, "schedule": "cosine", "warmup_ratio": 0.25, "max_steps": STEPS, "precision": "fp32",
    "max_grad_norm": 0.5,
}  # fmt: skip
LORA: dict[str, Any] = {"type": "lora", "dropout": 0.1}


@dataclass(frozen=True)
class Launch:
    """Processes, and rows of an epoch that they do not divide: its last micro-batch and its last step are smaller."""

    strategy: str
    processes: int
    rows: int

    @property
    def settings(self) -> dict[str, Any]:
        return {"strategy": self.strategy, "processes": self.processes}


LAUNCHES = [
    Launch("ddp", 2, 11),  # steps of 4 + 4 and 3 rows
    Launch("zero1", 2, 11),
    Launch("zero2", 2, 11),
    Launch("fsdp_hybrid", 4, 9),  # 4 + 4 and 1: three of four processes have no row
    Launch("ddp", 3, 8),  # 3 + 3 and 2
    Launch("zero1", 3, 8),
    Launch("zero2", 3, 8),
]
CASES = [pytest.param(launch, LORA, id=f"{launch.strategy}-{launch.processes}-lora") for launch in LAUNCHES] + [
    pytest.param(launch, {"type": "full"}, id=f"{launch.strategy}-{launch.processes}-full") for launch in LAUNCHES[:5]
]


@pytest.fixture
def here(tmp_path: Path) -> Settings:
    return load_settings(home=tmp_path / "home", threads=1)


def texts(rows: int) -> list[tuple[str, str]]:
    return [(f"What is node {n}?", f"It reads {n * n} documents{' and writes' * (n % 4)}.") for n in range(rows)]


def as_row(pair: tuple[str, str]) -> dict[str, Any]:
    question, answer = pair
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def build_job(jobs: Jobs, launch: Launch, method: dict[str, Any], folder: Path) -> Any:
    rows = folder / "rows"
    write_rows(rows / "rows.arrow", Port.SFT, [conversation(*pair) for pair in texts(launch.rows)])
    each = 2 if launch.processes == 2 else 1
    batch = {"batch_size": each, "gradient_accumulation": 2, "epochs": None, "save_steps": STEPS}
    settings = {"hyperparameters": {**HYPER, **batch}, "engine": {"batching": "padded"}}
    return replace(jobs, data={Port.SFT: rows})(backend="native", method=method, launch=launch.settings, **settings)


def list_steps(job: Any, rows: int) -> Iterator[list[list[int]]]:
    """The rows of each micro-batch of each step, as the job takes them."""
    stage = STAGES[job.config.stage.type]
    plan = BatchPlan([1] * rows, choose_cut(job.config, stage, "cpu"), stage)
    for epoch in range(STEPS):
        yield from plan.steps(epoch)


def count_units(job: Any, micros: list[list[int]], rows: int) -> int:
    """The labelled tokens of a step, which its loss is divided by."""
    stage, tokenizer = STAGES[job.config.stage.type], AutoTokenizer.from_pretrained(job.base)
    examples, _ = stage.encode([conversation(*pair) for pair in texts(rows)], tokenizer, job.config)
    return int(stage.units(stage.collate([examples[at] for micro in micros for at in micro], 0)))


def take_step(session: HostedSession, job: Any, micros: list[list[int]], rows: int) -> float:
    """A step of a session as a job takes it; returns its loss."""
    pairs, units, loss = texts(rows), count_units(job, micros, rows), 0.0
    for micro in micros:
        forward = session.call("forward", rows=[as_row(pairs[at]) for at in micro], normalizer=units)
        session.call("backward", forward_id=forward["forward_id"], measure=False)
        loss += float(forward["loss"])
    session.call("step")
    session.call("zero_grad")
    return loss


def kill_rank(session: HostedSession, rank: int) -> None:
    """Kill a process of a session; none of the others is left, and its parent has the reason."""
    pids = [note["pid"] for note in read_notes(session.folder).values()]
    os.kill(read_notes(session.folder)[rank]["pid"], signal.SIGKILL)
    outcome = session.wait(30)
    assert outcome.status is Status.FAILED
    assert outcome.error is not None
    assert outcome.error["code"] == "E-RANK-LOST"
    assert not any(map(running, pids))


@pytest.mark.parametrize(("launch", "method"), CASES)
def test_a_session_has_the_bits_of_a_job_also_after_a_kill(  # noqa: PLR0917 (a case and its fixtures)
    launch: Launch, method: dict[str, Any], jobs: Jobs, here: Settings, tiny_model: Path, tmp_path: Path
) -> None:
    job = build_job(jobs, launch, method, tmp_path)
    ran = train_as_child(job, tmp_path / "job")
    steps = list(list_steps(job, launch.rows))[:STEPS]
    assert any(len(micro) % launch.processes for step in steps for micro in step)
    record = make_record(tiny_model, launch=launch.settings, method=method, hyperparameters={**HYPER, "max_length": 40})
    with host_session(here, record) as session:
        losses = [take_step(session, job, micros, launch.rows) for micros in steps[:2]]
        session.call("save", name="mid")
        take_step(session, job, steps[3], launch.rows)  # is lost
        kill_rank(session, launch.processes - 1)
    assert read_status(here, record.id).state is SessionState.FAILED
    with host_session(here, record) as session:
        session.call("load", name="mid")
        losses += [take_step(session, job, micros, launch.rows) for micros in steps[2:]]
        result = Path(session.call("save", name="end", kind="result")["path"])
        session.close()
    assert losses == [point[1] for point in ran.record["losses"]]
    name = "adapter_model.safetensors" if method["type"] != "full" else "model.safetensors"
    weights, expected = load_file(result / name), load_file(ran.folder / name)
    assert all(torch.equal(weights[key], expected[key]) for key in expected)
