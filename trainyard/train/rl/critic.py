"""The critic of PPO: a model with one value a token, which begins as the reward model where there is one.

It is a module of the policy while that is trained, so that checkpoints, clipping and the optimizer include it; it is
taken off before anything is saved. Its weights are its own, and so is its rate: a loss of the critic moves no policy.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from trainyard.train.losses.scoring import CRITIC
from trainyard.train.methods.adapters import NEW, load_adapter, read_config
from trainyard.train.methods.contract import Groups, PolicyRequest
from trainyard.train.methods.loading import load_base
from trainyard.train.methods.table import METHODS, build
from trainyard.train.rl.reward_model import ScorerSource


def make_critic(request: PolicyRequest, source: ScorerSource | None) -> Any:
    """Return a critic: the reward model, trainable as it was; without one the policy's own start, whose values are all
    0.

    Raises what `build` raises for the head of a reward model.
    """
    critic_request = replace(request, head="reward")
    if source is None:
        critic = build(critic_request, with_reference=False).model
        for name, value in critic.named_parameters():
            if "score" in name.split("."):
                torch.nn.init.zeros_(value)
        return critic
    if source.adapter is None:
        return load_base(critic_request, source.base).requires_grad_(True)
    config = read_config(Path(source.adapter), "reward", trainable=True)
    base = METHODS[request.config.method.type].load(critic_request, source.base)
    return load_adapter(base, Path(source.adapter), config, NEW, request.device)


def attach_critic(model: Any, critic: Any) -> None:
    """Make the critic a module of the policy."""
    model.add_module(CRITIC, critic)


def detach_critic(model: Any) -> None:
    """Take the critic off a policy that has one: what is saved answers, and values nothing."""
    if CRITIC in dict(model.named_children()):
        delattr(model, CRITIC)


def split_groups(groups: Groups, rate: float | None) -> Groups:
    """Return the same groups with the critic's weights in groups of their own, with their own rate where it is
    given.
    """
    divided_groups: Groups = []
    for group in groups:
        members = list(zip(group["names"], group["params"], strict=True))
        for of_critic in (False, True):
            part = [(name, value) for name, value in members if name.startswith(f"{CRITIC}.") is of_critic]
            if part:
                entries = {"names": [name for name, _ in part], "params": [value for _, value in part]}
                divided_groups.append({**group, **entries, **({"lr": rate} if of_critic and rate is not None else {})})
    return divided_groups
