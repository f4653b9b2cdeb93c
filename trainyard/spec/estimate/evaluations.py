"""Costs of the evaluations of a training: their rows, how often they are due, and their share of its time."""

from __future__ import annotations

import math

from trainyard.spec.training import EvalSettings, TrainerConfig

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
