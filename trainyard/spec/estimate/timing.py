"""Estimated time of a training, from the time of its steps on this machine; arithmetic only.

    time = start + load + steps x seconds a step + evaluations + checkpoints + end

A step is scaled by its operations, so that what was measured at one length carries to another. Of a parameter of the
blocks and of the output layer they are 6 for each token, 4 where the base is frozen; causal attention adds to the
parameters of each block its width times the length of the row. A latent technique adds its positions, its weights and
what it compares tokens by. Without a measurement there is no time.

What the evaluations of a training take: their rows, how often they are due, and their share of its time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Literal, NamedTuple

from pydantic import Field

from trainyard.spec.axes.axis import Strict
from trainyard.spec.estimate.memory import completion_length
from trainyard.spec.estimate.shape import ModelShape
from trainyard.spec.training import EvalSettings, Hyperparameters, TrainerConfig

MOST_ROUNDS = 20
"""Evaluations of a run where nothing else is requested."""
COST = 0.04
"""Most that they may take of the time of the training by this estimate, so that the measured share is below 5 %."""
FORWARD_SHARE = 0.5
"""Time of a row's evaluation as a share of its training: a forward pass, next to one with a backward pass that computes
no gradients of a frozen base. Of whole weights it is a third."""


def default_interval(total_steps: int, trained_rows: int, held_out_rows: int) -> int:
    """Steps between two evaluations: at most 20 in a run, and fewer where they would take more than 5 % of its time.

    `trained_rows` counts a row as often as the run trains it.
    """
    affordable = int(COST * trained_rows / (FORWARD_SHARE * held_out_rows))
    return math.ceil(total_steps / max(1, min(MOST_ROUNDS, affordable)))


def estimate_held_out_rows(config: TrainerConfig, rows: int) -> int:
    """Return rows that a trainer does not train on, of those that reach it."""
    evaluation = config.eval
    return min(evaluation.max_rows, math.ceil(rows * evaluation.held_out_share), rows - 1) if evaluation else 0


def time_share(evaluation: EvalSettings, steps: int, rows: int | None, rows_per_step: int) -> float:
    """Time of all evaluations as a share of the time of the training; that of the samples is not in it.

    `rows` is the number of rows that are trained, None where it is not known.
    """
    scored = evaluation.max_rows if rows is None or evaluation.set else count_held_out_rows(evaluation, rows)
    if evaluation.steps is None:
        return min(COST, MOST_ROUNDS * FORWARD_SHARE * scored / (steps * rows_per_step))
    per_epoch = steps if rows is None else math.ceil(rows / rows_per_step)
    every = per_epoch if evaluation.steps == "epoch" else evaluation.steps
    return math.ceil(steps / every) * FORWARD_SHARE * scored / (steps * rows_per_step)


def count_held_out_rows(evaluation: EvalSettings, trained: int) -> int:
    """Return rows that were held out where `trained` are left."""
    share = evaluation.held_out_share
    return min(evaluation.max_rows, max(1, math.ceil(trained * share / (1 - share))))


CHECKPOINTS_PER_RUN, LEAST_SAVE_STEPS, MOST_SAVE_STEPS = 5, 50, 500
NEWEST = 5
"""Measurements of which the median counts: one may have been taken while the machine was busy."""
LEAST_SLOWDOWN = 1.2
"""A slowdown below is not mentioned."""
NOT_MEASURED = "time: not measured here; `trainyard plan --measure` measures ten steps"


class ProcessorShares(Strict):
    """Processor share of a measured training."""

    load_cpu_share: float = Field(1.0, gt=0, le=1)
    """Of the time until the first step in which its threads could compute, the share in which they had a processor:
    less than 1 next to other programs. Measured seconds are those of the clock."""
    step_cpu_share: float = Field(1.0, gt=0, le=1)
    """The same of the steps."""


class StepTiming(ProcessorShares):
    """Measured time of a training: a probe of ten steps, or a run to its end."""

    source: Literal["probe", "run"]
    time: float
    """When (seconds of the epoch)."""
    max_length: int
    rows_per_batch: int
    """Rows of a micro-batch; `rows_per_step` are those of a step on one device."""
    rows_per_step: int
    data: str = ""
    """SHA-256 of the data set, "" for rows that were made up."""
    rows: int = 0
    tokens_per_row: float = 0.0
    """Mean over the rows that were trained, both sides of a pair together; 0: the trainer did not say."""
    steps_per_epoch: float = 0.0
    seconds_per_step: float = 0.0
    start_s: float = 0.0
    """Until the process ran."""
    load_s: float = 0.0
    """From then to the first step: imports, data, model, scores of a reference."""
    load_s_per_row: float = 0.0
    """The part of it that each row takes."""
    end_s: float = 0.0
    """After the last step."""
    save_s: float = 0.0
    """What a checkpoint delays a step."""

    def alone(self) -> StepTiming:
        """Return the times that it would have had without other programs."""
        load, step = self.load_cpu_share, self.step_cpu_share
        scaled = {name: getattr(self, name) * load for name in ("start_s", "load_s", "load_s_per_row")}
        scaled |= {name: getattr(self, name) * step for name in ("seconds_per_step", "end_s", "save_s")}
        return self.model_copy(update={**scaled, "load_cpu_share": 1.0, "step_cpu_share": 1.0})


class Problem(Strict):
    """A probe that did not fit the memory."""

    time: float
    max_length: int
    rows_per_batch: int
    why: str


@dataclass(frozen=True)
class Timings:
    """Measurements of trainings of one kind on this machine."""

    measured: Sequence[StepTiming] = ()
    problems: Sequence[Problem] = ()
    note: str = ""
    """Why an earlier measurement is not used."""
    slowdown: float = 1.0
    """How much longer a computation takes now, next to the other programs of the machine."""

    def find_problem(self, config: TrainerConfig) -> Problem | None:
        """Return the newest probe of at most this size that did not fit, unless a training of this size did since
        then.
        """
        hyper = config.hyperparameters
        size = (hyper.max_length, hyper.batch_size)
        problems = [
            problem for problem in self.problems if problem.max_length <= size[0] and problem.rows_per_batch <= size[1]
        ]
        newest = max(problems, key=lambda problem: problem.time, default=None)
        fits = (timing.time for timing in self.measured if (timing.max_length, timing.rows_per_batch) == size)
        return None if newest is None or max(fits, default=0.0) > newest.time else newest


@dataclass(frozen=True)
class Workload:
    """The training whose time is estimated, as far as the data is known."""

    rows: int | None = None
    steps: int | None = None
    tokens_per_row: float | None = None
    """Counted; None: that of the same data in a measurement, else the longest allowed."""
    data: frozenset[str] = field(default_factory=frozenset)
    """Names of the data set, by which a measurement of the same one is recognised."""


@dataclass(frozen=True)
class TimeEstimate:
    """Seconds of a training, None where nothing was measured; its steps and tokens; and where the numbers come from."""

    seconds: float | None
    steps: int | None
    tokens: int | None
    basis: str


def count_tokens(rows: int | None, tokens_per_row: float | None) -> int | None:
    """Return tokens of a pass over the rows: the one number of `plan` and of `data preview`."""
    return None if rows is None or tokens_per_row is None else round(rows * tokens_per_row)


def operations_per_parameter(config: TrainerConfig) -> int:
    """Of a token: forward 2, backward 4, of a frozen base 2; recomputing and a reference add to them."""
    base = 4 if config.method.facts.adapter else 6
    return base + (2 if config.hyperparameters.gradient_checkpointing else 0) + config.stage.facts.extra_operations


def operations(shape: ModelShape, config: TrainerConfig, rows: float, tokens_per_row: float) -> float:
    """Operations of training these rows once. A pair's tokens are those of both sides."""
    length = tokens_per_row / config.stage.facts.sequences_with_graph
    attention = shape.layers * shape.heads * shape.head_size * length
    computed = shape.parameters - (0 if shape.tied else shape.embedding)
    technique, positions = config.stage.technique, tokens_per_row
    if technique is not None:
        cost = technique.cost
        positions = tokens_per_row * (1 + cost.columns) + cost.added
        attention += shape.layers * cost.scored * length
        computed += technique.count_own(shape.hidden, shape.layers, shape.heads)
    return operations_per_parameter(config) * rows * positions * (computed + attention)


