"""Assignment of completions to optimizer steps, and when new ones are sampled.

A rollout draws `batch_size x gradient_accumulation x minibatches` completions, `num_generations` to each prompt. The
steps of a rollout go through them `num_iterations` times, in another order each time. A stop inside a rollout finds its
completions in the checkpoint; the order is a pure function of seed and place.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from trainyard.json_types import JsonMapping, JsonObject
from trainyard.spec.axes.stages import GrpoSettings, PpoSettings
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import Batch, CompletionWriter, Cursor, StageSpec, StepRecord
from trainyard.train.rl.drawing import (
    CompletionServer,
    Rollout,
    Surroundings,
    draw_rollout,
    measure_rewards,
    steps_per_rollout,
)
from trainyard.train.rl.environments import Environment
from trainyard.train.rl.rewards import RewardPanel
from trainyard.train.rows.batching import BatchPlan, Cut, Feed, StepRows
from trainyard.train.rows.prompts import require_rollout


class RolloutPlan(BatchPlan):
    """The steps of every epoch over the prompts; a step's rows are completions of its rollout."""

    def __init__(self, widths: Sequence[int], cut: Cut, stage: StageSpec, config: TrainerConfig) -> None:
        super().__init__(widths, cut, stage)
        settings = config.stage
        assert isinstance(settings, PpoSettings | GrpoSettings), settings
        self.minibatches = settings.minibatches if isinstance(settings, PpoSettings) else 1
        self.completions = cut.rows_per_step * self.minibatches
        self.prompts = self.completions // settings.num_generations
        self.steps_per_rollout = steps_per_rollout(settings)
        require_rollout(len(widths), self.prompts)

    @property
    def rollouts_per_epoch(self) -> int:
        return len(self.widths) // self.prompts

    @property
    def steps_per_epoch(self) -> int:
        return self.rollouts_per_epoch * self.steps_per_rollout

    def select_prompts(self, cursor: Cursor) -> list[int]:
        """Return the prompts of the rollout at a place. Those that would not fill one are left out, others in each
        epoch.
        """
        rows = list(range(len(self.widths)))
        random.Random(f"{self.cut.seed}:{cursor.epoch}").shuffle(rows)
        start = cursor.step // self.steps_per_rollout * self.prompts
        return rows[start : start + self.prompts]

    def name_rollout(self, cursor: Cursor) -> str:
        """Return names the rollout at a cursor."""
        return f"{cursor.epoch}:{cursor.step // self.steps_per_rollout}"

    def padding_ratio(self, epoch: int = 0) -> float:
        """Unknown before completions are drawn."""
        return 0.0

    def _draw(self, epoch: int) -> list[StepRows]:
        size, steps = self.cut.rows_per_step, []
        for step in range(self.steps_per_epoch):
            rollout, inner = divmod(step, self.steps_per_rollout)
            sweep, part = divmod(inner, self.minibatches)
            rows = list(range(self.completions))
            random.Random(f"{self.cut.seed}:{epoch}:{rollout}:{sweep}").shuffle(rows)
            steps.append(self.cut_rows(rows[part * size : (part + 1) * size]))
        return steps


CONSTANT_AGAIN = 10
"""Number of constant steps in a row between two warnings."""


def is_constant(reported: Mapping[str, float]) -> bool:
    """Return whether all completions of each prompt of a rollout were worth the same, so that rewards taught
    nothing.
    """
    return reported.get("constant_groups", 0.0) >= 1 - 1e-6


@dataclass
class ConstantRewards:
    """Warns when a step, and then a row of them, has nothing to learn from."""

    emit: Callable[..., None]
    steps: int = 0

    def on_step(self, record: StepRecord) -> None:
        self.steps = self.steps + 1 if is_constant(record.metrics) else 0
        if self.steps in (1, CONSTANT_AGAIN):
            since = f"The {self.steps} steps up to {record.step}" if self.steps > 1 else f"Step {record.step}"
            self.emit(
                "warning",
                text=f"{since}: all completions of each prompt have the same reward, which teaches nothing. Use "
                "rewards that differ between them, easier or harder prompts, or a higher temperature.",
            )


HISTORY = "history"
"""Among what is kept: what each rollout so far has reported."""
SHARE = 0.1


def summarize_rollouts(state: JsonMapping) -> JsonObject:
    """Return what the rollouts of a training have reported: means over the first and the last tenth of them, and all of
    them.

    Empty where none was drawn.
    """
    history: Sequence[Mapping[str, float]] = state.get(HISTORY, ())
    if not history:
        return {}
    size = math.ceil(SHARE * len(history))
    ends = {"at_start": history[:size], "at_end": history[-size:]}
    means = {end: {name: fmean(rollout[name] for rollout in some) for name in history[0]} for end, some in ends.items()}
    constant = sum(is_constant(rollout) for rollout in history)
    return {"count": len(history), "constant": constant, **means, "found": [dict(rollout) for rollout in history]}


@dataclass
class RolloutFeed(Feed):
    """The batches of a stage that learns from the rewards of what it draws."""

    panel: RewardPanel = field(default_factory=RewardPanel)
    rollout: Rollout | None = None
    environment: Environment | None = None
    server: CompletionServer | None = None
    """Sampler that replaces the session's own."""

    def batch(self, rows: Sequence[int], epoch: int | None = None) -> Batch:
        """Prompts alone, where a batch is looked at before any completion is drawn."""
        return super().batch([row % len(self.examples) for row in rows], epoch)

    def draw_batches(self, cursor: Cursor, writer: Any, config: TrainerConfig, state: JsonObject) -> list[Batch]:
        """Return the micro-batches of the step at `cursor`; a new rollout is drawn where there is none of its place."""
        plan = self.plan
        assert isinstance(plan, RolloutPlan), plan
        position = plan.name_rollout(cursor)
        if self.rollout is None and state:
            self.rollout = Rollout.from_values(state)
        if self.rollout is None or self.rollout.place != position:
            examples = [self.examples[row] for row in plan.select_prompts(cursor)]
            surroundings = Surroundings(writer, config, self.panel, self.pad_id, self.environment, self.server)
            self.rollout = draw_rollout(surroundings, examples, position)
            history = [*state.get(HISTORY, ()), self.rollout.reported]
            state.clear()
            state.update(self.rollout.as_values())
            state[HISTORY] = history
        return [self.rollout.batch(rows, self.pad_id) for rows in plan.at(cursor)]


@dataclass
class HeldOutPrompts(Feed):
    """Held-out prompts of such a stage: their completions are scored, and nothing is learned from them."""

    config: TrainerConfig = field(kw_only=True)
    panel: RewardPanel = field(kw_only=True)
    environment: Environment | None = None

    def measure(self, writer: CompletionWriter, at: Callable[[], None]) -> dict[str, float]:
        """Return mean rewards and length of one completion of each prompt. `at` is called between two batches."""
        return measure_rewards(writer, self.examples, self.config, self.panel, self.environment, at=at)
