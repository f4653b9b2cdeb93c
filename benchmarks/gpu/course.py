"""A training with a curriculum on a card: batches from processes of their own, and a state that another call continues.

Weights are float32 and passes bf16 (autocast), as the engine computes them on a card.

Shapes: B rows, T positions.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.gpu.platform import Platform
from benchmarks.latent.toys import PAD, Answered, Task, answer, plain, stage_of, with_technique
from trainyard.train.contracts import Batch, Encoded, Head, StageSpec
from trainyard.train.methods.loading import exclude_cudnn_attention

EVALUATED, REHEARSED = 1000, 16


@dataclass(frozen=True)
class Course:
    """One training: rows in epochs, and how the model answers at its end."""

    name: str
    task: Task
    rows: int
    """Of an epoch."""
    epochs: int
    sizes: dict[str, int]
    most_tokens: int
    """Of an answer."""
    latent: dict[str, Any] | None = None
    steps_in_words: bool = False
    thoughts: int = 0
    fixed_rows: bool = False
    """Whether every epoch has the same rows."""
    begins_with: str | None = None
    """The course whose weights it begins with."""
    batch: int = 128
    workers: int = 1
    """Processes that draw and lay out its rows, which takes longer than a step of a small model."""

    @property
    def steps(self) -> int:
        """Optimizer steps of an epoch."""
        return self.rows // self.batch


class Batches(Dataset[tuple[Batch, int]]):
    """The batches of an epoch, each with the number of its learned tokens."""

    def __init__(self, course: Course, epoch: int, rows: list[Encoded] | None) -> None:
        self.course, self.epoch = course, epoch
        self.stage, _ = stage_of(course.latent)
        self.rows, self.order = rows, list(range(course.rows))
        random.Random(f"order:{epoch}").shuffle(self.order)

    def __getitem__(self, step: int) -> tuple[Batch, int]:
        course = self.course
        indices = self.order[step * course.batch : (step + 1) * course.batch]
        examples = [
            self.lay_out(index, example) for index, example in zip(indices, self.draw(step, indices), strict=True)
        ]
        batch = self.stage.collate(examples, PAD)
        return batch, int(self.stage.units(batch))

    def draw(self, step: int, indices: list[int]) -> list[Encoded]:
        if self.rows is not None:
            return [self.rows[index] for index in indices]
        dice = random.Random(f"rows:{self.epoch}:{step}")
        return [self.course.task.draw(dice) for _ in indices]

    def lay_out(self, index: int, example: Encoded) -> Encoded:
        if self.stage.at_epoch is not None:
            return self.stage.at_epoch(example, index, self.epoch)
        return example if self.course.latent is not None else plain(example, steps=self.course.steps_in_words)


class Training:
    """A course and how far it is. `folder` has a state of each course (`.pt`), and what is known of it (`.json`)."""

    def __init__(self, course: Course, platform: Platform, folder: Path) -> None:
        self.course, self.platform, self.folder = course, platform, folder
        exclude_cudnn_attention()
        torch.manual_seed(0)
        self.model: Any = GPT2LMHeadModel(config_of(course))
        if course.begins_with is not None:
            self.model.load_state_dict(self.state_of(course.begins_with)["model"])
        if course.latent is not None:
            with_technique(self.model, course.latent, 0)
        self.model.to(platform.device)
        self.stage, self.config = stage_of(course.latent)
        self.epoch, self.step, self.warm, self.seconds = 0, 0, 0, 0.0
        self.losses, self.accuracy, self.tokens = list[float](), -1.0, -1.0
        self.rows = fixed_rows(course) if course.fixed_rows else None
        self.optimizer = self.new_optimizer()
        if self.path_of(course.name).is_file():
            self.load()

    @property
    def done(self) -> bool:
        return self.accuracy >= 0

    def path_of(self, name: str) -> Path:
        return self.folder / f"{name}.pt"

    def state_of(self, name: str) -> dict[str, Any]:
        state: dict[str, Any] = torch.load(self.path_of(name), map_location=self.platform.device, weights_only=True)
        return state

    def new_optimizer(self) -> torch.optim.Optimizer:
        self.warm = 0
        learning = self.course.task.learning
        return torch.optim.AdamW(
            self.model.parameters(), lr=learning.rate, betas=learning.betas, weight_decay=learning.weight_decay,
            fused=not self.platform.rehearsal,
        )  # fmt: skip

    def summary(self) -> dict[str, Any]:
        """What is known of the course, as it is kept."""
        names = ("epoch", "step", "warm", "seconds", "losses", "accuracy", "tokens")
        return {name: getattr(self, name) for name in names}

    def load(self) -> None:
        """Continue from the state that an earlier piece has kept."""
        state = self.state_of(self.course.name)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for name in self.summary():
            setattr(self, name, state[name])

    def save(self) -> None:
        """Keep the state; a file is replaced whole."""
        self.folder.mkdir(parents=True, exist_ok=True)
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), **self.summary()}
        path = self.path_of(self.course.name)
        torch.save(state, path.with_suffix(".new"))
        os.replace(path.with_suffix(".new"), path)
        path.with_suffix(".json").write_text(json.dumps(self.summary()))

    def continue_until(self, end: float) -> None:
        """Train until the end of the course or a moment of the monotonic clock, and keep the state."""
        started, before = time.monotonic(), self.seconds
        while self.epoch < self.course.epochs and time.monotonic() < end:
            self.finish_epoch(end)
        self.seconds = before + time.monotonic() - started
        if self.epoch == self.course.epochs and not self.done:
            evaluation = self.evaluate()
            self.accuracy, self.tokens = evaluation.accuracy, evaluation.tokens
        self.save()

    def finish_epoch(self, end: float) -> None:
        """Train what is left of an epoch. Its rows follow from its number alone."""
        settings = self.config.stage.technique
        if self.step == 0 and settings is not None and settings.begins_again(self.epoch):
            self.optimizer = self.new_optimizer()
        self.model.train()
        loss = None
        for batch, units in self.batches():
            if time.monotonic() >= end:
                break
            loss = self.train_on(self.stage, batch, units)
            self.step += 1
        if loss is not None:
            self.losses[self.epoch :] = [float(loss)]
        if self.step == self.course.steps:
            self.epoch, self.step = self.epoch + 1, 0

    def batches(self) -> Iterator[tuple[Batch, int]]:
        """What is left of an epoch."""
        dataset, rest = Batches(self.course, self.epoch, self.rows), range(self.step, self.course.steps)
        aside: dict[str, Any] = (
            {} if self.platform.rehearsal else {"num_workers": self.course.workers, "prefetch_factor": 8}
        )
        return iter(DataLoader(dataset, batch_size=None, sampler=rest, **aside))

    def train_on(self, stage: StageSpec, batch: Batch, units: int) -> torch.Tensor:
        """One optimizer step; returns its loss per unit, which nothing has waited for."""
        learning = self.course.task.learning
        self.warm += 1
        share = min(1.0, self.warm / max(1, learning.warmup_steps))
        self.optimizer.param_groups[0]["lr"] = learning.rate * share
        there = {name: value.to(self.platform.device, non_blocking=True) for name, value in batch.items()}
        with torch.autocast(self.platform.device, torch.bfloat16, enabled=not self.platform.rehearsal):
            total, _ = stage.loss(there, stage.score(self.model, there, Head.FULL), None, self.config)
        loss = total / units
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()

    def evaluate(self, count: int = EVALUATED) -> Answered:
        """Answer held-out rows."""
        course = self.course
        return answer(
            self.model, course.task, seed=0, max_tokens=course.most_tokens, thoughts=course.thoughts,
            latent=course.latent is not None, count=REHEARSED if self.platform.rehearsal else count,
        )  # fmt: skip


def config_of(course: Course) -> GPT2Config:
    """GPT-2's shape without dropout. Its activation is the one of GPT-2 in one kernel."""
    return GPT2Config(
        vocab_size=course.task.vocabulary, n_positions=course.task.positions, **course.sizes,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, activation_function="gelu_pytorch_tanh",
        bos_token_id=None, eos_token_id=course.task.end_id,
    )  # fmt: skip


def fixed_rows(course: Course) -> list[Encoded]:
    """The rows that every epoch has."""
    dice = random.Random("rows")
    return [course.task.draw(dice) for _ in range(course.rows)]