def rows_per_step(config: TrainerConfig) -> int:
    """Return rows of an optimizer step on one device."""
    return config.hyperparameters.batch_size * config.hyperparameters.gradient_accumulation


def save_steps(hyper: Hyperparameters, total: int) -> int:
    """Steps between two checkpoints: as requested, or five in a run, at least 50 and at most 500 steps apart."""
    share = math.ceil(total / CHECKPOINTS_PER_RUN)
    return hyper.save_steps or min(MOST_SAVE_STEPS, max(LEAST_SAVE_STEPS, share))


def estimate_time(
    shape: ModelShape | None, config: TrainerConfig, work: Workload, timings: Timings | None
) -> TimeEstimate:
    """Return the one function that `plan`, `data preview` and a run ask."""
    timings = timings or Timings()
    slowdown = estimate_slowdown(timings)
    timings = replace(timings, measured=[timing.alone() for timing in timings.measured])
    same_data = next(
        (timing for timing in newest_first(timings.measured) if timing.data and timing.data in work.data), None
    )
    mean = (same_data.tokens_per_row if same_data and same_data.tokens_per_row else None) or work.tokens_per_row
    tokens, hyper, steps = count_tokens(work.rows, mean), config.hyperparameters, work.steps
    if same_data and same_data.steps_per_epoch and is_same_size(same_data, config):
        tokens = count_tokens(round(same_data.steps_per_epoch * same_data.rows_per_step), mean)
        steps = hyper.max_steps or max(1, math.ceil((hyper.epochs or 3.0) * same_data.steps_per_epoch))
    if steps is None:
        return TimeEstimate(None, None, tokens, "time: not known without the rows")
    if not timings.measured:
        return TimeEstimate(None, steps, tokens, join(NOT_MEASURED, timings.note))
    sequences = config.stage.facts.sequences_with_graph
    longest = (hyper.max_length + completion_length(config)) * sequences
    per_row = min(mean, longest) if mean else longest
    step_s, how = step_seconds(shape, config, per_row, timings.measured)
    if step_s is None:
        return TimeEstimate(None, steps, tokens, join(NOT_MEASURED, how))
    newest = newest_first(timings.measured)[:NEWEST]
    start, end = (median(getattr(timing, name) for timing in newest) for name in ("start_s", "end_s"))
    rows = work.rows or 0
    load = median(
        max(0.0, timing.load_s + timing.load_s_per_row * (rows - timing.rows if rows else 0)) for timing in newest
    )
    saves = math.ceil(steps / save_steps(hyper, steps)) - 1
    save_s = saves * median(timing.save_s for timing in newest)
    in_step = rows_per_step(config) * config.launch.processes
    share = time_share(config.eval, steps, work.rows, in_step) if config.eval else 0.0
    loop = steps * step_s
    length = f"{per_row:,.0f} tokens a row" + ("" if mean else " (the longest allowed)")
    parts = [
        f"time: start {start:.1f} s, load {load:.1f} s",
        f"{steps:,} steps × {step_s:.4g} s with {length}, {how}",
        *([f"{share:.0%} for the evaluations"] if share else []),
        *([f"{saves} checkpoints {save_s:.1f} s"] if saves else []),
        f"end {end:.1f} s",
    ]
    before, after = start + load, loop * (1 + share) + save_s + end
    basis, seconds = " + ".join(parts), before + after
    slowed = before * slowdown.load + after * slowdown.steps
    if slowed >= LEAST_SLOWDOWN * seconds:
        times = slowed / seconds
        basis += f"; times {times:.1f}, as other programs use the processor now (alone: {seconds:,.0f} s)"
        seconds = slowed
    return TimeEstimate(seconds, steps, tokens, basis)


