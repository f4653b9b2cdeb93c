"""PPO in session, feed and loop: the ratio at the first step, a stop inside a rollout, and what a toy learns."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

from benchmarks.rl.ppo_toy import LENGTH, WORDS, share_of_wanted, train_toy
from benchmarks.rl.toy import FunctionScorer, Toy, toy_config, toy_critic, toy_policy, toy_tokenizer, toy_trainer
from tests.selection import choose_by_default
from trainyard.errors import InvalidInput
from trainyard.spec.axes.rewards import ModelReward
from trainyard.spec.axes.stages import PpoSettings, Stage
from trainyard.train.contracts import Cursor, StepRecord
from trainyard.train.loop import train
from trainyard.train.losses import ppo
from trainyard.train.progress import SavedProgress
from trainyard.train.rl.feed import HISTORY, ConstantRewards, summarize_rollouts
from trainyard.train.rl.reward_model import detach_critic, split_groups
from trainyard.train.rl.rewards import RewardPanel
from trainyard.train.session.session import Session

SMALL: dict[str, Any] = {
    "num_generations": 2, "temperature": 0.7, "max_completion_length": 6, "num_iterations": 2, "minibatches": 2,
    "kl_coef": 0.1, "critic_learning_rate": 1e-2, "rewards": [{"type": "reward_model"}],
}  # fmt: skip
PROMPTS = [{"input_ids": [2 + at % 6] * (1 + at % 3), "answer": "", "question": ""} for at in range(13)]


def toy(steps: int = 6, prompts: int = 13, **settings: Any) -> Toy:
    """Eight completions a rollout, in two minibatches of two micro-batches."""
    stage = Stage.PPO.settings(**{**SMALL, **settings})
    config = toy_trainer(stage, max_steps=steps, batch_size=2, gradient_accumulation=2, learning_rate=1e-2)
    shape = toy_config(8)
    assert isinstance(stage, PpoSettings)
    critic = toy_critic(shape, 1) if stage.has_critic else None
    panel = RewardPanel((ModelReward(),), {"reward_model": FunctionScorer(share_of_wanted)})
    return Toy(config, toy_policy(shape, 0), toy_tokenizer(WORDS), PROMPTS[:prompts], panel, critic)


@pytest.mark.parametrize("advantage", ["gae", "group", "gae_group"])
def test_the_ratio_is_1_before_the_first_step(tmp_path: Path, advantage: str) -> None:
    session, feed = toy(advantage=advantage).open(tmp_path)
    for batch in feed.draw_batches(Cursor(), session, session.engine.config, {}):
        scores = session.engine.stage.score(session.engine.model, batch, session.engine.head)
        assert float((scores["logprobs_N"].detach() - batch["old_N"]).exp().sub(1).abs().max()) < 1e-4
        torch.testing.assert_close(batch["old_N"], batch["reference/logprobs_N"], atol=1e-5, rtol=0)
        assert len(batch["advantages_N"]) == ppo.sft.units(batch) > 0


def test_a_start_has_no_divergence_and_no_value(tmp_path: Path) -> None:
    session, feed = toy().open(tmp_path)
    (batch, *_) = feed.draw_batches(Cursor(), session, session.engine.config, {})
    assert float(batch["reported/kl"]) == pytest.approx(0.0, abs=1e-5)
    assert float(batch["reported/value"]) == 0.0


def test_constant_rewards_teach_nothing_and_are_not_magnified(tmp_path: Path) -> None:
    """With the default advantage and a critic that is wrong everywhere by a little."""
    toy_case = toy(kl_coef=0.0)
    assert toy_case.critic is not None
    torch.nn.init.normal_(toy_case.critic.score.weight, std=0.05)
    toy_case.panel.scorers["reward_model"] = FunctionScorer(lambda _: 0.5)
    session, feed = toy_case.open(tmp_path)
    (batch, *_) = feed.draw_batches(Cursor(), session, session.engine.config, {})
    assert float(batch["reported/constant_groups"]) == 1
    assert float(batch["reported/value"]) != 0
    assert float(batch["advantages_N"].std()) < 0.5
    warnings: list[str] = []
    watch = ConstantRewards(lambda _event, text: warnings.append(text))
    reported = {"constant_groups": 1.0}
    for step in range(1, 31):
        watch.on_step(StepRecord(step, 0.0, 0.0, 0.0, False, 1, 1, 1, 1.0, {} if step == 4 else reported))
    assert [text.partition(":")[0] for text in warnings] == ["Step 1", "Step 5", "The 10 steps up to 14"]
    assert summarize_rollouts({HISTORY: [reported, {"constant_groups": 0.5}]})["constant"] == 1


def test_a_distance_that_costs_nothing_is_reported_where_a_reference_is_there(tmp_path: Path) -> None:
    session, feed = toy(kl_coef=0.0).open(tmp_path)
    session.engine.reference = partial(nullcontext, session.engine.model)
    (batch, *_) = feed.draw_batches(Cursor(), session, session.engine.config, {})
    assert float(batch["reported/kl"]) == pytest.approx(0.0, abs=1e-5)
    session.drop_reference()
    (batch, *_) = feed.draw_batches(Cursor(epoch=1), session, session.engine.config, {})
    assert "reported/kl" not in batch


def train_losses(session: Session, feed: Any, progress: SavedProgress, after: int | None = None) -> bool:
    calls = iter(range(10_000))
    return train(
        session, feed, progress, total_steps=6, save=lambda *_: None, save_steps=100,
        stop=lambda: after is not None and next(calls) == after,
    )  # fmt: skip


def test_a_stop_inside_a_rollout_continues_to_the_same_bits(tmp_path: Path) -> None:
    straight, feed = toy().open(tmp_path / "a")
    whole = SavedProgress()
    assert train_losses(straight, feed, whole)
    stopped, first_feed = toy().open(tmp_path / "b")
    progress = SavedProgress()
    assert not train_losses(stopped, first_feed, progress, after=5)  # in the third step of four, inside an accumulation
    snapshot = stopped.snapshot()
    again, other_feed = toy().open(tmp_path / "c")
    again.restore(snapshot)
    continued = SavedProgress.from_values(progress.as_values())
    assert continued.kept["place"] == "0:0"
    assert train_losses(again, other_feed, continued)
    assert continued.losses == whole.losses
    for actual, other in zip(again.parameters, straight.parameters, strict=True):
        assert torch.equal(actual, other)


def test_the_steps_of_a_rollout_take_each_completion_once_an_epoch(tmp_path: Path) -> None:
    _, feed = toy().open(tmp_path)
    steps = feed.plan.steps(0)
    assert len(steps) == feed.plan.steps_per_epoch == 3 * 4  # 13 prompts are three rollouts of four
    for start in range(0, len(steps), 2):
        assert sorted(row for step in steps[start : start + 2] for micro in step for row in micro) == list(range(8))
    prompts = [row for rollout in range(3) for row in feed.plan.select_prompts(Cursor(0, 4 * rollout))]  # type: ignore[attr-defined]
    assert len(set(prompts)) == 12


def test_too_few_prompts_for_a_rollout_are_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="A rollout answers 4 prompts, and the data set has 3"):
        toy(prompts=3).open(tmp_path)


def test_constant_rewards_move_no_policy_without_a_divergence(tmp_path: Path) -> None:
    case = toy(steps=1, advantage="group", kl_coef=0.0)
    constant = RewardPanel((ModelReward(),), {"reward_model": FunctionScorer(lambda _: 1.0)})
    session, feed = Toy(case.config, case.model, case.tokenizer, case.prompts, constant).open(tmp_path)
    before = [value.clone() for value in session.parameters]
    progress = SavedProgress()
    train(session, feed, progress, total_steps=1, save=lambda *_: None, save_steps=9, stop=lambda: False)
    assert all(torch.equal(parameter, other) for parameter, other in zip(before, session.parameters, strict=True))
    assert progress.kept["reported"]["constant_groups"] == 1.0


def test_the_critic_has_a_rate_of_its_own_and_leaves_before_anything_is_saved(tmp_path: Path) -> None:
    session, _ = toy().open(tmp_path)
    model = session.engine.model
    rates = {group["lr"] for group in session.engine.optimizer.param_groups}
    assert len(rates) == 1  # both were 1e-2
    groups = split_groups([{"params": [1, 2], "names": ["a", "critic.b"], "lr": 0.1, "weight_decay": 0.0}], 0.3)
    assert [(group["names"], group["lr"]) for group in groups] == [(["a"], 0.1), (["critic.b"], 0.3)]
    assert any(name.startswith("critic.") for name in model.state_dict())
    detach_critic(model)
    assert not any(name.startswith("critic.") for name in model.state_dict())


def test_the_length_that_ends_a_completion_can_cost(tmp_path: Path) -> None:
    rewards = []
    for penalty in (0.0, 2.0):
        session, feed = toy(advantage="gae", missing_end_penalty=penalty).open(tmp_path / str(penalty))
        state: dict[str, Any] = {}
        feed.draw_batches(Cursor(), session, session.engine.config, state)
        rewards.append([row["returns"][-1] for row in state["rows"]])
        ended = [row["ids"][-1] == 1 for row in state["rows"]]
    differences = [free - paid for free, paid in zip(*rewards, strict=True)]
    assert differences == pytest.approx([0.0 if end else 2.0 for end in ended], abs=1e-4)


@pytest.mark.parametrize("advantage", choose_by_default(["gae"], ["gae", "group", "gae_group"]))
def test_the_toy_reaches_most_of_its_best_reward(advantage: str) -> None:
    result = train_toy(0, updates=120, advantage=advantage)
    rewards, kl = result.curve("reward"), result.curve("kl")
    assert rewards[0] < 0.3
    assert fmean(rewards[-20:]) > 0.8
    assert fmean(kl[-20:]) < LENGTH  # nats a token; ln 8 would be all of it


def test_a_large_kl_coef_keeps_the_reward_near_its_start() -> None:
    result = train_toy(0, updates=120, kl_coef=10.0)
    assert fmean(result.curve("reward")[-20:]) < 0.3
    assert abs(fmean(result.curve("kl")[-20:])) < 0.05
