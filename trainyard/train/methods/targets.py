"""Layers that get an adapter: linear modules, and on a mixture of experts the stacked matrices of the experts.

transformers keeps the experts of a block in one tensor (E, ·, ·) instead of linear modules: PEFT adapts such a tensor
by its name (`target_parameters`). A router chooses experts and gets no adapter unless its name is written; a vision or
audio tower next to the language model gets none with `all-linear`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from peft import LoraConfig
from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers
from transformers.pytorch_utils import Conv1D

from trainyard.errors import InvalidInput
from trainyard.spec.axes.methods import AdapterSettings
from trainyard.train.methods.guarding import base_name
from trainyard.train.quantization import is_hqq, is_packed

FUSED_MODULES = {
    **{"mamba": ("out_proj", "conv1d", "dt_proj"), "falcon_mamba": ("out_proj", "conv1d", "dt_proj")},
    **dict.fromkeys(("mamba2", "falcon_h1", "nemotron_h"), ("out_proj", "conv1d")),
    **{"jamba": ("dt_proj",)},
}
"""Type -> modules whose weights the model multiplies by without calling the module, so that an adapter on one would not
be computed. Source: PEFT refuses `out_proj` and `conv1d`; the weight of `dt_proj` is read in transformers' code."""
OWN_ADAPTERS = "_adapter_list."
"""In the names of a Zamba2's own low-rank layers: each use of the shared block has those of all, and calls its own."""
ROUTERS = ("router", "gate", "wg", "shared_expert_gate")
"""Names of modules that choose experts, or weigh them."""
TOWERS = ("vision", "visual", "image", "audio", "speech")
"""Words in the names of modules that read something else than text."""
FUSED_EXPERTS = {"gate_up_proj": (("gate_proj", "up_proj"), ("w1", "w3")), "down_proj": (("w2",),)}
"""Stacked matrix -> names of the layers that it contains, as other versions and the files of a base call them."""


@dataclass(frozen=True)
class Targets:
    """Target modules of an adapter, as PEFT takes them."""

    modules: str | list[str]
    """PEFT's word for all linear modules, or names."""
    parameters: list[str] = field(default_factory=list)
    """Full names of weights: of experts, and of modules that PEFT would take for experts by their name."""


def targets(model: Any, adapter: AdapterSettings, *, low_rank: bool = True) -> Targets:
    """Modules and parameters that get an adapter. Only low-rank ones fit the stacked matrices of experts.

    Raises `InvalidInput` (`E-TRAINABLE`) for a name that nothing in the model has (PEFT itself accepts a list if any of
    its names fits) and for a block that the model does not have.
    """
    require_layers(model, adapter)
    experts = list_experts(model, adapter.layers) if low_rank else {}
    if adapter.target_modules == "attention-only":
        return match_names(model, attention_modules(model), [], adapter)
    if isinstance(adapter.target_modules, str):
        return all_linear(model, adapter, list(experts))
    names, parameters = [], []
    for name in adapter.target_modules or ():
        members = find_experts(name, experts, adapter.target_modules or ()) if low_rank else []
        matrix = find_matrices(model, name)
        if not members and not matrix and not has_module(model, name):
            raise unknown_module(model, name)
        parameters += [*members, *matrix] if low_rank else []
        if has_module(model, name) and not matrix:
            names.append(name)
    return match_names(model, names, parameters, adapter)


def all_linear(model: Any, adapter: AdapterSettings, experts: list[str]) -> Targets:
    """Return every linear layer and expert of the language model, without routers and the output layer."""
    names = [name for name, _ in list_adapted(model, "all-linear")]
    if has_experts(model) or has_towers(model):
        return match_names(model, select_layers(names, adapter.layers), experts, adapter)
    # PEFT takes chosen blocks only with modules by name, and its word for all knows no layers of hqq and gptqmodel.
    modules = list(model.named_modules())
    whole = not any(is_hqq(module) or is_packed(module) or is_fused(model, name) for name, module in modules)
    by_word = adapter.layers is None and whole
    return Targets("all-linear" if by_word else sorted({name.rpartition(".")[2] for name in names}))


