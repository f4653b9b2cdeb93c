"""What a job leaves beside its metrics: checkpoints, whether they are whole, and answers to held-out prompts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.unit.surfaces.live.test_job_streams import JOB, JobHome
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
def place(tmp_path: Path) -> JobHome:
    place = JobHome(tmp_path)
    for step in (10, 20):
        commit(place.work / "checkpoints", step, write_weights, facts={"metric": step / 100})
    return place


def write_weights(folder: Path) -> None:
    (folder / "weights.bin").write_bytes(b"weights" * 100)
    (folder / "progress.json").write_bytes(b"{}")


def test_checkpoints_are_listed_with_size_metric_and_hash(place: JobHome) -> None:
    newest, older = list_checkpoints(CheckpointsInput(job=JOB), place.context).checkpoints
    assert (newest.node, newest.name, newest.step, older.step) == ("trainer", "step-0000000020", 20, 10)
    assert (newest.files, newest.bytes, newest.metric) == (2, 702, 0.2)
    assert newest.sha256 == file_sha256(place.work / "checkpoints" / newest.name / "manifest.json")
    assert list_checkpoints(CheckpointsInput(job=JOB, node="other"), place.context).checkpoints == ()
    text = checkpoints_text(list_checkpoints(CheckpointsInput(job=JOB), place.context))
    assert "step-0000000020" in text
    assert newest.sha256[:12] in text


def test_a_finished_training_has_the_checkpoints_of_its_mirror_and_its_best(place: JobHome, tmp_path: Path) -> None:
    shutil.rmtree(place.work / "checkpoints")
    engine = EngineSettings(mirror=(tmp_path / "check points").as_uri())
    config = resolve_trainer(TrainerConfig(engine=engine), "base")
    job = TrainingJob(config=config, data={}, base="base", locks=str(tmp_path))
    (place.work / "spec.json").write_text(job.model_dump_json())
    for root, steps in ((tmp_path / "check points" / job.work_name, (20, 30)), (place.work / "best", (10, 20))):
        for step in steps:
            commit(root, step, write_weights, facts={"metric": None})
    found = list_checkpoints(CheckpointsInput(job=JOB), place.context).checkpoints
    assert [one.step for one in found] == [30, 20, 10]
    verified = verify_checkpoints(VerifyInput(job=JOB), place.context)
    assert [one.damage for one in verified.checkpoints] == ["", "", ""]
    (tmp_path / "check points" / job.work_name / "step-0000000030" / "weights.bin").write_bytes(b"other")
    damaged = verify_checkpoints(VerifyInput(job=JOB), place.context)
    assert [bool(one.damage) for one in damaged.checkpoints] == [True, False, False]


def test_a_damaged_checkpoint_is_found_and_left_where_it_is(place: JobHome) -> None:
    whole = verify_checkpoints(VerifyInput(job=JOB), place.context)
    assert [one.damage for one in whole.checkpoints] == ["", ""]
    assert whole.exit_code == 0
    weights = place.work / "checkpoints" / "step-0000000010" / "weights.bin"
    weights.write_bytes(b"w" + weights.read_bytes()[1:-1] + b"?")
    damaged = verify_checkpoints(VerifyInput(job=JOB, checkpoint="step-0000000010"), place.context)
    assert [one.damage for one in damaged.checkpoints] == ["weights.bin has other bytes than when it was written"]
    assert damaged.exit_code == 5
    assert verified_text(damaged).startswith("trainer step-0000000010: weights.bin has other bytes")
    assert weights.is_file()


@pytest.mark.parametrize("text", ["", "[]", '{"files": 3}', '{"files": {"weights.bin": {}}}'])
def test_a_malformed_manifest_is_shown_as_missing(place: JobHome, text: str) -> None:
    (place.work / "checkpoints" / "step-0000000020" / "manifest.json").write_text(text)
    newest, older = list_checkpoints(CheckpointsInput(job=JOB), place.context).checkpoints
    assert (newest.sha256, newest.bytes) == ("", 0)
    assert older.bytes == 702
    assert verify_checkpoints(VerifyInput(job=JOB), place.context).checkpoints[0].damage


@pytest.mark.parametrize("name", ["step-0000000030", "../../..", "\x00"])
def test_a_checkpoint_that_is_not_there(place: JobHome, name: str) -> None:
    with pytest.raises(NotFound, match="E-NOT-FOUND: The job guide has no checkpoint"):
        verify_checkpoints(VerifyInput(job=JOB, checkpoint=name), place.context)


def write_samples(place: JobHome, *steps: int) -> None:
    for step in steps:
        place.step(step)
        samples = [{"prompt": "Say twice 2.", "answer": f"<b>{step}</b>"}]
        event = {"event": "samples", "time": 100.0 + step, "step": step, "samples": samples}
        place.write("events.jsonl", json.dumps(event) + "\n")


def test_the_newest_answers_come_first(place: JobHome) -> None:
    assert show_samples(SamplesInput(job=JOB), place.context).rounds == ()
    write_samples(place, 5, 10, 15)
    found = show_samples(SamplesInput(job=JOB, limit=2), place.context)
    assert found.steps == (5, 10, 15)
    assert [(one.node, one.step, one.samples[0].answer) for one in found.rounds] == [
        ("trainer", 15, "<b>15</b>"),
        ("trainer", 10, "<b>10</b>"),
    ]
    (only,) = show_samples(SamplesInput(job=JOB, step=5), place.context).rounds
    assert only.samples[0].prompt == "Say twice 2."
    assert "trainer, step 15\n> Say twice 2.\n<b>15</b>" in samples_text(found)


def test_a_restart_forgets_the_answers_beyond_its_checkpoint(place: JobHome) -> None:
    write_samples(place, 5, 10, 15)
    place.write("events.jsonl", json.dumps({"event": "begin", "time": 200.0, "restarted_from": {"step": 10}}) + "\n")
    assert show_samples(SamplesInput(job=JOB), place.context).steps == (5, 10)
    place.write("events.jsonl", json.dumps({"event": "begin", "time": 201.0, "restarted_from": None}) + "\n")
    assert show_samples(SamplesInput(job=JOB), place.context).steps == ()


@pytest.mark.parametrize("samples", [None, 3, {}, [1, None], [{"prompt": 3}]])
def test_malformed_answers_are_no_error(place: JobHome, samples: object) -> None:
    event = {"event": "samples", "time": "soon", "step": 1, "samples": samples}
    place.write("events.jsonl", json.dumps(event) + '\n{"event": "samples"\n')
    (found,) = show_samples(SamplesInput(job=JOB), place.context).rounds
    assert (found.step, found.time) == (1, None)
