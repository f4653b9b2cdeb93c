"""Full training: every weight moves; and the parameter groups that most methods use."""

from __future__ import annotations

from typing import Any

import torch

from trainyard.json_types import JsonObject
from trainyard.spec.training import TrainerConfig
from trainyard.train.methods.contract import Groups, PolicyRequest


def train_all_weights(model: Any, _: PolicyRequest) -> list[str]:
    """Let every weight move."""
    model.requires_grad_(True)
    return []


def plain_groups(model: torch.nn.Module, config: TrainerConfig) -> Groups:
    """Return one rate; weight decay on matrices, none on norms, biases and other vectors."""
    trainable = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    hyper = config.hyperparameters
    matrices = {name: parameter for name, parameter in trainable if parameter.ndim > 1}
    vectors = {name: parameter for name, parameter in trainable if parameter.ndim <= 1}
    return [
        make_group(members, hyper.learning_rate, decay)
        for members, decay in ((matrices, hyper.weight_decay), (vectors, 0.0))
        if members
    ]


def make_group(members: dict[str, torch.nn.Parameter], rate: float | None, decay: float) -> JsonObject:
    return {"params": list(members.values()), "names": list(members), "lr": rate, "weight_decay": decay}
