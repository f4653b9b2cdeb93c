"""Rows on stage grpo: who carries it out, what it is rewarded for, and groups that have to be whole."""

from __future__ import annotations

from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.stages import Stage
from trainyard.spec.compat.place import Hits, NodeView, Row
from trainyard.spec.training import TrainerConfig

DRAWING = (BackendName.TRL, BackendName.SCRIPT)
"""Backends that draw completions, and the one that runs what a user has written."""


def other_backend(config: TrainerConfig, _: NodeView) -> Hits:
    return config.stage is Stage.GRPO and config.backend not in DRAWING


def broken_groups(config: TrainerConfig, _: NodeView) -> Hits:
    """Completions of a step that are not whole groups of those to one prompt."""
    if config.stage is not Stage.GRPO or config.rollouts is None:
        return False
    hyper, group = config.hyperparameters, config.rollouts.num_generations
    drawn = hyper.batch_size * hyper.gradient_accumulation * config.launch.processes
    return drawn % group != 0 and {"drawn": drawn, "group": group}


ROLLOUT_ROWS = (
    Row(
        "R-GRPO-BACKEND", "trainer", "config.backend", other_backend,
        "The {config.backend} backend draws no completions, from which stage grpo learns.", "Use backend trl.",
    ),
    Row(
        "R-GRPO-REWARD", "trainer", "config.rollouts",
        lambda config, _: config.stage is Stage.GRPO and config.rollouts is None,
        "Stage grpo learns from rewards, and none is named.",
        "Name them, such as `rollouts: {{rewards: [{{type: exact_match}}]}}`.",
    ),
    Row(
        "R-GRPO-BATCH", "trainer", "config.hyperparameters.batch_size", broken_groups,
        "A step has {drawn} completions (batch_size × gradient_accumulation × processes), which are no whole groups"
        " of {group}.",
        "Make them a multiple of rollouts.num_generations, such as `batch_size: {group}`.",
    ),
    Row(
        "R-ROLLOUTS-UNUSED", "trainer", "config.rollouts",
        lambda config, _: config.rollouts is not None and config.stage is not Stage.GRPO,
        "Stage {config.stage} draws no completions; the settings under `rollouts` would be ignored.",
        "Remove `rollouts`, or use stage grpo.",
    ),
)  # fmt: skip
"""What completions are drawn by, for and in."""
