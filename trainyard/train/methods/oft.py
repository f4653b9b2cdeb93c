"""Orthogonal fine-tuning (OFT, arXiv 2306.07280): the inputs of a layer are rotated, block by block.

PEFT makes the rotations, R = (I + Q)(I - Q)^-1 with the inverse as a Neumann series of five terms (OFTv2, 2506.19847).
A rotation keeps the angles between the neurons of a layer; `lora.rank` and `lora.alpha` mean nothing here.
"""

from __future__ import annotations

from typing import Any

from peft import OFTConfig

from trainyard.errors import InvalidInput
from trainyard.train.methods.contract import PolicyRequest
from trainyard.train.methods.lora import TASKS, list_adapted, targets


def oft_config(model: Any, request: PolicyRequest) -> OFTConfig:
    """PEFT's form of the settings. Raises `InvalidInput` (`E-TRAINABLE`) when blocks do not fill a layer's inputs:
    PEFT would quietly take another size."""
    lora, size = request.config.lora, request.config.engine.oft_block_size
    wanted = targets(model, lora)
    for name, inputs in list_adapted(model, wanted):
        if inputs % size:
            raise InvalidInput(
                f"engine.oft_block_size is {size}, and {name} has {inputs} inputs.",
                why="Blocks have to fill the inputs of every adapted layer.",
                do="Use a divisor of all layer widths, such as 32.",
                code="E-TRAINABLE",
            )
    return OFTConfig(
        task_type=TASKS[request.head],
        r=0,
        oft_block_size=size,
        module_dropout=lora.dropout or 0.0,
        target_modules=wanted,
        modules_to_save=list(lora.modules_to_save) or None,
        layers_to_transform=list(lora.layers) if lora.layers is not None else None,
    )
