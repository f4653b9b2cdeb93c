"""Periodic evaluation, a hook of the loop: it measures held-out rows, keeps the best checkpoints and may end the run.

It moves nothing that training reads: no dropout, no graph, and every generator is put back. So the losses of a training
are the same with it and without it, and a run that is stopped and continued evaluates to the same bits.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trainyard.spec.training import EvalSettings
from trainyard.train.checkpoint.state import random_state, restore_random_state
from trainyard.train.contracts import IGNORED, Encoded, Sampling, StepRecord
from trainyard.train.loop import Save
from trainyard.train.progress import SavedProgress
from trainyard.train.rl.feed import HeldOutPrompts
from trainyard.train.rows.batching import Feed
from trainyard.train.session.verbs import StepSession

SHOWN_CHARS = 2000
"""Characters of a prompt and of an answer that an event contains."""


@dataclass(frozen=True)
class Prompt:
    """A held-out prompt that is answered at each evaluation."""

    ids: list[int]
    text: str


def build_prompt(example: Encoded, tokenizer: Any) -> Prompt:
    """Return what comes before the last answer of an example; of running text, its first half."""
    if "labels" not in example:  # a prompt whose completions are drawn
        ids = example["input_ids"]
    else:
        ids = example["prompt_ids"] if "prompt_ids" in example else cut_before_answer(example)
    return Prompt(list(ids), str(tokenizer.decode(ids, skip_special_tokens=True)))


def cut_before_answer(example: Encoded) -> list[int]:
    ids, labels = example["input_ids"], example["labels"]
    end = max(index for index, label in enumerate(labels) if label != IGNORED)
    start = next((index + 1 for index in range(end, -1, -1) if labels[index] == IGNORED), 0)
    return ids[:start] if start > 1 else ids[: max(1, len(ids) // 2)]


@dataclass(frozen=True)
class HeldOut:
    """Held-out rows of a run."""

    feed: Feed
    prompts: Sequence[Prompt]
    every: int
    """Steps between two evaluations; the last step has one of its own."""
    first: int = 1
    """Step before which nothing is evaluated: in the warm-up a training is not yet what its rate makes of it."""
    until: int | None = None
    """Step at which this execution stops to be compared; it is always evaluated."""

    @property
    def postponed(self) -> str:
        """Say which evaluations are left out because of the warm-up; empty for none."""
        if self.every >= self.first:
            return ""
        begins = -(-self.first // self.every) * self.every
        return f"Evaluations begin at step {begins}: the warm-up ends with step {self.first - 1}."

    def is_due(self, step: int, total_steps: int) -> bool:
        """Return whether there is an evaluation after a step."""
        if step in (total_steps, self.until):
            return True
        return step % self.every == 0 and step >= self.first

    @property
    def rows(self) -> int:
        return len(self.feed.examples)


def measure(session: StepSession, feed: Feed, at: Callable[[], None]) -> dict[str, float]:
    """Return the means over all held-out rows. `at` is called between two batches."""
    if isinstance(feed, HeldOutPrompts):
        return feed.measure(session, at)
    sums, units = Counter[str](), 0
    for rows in feed.plan.cut_rows(sorted(range(len(feed.examples)), key=lambda row: (-feed.plan.widths[row], row))):
        evaluated = session.evaluate(feed.batch(rows))
        sums.update(evaluated.sums)
        units += evaluated.units
        at()
    return feed.stage.summarize(dict(sums), units)


class PeriodicEvaluation:
    """Evaluate, remember, keep and decide; `save` makes a checkpoint, `emit` reports, `at` passes a fault point."""

    def __init__(
        self,
        session: StepSession,
        progress: SavedProgress,
        held_out: HeldOut,
        settings: EvalSettings,
        *,
        total_steps: int,
        save: Save,
        emit: Callable[..., None],
        at: Callable[[str], None],
    ) -> None:
        self.session, self.progress, self.held_out, self.settings = session, progress, held_out, settings
        self.total_steps, self.save, self.emit, self.at = total_steps, save, emit, at
        self.seconds = 0.0
        """What all evaluations of this process took."""

    def on_step(self, record: StepRecord) -> None:
        step = record.step
        if step < self.total_steps and not self.held_out.is_due(step, self.total_steps):
            return
        started = time.perf_counter()
        generators = random_state()
        metrics = measure(self.session, self.held_out.feed, lambda: self.at(f"evaluation.{step}"))
        answers = self.answer()
        restore_random_state(generators)
        done, settings = self.progress.evaluations, self.settings
        done.add(step, metrics, settings)
        record.metrics.update({f"eval_{name}": value for name, value in metrics.items()})
        best = done.rank_steps(settings.metric)
        seconds = time.perf_counter() - started
        self.seconds += seconds
        facts = {"rows": self.held_out.rows, "best_step": best[0] if best else None, "seconds": round(seconds, 3)}
        self.emit("evaluation", step=step, **metrics, **facts)
        if answers:
            self.emit("samples", step=step, samples=answers)
        if step in best[: settings.keep_best] and step < self.total_steps:
            self.save(self.session, self.progress)
        if done.ended and step < self.total_steps:
            text = f"stopped early at step {step}, best at step {best[0] if best else 'none'}"
            self.emit("early_stop", step=step, best_step=best[0] if best else None, text=text)

    def answer(self) -> list[dict[str, str]]:
        """Return the held-out prompts with the model's current answers."""
        prompts = self.held_out.prompts
        if not prompts:
            return []
        sampling = Sampling(max_new_tokens=self.settings.sample_tokens, temperature=0.0)
        completions = self.session.generate([prompt.ids for prompt in prompts], sampling)
        return [
            {"prompt": prompt.text[-SHOWN_CHARS:], "answer": completion.text[:SHOWN_CHARS]}
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