class Slowdown(NamedTuple):
    """Slowdown of the two parts of a training next to other programs."""

    load: float = 1.0
    """Until the first step: imports and files, which wait longer than the steps for a processor."""
    steps: float = 1.0


def estimate_slowdown(timings: Timings) -> Slowdown:
    """Return the slowdown of now, at most the one that the measured trainings had: a moment's load may pass."""
    newest = newest_first(timings.measured)[:NEWEST]
    if not newest:
        return Slowdown()
    # A probe is short: either part may have met a moment that the other has not.
    steps = median(max(timing.step_cpu_share, timing.load_cpu_share * (timing.source == "probe")) for timing in newest)
    load = median(max(timing.load_cpu_share, timing.step_cpu_share * (timing.source == "probe")) for timing in newest)
    return Slowdown(*(max(1.0, min(timings.slowdown, 1 / share)) for share in (load, steps)))


def step_seconds(
    shape: ModelShape | None, config: TrainerConfig, tokens_per_row: float, measured: Sequence[StepTiming]
) -> tuple[float | None, str]:
    """Return seconds of a step, and how they were measured: at the same size if possible, else scaled by operations."""
    exact = [timing for timing in newest_first(measured) if is_same_size(timing, config)]
    nearest = (exact or select_nearest(measured, config))[:NEWEST]
    if shape is None and not exact:
        return None, "measured at another size, and the shape of the model is not known here"
    rows = rows_per_step(config)
    if shape is None:
        return median(timing.seconds_per_step for timing in nearest), describe_timings(nearest, exact=True)
    here = operations(shape, config, rows, tokens_per_row)
    longest = config.stage.facts.sequences_with_graph
    rates = [
        timing.seconds_per_step
        / operations(shape, config, timing.rows_per_step, timing.tokens_per_row or timing.max_length * longest)
        for timing in nearest
    ]
    return here * median(rates), describe_timings(nearest, exact=bool(exact))


def is_same_size(timing: StepTiming, config: TrainerConfig) -> bool:
    hyper = config.hyperparameters
    size = (hyper.max_length, hyper.batch_size, rows_per_step(config))
    return size == (timing.max_length, timing.rows_per_batch, timing.rows_per_step)


def select_nearest(measured: Sequence[StepTiming], config: TrainerConfig) -> list[StepTiming]:
    """Return those whose micro-batch is the most similar, the newest first."""
    hyper = config.hyperparameters
    size = hyper.max_length * hyper.batch_size

    def distance(timing: StepTiming) -> float:
        return abs(math.log(timing.max_length * timing.rows_per_batch / size))

    least = min(map(distance, measured))
    return [timing for timing in newest_first(measured) if distance(timing) == least]


def newest_first(measured: Sequence[StepTiming]) -> list[StepTiming]:
    return sorted(measured, key=lambda timing: -timing.time)


def describe_timings(timings: Sequence[StepTiming], *, exact: bool) -> str:
    first = timings[0]
    of = "a run" if first.source == "run" else "ten steps"
    count = f" (median of {len(timings)})" if len(timings) > 1 else ""
    scaled = "" if exact else f" at {first.max_length} tokens and {first.rows_per_batch} rows, scaled by operations"
    return f"measured here in {of}{count}{scaled}"


def join(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
