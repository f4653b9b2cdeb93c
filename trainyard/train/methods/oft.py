"""Orthogonal fine-tuning (OFT, arXiv 2306.07280): the inputs of a layer are rotated, block by block.

PEFT makes the rotations, R = (I + Q)(I - Q)^-1 with the inverse as a Neumann series of five terms (OFTv2, 2506.19847).
A rotation keeps the angles between the neurons of a layer; it has no rank.
"""

from __future__ import annotations

from typing import Any

from peft import OFTConfig

from trainyard.errors import InvalidInput
from trainyard.spec.axes.methods import OftSettings
from trainyard.train.methods.contract import PolicyRequest
from trainyard.train.methods.lora import TASKS
from trainyard.train.methods.targets import has_experts, list_adapted, targets


def oft_config(model: Any, request: PolicyRequest) -> OFTConfig:
    """PEFT's form of the settings. Raises `InvalidInput` (`E-TRAINABLE`) when blocks do not fill a layer's inputs:
    PEFT would quietly take another size."""
    oft = request.config.method
    assert isinstance(oft, OftSettings), oft
    if oft.target_modules == "all-linear" and has_experts(model):
        raise InvalidInput(
            "An adapter on the stacked matrices of experts cannot have method oft.",
            why="PEFT rotates the inputs of linear layers, and most of the weights would have no adapter.",
            do="Use method lora, or `target_modules: attention-only`.",
            code="E-TRAINABLE",
        )
    modules = targets(model, oft, low_rank=False).modules
    for name, inputs in list_adapted(model, modules):
        if inputs % oft.block_size:
            raise InvalidInput(
                f"method.block_size is {oft.block_size}, and {name} has {inputs} inputs.",
                why="Blocks have to fill the inputs of every adapted layer.",
                do="Use a divisor of all layer widths, such as 32.",
                code="E-TRAINABLE",
            )
    return OFTConfig(
        task_type=TASKS[request.head],
        r=0,
        oft_block_size=oft.block_size,
        module_dropout=oft.dropout or 0.0,
        target_modules=modules,
        modules_to_save=list(oft.modules_to_save) or None,
        layers_to_transform=list(oft.layers) if oft.layers is not None else None,
    )
