"""Stages: which objective is trained, on which rows, and what its batches look like. `train/stages` computes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainyard.spec.axes.axis import AxisValue
from trainyard.spec.axes.data import Port


@dataclass(frozen=True, kw_only=True)
class StageFacts:
    """One objective."""

    ports: tuple[Port, ...]
    """The ports that it can learn from; if more than one is connected, the nearest."""
    learning_rates: tuple[float, float]
    """Default peak for whole weights (TRL's default) and for an adapter (up to ten times that)."""
    instead: tuple[Port, ...] = ()
    """What it learns from where none of its ports arrived."""
    head: Literal["causal", "reward"] = "causal"
    sequences: int = 1
    """Rows of a batch that an example fills: 1, or 2 for a pair."""
    sequences_with_graph: int = 1
    """Those of them that the backward pass goes through."""
    packable: bool = False
    """Whether the loss is a sum over tokens, whichever row they are in."""
    compares_rows: bool = False
    """Whether the loss compares the rows of a batch, so that a batch has to keep its rows."""
    has_control: bool = False
    """Whether the rows have answers that a control can shuffle."""
    preference: bool = False
    """Whether it reads the settings under `preference`."""
    rollouts: bool = False
    """Whether it draws completions, by the settings under `rollouts`."""
    extra_operations: int = 0
    """Per parameter and token, on top of the forward and backward pass: a reference's forward pass, or drawing."""

    @property
    def smallest_batch(self) -> int:
        return 2 if self.compares_rows else 1


class Stage(AxisValue):
    """Which objective is trained."""

    facts: StageFacts

    CPT = "cpt", StageFacts(ports=(Port.TEXT, Port.DOCUMENTS), learning_rates=(2e-5, 1e-4), packable=True)
    SFT = (
        "sft",
        StageFacts(
            ports=(Port.SFT,), instead=(Port.PREFERENCE,), learning_rates=(2e-5, 2e-4), packable=True, has_control=True
        ),
    )
    REWARD = (
        "reward",
        StageFacts(
            ports=(Port.PREFERENCE,), learning_rates=(1e-5, 1e-4), head="reward", sequences=2, sequences_with_graph=2
        ),
    )
    PPO = "ppo", StageFacts(ports=(Port.SFT,), learning_rates=(3e-6, 1e-5))
    DPO = (
        "dpo",
        StageFacts(
            ports=(Port.PREFERENCE,),
            learning_rates=(1e-6, 1e-5),
            sequences=2,
            sequences_with_graph=2,
            has_control=True,
            preference=True,
            extra_operations=2,
        ),
    )
    KTO = (
        "kto",
        StageFacts(
            ports=(Port.LABELLED,), learning_rates=(1e-6, 1e-5), sequences=2, compares_rows=True, preference=True
        ),
    )
    GRPO = "grpo", StageFacts(ports=(Port.SFT,), learning_rates=(1e-6, 1e-5), rollouts=True, extra_operations=2)


@dataclass(frozen=True, kw_only=True)
class LossFacts:
    """One loss of the dpo stage."""

    needs_reference: bool = True
    compares_rows: bool = False


class PreferenceLoss(AxisValue):
    """Loss of the dpo stage, all with the same pairs."""

    facts: LossFacts

    SIGMOID = "sigmoid", LossFacts()
    HINGE = "hinge", LossFacts()
    IPO = "ipo", LossFacts()
    KTO_PAIR = "kto_pair", LossFacts(compares_rows=True)
    ORPO = "orpo", LossFacts(needs_reference=False)
    SIMPO = "simpo", LossFacts(needs_reference=False)
