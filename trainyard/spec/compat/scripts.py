"""Rows on training scripts: what the built-in one lacks, templates that nothing would run, and who allows them."""

from __future__ import annotations

from typing import Any

from trainyard.spec.axes import BackendName, Method, Optimizer, Precision, PreferenceLoss, Schedule, Stage
from trainyard.spec.compat.place import Hits, Place, Row, listed, value_at
from trainyard.spec.training import TrainerConfig

BUILT_IN: dict[str, tuple[Any, ...]] = {
    "stage": (Stage.CPT, Stage.SFT, Stage.DPO, Stage.REWARD),
    "method": tuple(method for method in Method if method is not Method.QLORA),
    "hyperparameters.optimizer": (Optimizer.ADAMW, Optimizer.SGD, Optimizer.ADAFACTOR),
    "hyperparameters.schedule": (
        Schedule.LINEAR, Schedule.COSINE, Schedule.CONSTANT, Schedule.CONSTANT_WITH_WARMUP,
    ),
    "hyperparameters.precision": (Precision.AUTO, Precision.FP32),
    "preference.loss": (PreferenceLoss.SIGMOID, PreferenceLoss.HINGE, PreferenceLoss.IPO),
}  # fmt: skip
"""Setting below `config` -> what the script that comes with the script backend carries out."""


def beyond_the_built_in(config: TrainerConfig) -> list[dict[str, object]]:
    """{setting, value, allowed} of each setting that the built-in script does not carry out."""
    return [
        {"setting": setting, "value": value_at(config, setting), "allowed": listed(allowed)}
        for setting, allowed in BUILT_IN.items()
        if value_at(config, setting) not in allowed
    ]


def lacks(config: TrainerConfig, _: Place) -> Hits:
    own = config.launch.script is not None
    return False if own or config.backend is not BackendName.SCRIPT else beyond_the_built_in(config)


def switched_off(config: TrainerConfig, at: Place) -> Hits:
    facts = at.facts.backends
    why = None if facts is None else facts.get(BackendName.SCRIPT, "This version does not have it.")
    return config.backend is BackendName.SCRIPT and why is not None and {"why": why}


SCRIPT_ROWS = (
    Row(
        "R-SCRIPT-BUILTIN", "trainer", "config.{setting}", lacks,
        "The built-in training script does not carry out {value}.",
        "Use {allowed}, or name a script of your own in launch.script.",
    ),
    Row(
        "R-SCRIPT-UNUSED", "trainer", "config.launch.script",
        lambda config, _: config.launch.script is not None and config.backend is not BackendName.SCRIPT,
        "The {config.backend} backend runs no script; the template {config.launch.script!r} would be ignored.",
        "Remove launch.script, or use backend script.",
    ),
    Row(
        "R-SCRIPT-OFF", "trainer", "config.backend", switched_off,
        "Training scripts do not run here: {why}",
        "Use another backend, or run the script of `trainyard eject` by hand.", scope="run",
    ),
)  # fmt: skip
"""What a chain may ask of a script: a chain is data, a script is code."""
