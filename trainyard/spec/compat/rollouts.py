"""Rows on stage grpo: what it is rewarded for, and groups that have to be whole."""

from __future__ import annotations

from trainyard.spec.axes.stages import GrpoSettings
from trainyard.spec.compat.context import Match, NodeView, Row
from trainyard.spec.training import TrainerConfig


def broken_groups(config: TrainerConfig, _: NodeView) -> Match:
    """Completions of a step that are not whole groups of those to one prompt."""
    if not isinstance(config.stage, GrpoSettings) or not config.stage.rewards:
        return False
    hyper, group = config.hyperparameters, config.stage.num_generations
    drawn = hyper.batch_size * hyper.gradient_accumulation * config.launch.processes
    return drawn % group != 0 and {"drawn": drawn, "group": group}


ROLLOUT_ROWS = (
    Row(
        "grpo-reward", "R-REWARD", "trainer", "config.stage.rewards",
        lambda config, _: isinstance(config.stage, GrpoSettings) and not config.stage.rewards,
        "Stage grpo learns from rewards, and none is named.",
        "Name them, such as `stage: {{type: grpo, rewards: [{{type: exact_match}}]}}`.",
    ),
    Row(
        "grpo-batch", "R-BATCH", "trainer", "config.hyperparameters.batch_size", broken_groups,
        "A step has {drawn} completions (batch_size × gradient_accumulation × processes), which is not a"
        " multiple of {group}.",
        "Make them a multiple of stage.num_generations, such as `batch_size: {group}`.",
    ),
)  # fmt: skip
"""What completions are drawn by, for and in."""
