"""Coverage of a base's weights by an adapter, by kind: what a reader of a report needs to know of a mixture of
experts or a model with a vision tower, whose larger part may have none."""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from transformers.pytorch_utils import Conv1D

from trainyard.json_types import JsonObject
from trainyard.train.methods.guarding import base_name
from trainyard.train.methods.targets import has_experts, has_towers, is_expert, is_in_tower, is_linear, is_router, last

ATTENTION, MLP, EXPERTS, ROUTER = "attention", "mlp", "experts", "router"
EMBEDDINGS, TOWERS, MIXERS = "embeddings", "towers", "mixers"
"""`mixers`: linear layers that are neither attention nor MLP, as of state spaces. `towers`: vision and audio."""
EXPECTED = (ATTENTION, MLP, EXPERTS, MIXERS)
"""Kinds that an adapter on all linear layers covers."""
MLP_WORDS = ("mlp", "feed_forward", "ffn", "feedforward")


def measure_coverage(model: Any, adapter: str) -> JsonObject:
    """Count the weights of the base's matrices, and those with an adapter or trained whole.

    Returns {share, kinds: {kind: [adapted, weights]}, note}; `note` is a sentence where kinds that an adapter could
    cover have less than all of it on a mixture of experts or a model with towers.
    """
    base = model.get_base_model()
    mixture, towers = has_experts(base), has_towers(base)
    adapted = find_adapted_weights(model, adapter)
    kinds: dict[str, list[int]] = {}
    for name, module in model.named_modules():
        module_name = (base_name(f"{name}.") or "").removesuffix(".")
        for weight, size in list_matrices(module):
            if is_part_of_adapter(name):
                continue
            kind = find_kind(base, module_name, module, mixture=mixture, towers=towers)
            line = kinds.setdefault(kind, [0, 0])
            line[0] += size if id(weight) in adapted else 0
            line[1] += size
    covered, weights = (sum(line[at] for line in kinds.values()) for at in (0, 1))
    return {
        "share": round(covered / max(1, weights), 4),
        "kinds": dict(sorted(kinds.items())),
        "note": describe_coverage(kinds) if mixture or towers else "",
    }


def describe_coverage(kinds: dict[str, list[int]]) -> str:
    """Return the share with an adapter, of all and by kind."""
    covered, weights = (sum(line[at] for line in kinds.values()) for at in (0, 1))
    parts = [f"{kind} {100 * line[0] / line[1]:.0f} % of {line[1]:,}" for kind, line in sorted(kinds.items())]
    return f"{100 * covered / max(1, weights):.0f} % of the weights have an adapter: {', '.join(parts)}"


def is_part_of_adapter(name: str) -> bool:
    return ".lora_" in name or ".oft_" in name or ".modules_to_save." in name


def find_adapted_weights(model: Any, adapter: str) -> set[int]:
    """Ids of the base's matrices that have an adapter of this name, or are trained as a whole."""
    weight_ids: set[int] = set()
    for module in model.modules():
        if isinstance(module, BaseTunerLayer) and adapter in getattr(module, module.adapter_layer_names[0], ()):
            base: Any = module.get_base_layer()
            weight = getattr(base, getattr(module, "parameter_name", "weight"), None)
            weight_ids.add(id(base) if weight is None else id(weight))
        elif isinstance(module, AuxiliaryTrainingWrapper) and adapter in getattr(module, "modules_to_save", ()):
            weight_ids |= {id(weight) for weight in module.original_module.parameters()}
    return weight_ids


def list_matrices(module: torch.nn.Module) -> list[tuple[Any, int]]:
    """(weight, number of values) of the matrices of a module itself."""
    if is_linear(module):
        layer: Any = module
        inputs, outputs = (layer.nx, layer.nf) if isinstance(layer, Conv1D) else (layer.in_features, layer.out_features)
        return [(getattr(layer, "weight", layer), int(inputs) * int(outputs))]
    parameters = module.named_parameters(recurse=False)  # the biases of experts are a matrix, too
    return [(weight, weight.numel()) for name, weight in parameters if weight.ndim > 1 and not name.endswith("bias")]


def find_kind(base: Any, name: str, module: torch.nn.Module, *, mixture: bool, towers: bool) -> str:
    parts = name.split(".")
    if isinstance(module, torch.nn.Embedding) or module is base.get_output_embeddings():
        return EMBEDDINGS
    if towers and is_in_tower(base, name):
        return TOWERS
    if mixture and (is_router(name) or "router" in type(module).__name__.lower()):
        return ROUTER
    if mixture and (is_expert(name, module) or "experts" in parts):
        return EXPERTS
    if any("attn" in part or "attention" in part for part in parts):
        return ATTENTION
    return MLP if any(word in part for part in parts for word in MLP_WORDS) or last(name).startswith("fc") else MIXERS
