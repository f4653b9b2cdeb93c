"""Rows on stage grpo: what it is rewarded for, and groups that have to be whole."""

from __future__ import annotations

from trainyard.spec.compat.context import Match, NodeView, Row
from trainyard.spec.training import TrainerConfig


def broken_groups(config: TrainerConfig, _: NodeView) -> Match:
    """Completions of a step that are not whole groups of those to one prompt."""
    if not config.stage.facts.rollouts or config.rollouts is None:
        return False
    hyper, group = config.hyperparameters, config.rollouts.num_generations
    drawn = hyper.batch_size * hyper.gradient_accumulation * config.launch.processes
    return drawn % group != 0 and {"drawn": drawn, "group": group}


ROLLOUT_ROWS = (
    Row(
        "grpo-reward", "R-REWARD", "trainer", "config.rollouts",
        lambda config, _: config.stage.facts.rollouts and config.rollouts is None,
        "Stage grpo learns from rewards, and none is named.",
        "Name them, such as `rollouts: {{rewards: [{{type: exact_match}}]}}`.",
    ),
    Row(
        "grpo-batch", "R-BATCH", "trainer", "config.hyperparameters.batch_size", broken_groups,
        "A step has {drawn} completions (batch_size × gradient_accumulation × processes), which are no whole groups"
        " of {group}.",
        "Make them a multiple of rollouts.num_generations, such as `batch_size: {group}`.",
    ),
    Row(
        "rollouts-unused", "R-SETTING-UNUSED", "trainer", "config.rollouts",
        lambda config, _: config.rollouts is not None and not config.stage.facts.rollouts,
        "Stage {config.stage} draws no completions; the settings under `rollouts` would be ignored.",
        "Remove `rollouts`, or use stage grpo.",
    ),
)  # fmt: skip
"""What completions are drawn by, for and in."""
