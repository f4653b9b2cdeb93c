"""Full and freeze: training of the base's own weights; and the parameter groups that most methods use.

`full` trains every weight. `freeze` trains the last blocks with the final norm: cheaper by the gradients and optimizer
states of the frozen rest. The base is changed in place.

With `interval`, `freeze` is LISA (Pan et al. 2024, arXiv 2403.17919): embeddings, final norm and output layer are
trained in every step, and of the blocks a random choice that is sampled again every `interval` steps. The optimizer's
states of a block that goes out are dropped, as in the paper: when it is sampled again they begin at zero. The blocks of
a step follow from the seed and its number, so a resumed run trains the same ones.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import torch

from trainyard.errors import InvalidInput
from trainyard.json_types import JsonObject
from trainyard.spec.axes.methods import FreezeSettings
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


NORM_WORDS = ("norm", "ln_")


def train_last_blocks(model: Any, request: PolicyRequest) -> list[str]:
    """Let `blocks` last blocks and the final norm move, and with `head` the output layer; with `interval` everything.

    A reward model's score always moves: it starts at random. Raises `InvalidInput` (`E-TRAINABLE`).
    """
    freeze = request.config.method
    assert isinstance(freeze, FreezeSettings), freeze
    decoder, blocks = find_blocks(model, freeze)
    if freeze.interval is not None:
        model.requires_grad_(True)
        return []
    norms = [child for name, child in decoder.named_children() if any(word in name for word in NORM_WORDS)]
    trainable = list(blocks)[-freeze.blocks :] + norms
    warnings = []
    if request.head == "reward":
        trainable.append(model.score)
    elif freeze.head:
        trainable.append(model.get_output_embeddings())
        if model.get_output_embeddings().weight is model.get_input_embeddings().weight:
            warnings.append("The output layer shares its weights with the input embedding, so both move.")
    for module in trainable:
        module.requires_grad_(True)
    return warnings


def find_blocks(model: Any, freeze: FreezeSettings) -> tuple[torch.nn.Module, torch.nn.ModuleList]:
    """Return the decoder and its blocks, at least as many as are to be trained. Raises as `train_last_blocks`."""
    config, numbered = model.config.get_text_config(), find_decoder_blocks(model)
    if numbered is None:
        raise InvalidInput(
            f"No list of {config.num_hidden_layers} blocks was found in {type(model).__name__}.",
            why="Method freeze has to know which weights come last.",
            do="Use method lora or full.",
            code="E-TRAINABLE",
        )
    decoder, blocks = numbered
    if freeze.blocks > len(blocks):
        raise InvalidInput(
            f"method.blocks is {freeze.blocks}, and the model has {len(blocks)} blocks.",
            do=f"Use at most {len(blocks)}, or method full.",
            code="E-TRAINABLE",
        )
    return decoder, blocks


class RandomBlocks:
    """LISA's choice of blocks for each step."""

    def __init__(self, blocks: Iterable[torch.nn.Module], count: int, interval: int, seed: int) -> None:
        self.blocks, self.count, self.interval, self.seed = list(blocks), count, interval, seed
        self.trainable: frozenset[int] | None = None

    def sample_blocks(self, step: int) -> frozenset[int]:
        """Indices of the blocks that are trained at a step."""
        generator = random.Random(f"{self.seed}:blocks:{step // self.interval}")
        return frozenset(generator.sample(range(len(self.blocks)), self.count))

    def show(self, step: int, optimizer: Any = None) -> None:
        """Let the blocks of a step be trainable, and drop gradients and optimizer states of the others."""
        if (indices := self.sample_blocks(step)) == self.trainable:
            return
        for index, block in enumerate(self.blocks):
            block.requires_grad_(index in indices)
            for parameter in block.parameters() if index not in indices else ():
                parameter.grad = None
                if optimizer is not None:
                    optimizer.state.pop(parameter, None)
        self.trainable = indices

    def open(self) -> None:
        """Let all blocks be trainable, as the first step finds them and a checkpoint keeps them."""
        for block in self.blocks:
            block.requires_grad_(True)
        self.trainable = None


def build_rotation(model: Any, request: PolicyRequest) -> RandomBlocks | None:
    """Return the rotation of a training with `interval`; None without."""
    freeze = request.config.method
    assert isinstance(freeze, FreezeSettings), freeze
    if freeze.interval is None:
        return None
    _, blocks = find_blocks(model, freeze)
    return RandomBlocks(list(blocks), freeze.blocks, freeze.interval, request.config.hyperparameters.seed)


def find_decoder_blocks(model: Any) -> tuple[torch.nn.Module, torch.nn.ModuleList] | None:
    """Return the decoder of a transformers model and its list of blocks, found by their number; None where there is
    none.
    """
    num_blocks = model.config.get_text_config().num_hidden_layers
    children = ((module, child) for module in model.modules() for child in module.children())
    return next(
        (pair for pair in children if isinstance(pair[1], torch.nn.ModuleList) and len(pair[1]) == num_blocks), None
    )
