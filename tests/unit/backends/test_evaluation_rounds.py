"""Evaluation during training, on real small trainings: it stops early, keeps the best, and disturbs nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from nodes.summaries import training
from tests.small_jobs import Jobs, Ran, conversation, train_here
from trainyard.backends.job import TrainingJob
from trainyard.backends.results import early_stop_text
from trainyard.compute.child import Stopped
from trainyard.data.rows import SftRow, write_rows
from trainyard.errors import Corrupt, InvalidInput
from trainyard.spec.axes.data import Port
from trainyard.stores.artifacts import NodeOutput

pytestmark = pytest.mark.integration

NATIVE: dict[str, Any] = {"backend": "native"}
OVERFIT = {"epochs": 40, "learning_rate": 2e-2, "batch_size": 4, "warmup_ratio": 0.0}


@pytest.fixture(scope="module")
def memorable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen rows to learn by heart, and six others in their held-out set, whose answers nothing leads to."""
    folder = tmp_path_factory.mktemp("memorable")
    write_rows(folder / "rows.arrow", Port.SFT, make_rows("reads", range(16)))
    write_rows(folder / "heldout" / "unseen_documents.arrow", Port.SFT, make_rows("writes", range(20, 26)))
    return folder


def make_rows(verb: str, numbers: range) -> list[SftRow]:
    return [conversation(f"What is node {n}?", f"The node {n} {verb} {n * n * 7 % 31} pairs.") for n in numbers]


def overfitting(jobs: Jobs, data: Path, **settings: Any) -> TrainingJob:
    """A training that learns its rows by heart, evaluated on others every second step."""
    eval_settings = {"set": "unseen_documents", "steps": 2, **settings}
    job = jobs(**NATIVE, method={"type": "lora", "dropout": 0.1}, hyperparameters=OVERFIT, eval=eval_settings)
    return job.model_copy(update={"data": {Port.SFT: str(data)}})


def weights(ran: Ran) -> dict[str, torch.Tensor]:
    return load_file(ran.folder / "adapter_model.safetensors")


def weights_at(folder: Path, step: int) -> dict[str, torch.Tensor]:
    """The adapter in a checkpoint, by the names of an adapter's file."""
    state = load_file(folder / "checkpoints" / f"step-{step:010d}" / "state.safetensors")
    named = ((name.partition("/parameter/")[2], value) for name, value in state.items())
    return {name.replace(".default.", "."): value for name, value in named if ".lora_" in name}


def equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_evaluations_begin_behind_the_warm_up(jobs: Jobs, memorable: Path, tmp_path: Path) -> None:
    hyper = {"max_steps": 8, "warmup_steps": 3}
    job = jobs(**NATIVE, hyperparameters=hyper, eval={"set": "unseen_documents", "steps": 1})
    job = job.model_copy(update={"data": {Port.SFT: str(memorable)}})
    ran = train_here(job, tmp_path / "whole")
    assert [event["step"] for event in ran.of("evaluation")] == [4, 5, 6, 7, 8]
    assert "Evaluations begin at step 4: the warm-up ends with step 3." in [
        warning["text"] for warning in ran.of("warning")
    ]
    with pytest.raises(Stopped):
        train_here(job.model_copy(update={"until": 2}), tmp_path / "rung")
    lines = (tmp_path / "rung" / "events.jsonl").read_text().splitlines()
    assert [event["step"] for event in map(json.loads, lines) if event["event"] == "evaluation"] == [2]


def test_a_training_that_overfits_ends_early_with_its_best_weights(jobs: Jobs, memorable: Path, tmp_path: Path) -> None:
    ran = train_here(overfitting(jobs, memorable, patience=4, load_best=True), tmp_path / "best")
    evaluation = ran.record["evaluation"]
    best, last = evaluation["best"], evaluation["last"]
    assert evaluation["stopped_early"]
    assert (
        evaluation["result_step"] == evaluation["best_step"] == best["step"] < last["step"] == ran.record["steps"] < 160
    )
    assert best["loss"] < last["loss"] - 0.01
    assert ran.of("early_stop")[0]["text"] == f"stopped early at step {last['step']}, best at step {best['step']}"
    at_best = next(event for event in ran.of("progress") if event["step"] == best["step"])
    assert at_best["eval_loss"] == best["loss"]
    facts = {**ran.record, "evaluation": evaluation}
    assert early_stop_text(facts) == ran.of("early_stop")[0]["text"]
    line = training(NodeOutput(key="", outputs={}, facts=facts))
    assert line.endswith(f"best held-out loss {best['loss']:.3f} at step {best['step']}, {early_stop_text(facts)}")
    result = weights(ran)
    assert equal(result, weights_at(tmp_path / "best", best["step"]))
    (newest,) = sorted((tmp_path / "best" / "checkpoints").glob("step-*"))[-1:]
    assert int(newest.name.removeprefix("step-")) >= best["step"]


