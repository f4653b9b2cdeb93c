"""Two low-rank adapters as one: their sum, and what an adapter learned as the difference from what it began with.

    s1 B1 A1 + s2 B2 A2 = [s1 B1, s2 B2] [A1; A2]

The factors of experts are stacked: A is (experts x rank, in) with the expert outside, B is (out, rank x experts) with
the expert inside. Rank, scale and number of experts of each layer are read from the model that computes with it: in the
files, a rank pattern and the experts of a stacked matrix look the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file

from trainyard.errors import InvalidInput
from trainyard.train.methods.guarding import base_name
from trainyard.train.methods.loading import ADAPTER_WEIGHTS

PREFIX = "base_model.model."
PAIRS = ((".lora_A.weight", ".lora_B.weight"), (".lora_embedding_A", ".lora_embedding_B"))
"""Endings of the two factors of a layer, and of those of an embedding."""
Weights = dict[str, torch.Tensor]
Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class AdaptedLayer:
    """The adapter of one layer, as PEFT computes with it."""

    rank: int
    scale: float
    experts: int
    """Matrices in the adapted tensor: 1 for a layer."""
    module: str
    """Name of the module in the base."""
    parameter: str | None = None
    """Name of the adapted tensor in the module, for one that is adapted by its own name."""


Layers = Mapping[str, AdaptedLayer]
"""Name of the layer in a saved adapter -> its adapter."""


def list_adapted_layers(model: PeftModel, adapter: str) -> dict[str, AdaptedLayer]:
    """Return every layer with a low-rank adapter of this name."""
    adapted = {}
    for name, layer in model.named_modules():
        if isinstance(layer, LoraLayer) and adapter in layer.scaling and has_factors(layer, adapter):
            experts, parameter = getattr(layer, "num_experts", 1), getattr(layer, "parameter_name", None)
            module = (base_name(f"{name}.") or "").removesuffix(".")
            adapted[name] = AdaptedLayer(
                int(layer.r[adapter]), float(layer.scaling[adapter]), int(experts), module, parameter
            )
    return adapted


def has_factors(layer: LoraLayer, adapter: str) -> bool:
    return adapter in layer.lora_A or adapter in layer.lora_embedding_A


def write_sum(folders: Sequence[Path], layers: Sequence[Layers], base: str, target: Path) -> None:
    """Write one adapter that does what those of `folders` do; a layer that only one of them adapts gets zeros for the
    other, so that every layer has the same rank, as servers expect."""
    configs: list[Any] = [LoraConfig.from_pretrained(str(folder)) for folder in folders]
    parts = [load_file(folder / ADAPTER_WEIGHTS) for folder in folders]
    weights = {name: value for part in parts for name, value in part.items() if not is_factor(name)}
    ranks = {
        name: sum(
            adapter_layers[name].rank if name in adapter_layers else config.r
            for adapter_layers, config in zip(layers, configs, strict=True)
        )
        for name in sorted({name for adapter_layers in layers for name in adapter_layers})
    }
    rank = max(ranks.values())
    for name, own_rank in ranks.items():
        ends = next(ending for ending in PAIRS if any(name + ending[0] in part for part in parts))
        layer, like = next(
            (adapter_layers[name], part)
            for adapter_layers, part in zip(layers, parts, strict=True)
            if name in adapter_layers
        )
        shape = read_pair(like, name, ends)
        pairs = [
            scale_pair(read_pair(part, name, ends), adapter_layers[name])
            if name in adapter_layers
            else zeros(layer, shape, config.r)
            for part, adapter_layers, config in zip(parts, layers, configs, strict=True)
        ]
        if own_rank < rank:
            pairs.append(zeros(layer, shape, rank - own_rank))
        weights |= dict(zip((name + ends[0], name + ends[1]), join_pairs(pairs, layer.experts), strict=True))
    save_file(weights, target / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    sum_config(configs, layers, rank, base).save_pretrained(str(target))


def write_difference(initial: Weights, layers: Layers, folder: Path, base: str) -> None:
    """Replace the adapter of `folder` by what it learned: the trained factors and, subtracted, those it began with.

    B A - B0 A0 = [s B, -s B0] [A; A0], of twice the rank. While it trained, the base was W - s B0 A0 (PiSSA) or its
    quantised form, which B0 A0 corrects (LoftQ); with this adapter it is the base as its files have it.
    """
    config: Any = LoraConfig.from_pretrained(str(folder))
    weights = load_file(folder / ADAPTER_WEIGHTS)
    for name, layer in layers.items():
        ends = next(ending for ending in PAIRS if name + ending[0] in weights)
        a, b = scale_pair(read_pair(weights, name, ends), layer)
        a0, b0 = scale_pair(read_pair(initial, name, ends), layer)
        joined = join_pairs([(a, b), (a0, -b0)], layer.experts)
        weights |= dict(zip((name + ends[0], name + ends[1]), joined, strict=True))
    save_file(weights, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    rank = 2 * max(layer.rank for layer in layers.values())
    sum_config([config, config], [layers], rank, base).save_pretrained(str(folder))


def is_factor(name: str) -> bool:
    return any(name.endswith(ends) for ends in PAIRS)


def read_pair(weights: Weights, name: str, ends: tuple[str, str]) -> Pair:
    """(A, B)"""
    return weights[name + ends[0]], weights[name + ends[1]]


def scale_pair(pair: Pair, layer: AdaptedLayer) -> Pair:
    """(A, scale x B)"""
    return pair[0].float(), pair[1].float() * layer.scale


def zeros(layer: AdaptedLayer, like: Pair, rank: int) -> Pair:
    a, b = like
    return torch.zeros(rank * layer.experts, a.shape[1]), torch.zeros(b.shape[0], rank * layer.experts)


def join_pairs(pairs: Sequence[Pair], experts: int) -> Pair:
    """Put the ranks of several pairs side by side, for every expert."""
    stacked = [a.view(experts, -1, a.shape[1]) for a, _ in pairs]
    a = torch.cat(stacked, dim=1).flatten(0, 1).contiguous()
    return a, torch.cat([b for _, b in pairs], dim=1).contiguous()


def sum_config(configs: Sequence[Any], layers: Sequence[Layers], rank: int, base: str) -> LoraConfig:
    """Return the config of the joined adapter, with a scale of 1; layers by their full names, as PEFT writes
    `all-linear`.
    """
    whole = sorted({module for config in configs for module in config.modules_to_save or ()})
    all_layers = {layer for adapter_layers in layers for layer in adapter_layers.values()}
    named = {f"{layer.module}.{layer.parameter}" for layer in all_layers if layer.parameter is not None}
    return LoraConfig(
        task_type=configs[-1].task_type,
        base_model_name_or_path=base,
        r=rank,
        lora_alpha=rank,
        lora_dropout=configs[-1].lora_dropout,
        target_modules=sorted({layer.module for layer in all_layers if layer.parameter is None}),
        target_parameters=sorted(named) or None,
        modules_to_save=whole or None,
        inference_mode=True,
    )


def require_same_experts(earlier: LoraConfig, new: LoraConfig) -> None:
    """Raise `InvalidInput` (`E-ADAPTER-MISMATCH`) where two adapters are on different matrices of experts: PEFT
    computes with both together only where these are the same. Both name them in full."""
    old, new_parameters = set(earlier.target_parameters or ()), set(new.target_parameters or ())
    if old and new_parameters and old != new_parameters:
        raise InvalidInput(
            "The earlier adapter is on other matrices of experts than the new one, such as "
            f"{min(old ^ new_parameters)}.",
            why="Two adapters are computed together on the same matrices only.",
            do="Write the same method.target_modules and method.layers in both trainers, or use `adapter: continue`.",
            code="E-ADAPTER-MISMATCH",
        )
