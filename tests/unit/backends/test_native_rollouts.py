"""Stages ppo and grpo as whole trainings: their rewards and critics, what is saved, and what continues."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from tests.small_jobs import Jobs, Ran, train_here
from trainyard.backends.job import TrainingJob, find_judge
from trainyard.backends.rewarding import find_scorer, make_panel
from trainyard.compute.child import Stopped
from trainyard.data.rows import ROWS_FILE, Message, PromptRow, SftRow, write_rows
from trainyard.errors import InvalidInput
from trainyard.settings import load_settings
from trainyard.spec.axes.data import Port
from trainyard.testing.scripted_server import ScriptedServer, ok, status
from trainyard.train.rl.reward_model import RewardModelScorer, load_reward_model
from trainyard.train.rl.rewards import SampledCompletion
from trainyard.train.rows.prompts import encode_prompts

SCORED = {"rewards": [{"type": "reward_model"}], "num_generations": 2, "max_completion_length": 6}
CHECKED = {**SCORED, "rewards": [{"type": "contains", "text": "a"}, {"type": "length", "target_tokens": 3}]}
HYPER = {"batch_size": 4, "max_steps": 5, "learning_rate": 1e-3, "save_steps": 2}


@pytest.fixture(scope="module")
def scorer(jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The adapter of a small reward model."""
    job = jobs(port=Port.PREFERENCE, backend="native", stage="reward", hyperparameters={"max_steps": 3})
    return train_here(job, tmp_path_factory.mktemp("reward")).folder


def make_job(jobs: Jobs, stage: dict[str, Any], scorer: Path | None = None, **config: Any) -> TrainingJob:
    job = jobs(**{"backend": "native", "stage": stage, "hyperparameters": HYPER, **config})
    changes = {"reward_model": str(scorer), "reward_sha256": "ab" * 32} if scorer else {}
    return job.model_copy(update=changes)


def weights(ran: Ran) -> dict[str, torch.Tensor]:
    (path,) = ran.folder.glob("*model*.safetensors")
    return load_file(path)


@pytest.mark.parametrize("method", ["lora", "full"])
def test_ppo_learns_from_a_reward_model_and_leaves_its_critic_behind(
    method: str, jobs: Jobs, scorer: Path, tmp_path: Path
) -> None:
    ran = train_here(make_job(jobs, {"type": "ppo", **SCORED}, scorer, method=method), tmp_path)
    steps = ran.of("progress")
    assert len(steps) == 5
    assert {"reward", "reward_reward_model", "kl", "value", "value_loss", "clipped"} <= steps[0].keys()
    assert steps[0]["kl"] == pytest.approx(0.0, abs=1e-4)
    assert ran.record["lora"]["critic"] == "the reward model"
    assert ran.record["reward_model_sha256"] == "ab" * 32
    assert not [name for name in weights(ran) if "critic" in name or "score" in name]
    rollouts = ran.record["rollouts"]
    assert (rollouts["count"], len(rollouts["found"])) == (2, 2)  # five steps, four of them from the first rollout
    assert rollouts["at_start"]["reward"] == pytest.approx(steps[0]["reward"], abs=1e-5)
    assert {"kl", "ended", "constant_groups", "reward_reward_model"} <= rollouts["at_end"].keys()


def test_a_training_that_was_stopped_inside_a_rollout_ends_in_the_same_bits(
    jobs: Jobs, scorer: Path, tmp_path: Path
) -> None:
    job = make_job(jobs, {"type": "ppo", **SCORED, "num_iterations": 4}, scorer)
    whole = train_here(job, tmp_path / "whole")
    with pytest.raises(Stopped, match="a checkpoint is saved"):
        train_here(job, tmp_path / "parts", stop_after=2)
    parts = train_here(job, tmp_path / "parts")
    assert parts.record["losses"] == whole.record["losses"]
    assert parts.record["rollouts"] == whole.record["rollouts"]
    assert all(torch.equal(value, weights(whole)[name]) for name, value in weights(parts).items())


def test_the_first_critic_without_a_reward_model_values_nothing(jobs: Jobs, tmp_path: Path) -> None:
    ran = train_here(make_job(jobs, {"type": "ppo", **CHECKED, "num_iterations": 1}), tmp_path)
    assert ran.of("progress")[0]["value"] == 0.0
    assert ran.of("progress")[-1]["value"] != 0.0
    assert ran.record["lora"]["critic"] == "the model itself, with values of 0"


def test_grpo_trains_on_the_native_engine(jobs: Jobs, tmp_path: Path) -> None:
    stage = {"type": "grpo", **CHECKED, "num_iterations": 2, "beta": 0.1}
    ran = train_here(make_job(jobs, stage), tmp_path)
    first = ran.of("progress")[0]
    assert first["reward"] == pytest.approx(first["reward_contains"] + first["reward_length"], abs=1e-5)
    assert first["kl"] == pytest.approx(0.0, abs=1e-5)
    assert ran.record["rows"]["trained"] == 5 * 4


