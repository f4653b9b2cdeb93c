"""Do COCONUT and stepwise internalisation reach on a card what their papers report, with models from scratch?

    graphs          18,000 rows as in ProsQA, a GPT-2-small shape: 95 % with thoughts, 76 % for the answer alone
    multiplication  4 x 4 digits, two layers of width 768: all right by stepwise internalisation, below 30 % directly

    python -m benchmarks.gpu latent                                   # continue where it stopped, for 8.5 minutes
    python -m benchmarks.gpu.latent --only coconut --minutes 5        # one of the courses

A course takes longer than `--minutes`, so its state is kept in a folder after each piece; the same command continues
it, to the bits that it would have had on a CPU. The table is written when every course is at its end.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.gpu.latent_rows import END as GRAPH_END
from benchmarks.gpu.latent_rows import (
    GRAPH_POSITIONS,
    GRAPH_WORDS,
    LONGEST,
    PRODUCT_WORDS,
    STOP,
    draw_product,
    graph_row,
)
from benchmarks.gpu.place import PLACE, WHY, Place, result_name
from benchmarks.harness import OK, RESULTS, Row, finish
from benchmarks.latent.toys import PAD, Task, answer, plain, stage_of, with_technique
from trainyard.train.head import Head
from trainyard.train.stages.contract import StageSpec
from trainyard.train.tokens import Encoded

Draw = Callable[[random.Random], Encoded]
MINUTES, STATES = 8.5, "gpu_latent"
GRAPH_ROWS, PRODUCT_ROWS = 18_000, 808_000
GPT2_SMALL: dict[str, int] = {"n_embd": 768, "n_layer": 12, "n_head": 12}
TWO_LAYERS: dict[str, int] = {"n_embd": 768, "n_layer": 2, "n_head": 4}
TINY: dict[str, int] = {"n_embd": 32, "n_layer": 2, "n_head": 2}
EVALUATED = 500


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
    batch: int = 128
    rate: float = 1e-4

    @property
    def steps(self) -> int:
        """Optimizer steps of an epoch."""
        return self.rows // self.batch


def graph_courses() -> list[Course]:
    """COCONUT with the settings of its paper, its control, steps in words, and the answer alone."""
    task = Task(graph_row, vocabulary=GRAPH_WORDS, positions=GRAPH_POSITIONS, end_id=GRAPH_END)
    coconut = {"type": "coconut", "max_stage": LONGEST, "epochs_per_stage": 5}
    one = Course("", task, GRAPH_ROWS, 50, GPT2_SMALL, most_tokens=5 * LONGEST + 3, fixed_rows=True)
    return [
        replace(one, name="coconut", latent=coconut, thoughts=LONGEST + 2),
        replace(one, name="pause", latent={**coconut, "feedback": False}, thoughts=LONGEST + 2),
        replace(one, name="words", steps_in_words=True),
        replace(one, name="answer_alone"),
    ]


def product_courses(width: int = 4) -> list[Course]:
    """Eight tokens of the reasoning fewer in each epoch, and direct training for as many epochs."""
    held_out = partial(draw_product, width=width, held_out=True)
    task = Task(partial(draw_product, width=width), PRODUCT_WORDS, 128, end_id=STOP, held_out=held_out)
    reasoning = len(task.draw(random.Random(0))["step_ids"])
    internalised = {"type": "hidden_cot", "tokens_per_epoch": 8, "most_tokens": reasoning}
    epochs = 1 + -(-reasoning // 8) + 5
    one = Course("", task, PRODUCT_ROWS, epochs, TWO_LAYERS, most_tokens=2 * width + 2, batch=256)
    return [replace(one, name="stepwise", latent=internalised), replace(one, name="direct")]


def courses(place: Place) -> list[Course]:
    """All of them; a rehearsal has tiny models and few rows."""
    found = [*graph_courses(), *product_courses(2 if place.rehearsal else 4)]
    if not place.rehearsal:
        return found
    return [rehearsed(course) for course in found]


def rehearsed(course: Course) -> Course:
    """A course with two steps an epoch, whose stages change with each of them."""
    latent = {**course.latent, "epochs_per_stage": 1} if "max_stage" in (course.latent or {}) else course.latent
    return replace(course, rows=32, batch=16, sizes=TINY, epochs=LONGEST + 2, latent=latent)


class Training:
    """A course and how far it is."""

    def __init__(self, course: Course, place: Place, folder: Path) -> None:
        self.course, self.place, self.path = course, place, folder / f"{course.name}.pt"
        torch.manual_seed(0)
        self.model: Any = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=course.task.vocabulary, n_positions=course.task.positions, **course.sizes,
                resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=course.task.end_id,
            )
        )  # fmt: skip
        if course.latent is not None:
            with_technique(self.model, course.latent, 0)
        self.model.to(place.device)
        self.stage, self.config = stage_of(course.latent)
        self.epoch, self.step, self.seconds, self.accuracy, self.losses = 0, 0, 0.0, -1.0, list[float]()
        self.optimizer = self.new_optimizer()
        if self.path.is_file():
            self.load()

    @property
    def done(self) -> bool:
        return self.accuracy >= 0

    def new_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=self.course.rate, weight_decay=0.01)

    def load(self) -> None:
        """Continue from the state that an earlier piece has kept."""
        state = torch.load(self.path, map_location=self.place.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for name in ("epoch", "step", "seconds", "accuracy", "losses"):
            setattr(self, name, state[name])

    def save(self) -> None:
        """Keep the state; a file is replaced whole."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        names = ("epoch", "step", "seconds", "accuracy", "losses")
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save({**state, **{name: getattr(self, name) for name in names}}, self.path.with_suffix(".new"))
        self.path.with_suffix(".new").replace(self.path)

    def continue_until(self, end: float) -> None:
        """Train until the end of the course or a moment of the monotonic clock, and keep the state."""
        started, before = time.monotonic(), self.seconds
        while self.epoch < self.course.epochs and time.monotonic() < end:
            self.finish_epoch(end)
        self.seconds = before + time.monotonic() - started
        if self.epoch == self.course.epochs and not self.done:
            self.accuracy = self.evaluate()
        self.save()

    def finish_epoch(self, end: float) -> None:
        """Train what is left of an epoch. Its rows follow from its number alone."""
        course, settings = self.course, self.config.stage.technique
        if self.step == 0 and settings is not None and settings.begins_again(self.epoch):
            self.optimizer = self.new_optimizer()
        drawn = self.rows_of_epoch()
        self.model.train()
        while self.step < course.steps:
            if time.monotonic() >= end:
                return
            first = self.step * course.batch
            self.losses[self.epoch :] = [self.train_on(self.stage, drawn[first : first + course.batch], first)]
            self.step += 1
        self.epoch, self.step = self.epoch + 1, 0

    def rows_of_epoch(self) -> list[Encoded]:
        dice = random.Random("rows" if self.course.fixed_rows else f"rows:{self.epoch}")
        drawn = [self.course.task.draw(dice) for _ in range(self.course.rows)]
        random.Random(f"order:{self.epoch}").shuffle(drawn)
        return drawn

    def train_on(self, stage: StageSpec, rows: Sequence[Encoded], first: int) -> float:
        """One optimizer step; returns its loss per unit."""
        if stage.at_epoch is not None:
            shown = [stage.at_epoch(row, first + place, self.epoch) for place, row in enumerate(rows)]
        elif self.course.latent is not None:
            shown = list(rows)
        else:
            shown = [plain(row, steps=self.course.steps_in_words) for row in rows]
        batch = {name: value.to(self.place.device) for name, value in stage.collate(shown, PAD).items()}
        total, _ = stage.loss(batch, stage.score(self.model, batch, Head.FULL), None, self.config)
        loss = total / stage.units(batch)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return float(loss.detach())

    def evaluate(self) -> float:
        """Share of held-out rows that are answered."""
        course, count = self.course, 16 if self.place.rehearsal else EVALUATED
        return answer(
            self.model, course.task, seed=0, max_tokens=course.most_tokens, thoughts=course.thoughts,
            latent=course.latent is not None, count=count,
        ).accuracy  # fmt: skip


