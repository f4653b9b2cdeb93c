"""The objectives by stage."""

from __future__ import annotations

from trainyard.spec.axes.stages import Stage
from trainyard.train.contracts import StageSpec
from trainyard.train.losses.cpt import CPT
from trainyard.train.losses.distill import DISTILL
from trainyard.train.losses.dpo import DPO
from trainyard.train.losses.grpo import GRPO
from trainyard.train.losses.kto import KTO
from trainyard.train.losses.ppo import PPO
from trainyard.train.losses.reward import REWARD
from trainyard.train.losses.sft import SFT

STAGES: dict[Stage, StageSpec] = {
    Stage.CPT: CPT,
    Stage.SFT: SFT,
    Stage.REWARD: REWARD,
    Stage.DPO: DPO,
    Stage.KTO: KTO,
    Stage.DISTILL: DISTILL,
    Stage.PPO: PPO,
    Stage.GRPO: GRPO,
}
