"""Engines on a random two-layer model with dropout, for the tests of session and loop."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch

from tests.unit.train.losses.stage_rows import PAD, TOKENIZER, conversations, make_labelled, make_model, pairs
from trainyard.spec.axes.devices import Precision
from trainyard.spec.axes.stages import Stage, StageSettings
from trainyard.spec.training import TrainerConfig, resolve_trainer
from trainyard.train.contracts import Batch, Encoded
from trainyard.train.losses.table import STAGES
from trainyard.train.methods.full import plain_groups
from trainyard.train.optimizers import make_optimizer
from trainyard.train.rows.batching import BatchPlan, Feed, choose_cut
from trainyard.train.schedules import LearningRate
from trainyard.train.session.session import Session, TrainState

ROWS: dict[Stage, Any] = {
    Stage.SFT: conversations,
    Stage.DPO: pairs,
    Stage.KTO: make_labelled,
    Stage.REWARD: pairs,
    Stage.DISTILL: conversations,
}


def make_config(
    stage: Stage | StageSettings = Stage.SFT, *, engine: dict[str, Any] | None = None, **hyperparameters: Any
) -> TrainerConfig:
    """Full training of a stage for six steps at 1e-3, resolved."""
    hyper = {"max_steps": 6, "learning_rate": 1e-3, "max_length": 128, **hyperparameters}
    fields = {"stage": stage, "method": "full", "hyperparameters": hyper, "engine": engine or {}}
    return resolve_trainer(TrainerConfig.model_validate(fields), "model")


def encode_examples(config: TrainerConfig, count: int = 8) -> list[Encoded]:
    stage = STAGES[config.stage.type]
    return stage.encode(ROWS[config.stage.type](count), TOKENIZER, config)[0]


def make_batch(stage: Stage = Stage.SFT, count: int = 4) -> Batch:
    return STAGES[stage].collate(encode_examples(make_config(stage), count), PAD)


def make_session(
    folder: Path,
    config: TrainerConfig | None = None,
    *,
    precision: Precision = Precision.FP32,
    dropout: float = 0.1,
    total_steps: int = 6,
    seed: int = 0,
) -> Session:
    """A session whose weights and generators are the same for the same arguments."""
    config = config or make_config()
    stage = STAGES[config.stage.type]
    model = make_model(stage.head, seed)
    for module in model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = dropout
    optimizer = make_optimizer(plain_groups(model, config), config)
    rate = LearningRate(optimizer, config, total_steps)
    reference = freeze_model(model) if stage.needs_reference(config) else None
    engine = TrainState(model, reference, stage, config, optimizer, rate, TOKENIZER, precision=precision)
    torch.manual_seed(seed)
    return Session(engine, folder)


def freeze_model(model: Any) -> Any:
    """The model as it is now, as `Policy.reference` gives it."""
    frozen_model = copy.deepcopy(model).requires_grad_(False).eval()

    @contextmanager
    def open_model() -> Iterator[Any]:
        yield frozen_model

    def reference() -> AbstractContextManager[Any]:
        return open_model()

    return reference


def make_feed(config: TrainerConfig, count: int = 8) -> Feed:
    stage, examples = STAGES[config.stage.type], encode_examples(config, count)
    plan = BatchPlan([stage.width(example) for example in examples], choose_cut(config, stage, "cpu"), stage)
    return Feed(examples, plan, stage, PAD)


def accumulate(session: Session, batch: Batch, normalizer: float | None = None) -> float:
    """One forward and backward; the loss."""
    forward = session.forward(batch, normalizer=normalizer)
    session.backward(forward.forward_id, measure=False)
    return float(forward.loss)


def train_step(session: Session, batches: Sequence[Batch]) -> list[float]:
    """One optimizer step over some micro-batches; their losses."""
    losses = [accumulate(session, batch) for batch in batches]
    session.step()
    session.zero_grad()
    return losses


def copy_weights(session: Session) -> list[torch.Tensor]:
    return [value.detach().clone() for value in session.parameters]


def copy_gradients(session: Session) -> list[torch.Tensor]:
    return [value.grad.clone() for value in session.parameters if value.grad is not None]


def same(tensors: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    """The same tensors to the bit."""
    return len(tensors) == len(other) and all(torch.equal(a, b) for a, b in zip(tensors, other, strict=True))