@pytest.mark.parametrize("stage", ["grpo", "ppo"])
def test_rewards_of_held_out_prompts_are_measured_and_move_nothing(stage: str, jobs: Jobs, tmp_path: Path) -> None:
    """The same rows are trained on with and without prompts to evaluate, stopped or not."""
    settings, evaluation = {"type": stage, **CHECKED}, {"share": 0.3, "steps": 2, "samples": 1}
    job = make_job(jobs, settings, eval=evaluation, hyperparameters={**HYPER, "warmup_ratio": 0.0})
    whole = train_here(job, tmp_path / "whole")
    found = whole.of("evaluation")
    assert [event["step"] for event in found] == [2, 4, 5]
    assert all(event["reward"] == pytest.approx(event["reward_contains"] + event["reward_length"]) for event in found)
    assert [event["eval_reward"] for event in whole.of("progress") if "eval_reward" in event] == [
        event["reward"] for event in found
    ]
    record = whole.record["evaluation"]
    assert (record["metric"], record["best"]["reward"]) == ("reward", max(event["reward"] for event in found))
    assert whole.of("samples")[0]["samples"][0]["prompt"]
    with pytest.raises(Stopped, match="a checkpoint is saved"):
        train_here(job, tmp_path / "parts", stop_after=3)
    parts = train_here(job, tmp_path / "parts")
    assert (parts.record["losses"], parts.record["evaluation"]) == (whole.record["losses"], record)
    rarely = make_job(
        jobs, settings, eval={**evaluation, "steps": 5}, hyperparameters={**HYPER, "warmup_ratio": 0.0}
    )  # fmt: skip
    assert train_here(rarely, tmp_path / "rarely").record["losses"] == whole.record["losses"]


def test_constant_rewards_and_a_free_distance_are_said(jobs: Jobs, scorer: Path, tmp_path: Path) -> None:
    constant = {**SCORED, "type": "ppo", "kl_coef": 0.0, "rewards": [{"type": "contains", "text": "never said"}]}
    ran = train_here(make_job(jobs, constant, scorer, hyperparameters={**HYPER, "max_steps": 2}), tmp_path / "ppo")
    assert [warning["text"] for warning in ran.of("warning") if "same reward" in warning["text"]]
    assert ran.of("progress")[0]["kl"] == pytest.approx(0.0, abs=1e-4)
    assert {"kl", "constant_groups"} <= ran.record["rollouts"]["at_end"].keys()
    assert ran.record["rollouts"]["constant"] == ran.record["rollouts"]["count"]
    # What is trained further knows which reward model its ancestor was scored by.
    further = jobs(backend="native", adapter=ran.folder, hyperparameters={"max_steps": 1})
    lineage = train_here(further, tmp_path / "sft").record["lineage"]
    assert [ancestor.get("scored_by") for ancestor in lineage] == [None, "ab" * 32]


def test_a_judge_that_is_busy_is_waited_for_and_its_points_are_the_reward(jobs: Jobs, tmp_path: Path) -> None:
    replies = [status(429, retry_after=1), ok('{"points": 10}'), ok('{"points": 5}')]
    with ScriptedServer(replies, then=ok('{"points": 0}')) as server:
        judge = {"type": "judge", "base_url": server.url, "model": "big", "rubric": "It is short."}
        stage = {"type": "grpo", "num_generations": 2, "max_completion_length": 4, "rewards": [judge]}
        job = make_job(jobs, stage, hyperparameters={**HYPER, "max_steps": 1})
        (reward,) = job.config.stage.judges
        job = job.model_copy(update={"judges": {reward.server: find_judge(reward, load_settings())}})
        ran = train_here(job, tmp_path)
    assert len(server.requests) == 5, "four completions, one of them asked for twice"
    assert ran.of("progress")[0]["reward_judge"] == pytest.approx(1.5 / 4)
    assert "It is short." in server.requests[0]["messages"][0]["content"]


def test_the_panel_scores_as_the_reward_model_does(jobs: Jobs, scorer: Path) -> None:
    job = make_job(jobs, {"type": "ppo", **SCORED}, scorer)
    tokenizer: Any = AutoTokenizer.from_pretrained(jobs.model)
    source = find_scorer(job)
    assert source is not None
    assert (source.base, source.adapter) == (str(jobs.model), str(scorer))
    model = load_reward_model(source, "cpu", job.config.hyperparameters.seed)
    rows = [tuple(range(10, 10 + length)) for length in (5, 9, 3)]
    scores = make_panel(job, tokenizer, "cpu", lambda *_, **__: None).score(
        [SampledCompletion("", 2, row) for row in rows], ["", "", ""]
    )
    with torch.no_grad():
        expected = [float(model(torch.tensor([row])).logits[0, 0]) for row in rows]
    assert scores["reward_model"] == pytest.approx(expected, abs=1e-5)


