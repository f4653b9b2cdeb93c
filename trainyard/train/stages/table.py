"""The objectives by stage."""

from __future__ import annotations

from trainyard.spec.axes.stages import Stage
from trainyard.train.stages.contract import StageSpec
from trainyard.train.stages.cpt import CPT
from trainyard.train.stages.distill import DISTILL
from trainyard.train.stages.dpo import DPO
from trainyard.train.stages.grpo import GRPO
from trainyard.train.stages.kto import KTO
from trainyard.train.stages.ppo import PPO
from trainyard.train.stages.reward import REWARD
from trainyard.train.stages.sft import SFT

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
