"""Our learning-rate curves against the schedulers of transformers and torch, step by step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau
from transformers import optimization

from trainyard.spec.axes.schedules import Schedule
from trainyard.spec.rates import POLYNOMIAL_POWER, RESTART_CYCLES
from trainyard.spec.training import Hyperparameters, TrainerConfig
from trainyard.train.schedules import LearningRate, Plateau

PEAK = 3e-4
Make = Callable[[torch.optim.Optimizer, int, int], Any]

THEIRS: dict[Schedule, Make] = {
    Schedule.LINEAR: lambda opt, total, warmup: optimization.get_linear_schedule_with_warmup(opt, warmup, total),
    Schedule.COSINE: lambda opt, total, warmup: optimization.get_cosine_schedule_with_warmup(opt, warmup, total),
    Schedule.CONSTANT: lambda opt, total, warmup: optimization.get_constant_schedule(opt),
    Schedule.CONSTANT_WITH_WARMUP: lambda opt, total, warmup: optimization.get_constant_schedule_with_warmup(
        opt, warmup
    ),
    Schedule.COSINE_WITH_RESTARTS: lambda opt, total, warmup: (
        optimization.get_cosine_with_hard_restarts_schedule_with_warmup(opt, warmup, total, num_cycles=RESTART_CYCLES)
    ),
    Schedule.POLYNOMIAL: lambda opt, total, warmup: optimization.get_polynomial_decay_schedule_with_warmup(
        opt, warmup, total, lr_end=0.0, power=POLYNOMIAL_POWER
    ),
    Schedule.WSD: lambda opt, total, warmup: optimization.get_wsd_schedule(
        opt, warmup, num_decay_steps=max(1, total // 10), num_training_steps=total
    ),
    Schedule.INVERSE_SQRT: lambda opt, total, warmup: optimization.get_inverse_sqrt_schedule(opt, warmup),
    Schedule.ONE_CYCLE: lambda opt, total, warmup: OneCycleLR(
        opt, max_lr=PEAK, total_steps=total, pct_start=warmup / total, cycle_momentum=False
    ),
}


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)


@pytest.mark.parametrize(("total", "warmup_ratio"), [(100, 0.1), (100, 0.0), (37, 0.3), (7, 0.5)])
@pytest.mark.parametrize("schedule", THEIRS)
def test_every_rate_of_a_run_is_the_librarys(schedule: Schedule, total: int, warmup_ratio: float) -> None:
    """After the warm-up, at the same step; in it, as transformers' with one step more, whose first is left out."""
    hyper = Hyperparameters(schedule=schedule, warmup_ratio=warmup_ratio)
    our_schedule = LearningRate(optimizer(), TrainerConfig(hyperparameters=hyper), total)
    warmup = math.ceil(warmup_ratio * total)
    rises = schedule.facts.warms_up and schedule is not Schedule.ONE_CYCLE
    our_rates, expected_rates = (
        list_rates(our_schedule.step, lambda: our_schedule.last[0], total),
        library_rates(schedule, total, warmup),
    )
    assert our_rates[warmup if rises else 0 :] == pytest.approx(
        expected_rates[warmup if rises else 0 :], rel=1e-9, abs=1e-16
    )
    if rises and warmup:
        shifted = library_rates(schedule, total + 1, warmup + 1)
        assert shifted[0] == 0.0 < our_rates[0]
        assert our_rates[:warmup] == pytest.approx(shifted[1 : warmup + 1], rel=1e-9)


def library_rates(schedule: Schedule, total: int, warmup: int) -> list[float]:
    """Return the rates that the library's scheduler gives each step of a run."""
    weights = optimizer()
    scheduler = THEIRS[schedule](weights, total, warmup)

    def step() -> None:
        weights.step()  # moves nothing; torch's schedulers ask for this order
        scheduler.step()

    return list_rates(step, lambda: scheduler.get_last_lr()[0], total)


def list_rates(step: Callable[[], None], rate: Callable[[], float], total: int) -> list[float]:
    """Return the rate before each of the steps."""
    rates = [rate()]
    for _ in range(total - 1):  # OneCycleLR knows no rate after its last step
        step()
        rates.append(rate())
    return rates


def test_a_plateau_is_torchs() -> None:
    theirs_optimizer = optimizer()
    torch_plateau = ReduceLROnPlateau(theirs_optimizer)
    our_plateau = Plateau()
    generator = torch.Generator().manual_seed(3)
    for _ in range(60):
        metric = torch.rand((), generator=generator).item()
        torch_plateau.step(metric)
        our_plateau.see(metric)
        assert PEAK * our_plateau.factor == pytest.approx(theirs_optimizer.param_groups[0]["lr"], rel=1e-9)
    assert our_plateau.factor < 1e-3