def test_a_row_that_ends_with_the_padding_token_is_read_to_its_end(jobs: Jobs, scorer: Path) -> None:
    job = make_job(jobs, {"type": "ppo", **SCORED}, scorer)
    source = find_scorer(job)
    assert source is not None
    reader = RewardModelScorer(load_reward_model(source, "cpu", 0), pad_id=0)
    assert reader.score_rows([[5, 6, 0]]) != reader.score_rows([[5, 6]])
    assert reader.score_rows([[5, 6, 0], [5, 6, 7, 8, 9]])[0] == pytest.approx(reader.score_rows([[5, 6, 0]])[0])


def test_what_cannot_be_scored_is_said(jobs: Jobs, scorer: Path, tmp_path: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(jobs.model)
    cases: list[tuple[TrainingJob, str]] = [
        (make_job(jobs, {"type": "ppo", **SCORED}), "reads the scores of a reward model, and none reaches it"),
        (make_job(jobs, {"type": "ppo", **SCORED, "rewards": []}), "learns from rewards, and none is named"),
        (
            make_job(
                jobs, {**CHECKED, "type": "grpo", "rewards": [{"type": "json_schema", "definition": {"type": 7}}]}
            ),
            "is not a JSON Schema",
        ),
    ]
    for job, message in cases:
        with pytest.raises(InvalidInput, match=message):
            make_panel(job, tokenizer, "cpu", lambda *_, **__: None)
    other = tmp_path / "scorer"
    shutil.copytree(scorer, other)
    tokenizer.add_tokens(["<new>"])
    with pytest.raises(InvalidInput, match="another tokenizer"):
        make_panel(make_job(jobs, {"type": "ppo", **SCORED}, other), tokenizer, "cpu", lambda *_, **__: None)


def test_trl_takes_the_same_rewards(jobs: Jobs, scorer: Path, tmp_path: Path) -> None:
    rewards = [{"type": "reward_model"}, {"type": "length", "target_tokens": 3}]
    stage = {"type": "grpo", "num_generations": 2, "max_completion_length": 6, "rewards": rewards}
    ran = train_here(make_job(jobs, stage, scorer, backend="trl", hyperparameters={**HYPER, "max_steps": 2}), tmp_path)
    assert {"reward_reward_model", "reward_length"} <= ran.of("progress")[0].keys()


def prompt_jobs(jobs: Jobs, folder: Path, rows: list[PromptRow]) -> Jobs:
    """The same jobs on prompts without answers to learn."""
    write_rows(folder / "prompts" / ROWS_FILE, Port.PROMPTS, rows)
    return Jobs(jobs.model, {Port.PROMPTS: folder / "prompts"}, jobs.locks)


@pytest.mark.parametrize("stage", ["grpo", "ppo"])
def test_stages_that_draw_learn_from_prompts_alone(stage: str, jobs: Jobs, tmp_path: Path) -> None:
    rows = [PromptRow([Message("user", f"Count on from {n}.")], str(n)) for n in range(8)]
    job = make_job(prompt_jobs(jobs, tmp_path, rows), {"type": stage, **CHECKED}, port=Port.PROMPTS)
    ran = train_here(job, tmp_path / "run")
    assert len(ran.of("progress")) == 5
    # The prompt of a row with an answer is the prompt of the row without it.
    tokenizer = AutoTokenizer.from_pretrained(jobs.model)
    answered = [SftRow([*row.prompt, Message("assistant", "x")]) for row in rows]
    with_answers, _ = encode_prompts(answered, tokenizer, 100)
    alone, ledger = encode_prompts(rows, tokenizer, 100)
    assert [row["input_ids"] for row in alone] == [row["input_ids"] for row in with_answers]
    assert [row["answer"] for row in alone] == [str(n) for n in range(8)]
    assert ledger.rows["trained"] == 8


def test_a_reward_that_compares_needs_the_answers_of_prompts(jobs: Jobs, tmp_path: Path) -> None:
    rows = [PromptRow([Message("user", f"Count on from {n}.")]) for n in range(8)]
    stage = {"type": "grpo", **SCORED, "rewards": [{"type": "exact_match"}]}
    with pytest.raises(InvalidInput, match=r"E-DATA-EMPTY: .* 8 dropped_no_answer.* a solution or an answer"):
        train_here(make_job(prompt_jobs(jobs, tmp_path, rows), stage, port=Port.PROMPTS), tmp_path / "run")
