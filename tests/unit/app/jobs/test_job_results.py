"""What a job leaves beside its metrics: checkpoints, whether they are whole, and answers to held-out prompts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.unit.surfaces.test_job_streams import JOB, JobHome
from trainyard.app.jobs.checkpoints import list_checkpoints, verify_checkpoints
from trainyard.app.jobs.samples import show_samples
from trainyard.backends.job import TrainingJob
from trainyard.errors import NotFound
from trainyard.operations.jobs import (
    CheckpointsInput,
    SamplesInput,
    VerifyInput,
    checkpoints_text,
    samples_text,
    verified_text,
)
from trainyard.spec.training import EngineSettings, TrainerConfig, resolve_trainer
from trainyard.stores.whole import file_sha256
from trainyard.train.checkpoint.checkpoints import commit


@pytest.fixture
def job_home(tmp_path: Path) -> JobHome:
    job_home = JobHome(tmp_path)
    for step in (10, 20):
        commit(job_home.work / "checkpoints", step, write_weights, facts={"metric": step / 100})
    return job_home


def write_weights(folder: Path) -> None:
    (folder / "weights.bin").write_bytes(b"weights" * 100)
    (folder / "progress.json").write_bytes(b"{}")


def test_checkpoints_are_listed_with_size_metric_and_hash(job_home: JobHome) -> None:
    newest, older = list_checkpoints(CheckpointsInput(job=JOB), job_home.context).checkpoints
    assert (newest.node, newest.name, newest.step, older.step) == ("trainer", "step-0000000020", 20, 10)
    assert (newest.files, newest.bytes, newest.metric) == (2, 702, 0.2)
    assert newest.sha256 == file_sha256(job_home.work / "checkpoints" / newest.name / "manifest.json")
    assert list_checkpoints(CheckpointsInput(job=JOB, node="other"), job_home.context).checkpoints == ()
    text = checkpoints_text(list_checkpoints(CheckpointsInput(job=JOB), job_home.context))
    assert "step-0000000020" in text
    assert newest.sha256[:12] in text


def test_a_finished_training_has_the_checkpoints_of_its_mirror_and_its_best(job_home: JobHome, tmp_path: Path) -> None:
    shutil.rmtree(job_home.work / "checkpoints")
    engine = EngineSettings(mirror=(tmp_path / "check points").as_uri())
    config = resolve_trainer(TrainerConfig(engine=engine), "base")
    job = TrainingJob(config=config, data={}, base="base", locks=str(tmp_path))
    (job_home.work / "spec.json").write_text(job.model_dump_json())
    for root, steps in ((tmp_path / "check points" / job.work_name, (20, 30)), (job_home.work / "best", (10, 20))):
        for step in steps:
            commit(root, step, write_weights, facts={"metric": None})
    checkpoints = list_checkpoints(CheckpointsInput(job=JOB), job_home.context).checkpoints
    assert [checkpoint.step for checkpoint in checkpoints] == [30, 20, 10]
    verified = verify_checkpoints(VerifyInput(job=JOB), job_home.context)
    assert [checkpoint.damage for checkpoint in verified.checkpoints] == ["", "", ""]
    (tmp_path / "check points" / job.work_name / "step-0000000030" / "weights.bin").write_bytes(b"other")
    damaged = verify_checkpoints(VerifyInput(job=JOB), job_home.context)
    assert [bool(checkpoint.damage) for checkpoint in damaged.checkpoints] == [True, False, False]


def test_a_damaged_checkpoint_is_found_and_left_where_it_is(job_home: JobHome) -> None:
    whole = verify_checkpoints(VerifyInput(job=JOB), job_home.context)
    assert [checkpoint.damage for checkpoint in whole.checkpoints] == ["", ""]
    assert whole.exit_code == 0
    weights = job_home.work / "checkpoints" / "step-0000000010" / "weights.bin"
    weights.write_bytes(b"w" + weights.read_bytes()[1:-1] + b"?")
    damaged = verify_checkpoints(VerifyInput(job=JOB, checkpoint="step-0000000010"), job_home.context)
    assert [checkpoint.damage for checkpoint in damaged.checkpoints] == [
        "weights.bin has other bytes than when it was written"
    ]
    assert damaged.exit_code == 5
    assert verified_text(damaged).startswith("trainer step-0000000010: weights.bin has other bytes")
    assert weights.is_file()


@pytest.mark.parametrize("text", ["", "[]", '{"files": 3}', '{"files": {"weights.bin": {}}}'])
def test_a_malformed_manifest_is_shown_as_missing(job_home: JobHome, text: str) -> None:
    (job_home.work / "checkpoints" / "step-0000000020" / "manifest.json").write_text(text)
    newest, older = list_checkpoints(CheckpointsInput(job=JOB), job_home.context).checkpoints
    assert (newest.sha256, newest.bytes) == ("", 0)
    assert older.bytes == 702
    assert verify_checkpoints(VerifyInput(job=JOB), job_home.context).checkpoints[0].damage


@pytest.mark.parametrize("name", ["step-0000000030", "../../..", "\x00"])
def test_a_checkpoint_that_is_not_there(job_home: JobHome, name: str) -> None:
    with pytest.raises(NotFound, match="E-NOT-FOUND: The job guide has no checkpoint"):
        verify_checkpoints(VerifyInput(job=JOB, checkpoint=name), job_home.context)


def write_samples(job_home: JobHome, *steps: int) -> None:
    for step in steps:
        job_home.step(step)
        samples = [{"prompt": "Say twice 2.", "answer": f"<b>{step}</b>"}]
        event = {"event": "samples", "time": 100.0 + step, "step": step, "samples": samples}
        job_home.write("events.jsonl", json.dumps(event) + "\n")


def test_the_newest_answers_come_first(job_home: JobHome) -> None:
    assert show_samples(SamplesInput(job=JOB), job_home.context).rounds == ()
    write_samples(job_home, 5, 10, 15)
    samples = show_samples(SamplesInput(job=JOB, limit=2), job_home.context)
    assert samples.steps == (5, 10, 15)
    assert [(round.node, round.step, round.samples[0].answer) for round in samples.rounds] == [
        ("trainer", 15, "<b>15</b>"),
        ("trainer", 10, "<b>10</b>"),
    ]
    (only,) = show_samples(SamplesInput(job=JOB, step=5), job_home.context).rounds
    assert only.samples[0].prompt == "Say twice 2."
    assert "trainer, step 15\n> Say twice 2.\n<b>15</b>" in samples_text(samples)


def test_a_restart_forgets_the_answers_beyond_its_checkpoint(job_home: JobHome) -> None:
    write_samples(job_home, 5, 10, 15)
    job_home.write("events.jsonl", json.dumps({"event": "begin", "time": 200.0, "restarted_from": {"step": 10}}) + "\n")
    assert show_samples(SamplesInput(job=JOB), job_home.context).steps == (5, 10)
    job_home.write("events.jsonl", json.dumps({"event": "begin", "time": 201.0, "restarted_from": None}) + "\n")
    assert show_samples(SamplesInput(job=JOB), job_home.context).steps == ()


@pytest.mark.parametrize("samples", [None, 3, {}, [1, None], [{"prompt": 3}]])
def test_malformed_answers_are_no_error(job_home: JobHome, samples: object) -> None:
    event = {"event": "samples", "time": "soon", "step": 1, "samples": samples}
    job_home.write("events.jsonl", json.dumps(event) + '\n{"event": "samples"\n')
    (round,) = show_samples(SamplesInput(job=JOB), job_home.context).rounds
    assert (round.step, round.time) == (1, None)
