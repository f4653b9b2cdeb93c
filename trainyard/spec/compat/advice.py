"""Settings that are allowed but rarely intended: reported by `plan` and at the start of a training, never refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.devices import Device
from trainyard.spec.axes.methods import find_trained_rank
from trainyard.spec.axes.optimizers import Optimizer
from trainyard.spec.axes.stages import DpoSettings
from trainyard.spec.compat.steps import step_advice
from trainyard.spec.training import TrainerConfig

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
