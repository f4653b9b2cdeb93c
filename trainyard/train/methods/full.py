"""Full training: every weight moves; and the parameter groups that most methods use."""

from __future__ import annotations

from typing import Any

import torch

from trainyard.spec.training import TrainerConfig
from trainyard.train.methods.contract import Groups, PolicyRequest


def all_weights(model: Any, _: PolicyRequest) -> list[str]:
    """Let every weight move."""
    model.requires_grad_(True)
    return []


def plain_groups(model: torch.nn.Module, config: TrainerConfig) -> Groups:
    """One rate; weight decay on matrices, none on norms, biases and other vectors."""
    trainable = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    hyper = config.hyperparameters
    parts = [
        (hyper.weight_decay, [(name, parameter) for name, parameter in trainable if parameter.ndim > 1]),
        (0.0, [(name, parameter) for name, parameter in trainable if parameter.ndim <= 1]),
    ]
    return [
        {
            "params": [parameter for _, parameter in members],
            "names": [name for name, _ in members],
            "lr": hyper.learning_rate,
            "weight_decay": decay,
        }
        for decay, members in parts
        if members
    ]