def match_names(model: Any, names: Iterable[str], parameters: list[str], adapter: AdapterSettings) -> Targets:
    """Return the same modules by names that PEFT does not take for those of experts, and none of a tower that is not
    named.

    PEFT rewrites `gate_proj` and the like to the experts of a mixture, also where a dense layer or a shared expert
    has this name: such a module is adapted by the name of its weight.
    """
    towers, rewritten = has_towers(model), {leaf for leaf in map(last, names) if is_rewritten(model, leaf)}
    linear = [name for name, module in model.named_modules() if is_linear(module)] if towers or rewritten else []
    module_names, moved = [], []
    for name in names:
        members = [full for full in linear if matches(full, name)]
        if last(name) in rewritten:
            moved += [f"{full}.weight" for full in select_layers(members, adapter.layers)]
        else:
            module_names += [full for full in members if towers and not is_in_tower(model, full)] or [name]
    return Targets(module_names, sorted({*parameters, *moved}))


def is_rewritten(model: Any, name: str) -> bool:
    """Return whether PEFT takes the name of a module for another one in this type of model."""
    config = LoraConfig(target_modules=[name])
    try:
        convert_peft_config_for_transformers(config, model, None)
    except ValueError:  # one half of a matrix that contains two
        return True
    return set(config.target_modules or ()) != {name}


# Experts and routers


def list_experts(model: Any, layers: Iterable[int] | None = None) -> dict[str, torch.nn.Parameter]:
    """Full name -> stacked matrices (E, ·, ·) of the experts, in the chosen blocks."""
    stacked = {
        f"{name}.{parameter_name}": weight
        for name, module in model.named_modules()
        if is_expert(name, module)
        for parameter_name, weight in module.named_parameters(recurse=False)
        if weight.ndim == 3
    }
    return {name: stacked[name] for name in select_layers(stacked, layers)}


def is_expert(name: str, module: torch.nn.Module) -> bool:
    return "experts" in type(module).__name__.lower() or last(name) == "experts"


def find_experts(name: str, experts: Iterable[str], names: Iterable[str]) -> list[str]:
    """Return the stacked matrices that a name means, by their own name or by those of the layers in them.

    Raises `InvalidInput` (`E-TRAINABLE`) for one half of a matrix that contains two layers.
    """
    experts = list(experts)
    if members := [expert for expert in experts if matches(expert, name)]:
        return members
    for matrix, spellings in FUSED_EXPERTS.items():
        members = [expert for expert in experts if matches(expert, matrix)]
        halves = next((layers for layers in spellings if name in layers), ())
        if members and halves and (missing := set(halves) - set(names)):
            raise InvalidInput(
                f"The experts have {name} and {min(missing)} in one matrix, {matrix}.",
                why="An adapter is on the whole matrix.",
                do=f"Name both in method.target_modules, or {matrix}.",
                code="E-TRAINABLE",
            )
        if members and halves:
            return members
    return []


def find_matrices(model: Any, name: str) -> list[str]:
    """Full names of weights of modules with this name that are matrices and no layers of their own, as of routers."""
    return [
        f"{full}.weight"
        for full, module in model.named_modules()
        if matches(full, name) and is_router(full) and not is_linear(module)
        and getattr(getattr(module, "weight", None), "ndim", 0) == 2
    ]  # fmt: skip


def is_router(name: str) -> bool:
    """Return whether a module of a mixture chooses experts or weighs them, by its name."""
    return any(part in ROUTERS for part in name.split("."))


def has_experts(model: Any) -> bool:
    return any(is_expert(name, module) for name, module in model.named_modules())


# Names


def require_layers(model: Any, adapter: AdapterSettings) -> None:
    blocks = model.config.get_text_config().num_hidden_layers
    beyond = [layer for layer in adapter.layers or () if layer >= blocks]
    if beyond:
        raise InvalidInput(
            f"The model has blocks 0 to {blocks - 1}, and method.layers names {beyond[0]}.",
            do="Name blocks that the model has, or leave method.layers out.",
            code="E-TRAINABLE",
        )


def unknown_module(model: Any, name: str) -> InvalidInput:
    linear = dict.fromkeys(full.rpartition(".")[2] for full, module in model.named_modules() if is_linear(module))
    return InvalidInput(
        f"The adapter does not fit the model as it has no module {name!r}.",
        why="The adapter would be smaller than what was requested.",
        do=f"Use method.target_modules: all-linear, or name some of {', '.join(linear)}.",
        code="E-TRAINABLE",
    )