def test_evaluation_changes_no_bit_of_the_training(jobs: Jobs, memorable: Path, tmp_path: Path) -> None:
    """With dropout on: an evaluation that drew a number, or left the model in another mode, would show."""
    short = {**OVERFIT, "epochs": None, "max_steps": 8}
    job = overfitting(jobs, memorable, samples=2, sample_tokens=4)
    plain = job.config.model_copy(update={"hyperparameters": job.config.hyperparameters.model_copy(update=short)})
    evaluated = train_here(job.model_copy(update={"config": plain}), tmp_path / "evaluated")
    without = plain.model_copy(update={"eval": None})
    alone = train_here(job.model_copy(update={"config": without}), tmp_path / "alone")
    assert evaluated.record["losses"] == alone.record["losses"]
    assert equal(weights(evaluated), weights(alone))
    assert [event["step"] for event in evaluated.of("evaluation")] == [2, 4, 6, 8]
    samples = evaluated.of("samples")[0]["samples"]
    assert len(samples) == 2
    assert all("node" in sample["prompt"] and isinstance(sample["answer"], str) for sample in samples)


@pytest.mark.parametrize("stops", [(2, 5), (3, 6)], ids=["after an evaluation", "between two"])
def test_stopped_run_evaluates_and_ends_as_an_uninterrupted_one(
    stops: tuple[int, ...], jobs: Jobs, memorable: Path, tmp_path: Path
) -> None:
    job = overfitting(jobs, memorable, patience=2, load_best=True, keep_best=2)
    whole = train_here(job, tmp_path / "whole")
    for steps in stops:
        with pytest.raises(Stopped, match="a checkpoint is saved"):
            train_here(job, tmp_path / "parts", stop_after=steps)
    parts = train_here(job, tmp_path / "parts")
    assert parts.record["losses"] == whole.record["losses"]
    assert parts.record["evaluation"] == whole.record["evaluation"]
    assert parts.record["evaluation"]["stopped_early"]
    assert equal(weights(parts), weights(whole))


def test_best_checkpoints_are_kept_and_the_newest_too(jobs: Jobs, memorable: Path, tmp_path: Path) -> None:
    ran = train_here(overfitting(jobs, memorable, patience=6, keep_best=3), tmp_path)
    losses = {int(row["step"]): row["loss"] for row in ran.record["evaluation"]["found"]}
    checkpoint_steps = {int(path.name.removeprefix("step-")) for path in (tmp_path / "checkpoints").glob("step-*")}
    best = sorted(losses, key=lambda step: losses[step])[:3]
    assert set(best) <= checkpoint_steps
    assert len(checkpoint_steps) <= 5
    manifest = json.loads((tmp_path / "checkpoints" / f"step-{best[0]:010d}" / "manifest.json").read_text())
    assert manifest["metric"] == losses[best[0]]
    assert ran.record["evaluation"]["result_step"] == ran.record["steps"]


def test_a_share_of_the_rows_is_evaluated_and_never_trained(jobs: Jobs, tmp_path: Path) -> None:
    ran = train_here(jobs(**NATIVE, eval={"share": 0.2}, hyperparameters={"epochs": 1}), tmp_path)
    rows = ran.record["data"]["rows"]
    held_out = rows["held_out"]
    assert rows["read"] + held_out == 30
    assert 6 <= held_out <= 8  # two rows are in the set twice, and equal rows stay together
    assert ran.record["rows"] == {"trained": rows["trained"]}
    assert 0 < ran.record["evaluation"]["rows"] <= held_out


@pytest.mark.parametrize("stage", ["dpo", "reward", "kto"])
def test_preferences_are_evaluated_by_accuracy_and_margin(stage: str, jobs: Jobs, tmp_path: Path) -> None:
    port = Port.LABELLED if stage == "kto" else Port.PREFERENCE
    eval_settings = {"share": 0.3, "metric": "eval_reward_accuracy", "load_best": True, "steps": "epoch"}
    hyper = {"epochs": 4, "learning_rate": 5e-3}
    ran = train_here(jobs(port, **NATIVE, stage=stage, eval=eval_settings, hyperparameters=hyper), tmp_path)
    evaluation = ran.record["evaluation"]
    assert len(evaluation["found"]) == 4
    assert evaluation["best"]["reward_accuracy"] == max(row["reward_accuracy"] for row in evaluation["found"]) > 0.5
    assert ran.of("progress")[-1]["eval_reward_margin"] == evaluation["last"]["reward_margin"]
    assert {"eval_loss", "eval_reward_accuracy"} <= ran.of("progress")[-1].keys()


def test_a_set_that_is_not_there_and_a_share_that_leaves_nothing_are_refused(jobs: Jobs, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no rows in its held-out set unseen_wording"):
        train_here(jobs(**NATIVE, eval={"set": "unseen_wording"}), tmp_path / "set")
    write_rows(tmp_path / "one" / "rows.arrow", Port.SFT, make_rows("reads", range(1)) * 3)
    job = jobs(**NATIVE, eval={}).model_copy(update={"data": {Port.SFT: str(tmp_path / "one")}})
    with pytest.raises(InvalidInput, match="No row can be held out"):
        train_here(job, tmp_path / "share")


def test_a_best_checkpoint_that_is_gone_is_an_error_and_not_the_last_weights(
    jobs: Jobs, memorable: Path, tmp_path: Path
) -> None:
    job = overfitting(jobs, memorable, patience=4, load_best=True)
    # Which step is the best one depends on how the processor rounds.
    best_step = train_here(job, tmp_path / "whole").record["evaluation"]["best_step"]
    with pytest.raises(Stopped):
        train_here(job, tmp_path / "again", stop_after=best_step + 3)
    best = tmp_path / "again" / "checkpoints" / f"step-{best_step:010d}"
    best.rename(tmp_path / "gone")
    with pytest.raises(Corrupt, match="best checkpoint"):
        train_here(job, tmp_path / "again")
