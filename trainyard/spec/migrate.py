"""Other spellings of what our words say, accepted here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OBJECTIVES = {
    "sft": "sft", "dpo": "dpo", "ppo": "ppo", "rlhf": "ppo", "kto": "kto", "cpt": "cpt", "reward": "reward",
    "grpo": "grpo",
}  # fmt: skip
"""Objectives that some tools call a method -> our stage. RLHF is PPO against a reward model."""
RENAMED = {"hyperparams": "hyperparameters"}
DEFAULT_METHOD = "lora"


def trainer_words(given: Any) -> Any:
    """A trainer's or a job's settings in our words.

    `method: "dpo"` names an objective: it becomes `stage: dpo` with the default method, unless a stage is given that
    says otherwise, which stays and is refused. `hyperparams` becomes `hyperparameters`. Anything else passes unchanged.
    """
    if not isinstance(given, Mapping):
        return given
    words = {RENAMED.get(key, key) if RENAMED.get(key) not in given else key: value for key, value in given.items()}
    method = words.get("method")
    stage = OBJECTIVES.get(method.lower()) if isinstance(method, str) else None
    if stage is not None and words.get("stage") in (None, stage):
        words |= {"stage": stage, "method": DEFAULT_METHOD}
    return words
