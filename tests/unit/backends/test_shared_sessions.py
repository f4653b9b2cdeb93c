"""Sessions that several processes share: the same bits as a job, a save, a killed process, and a resume.

Each process has one thread.
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.small_jobs import Jobs, conversation, train_as_child
from tests.unit.backends.session_host import HostedSession, host_session, make_record
from trainyard.backends.sessions.records import SessionState, read_status
from trainyard.compute.rank_process import read_notes
from trainyard.compute.supervise import Status
from trainyard.data.rows import write_rows
from trainyard.errors import InvalidInput
from trainyard.settings import Settings, load_settings
from trainyard.spec.axes.data import Port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

LAUNCHES: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp", "processes": 2},
    "zero1": {"strategy": "zero1", "processes": 2},
    "zero2": {"strategy": "zero2", "processes": 2},
    "fsdp_hybrid": {"strategy": "fsdp_hybrid", "processes": 4},
}
STEPS = 3
QUESTION, ANSWER = "What is a node?", "A node reads documents and writes pairs."
ROWS = [{"messages": [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]}] * 4
"""Alike, so that a job's order of rows does not matter."""
HYPER = {"learning_rate": 1e-2, "schedule": "constant", "warmup_ratio": 0.0, "max_steps": STEPS, "precision": "fp32"}
METHOD = {"type": "lora", "dropout": 0.1}


@pytest.fixture
def here(tmp_path: Path) -> Settings:
    return load_settings(home=tmp_path / "home", threads=1)


def train_job(jobs: Jobs, launch: dict[str, Any], folder: Path) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The losses and the adapter of a job with the rows in every step."""
    batch = {"batch_size": 4 // launch["processes"], "epochs": None, "save_steps": STEPS}
    rows = folder.with_name("rows")
    write_rows(rows / "rows.arrow", Port.SFT, [conversation(QUESTION, ANSWER)] * 4)
    settings = {"hyperparameters": {**HYPER, **batch}, "engine": {"batching": "padded"}}
    job = replace(jobs, data={Port.SFT: rows})(backend="native", method=METHOD, launch=launch, **settings)
    ran = train_as_child(job, folder)
    return [point[1] for point in ran.record["losses"]], load_file(ran.folder / "adapter_model.safetensors")


def ranks_of(session: HostedSession) -> dict[int, Any]:
    return read_notes(session.folder)


@pytest.mark.parametrize(
    "strategy", [name if name == "zero2" else pytest.param(name, marks=pytest.mark.slow) for name in LAUNCHES]
)
def test_a_session_that_is_closed_and_resumed_has_the_bits_of_a_job(
    strategy: str, jobs: Jobs, here: Settings, tiny_model: Path, tmp_path: Path
) -> None:
    launch = LAUNCHES[strategy]
    losses, expected = train_job(jobs, launch, tmp_path / "job")
    record = make_record(tiny_model, launch=launch, method=METHOD, hyperparameters=HYPER)
    with host_session(here, record) as session:
        seen = [session.train_step(ROWS)["loss"]]
        assert session.close().status is Status.DONE
    with host_session(here, record) as session:
        seen += [session.train_step(ROWS)["loss"] for _ in range(2)]
        result = session.call("save", name="end", kind="result")
        adapter = load_file(Path(result["path"]) / "adapter_model.safetensors")
    assert seen == losses
    assert all(torch.equal(adapter[name], expected[name]) for name in expected)


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize("strategy", ["zero2", "ddp"])
def test_a_session_that_is_saved_killed_and_resumed_has_the_bits_of_a_job(
    strategy: str, jobs: Jobs, here: Settings, tiny_model: Path, tmp_path: Path
) -> None:
    launch = LAUNCHES[strategy]
    losses, expected = train_job(jobs, launch, tmp_path / "job")
    record = make_record(tiny_model, launch=launch, method=METHOD, hyperparameters=HYPER)
    with host_session(here, record) as session:
        seen = [session.train_step(ROWS)["loss"]]
        assert session.close().status is Status.DONE
    with host_session(here, record) as session:
        seen.append(session.train_step(ROWS)["loss"])
        session.call("save", name="mid")
        os.kill(ranks_of(session)[launch["processes"] - 1]["pid"], signal.SIGKILL)
        assert session.wait().status is Status.FAILED
    assert read_status(here, record.id).state is SessionState.FAILED
    with host_session(here, record) as session:
        assert session.status()["global_step"] == 1
        session.call("load", name="mid")
        seen.append(session.train_step(ROWS)["loss"])
        result = session.call("save", name="end", kind="result")
        adapter = load_file(Path(result["path"]) / "adapter_model.safetensors")
        session.close()
    assert seen == losses
    assert all(torch.equal(adapter[name], expected[name]) for name in expected)


def test_all_verbs_answer_and_what_processes_do_not_share_is_refused(here: Settings, tiny_model: Path) -> None:
    record = make_record(tiny_model, launch=LAUNCHES["ddp"])
    with host_session(here, record) as session:
        session.train_step(ROWS)
        completions = session.call("generate", prompts=[{"text": "a"}], sampling={"max_new_tokens": 3})["completions"]
        assert len(completions[0]["ids"]) == 3
        assert session.call("logprobs", rows=[{"text": "a node"}])["logprobs"][0][0] is None
        with pytest.raises(InvalidInput, match="E-STEP: A session of several processes takes no open_slot"):
            session.call("open_slot", name="second", seed=1)
        assert session.train_step(ROWS)["loss"] > 0
