"""Other spellings of what our words say, accepted here and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

OBJECTIVES = {
    "sft": "sft", "dpo": "dpo", "ppo": "ppo", "rlhf": "ppo", "kto": "kto", "cpt": "cpt", "reward": "reward",
    "grpo": "grpo",
}  # fmt: skip
"""Objectives that some tools call a method -> our stage. RLHF is PPO against a reward model."""
RENAMED = {"hyperparams": "hyperparameters"}
DEFAULT_METHOD = "lora"
DEVICES = {"metal": "mps", "wgpu": "auto"}
"""Devices of other tools -> ours. WebGPU computes on whatever is there, which `auto` takes and records."""
CUDA_NUMBER = re.compile(r"cuda[:(](\d{1,3})\)?")


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


def device_word(given: Any) -> Any:
    """A device in our words: `cuda:0`, `Cuda(0)`, `metal` and `wgpu` are read; a GPU's number above 0 stays."""
    if not isinstance(given, str):
        return given
    word = given.strip().lower()
    return "cuda" if named_gpu(word) == 0 else DEVICES.get(word, word)


def named_gpu(word: str) -> int | None:
    """The number in `cuda:1`; None where there is none."""
    found = CUDA_NUMBER.fullmatch(word)
    return int(found[1]) if found else None
