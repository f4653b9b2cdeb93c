"""Low-rank adapters: LoRA (arXiv 2106.09685), DoRA (2402.09353), LoRA+ (2402.12354) and rsLoRA (2312.03732).

PEFT makes the layers. What is written here is their shape, from the resolved settings, and the rates of LoRA+.
"""

from __future__ import annotations

from typing import Any

import torch
from peft import LoraConfig, TaskType
from transformers.pytorch_utils import Conv1D

from trainyard.errors import InvalidInput
from trainyard.spec.axes.methods import (
    DEFAULT_INIT,
    LOFTQ,
    AdapterSettings,
    LoraPlusSettings,
    LowRankSettings,
    Method,
    adapter_settings,
)
from trainyard.spec.training import TrainerConfig
from trainyard.train.methods.contract import Groups, Head, PolicyRequest
from trainyard.train.methods.full import make_group
from trainyard.train.quantization.formats import is_hqq, is_packed

TASKS: dict[Head, TaskType] = {"causal": TaskType.CAUSAL_LM, "reward": TaskType.SEQ_CLS}
EMBEDDING_RATE = 1e-6
"""Learning rate of adapted embeddings in LoRA+, as in PEFT and the paper's code."""

STATE_SPACE_TYPES = ("mamba", "mamba2", "falcon_mamba", "falcon_h1", "nemotron_h")
FUSED_MODULES = ("out_proj", "conv1d")
"""Modules of these types whose weights their kernels multiply by without calling the module, so that an adapter on one
would not be computed. Source: PEFT refuses the same."""


def lora_config(model: Any, request: PolicyRequest) -> LoraConfig:
    """PEFT's form of the resolved settings of the method."""
    return adapter_shape(request.config, TASKS[request.head], targets(model, adapter_settings(request.config.method)))


def adapter_shape(config: TrainerConfig, task: TaskType, target_modules: str | list[str]) -> LoraConfig:
    """The same for target modules that are known already."""
    lora = config.method
    assert isinstance(lora, LowRankSettings), lora
    alpha: Any = lora.alpha or 16  # PEFT declares an int and multiplies by it; a fraction works
    return LoraConfig(
        task_type=task,
        r=lora.rank or 8,
        lora_alpha=alpha,
        lora_dropout=lora.dropout or 0.0,
        target_modules=target_modules,
        modules_to_save=list(lora.modules_to_save) or None,
        layers_to_transform=list(lora.layers) if lora.layers is not None else None,
        use_rslora=lora.rslora,
        use_dora=lora.type is Method.DORA,
        init_lora_weights=first_weights(lora),
    )


def first_weights(lora: LowRankSettings) -> Any:
    """PEFT's word for the first weights. Those of LoftQ are set afterwards: PEFT would change the base."""
    return True if lora.init in (DEFAULT_INIT, LOFTQ) else lora.init


def targets(model: Any, adapter: AdapterSettings) -> str | list[str]:
    """Modules that get an adapter, as PEFT takes them.

    Raises `InvalidInput`: `E-TRAINABLE` for a name that no module has (PEFT itself accepts a list if any of its names
    fits), `E-TRAINABLE` for a block that the model does not have.
    """
    require_layers(model, adapter)
    if adapter.target_modules == "attention-only":
        return attention_modules(model)
    if isinstance(adapter.target_modules, str):
        # PEFT takes chosen blocks only with modules by name, and its word for all knows no layers of hqq and gptqmodel.
        names = [name.rpartition(".")[2] for name, _ in list_adapted(model, adapter.target_modules)]
        modules = list(model.named_modules())
        whole = not any(is_hqq(one) or is_packed(one) or is_fused(model, name) for name, one in modules)
        by_word = adapter.layers is None and whole
        return adapter.target_modules if by_word else sorted(set(names))
    names = [name for name, _ in model.named_modules()]
    linear = dict.fromkeys(name.rpartition(".")[2] for name, module in model.named_modules() if is_linear(module))
    for wanted in adapter.target_modules or ():
        if not any(name == wanted or name.endswith(f".{wanted}") for name in names):
            raise InvalidInput(
                f"The adapter does not fit the model as it has no module {wanted!r}.",
                why="The adapter would be smaller than what was asked for.",
                do=f"Use method.target_modules: all-linear, or name some of {', '.join(linear)}.",
                code="E-TRAINABLE",
            )
    return list(adapter.target_modules or ())


def require_layers(model: Any, adapter: AdapterSettings) -> None:
    blocks = model.config.get_text_config().num_hidden_layers
    beyond = [layer for layer in adapter.layers or () if layer >= blocks]
    if beyond:
        raise InvalidInput(
            f"The model has blocks 0 to {blocks - 1}, and method.layers names {beyond[0]}.",
            do="Name blocks that the model has, or leave method.layers out.",
            code="E-TRAINABLE",
        )


def list_adapted(model: Any, wanted: str | list[str]) -> list[tuple[str, int]]:
    """Name and inputs of every linear module that `targets` names."""
    heads = {id(model.get_output_embeddings()), id(getattr(model, "score", None))}
    linear = [(name, module) for name, module in model.named_modules() if is_linear(module)]
    if isinstance(wanted, str):
        chosen = [pair for pair in linear if id(pair[1]) not in heads and not is_fused(model, pair[0])]
    else:
        chosen = [pair for pair in linear if any(f".{pair[0]}".endswith(f".{name}") for name in wanted)]
    return [(name, module.nx if isinstance(module, Conv1D) else module.in_features) for name, module in chosen]


def is_linear(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.Linear | Conv1D) or is_hqq(module) or is_packed(module)


def is_fused(model: Any, name: str) -> bool:
    return model.config.model_type in STATE_SPACE_TYPES and name.rpartition(".")[2] in FUSED_MODULES


def attention_modules(model: Any) -> list[str]:
    """The linear modules inside attention, by their last name where no other module has it.

    GPT-2 calls a projection of the MLP as it calls one of its attention: there the name of the parent goes with it.
    """
    linear = [name for name, module in model.named_modules() if is_linear(module)]
    roots = [name for name, module in model.named_modules() if "attention" in type(module).__name__.lower()]
    inside = [name for name in linear if any(name.startswith(f"{root}.") for root in roots)]
    elsewhere = {name.rpartition(".")[2] for name in set(linear) - set(inside)}
    parts = [name.split(".") for name in inside]
    return sorted({part[-1] if part[-1] not in elsewhere else ".".join(part[-2:]) for part in parts})


def lora_plus_groups(model: torch.nn.Module, config: TrainerConfig) -> Groups:
    """LoRA+: B learns `ratio` times as fast as A, adapted embeddings at a rate of their own."""
    rate = config.hyperparameters.learning_rate
    assert rate is not None, "the config is resolved"
    assert isinstance(config.method, LoraPlusSettings), config.method
    rates = {"A": rate, "B": rate * config.method.ratio, "embedding": EMBEDDING_RATE}
    found: dict[tuple[str, bool], dict[str, torch.nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            found.setdefault((lora_plus_kind(name, parameter), parameter.ndim > 1), {})[name] = parameter
    decay = config.hyperparameters.weight_decay
    return [
        make_group(members, rates[kind], decay if is_matrix else 0.0)
        for (kind, is_matrix), members in sorted(found.items(), key=lambda item: (item[0][0], not item[0][1]))
    ]


def lora_plus_kind(name: str, parameter: torch.nn.Parameter) -> str:
    if "lora_embedding_" in name:
        return "embedding"
    return "B" if "lora_B" in name or parameter.ndim == 1 else "A"
