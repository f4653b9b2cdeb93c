"""Stages: which objective is trained."""

from __future__ import annotations

from enum import StrEnum


class Stage(StrEnum):
    """Which objective is trained."""

    CPT = "cpt"
    SFT = "sft"
    REWARD = "reward"
    PPO = "ppo"
    DPO = "dpo"
    KTO = "kto"
    GRPO = "grpo"


class PreferenceLoss(StrEnum):
    """Loss of the dpo stage, all with the same pairs."""

    SIGMOID = "sigmoid"
    HINGE = "hinge"
    IPO = "ipo"
    KTO_PAIR = "kto_pair"
    ORPO = "orpo"
    SIMPO = "simpo"