def has_module(model: Any, name: str) -> bool:
    return any(matches(full, name) for full, _ in model.named_modules())


def matches(full: str, name: str) -> bool:
    """Return whether PEFT finds a module or parameter by this name."""
    return full == name or full.endswith(f".{name}")


def full_parameters(model: Any, names: Iterable[str]) -> list[str]:
    """Return the base's own names of the weights that these names mean, also in a model with adapters."""
    patterns = list(names)
    parameters = {base_name(name) for name, _ in model.named_parameters()} - {None}
    return sorted(name for name in parameters if name and any(matches(name, short) for short in patterns))


def last(name: str) -> str:
    return name.rpartition(".")[2]


def select_layers(names: Iterable[str], layers: Iterable[int] | None) -> list[str]:
    """Return the names that are in the chosen blocks; all of them without a choice."""
    layer_numbers = None if layers is None else set(layers)
    return [name for name in names if layer_numbers is None or parse_layer(name) in layer_numbers]


def parse_layer(name: str) -> int | None:
    """Number of the block that a module is in."""
    match = re.search(r"\.(\d+)\.", name)
    return int(match[1]) if match else None


# Linear modules


def list_adapted(model: Any, patterns: str | list[str]) -> list[tuple[str, int]]:
    """Return name and inputs of every linear module that `targets` names."""
    linear = [(name, module) for name, module in model.named_modules() if is_linear(module)]
    if isinstance(patterns, str):
        towers, mixture = has_towers(model), has_experts(model)
        pairs = [
            pair
            for pair in linear
            if not is_output(model, pair[1]) and not is_fused(model, pair[0])
            and not (towers and is_in_tower(model, pair[0])) and not (mixture and is_router(pair[0]))
        ]  # fmt: skip
    else:
        pairs = [pair for pair in linear if any(matches(pair[0], name) for name in patterns)]
    return [(name, module.nx if isinstance(module, Conv1D) else module.in_features) for name, module in pairs]


def is_output(model: Any, module: torch.nn.Module) -> bool:
    return module is model.get_output_embeddings() or module is getattr(model, "score", None)


def is_linear(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.Linear | Conv1D) or is_hqq(module) or is_packed(module)


def is_fused(model: Any, name: str) -> bool:
    """Return whether an adapter on a module would not be computed: the model does not call it."""
    return OWN_ADAPTERS in name or last(name) in FUSED_MODULES.get(model.config.model_type, ())


def has_towers(model: Any) -> bool:
    """Return whether the model reads something else than text, too."""
    return model.config.get_text_config() is not model.config


def is_in_tower(model: Any, name: str) -> bool:
    """Return whether a module is of a tower, or projects what a tower sees, next to the language model."""
    decoder = language_model(model)
    if decoder is not None:
        return name != decoder and not name.startswith(f"{decoder}.")
    return any(word in part for part in name.split(".") for word in TOWERS)


def language_model(model: Any) -> str | None:
    """Return name of the module that reads text, in a model that reads something else, too."""
    return next((name for name, module in model.named_modules() if name.rpartition(".")[2] == "language_model"), None)


def attention_modules(model: Any) -> list[str]:
    """Return the linear modules inside attention, by their last name where no other module has it.

    GPT-2 calls a projection of the MLP as it calls one of its attention: there the name of the parent goes with it.
    """
    towers = has_towers(model)
    names = [name for name, module in model.named_modules() if is_linear(module)]
    linear = [name for name in names if not (towers and is_in_tower(model, name))]
    roots = [name for name, module in model.named_modules() if "attention" in type(module).__name__.lower()]
    inside = [name for name in linear if any(name.startswith(f"{root}.") for root in roots)]
    elsewhere = {name.rpartition(".")[2] for name in set(names) - set(inside)}
    return sorted(dict.fromkeys(short_names(inside, elsewhere)))


def short_names(names: Iterable[str], other_names: set[str]) -> Iterator[str]:
    for name in names:
        parts = name.split(".")
        yield parts[-1] if parts[-1] not in other_names else ".".join(parts[-2:])
