"""Settings that are allowed but rarely intended: reported by `plan` and at the start of a training, never refused.

Rows and advice on the length of a run: schedules that cannot be what their name says in so few steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from trainyard.errors import Reason
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.devices import Device
from trainyard.spec.axes.methods import find_trained_rank
from trainyard.spec.axes.optimizers import Optimizer
from trainyard.spec.axes.stages import DpoSettings
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


USUAL_RANKS = (8, 64)
"""Below, an adapter hardly learns; above, it costs more than it gives."""


class Advice(NamedTuple):
    """A row: when it is reported, and the sentence, filled from the config."""

    when: Callable[[TrainerConfig], bool]
    says: str
    device: Device | None = None
    """Only where the training computes on this device; None for any."""


def unusual_rank(config: TrainerConfig) -> bool:
    least, most = USUAL_RANKS
    return not least <= (find_trained_rank(config.method) or least) <= most


def depends_on_micro_batch(config: TrainerConfig) -> bool:
    """Return whether the loss compares the rows of a micro-batch, and a step has more than one micro-batch."""
    pairs = isinstance(config.stage, DpoSettings) and config.stage.loss.facts.compares_rows
    accumulates = config.hyperparameters.gradient_accumulation > 1
    return config.backend is BackendName.NATIVE and accumulates and (pairs or config.stage.facts.compares_rows)


ADVICE = (
    Advice(
        unusual_rank,
        f"method.rank is {{config.method.rank}}; ranks from {USUAL_RANKS[0]} to {USUAL_RANKS[1]} are usual.",
    ),
    Advice(
        lambda config: config.hyperparameters.optimizer is Optimizer.MUON and config.method.facts.adapter,
        "Muon was made for whole matrices; it is not known to help for the two factors of an adapter.",
    ),
    Advice(
        depends_on_micro_batch,
        "The reference point of this loss is a mean over batch_size rows: two micro-batches of "
        "{config.hyperparameters.batch_size} are not one of twice as many.",
    ),
    Advice(
        lambda config: config.hyperparameters.optimizer is Optimizer.PAGED_ADAMW_8BIT,
        "Paged memory is CUDA's: on a CPU paged_adamw_8bit runs as adamw_8bit.",
        device=Device.CPU,
    ),
)


def advice(config: TrainerConfig, here: Device | None = None) -> list[str]:
    """Return the sentences for a resolved trainer; `here` is the device that `device: auto` takes, if it is known."""
    device = here if config.device is Device.AUTO else config.device
    usual = [row.says.format(config=config) for row in ADVICE if row.device in (None, device) and row.when(config)]
    total = config.hyperparameters.max_steps
    return [*usual, *(step_advice(config, total) if total is not None else ())]
