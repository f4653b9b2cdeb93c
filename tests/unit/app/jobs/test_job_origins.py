"""Of a job: the time that is left, where its results come from, and the settings in which it differs from others."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_run_nodes import JOB, KEY, RUN, Run

from trainyard.app.context import Caller
from trainyard.app.jobs.compare import compare
from trainyard.app.jobs.jobs import JobDetail, show_job
from trainyard.app.jobs.provenance import show_provenance
from trainyard.app.run_records import RunRecord, read_chain
from trainyard.backends.timings import add_timing, timing_key
from trainyard.compute.gpus import list_devices
from trainyard.errors import Corrupt, InvalidInput, NotFound, Unavailable
from trainyard.operations.jobs import CompareInput, JobInput, comparison_text, job_detail_text, provenance_text
from trainyard.spec.axes.data import Port
from trainyard.spec.estimate.timing import StepTiming
from trainyard.spec.graph import resolve
from trainyard.spec.states import JobState
from trainyard.spec.training import TrainerConfig
from trainyard.stores.artifacts import ArtifactStore, Produced, ProducedSet
from trainyard.stores.metrics import TrainingProgress

STEPS = 100
PROGRESS = tuple(TrainingProgress.model_fields)
BEFORE = ({"type": "data_source", "config": {"path": "docs"}}, {"type": "ai_generator"}, {"type": "validator"})
OTHER_RUN, OTHER_JOB = "0190d3c2-1f2e-4a3b-8c4d-5e6f70819204", "job-5e6f70819204"
TRAINER_KEY = "cd" * 32


@pytest.fixture
def run(tmp_path: Path, tiny_model: Path) -> Run:
    run = Run(tmp_path)
    run.settings = run.context.settings.model_copy(update={"default_base_model": str(tiny_model)})
    run.context = replace(run.context, settings=run.settings)
    return run


def write_chain(run: Run, run_id: str = RUN, **config: Any) -> None:
    trainer = {"type": "trainer", "config": {"hyperparameters": {"max_steps": STEPS}, **config}}
    chain = resolve({"name": "guide", "nodes": [*BEFORE, trainer]}, run.settings.default_base_model)
    RunRecord(run.settings.runs / run_id).begin(chain.model_dump(mode="json"))


def begin_training(run: Run, tmp_path: Path, began: float = 0.0, node: str = "trainer") -> Callable[..., None]:
    """Let the trainer begin; returns what writes one of its events."""
    work = tmp_path / "work"
    work.mkdir()
    training = {"node": node, "folder": str(work), "since": began, **dict.fromkeys(PROGRESS)} | {"step": 0}
    run.state(JobState.RUNNING, trainings=[training])

    def emit(event: str, **fields: Any) -> None:
        with (work / "events.jsonl").open("a") as file:
            file.write(json.dumps({"event": event, "time": fields.pop("time", time.time()), **fields}) + "\n")

    return emit


def add_measurement(run: Run, seconds_per_step: float) -> None:
    """What a training like that of the chain took on this machine."""
    chain = read_chain(run.settings.runs / RUN)
    assert chain is not None
    config = chain.node("trainer").config
    assert isinstance(config, TrainerConfig)
    key = timing_key(config, Path(run.settings.default_base_model), list_devices()[0], run.settings)
    hyper = config.hyperparameters
    measured = StepTiming(
        source="run", time=1.0, max_length=hyper.max_length, rows_per_batch=hyper.batch_size, tokens_per_row=64.0,
        rows_per_step=hyper.batch_size * hyper.gradient_accumulation, seconds_per_step=seconds_per_step,
    )  # fmt: skip
    add_timing(key, measured, run.settings)


def job_detail(run: Run) -> JobDetail:
    return show_job(JobInput(job=JOB), run.context)


def test_a_job_that_has_not_begun_or_has_ended_has_no_time_left(run: Run) -> None:
    assert job_detail(run).left == ()
    write_chain(run)
    run.state(JobState.CANCELED)
    assert job_detail(run).left == ()


def test_before_the_second_step_the_plan_says_what_is_left(run: Run, tmp_path: Path) -> None:
    write_chain(run)
    run.state(JobState.RUNNING)
    (unknown,) = job_detail(run).left
    assert (unknown.node, unknown.seconds, unknown.basis) == ("trainer", None, "unknown")
    assert "trainer: its time is not known before its second step" in job_detail_text(job_detail(run))
    add_measurement(run, 2.0)
    (waiting,) = job_detail(run).left
    assert waiting.basis == "plan"
    assert waiting.seconds is not None
    assert waiting.seconds > 0.0
    began = time.time() - 5.0
    emit = begin_training(run, tmp_path, began=began)
    emit("begin", total_steps=STEPS)
    emit("progress", step=1, loss=1.0)
    (estimate,) = job_detail(run).left
    assert estimate.basis == "plan"
    assert estimate.seconds is not None
    assert waiting.seconds - (time.time() - began) - 1 <= estimate.seconds <= waiting.seconds - 4


def test_then_the_pace_of_the_newest_steps_does(run: Run, tmp_path: Path) -> None:
    write_chain(run)
    now = time.time()
    emit = begin_training(run, tmp_path, began=now - 1000.0)
    emit("begin", total_steps=STEPS, time=now - 1000.0)
    for step in (1, 2, 3):
        emit("progress", step=step, time=now - 1000.0 + step)
    emit("begin", total_steps=STEPS, restarted_from={"step": 3}, time=now - 20.0)  # after a pause of 17 minutes
    for step in range(4, 14):
        emit("progress", step=step, time=now - 20.0 + 2.0 * (step - 3))
    (left,) = job_detail(run).left
    assert (left.basis, left.seconds_per_step) == ("steps", pytest.approx(2.0))
    assert left.seconds == pytest.approx((STEPS - 13) * 2.0, abs=1.0)
    assert "about 3 min left, at the pace of its newest steps" in job_detail_text(job_detail(run))
    run.record.emit("trainer", "finished", key=KEY)
    assert job_detail(run).left == ()


def make_adapter(folder: Path) -> Produced:
    (folder / "adapter").mkdir()
    record = {
        "stage": "sft", "method": "lora", "base_sha256": "b" * 64, "device": "cpu", "versions": {"torch": "2.9.1"},
        "hyperparameters": {"seed": 7},
        "lineage": [{"sha256": "b" * 64, "stage": None, "method": None, "parents": [], "scored_by": "d" * 64}],
        "data": {"tokens": {"read": 10, "trained": 6, "masked": 4}, "rows": {"read": 2, "trained": 2}},
    }  # fmt: skip
    (folder / "adapter" / "training.json").write_text(json.dumps(record))
    return Produced(outputs={Port.ADAPTER: ProducedSet(folder="adapter")})


def test_provenance_is_what_the_run_has_recorded(run: Run, tmp_path: Path) -> None:
    before = show_provenance(JobInput(job=JOB), run.context)
    assert (before.digest, before.trainings, provenance_text(before)) == ("", (), "it has not begun")
    write_chain(run)
    emit = begin_training(run, tmp_path)
    store = ArtifactStore(run.settings.artifacts)
    documents = store.produce(KEY, make_documents)
    run.record.emit("data-source", "reused", key=KEY, rows={"documents": 1}, facts={"documents": {"format": "md"}})
    run.record.emit("data-source", "finished", key=KEY, rows={"documents": 1}, facts={"documents": {"format": "md"}})
    emit("ledger", read=10, trained=6, masked=4, truncated=0, dropped=0, rows={"read": 2}, text="tokens: read 10")
    running = show_provenance(JobInput(job=JOB), run.context)
    (training,) = running.trainings
    assert (training.ended, training.tokens["trained"], training.rows) == (False, 6, {"read": 2})
    adapter = store.produce(TRAINER_KEY, make_adapter)
    run.record.emit("trainer", "finished", key=TRAINER_KEY, rows={}, facts={})
    provenance = show_provenance(JobInput(job=JOB), run.context)
    chain = read_chain(run.settings.runs / RUN)
    assert chain is not None
    assert (provenance.digest, provenance.chain) == (chain.digest, "guide")
    (source,) = provenance.data
    sha256 = documents.outputs[Port.DOCUMENTS].sha256
    assert (source.source, source.format, source.rows, source.sha256) == ("docs", "md", 1, sha256)
    read, trained = provenance.results
    assert (read.node, read.type, read.sha256, read.key) == ("data-source", "data_source", sha256, KEY)
    assert (trained.port, trained.sha256) == ("adapter", adapter.outputs[Port.ADAPTER].sha256)
    assert trained.needs == ("validator",)
    (training,) = provenance.trainings
    assert (training.ended, training.seed, training.versions) == (True, 7, {"torch": "2.9.1"})
    assert (training.words["base_sha256"], training.tokens["trained"]) == ("b" * 64, 6)
    assert (training.lineage[0].sha256, training.lineage[0].scored_by) == ("b" * 64, "d" * 64)
    text = provenance_text(provenance)
    assert f"chain guide {chain.digest}" in text
    assert "tokens: read 10, trained 6, masked 4" in text


def make_documents(folder: Path) -> Produced:
    (folder / "documents").mkdir()
    (folder / "documents" / "rows.jsonl").write_text('{"a": 1}\n')
    return Produced(outputs={Port.DOCUMENTS: ProducedSet(folder="documents", rows=1)})


def test_a_record_that_cannot_be_read_is_an_error_with_a_code(run: Run) -> None:
    write_chain(run)
    run.state(JobState.COMPLETED)
    output = ArtifactStore(run.settings.artifacts).produce(TRAINER_KEY, make_adapter)
    run.record.emit("trainer", "finished", key=TRAINER_KEY, rows={}, facts={})
    (output.outputs[Port.ADAPTER].path / "training.json").write_text("[]")
    with pytest.raises(Corrupt, match="E-CORRUPT"):
        show_provenance(JobInput(job=JOB), run.context)


@pytest.mark.parametrize("text", ["", "[]", '{"nodes": 3}', '{"nodes": [{"id": 1, "type": "data_source"}]}'])
def test_a_malformed_chain_is_an_error_with_a_code(run: Run, text: str) -> None:
    write_chain(run)
    run.state(JobState.COMPLETED)
    add_other(run)
    chain = run.settings.runs / OTHER_RUN / "chain.json"
    chain.write_text(text.replace("3", '"a"'))
    with pytest.raises(Corrupt, match="E-CORRUPT"):
        compare(CompareInput(job=(JOB, OTHER_JOB)), run.context)


def test_the_trials_of_a_sweep_have_no_time_left(run: Run, tmp_path: Path) -> None:
    write_chain(run)
    begin_training(run, tmp_path, node="trainer.0")
    assert job_detail(run).left == ()


def add_other(run: Run, **config: Any) -> None:
    run.state(JobState.COMPLETED, run_id=OTHER_RUN, id=OTHER_JOB, name="other", tenant="red")
    write_chain(run, OTHER_RUN, **config)


def test_jobs_differ_in_what_their_chains_became_not_in_what_was_written(run: Run) -> None:
    write_chain(run)
    run.state(JobState.COMPLETED, parameters={"job": {}})
    add_other(run, method={"type": "lora", "rank": 8}, stage="sft")  # what is the default is written out
    comparison = compare(CompareInput(job=(JOB, "other")), run.context)
    assert comparison.jobs == (JOB, OTHER_JOB)
    rank = next(setting for setting in comparison.settings if setting.name == "trainer.method.rank")
    assert rank.values == (32, 8)
    assert "trainer.stage" not in [setting.name for setting in comparison.settings]
    text = comparison_text(comparison)
    assert "trainer.method.rank" in text
    write_chain(run, OTHER_RUN, hyperparameters={"max_steps": STEPS, "seed": 42})
    same = compare(CompareInput(job=(JOB, OTHER_JOB)), run.context)
    assert same.settings == ()
    assert comparison_text(same).startswith("their settings are the same")


def test_of_another_type_the_types_are_what_differs(run: Run) -> None:
    write_chain(run)
    run.state(JobState.COMPLETED)
    add_other(run, method="full")
    settings = {
        setting.name: setting.values for setting in compare(CompareInput(job=(JOB, OTHER_JOB)), run.context).settings
    }
    assert settings["trainer.method"] == ("lora", "full")
    assert not any(name.startswith("trainer.method.") for name in settings)


def test_another_tenants_job_and_the_same_one_twice_are_not_compared(run: Run) -> None:
    write_chain(run)
    add_other(run)
    blue = replace(run.context, caller=Caller("blue", tenant="blue", remote=True))
    with pytest.raises((NotFound, Unavailable)):
        compare(CompareInput(job=(JOB, OTHER_JOB)), blue)
    with pytest.raises(InvalidInput, match="mean the same job"):
        compare(CompareInput(job=(JOB, "guide")), run.context)
