"""Techniques inside a training: rows by epoch, the optimizer at a new stage, and losses that fall."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.train.latent.latent_models import ROWS, TOKENIZER, attach_latent, causal_model, config_with
from tests.unit.train.losses.stage_rows import PAD
from trainyard.backends.native.assembly import require_room
from trainyard.errors import InvalidInput, Refused
from trainyard.spec.training import TrainerConfig, resolve_trainer
from trainyard.train.contracts import Cursor, Sampling
from trainyard.train.loop import train
from trainyard.train.losses.table import STAGES
from trainyard.train.methods.full import plain_groups
from trainyard.train.methods.table import checkpoint_activations
from trainyard.train.optimizers import make_optimizer
from trainyard.train.progress import SavedProgress
from trainyard.train.rows.batching import Feed, choose_cut, make_plan
from trainyard.train.schedules import LearningRate
from trainyard.train.session.session import Session, TrainState

TECHNIQUES: dict[str, dict[str, Any]] = {
    "pause": {"type": "pause", "count": 2},
    "coconut": {"type": "coconut", "max_stage": 1, "epochs_per_stage": 4},
    "hidden_cot": {"type": "hidden_cot", "tokens_per_epoch": 8, "whole_epochs": 4, "most_tokens": 32},
    "codi": {"type": "codi", "thoughts": 2},
    "tokens": {"type": "dsa", "granularity": {"type": "token", "top_k": 8, "index_heads": 2, "index_dim": 8}},
    "heads": {"type": "dsa", "granularity": {"type": "head", "active": 2}},
    "quiet_star": {"type": "quiet_star", "thought_tokens": 2, "ahead": 2, "embedding_scale": 1.0},
}


def start_session(folder: Path, latent: dict[str, Any]) -> tuple[Session, Feed]:
    fields = config_with(latent).model_dump(mode="json")
    hyper = {"max_length": 128, "batch_size": 3, "learning_rate": 1e-2, "max_steps": 16, "schedule": "constant"}
    config = resolve_trainer(TrainerConfig.model_validate({**fields, "hyperparameters": hyper}), "model")
    model, stage = causal_model("llama"), STAGES[config.stage.type].chosen(config)
    attach_latent(model, latent)
    examples = list(stage.encode(ROWS, TOKENIZER, config)[0])
    feed = Feed(examples, make_plan(examples, choose_cut(config, stage, "cpu"), stage), stage, PAD)
    optimizer = make_optimizer(plain_groups(model, config), config)
    engine = TrainState(model, None, stage, config, optimizer, LearningRate(optimizer, config, 16), TOKENIZER)
    return Session(engine, folder), feed


@pytest.mark.parametrize("name", TECHNIQUES)
def test_a_model_that_recomputes_is_taken_where_the_gradients_stay_the_same(name: str) -> None:
    model = causal_model("llama")
    checkpoint_activations(model)
    if name in ("pause", "hidden_cot"):
        attach_latent(model, TECHNIQUES[name])
        return
    with pytest.raises(Refused, match=r"R-BATCH .*gradient_checkpointing: With gradient checkpointing, technique"):
        attach_latent(model, TECHNIQUES[name])


@pytest.mark.parametrize("name", TECHNIQUES)
def test_a_plan_counts_the_weights_of_a_technique(name: str) -> None:
    model = causal_model("llama")
    technique = attach_latent(model, TECHNIQUES[name])
    sizes = model.config
    counted = technique.settings.count_own(sizes.hidden_size, sizes.num_hidden_layers, sizes.num_attention_heads)
    assert counted == sum(value.numel() for value in technique.parameters())


@pytest.mark.parametrize("name", TECHNIQUES)
def test_each_technique_lowers_its_own_loss(tmp_path: Path, name: str) -> None:
    session, feed = start_session(tmp_path, TECHNIQUES[name])
    before = session.evaluate(feed.batch([0, 1, 2])).sums["loss"]
    progress = SavedProgress()
    done = train(
        session, feed, progress, total_steps=16, save=lambda *_: None, save_steps=100, stop=lambda: False
    )  # fmt: skip
    assert done
    assert session.evaluate(feed.batch([0, 1, 2])).sums["loss"] < 0.6 * before
    prompts = [example.get("prompt_ids") or example["input_ids"][:6] for example in feed.examples]
    again = [session.generate(prompts, Sampling(max_new_tokens=3, temperature=0)) for _ in range(2)]
    assert again[0] == again[1]


def test_rows_of_a_step_have_the_form_of_their_epoch(tmp_path: Path) -> None:
    _, feed = start_session(tmp_path, TECHNIQUES["coconut"])
    thoughts = [int((feed.step(Cursor(epoch, 0, 0))[0]["slots"] == 3).sum()) for epoch in (0, 4, 8)]
    assert thoughts == [0, 3, 3]
    learned = [int((feed.step(Cursor(epoch, 0, 0))[0]["labels"] >= 0).sum()) for epoch in (0, 4, 8)]
    assert learned[0] > learned[1] > learned[2]
    assert int((feed.batch([0, 1, 2])["labels"] >= 0).sum()) == learned[2]


def test_the_optimizer_begins_again_at_a_new_stage(tmp_path: Path) -> None:
    session, feed = start_session(tmp_path, TECHNIQUES["coconut"])
    counts: list[set[float]] = []

    class Watch:
        def on_step(self, _: Any) -> None:
            states = session.engine.optimizer.state.values()
            counts.append({float(state["step"]) for state in states})

    train(
        session, feed, SavedProgress(), total_steps=9, save=lambda *_: None, save_steps=100, stop=lambda: False,
        hooks=[Watch()],
    )  # fmt: skip
    assert [max(steps) for steps in counts] == [1, 2, 3, 4, 1, 2, 3, 4, 1]


def test_a_prompt_without_thoughts_is_answered_otherwise(tmp_path: Path) -> None:
    session, feed = start_session(tmp_path, TECHNIQUES["codi"])
    prompts = [feed.examples[0]["prompt_ids"]]
    sampling = Sampling(max_new_tokens=1, temperature=0)
    with_thoughts = session.generate(prompts, sampling)[0]
    technique: Any = session.engine.model.trainyard_latent
    technique.detach(session.engine.model)
    without = session.generate(prompts, sampling)[0]
    assert with_thoughts.logprobs_at_one != pytest.approx(without.logprobs_at_one, abs=1e-6)
    assert torch.is_tensor(technique.vectors_KD)


@pytest.mark.parametrize(("name", "positions"), [("pause", 2), ("coconut", 3), ("hidden_cot", 0), ("codi", 4)])
def test_thoughts_take_a_part_of_the_context(name: str, positions: int) -> None:
    technique = attach_latent(causal_model("llama"), TECHNIQUES[name])
    assert technique.positions == positions
    require_room(technique, 64 + positions, 64)
    require_room(technique, None, 64)
    if positions:
        with pytest.raises(InvalidInput, match=f"at most {64 - positions}"):
            require_room(technique, 64, 64)
