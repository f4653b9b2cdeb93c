"""Low-rank adapters: LoRA (arXiv 2106.09685), DoRA (2402.09353), LoRA+ (2402.12354), rsLoRA (2312.03732), and QLoRA
(2305.14314), whose frozen base is quantized to 4 or 8 bits.

PEFT makes the layers. This module sets their shape, from the resolved settings, and the rates of LoRA+.
"""

from __future__ import annotations

from typing import Any

import torch
from peft import LoraConfig, TaskType

from trainyard.errors import InvalidInput
from trainyard.spec.axes.methods import DEFAULT_INIT, LOFTQ, LoraPlusSettings, LowRankSettings, Method, adapter_settings
from trainyard.spec.training import TrainerConfig
from trainyard.train.methods.contract import Groups, Head, PolicyRequest
from trainyard.train.methods.full import make_group
from trainyard.train.methods.loading import load_base
from trainyard.train.methods.targets import Targets, targets
from trainyard.train.quantization import align_train_eval, convert, load_config, read_stored_config

TASKS: dict[Head, TaskType] = {"causal": TaskType.CAUSAL_LM, "reward": TaskType.SEQ_CLS}
EMBEDDING_RATE = 1e-6
"""Learning rate of adapted embeddings in LoRA+, as in PEFT and the paper's code."""


def lora_config(model: Any, request: PolicyRequest) -> LoraConfig:
    """PEFT's form of the resolved settings of the method."""
    return adapter_shape(request.config, TASKS[request.head], targets(model, adapter_settings(request.config.method)))


def adapter_shape(config: TrainerConfig, task: TaskType, matched_targets: Targets) -> LoraConfig:
    """Return the same for targets that are known already."""
    lora = config.method
    assert isinstance(lora, LowRankSettings), lora
    if matched_targets.parameters:
        require_plain(lora)
    alpha: Any = lora.alpha or 16  # PEFT declares an int and multiplies by it; a fraction works
    return LoraConfig(
        task_type=task,
        r=lora.rank or 8,
        lora_alpha=alpha,
        lora_dropout=lora.dropout or 0.0,
        target_modules=matched_targets.modules,
        target_parameters=matched_targets.parameters or None,
        modules_to_save=list(lora.modules_to_save) or None,
        layers_to_transform=list(lora.layers) if lora.layers is not None else None,
        use_rslora=lora.rslora,
        use_dora=lora.type is Method.DORA,
        init_lora_weights=first_weights(lora),
    )


def require_plain(lora: LowRankSettings) -> None:
    """Raise `InvalidInput` (`E-TRAINABLE`) for what PEFT does not have for the stacked matrices of experts."""
    extras = [
        (lora.type is Method.DORA, "method dora"),
        (lora.init != DEFAULT_INIT, f"init {lora.init}"),
        (bool(lora.dropout), f"dropout {lora.dropout}"),
    ]
    if names := [name for present, name in extras if present]:
        raise InvalidInput(
            f"An adapter on the stacked matrices of experts cannot have {names[0]}.",
            do="Use method lora with `init: default` and `dropout: 0`, or `target_modules: attention-only`.",
            code="E-TRAINABLE",
        )


def first_weights(lora: LowRankSettings) -> Any:
    """PEFT's word for the first weights. Those of LoftQ are set afterwards: PEFT would change the base."""
    return True if lora.init in (DEFAULT_INIT, LOFTQ) else lora.init


def lora_plus_groups(model: torch.nn.Module, config: TrainerConfig) -> Groups:
    """LoRA+: B learns `ratio` times as fast as A, adapted embeddings at a rate of their own."""
    rate = config.hyperparameters.learning_rate
    assert rate is not None, "the config is resolved"
    assert isinstance(config.method, LoraPlusSettings), config.method
    rates = {"A": rate, "B": rate * config.method.ratio, "embedding": EMBEDDING_RATE}
    groups: dict[tuple[str, bool], dict[str, torch.nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups.setdefault((lora_plus_kind(name, parameter), parameter.ndim > 1), {})[name] = parameter
    decay = config.hyperparameters.weight_decay
    return [
        make_group(members, rates[kind], decay if is_matrix else 0.0)
        for (kind, is_matrix), members in sorted(groups.items(), key=lambda item: (item[0][0], not item[0][1]))
    ]


def lora_plus_kind(name: str, parameter: torch.nn.Parameter) -> str:
    if "lora_embedding_" in name:
        return "embedding"
    return "B" if "lora_B" in name or parameter.ndim == 1 else "A"


def load_quantised(request: PolicyRequest, folder: str) -> Any:
    """Return the base in the requested quantization format (default nf4, double quantization) on the request's device.

    Norms, embeddings and the output layer keep the dtype that they are loaded in, which they have in serving, too. The
    paper's code makes norms float32: their states are then cast back for each layer that reads them.
    """
    format, precision = request.config.base_format, request.config.hyperparameters.precision
    assert format is not None, "the method qlora"
    # accelerate, below TRL, compares the number of the GPU and takes a `cuda` without one for another device
    device = torch.cuda.current_device() if request.device == "cuda" else request.device
    quantization = load_config(format, request.device, read_stored_config(folder), precision)
    # transformers lets a `None` replace the base's own config: its packed weights would be left out, for random ones
    options = {} if quantization is None else {"quantization_config": quantization}
    model = load_base(request, folder, **options, device_map={"": device})
    convert(model, format, request.device, precision)
    align_train_eval(model)
    return model
