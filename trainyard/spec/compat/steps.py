"""Rows and advice on the length of a run: schedules that cannot be what their name says in so few steps."""

from __future__ import annotations

from collections.abc import Callable

from trainyard.errors import Reason
from trainyard.spec.compat.context import Match, NodeView, Row, answers, fill
from trainyard.spec.rates import LEAST_PEAK, highest_rate
from trainyard.spec.training import TrainerConfig

StepJudge = Callable[[TrainerConfig, int], Match]
"""Judges a trainer by the optimizer steps of its run."""


def cut_short(config: TrainerConfig, total: int) -> Match:
    """Return the steps of a run that are too few for its schedule."""
    least = config.hyperparameters.schedule.facts.least_steps
    return total < least and {"total": total, "least": least}


def never_warm(config: TrainerConfig, total: int) -> Match:
    """Return the warm-up of a run that ends before its peak, or reaches less than half of it."""
    hyper = config.hyperparameters
    if not hyper.schedule.facts.warms_up or cut_short(config, total):
        return False
    warmup = hyper.warmup(total)
    highest = highest_rate(hyper.schedule, total, warmup)
    if warmup < total and highest >= LEAST_PEAK:
        return False
    return {"warmup": warmup, "total": total, "share": f"{highest:.2%}", "most": total - 1}


def by_max_steps(judge: StepJudge) -> Callable[[TrainerConfig, NodeView], Match]:
    """Apply a judge to a chain whose number of steps is written in it."""

    def when(config: TrainerConfig, _: NodeView) -> Match:
        total = config.hyperparameters.max_steps
        return total is not None and judge(config, total)

    return when


JUDGES: dict[str, StepJudge] = {"schedule-steps": cut_short, "warmup-steps": never_warm}

STEP_ROWS = (
    Row(
        "schedule-steps", "R-SCHEDULE", "trainer", "config.hyperparameters.schedule",
        by_max_steps(cut_short),
        "The schedule {config.hyperparameters.schedule} needs {least} steps to be one, and the run has {total}.",
        "Use schedule linear or constant_with_warmup, or train {least} steps or more.",
    ),
    Row(
        "warmup-steps", "R-SCHEDULE", "trainer", "config.hyperparameters.warmup_steps",
        by_max_steps(never_warm),
        "The warm-up of {warmup} steps is not over when the run ends after {total}: the highest rate would be {share} "
        "of learning_rate.",
        "Use a warmup_steps of at most {most}, or warmup_ratio, or train longer.",
    ),
)  # fmt: skip
"""A chain with `max_steps` is judged by `check`; every other run by its program, before the first step."""

UNUSED_WARMUP = Row(
    "warmup-unused", "R-SETTING-UNUSED", "trainer", "config.hyperparameters.warmup_steps",
    lambda config, _: bool(config.hyperparameters.warmup_steps)
    and not config.hyperparameters.schedule.facts.warms_up,
    "The schedule {config.hyperparameters.schedule} begins at its peak; warmup_steps would be ignored.",
    "Remove warmup_steps, or use schedule constant_with_warmup.",
)  # fmt: skip


def step_reasons(config: TrainerConfig, total: int, node: str | None) -> list[Reason]:
    """Return every reason why a run of so many steps would not train as its settings say."""
    return [
        fill(row, {"config": config, **arguments}, node, row.field)
        for row in STEP_ROWS
        for arguments in answers(JUDGES[row.name](config, total))
    ]


def step_advice(config: TrainerConfig, total: int) -> list[str]:
    """Return what a run of so many steps does otherwise than its settings say."""
    save = config.hyperparameters.save_steps
    if save is None or save <= total:
        return []
    return [f"save_steps is {save} and the run has {total} steps: no checkpoint is made before its end."]