BARS: dict[str, tuple[float, bool]] = {
    "coconut": (0.95, True), "answer_alone": (0.85, False), "stepwise": (0.99, True), "direct": (0.3, False),
}  # fmt: skip
"""Course -> its accuracy, and whether that is the least or the most; 0.76 is the answer alone of the paper."""


def rows_of(accuracies: dict[str, float], place: Place) -> list[Row]:
    found = []
    for name, value in accuracies.items():
        bar, least = BARS.get(name, (0.0, True))
        make = Row.at_least if least else Row.at_most
        found.append(make(f"accuracy, {name}", value, (0.0 if least else 1.0) if place.rehearsal else bar))
    return found


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.latent")
    parser.add_argument("--only", help="a course; default: all, one after another")
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--states", type=Path, help="a folder; default: next to the tables, in a rehearsal a new one")
    asked = parser.parse_args(arguments)
    if PLACE is None:
        print(f"latent: {WHY}")
        return OK
    torch.set_float32_matmul_precision("high")
    states = asked.states or (Path(tempfile.mkdtemp()) if PLACE.rehearsal else RESULTS / STATES)
    end = time.monotonic() + 60 * asked.minutes
    accuracies: dict[str, float] = {}
    for course in courses(PLACE):
        if asked.only in (None, course.name):
            training = Training(course, PLACE, states)
            if not training.done:
                training.continue_until(end)
            losses = f"loss {training.losses[-1]:.4f}" if training.losses else "not begun"
            at = f"epoch {training.epoch} of {course.epochs}, step {training.step}, {losses}"
            print(f"{course.name}: {at}, {training.seconds:.0f} s, accuracy {training.accuracy:.3f}", flush=True)
            accuracies[course.name] = training.accuracy
    if any(value < 0 for value in accuracies.values()):
        print("latent: not at the end yet; the same command continues (accuracy -1 is not measured)")
        return OK
    return finish(result_name("gpu_latent", PLACE), rows_of(accuracies, PLACE), {})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
