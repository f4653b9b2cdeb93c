"""Adapters across stages, and the merge of an adapter into its base.

| earlier adapter   | trained                               | reference                   | saved                 |
|---|---|---|---|
| none              | a new adapter                         | the base, adapter off       | the new adapter       |
| continue          | the earlier adapter                   | a frozen copy of it         | the earlier, moved    |
| stack             | a new one on top of the frozen one    | base with the earlier       | both, as one adapter  |
| merge             | a new one on base + earlier           | base + earlier, adapter off | both, as one adapter  |
| any, whole model  | all or some weights of base + earlier | a frozen copy               | the whole model       |

The reference is the policy before its first step, so the first loss of a preference stage is the one of equal policies
(sigmoid: ln 2). The saved adapter works on the base alone: two low-rank adapters are written as one of the summed rank,
which is exact. Adapters that are not plain sums (DoRA, OFT) cannot be, and are refused before anything runs.

`merge` writes an adapter into its base for good. The base is loaded in float32: a sum in 4 bits rounds the adapter away
(it moves logits by more than one), and in bfloat16 it loses the small half of it. The logits of the sum are compared
with those of base and adapter before it is rounded, and the written model is loaded and run once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoConfig, AutoTokenizer

from trainyard.errors import InvalidInput, TrainyardError
from trainyard.json_types import JsonObject
from trainyard.spec.axes.methods import LowRankSettings, adapter_settings
from trainyard.train.methods import adapters
from trainyard.train.methods.adapters import (
    EARLIER,
    NEW,
    REFERENCE,
    TOLERANCE,
    load_adapter,
    probe_logits,
    read_config,
    write_into_base,
)
from trainyard.train.methods.contract import MethodSpec, Policy, PolicyRequest
from trainyard.train.methods.coverage import measure_coverage
from trainyard.train.methods.initialization import initialize_adapter
from trainyard.train.methods.loading import (
    base_dtype,
    grow_vocabulary,
    lineage,
    load_model,
    load_options,
    require_memory,
    require_same_base,
)
from trainyard.train.methods.sums import Layers, list_adapted_layers, require_same_experts
from trainyard.train.methods.targets import full_parameters


def merge(base: str, adapter: Path, out: Path, dtype: str) -> JsonObject:
    """Write base plus adapter as one model into an empty folder, in `dtype` (`auto`: that of the base).

    Returns {divergence, saved_divergence, tolerance, dtype}: the largest difference of a logit after the sum in
    float32, and that of the model as written. Raises `InvalidInput` (`E-MERGE`) for a quantised base, `TrainyardError`
    (`E-MERGE`) when the sum says something else.
    """
    target_dtype = resolve_dtype(base, dtype)
    require_memory(base, torch.float32)
    options = {"trust_remote_code": False, "use_safetensors": True, "dtype": torch.float32}
    model = load_model(base, "causal", options).eval()
    config = read_config(adapter, "causal", trainable=False)
    model = load_adapter(model, adapter, config, NEW, "cpu").eval()
    before_BTV = probe_logits(model)
    model = write_into_base(model)
    divergence = largest_difference(before_BTV, probe_logits(model))
    for parameter in model.parameters():  # not `model.to(dtype)`: it would round the angles of the rotary embedding
        parameter.data = parameter.data.to(target_dtype)
    model.config.dtype = target_dtype
    model.config.use_cache = True
    model.save_pretrained(out)
    folders = [adapter / "tokenizer", Path(base)]
    source = next(folder for folder in folders if folder.is_dir())
    AutoTokenizer.from_pretrained(source, trust_remote_code=False).save_pretrained(out)
    saved_BTV = probe_logits(model)
    del model, parameter  # the written model takes its place in memory
    require_written(out, target_dtype, saved_BTV)
    return {
        "divergence": divergence,
        "saved_divergence": largest_difference(before_BTV, saved_BTV),
        "tolerance": TOLERANCE,
        "dtype": str(target_dtype).removeprefix("torch."),
    }


def require_written(out: Path, dtype: torch.dtype, saved_BTV: torch.Tensor) -> None:
    """Load the written model and run it once. Raises `TrainyardError` (`E-MERGE`) where it answers differently."""
    written = load_model(str(out), "causal", {"trust_remote_code": False, "use_safetensors": True, "dtype": dtype})
    difference = largest_difference(saved_BTV, probe_logits(written.eval()))
    if not difference <= TOLERANCE:  # also when it is not a number
        raise TrainyardError(
            f"The model was written, and loaded again it answers differently: a logit differs by {difference:.3g}.",
            why=f"At most {TOLERANCE:g} is allowed: the files are not the model that was summed.",
            do="Serve the base with the adapter, and report this base.",
            code="E-MERGE",
        )


def resolve_dtype(base: str, dtype: str) -> torch.dtype:
    """Return the dtype of the result. Raises `InvalidInput` (`E-MERGE`) for a base that is stored in few bits."""
    config = AutoConfig.from_pretrained(base, trust_remote_code=False)
    if getattr(config, "quantization_config", None) is not None:
        raise InvalidInput(
            f"The base {base} is quantised.",
            why="A sum with weights in few bits rounds the adapter away: the model would say something else.",
            do="Merge into the full-precision weights that it was made from, then quantise the result.",
            code="E-MERGE",
        )
    stored_dtype = getattr(config, "dtype", None) or torch.float32
    target_dtype: torch.dtype = stored_dtype if dtype == "auto" else getattr(torch, dtype)
    return target_dtype


def largest_difference(left_BTV: torch.Tensor, right_BTV: torch.Tensor) -> float:
    return float((left_BTV - right_BTV).abs().max())


# Policies


def adapter_policy(request: PolicyRequest, spec: MethodSpec, *, with_reference: bool) -> Policy:
    """Return the policy of a method with an adapter."""
    warnings: list[str] = []
    if request.adapter is None:
        model, active, layers = with_new(spec.load(request, request.base), request, spec), None, None
    else:
        require_same_base(request.adapter, request.base_sha256)
        model, active, layers = COMPOSITIONS[request.config.adapter](request, spec, with_reference, warnings)
    reference = partial(adapter_reference, model, active) if with_reference else None
    initial = initialize_adapter(model, request) if request.adapter is None else None
    return Policy(model, reference, adapter_facts(model, request), lineage(request), warnings, initial, layers)


def whole_policy(request: PolicyRequest, spec: MethodSpec, *, with_reference: bool) -> Policy:
    """Return the policy of a method that moves the model's own weights; an earlier adapter is merged into them."""
    assert spec.choose is not None
    facts: JsonObject = {"kind": "whole", "earlier": None}
    if request.adapter is None:
        model = spec.load(request, request.base)
    else:
        require_same_base(request.adapter, request.base_sha256)
        (model, _), facts["earlier"] = merge_base(request, spec), "merge"
    model.requires_grad_(False)
    warnings = spec.choose(model, request)
    rotation = spec.rotate(model, request) if spec.rotate is not None else None
    reference = partial(freeze_context, copy_frozen(model)) if with_reference else None
    return Policy(model, reference, facts, lineage(request), warnings, rotation=rotation)


def build_adapter_config(model: Any, request: PolicyRequest, spec: MethodSpec) -> Any:
    assert spec.adapter_config is not None
    return spec.adapter_config(model, request)


def with_new(model: Any, request: PolicyRequest, spec: MethodSpec) -> PeftModel:
    """Return the model with a new adapter, which at first changes nothing."""
    config = build_adapter_config(model, request, spec)
    torch.manual_seed(request.config.hyperparameters.seed)
    return adapters.inject(model, config, NEW)


def earlier_config(request: PolicyRequest, *, trainable: bool = False) -> Any:
    assert request.adapter is not None
    return adapters.read_config(request.adapter, request.head, trainable=trainable)


def with_earlier(model: Any, request: PolicyRequest, name: str, device: str, *, trainable: bool = False) -> PeftModel:
    """Return the model with the earlier adapter under a name."""
    assert request.adapter is not None
    config = earlier_config(request, trainable=trainable)
    return adapters.load_adapter(model, request.adapter, config, name, device)


Composed = tuple[PeftModel, list[str] | None, Layers | None]
"""The model, the adapters that are on in its reference (None: none of them), and the layers of an earlier adapter that
is saved together with the new one."""
Way = Callable[[PolicyRequest, MethodSpec, bool, list[str]], Composed]


def continue_adapter(request: PolicyRequest, spec: MethodSpec, with_reference: bool, warnings: list[str]) -> Composed:
    model = spec.load(request, request.base)
    requested_config, config = build_adapter_config(model, request, spec), earlier_config(request, trainable=True)
    adapters.require_same_kind(config, requested_config)
    warnings += adapters.warn_about_shape(config, requested_config)
    model = with_earlier(model, request, NEW, request.device, trainable=True)
    if with_reference:
        model = with_earlier(model, request, REFERENCE, request.device)
        adapters.tuner(model).set_adapter(NEW)
    return model, [REFERENCE], None


def stack_adapter(request: PolicyRequest, spec: MethodSpec, _: bool, warnings: list[str]) -> Composed:
    base = spec.load(request, request.base)
    require_one_adapter(base, request, spec)
    model = with_earlier(with_new(base, request, spec), request, EARLIER, request.device)
    adapters.tuner(model).set_adapter([EARLIER, NEW])
    adapters.tuner(model).set_requires_grad(EARLIER, requires_grad=False)
    return model, [EARLIER], list_adapted_layers(model, EARLIER)


def merge_adapter(request: PolicyRequest, spec: MethodSpec, _: bool, warnings: list[str]) -> Composed:
    base, layers = merge_base(request, spec)
    require_one_adapter(base, request, spec)
    return with_new(base, request, spec), None, layers


def require_one_adapter(base: Any, request: PolicyRequest, spec: MethodSpec) -> None:
    """Raise `InvalidInput` (`E-ADAPTER-MISMATCH`) where the earlier and the new adapter cannot be written as one."""
    earlier, new = earlier_config(request), build_adapter_config(base, request, spec)
    adapters.require_sum(earlier, new)
    if earlier.target_parameters and new.target_parameters:
        earlier.target_parameters = full_parameters(base, earlier.target_parameters)
        require_same_experts(earlier, new)


COMPOSITIONS: dict[str, Way] = {"continue": continue_adapter, "stack": stack_adapter, "merge": merge_adapter}


def merge_base(request: PolicyRequest, spec: MethodSpec) -> tuple[Any, Layers]:
    """Return base plus earlier adapter as one model, summed in float32, then cast to the dtype of the method; and the
    layers that the adapter was on."""
    model = load_model(request.base, request.head, load_options(request, torch.float32))
    model = with_earlier(model, request, EARLIER, "cpu")
    layers = list_adapted_layers(model, EARLIER)
    model = adapters.write_into_base(model)
    model = grow_vocabulary(model, request.base, request.config.added_tokens)
    if request.config.method.facts.quantised:
        with TemporaryDirectory(prefix="trainyard-merged-") as folder:
            model.save_pretrained(folder)
            return spec.load(request, folder), layers
    for parameter in model.parameters():  # not `model.to(dtype)`: it would round the angles of the rotary embedding
        parameter.data = parameter.data.to(base_dtype(request))
    return model.to(request.device), layers


# References


@contextmanager
def adapter_reference(model: PeftModel, active: list[str] | None) -> Iterator[PeftModel]:
    """The model with only the adapters of `active` on, in evaluation mode; afterwards it is as it was."""
    layers = adapters.tuner(model)
    before, modes = layers.active_adapters, [(module, module.training) for module in model.modules()]
    trainable = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    model.eval()
    if active is None:
        layers.disable_adapter_layers()
    else:
        layers.set_adapter(active, inference_mode=True)
    try:
        with torch.no_grad():
            yield model
    finally:
        layers.enable_adapter_layers()
        layers.set_adapter(before)
        for name, parameter in model.named_parameters():
            if parameter.requires_grad != (name in trainable):
                parameter.requires_grad_(name in trainable)
        for module, mode in modes:
            module.training = mode


@contextmanager
def freeze_context(model: Any) -> Iterator[Any]:
    with torch.no_grad():
        yield model


def copy_frozen(model: Any) -> Any:
    """Return a copy in evaluation mode that shares the weights that do not move."""
    shared = {id(value): value for value in model.parameters() if not value.requires_grad}
    return copy.deepcopy(model, shared).requires_grad_(False).eval()


# What is kept


def adapter_facts(model: PeftModel, request: PolicyRequest) -> JsonObject:
    """Return the adapter's shape as it is in the model, which for a continued adapter is the earlier one's."""
    config: Any = model.peft_config[NEW]
    method = request.config.method
    return {
        "kind": "adapter",
        "earlier": request.config.adapter if request.adapter is not None else None,
        "profile": adapter_settings(request.config.method).profile,
        "rank": config.r,
        "saved_rank": find_saved_rank(model, request),
        "alpha": getattr(config, "lora_alpha", None),
        "dropout": getattr(config, "lora_dropout", getattr(config, "module_dropout", None)),
        "target_modules": target_names(model),
        "modules_to_save": sorted(config.modules_to_save or []),
        "layers": config.layers_to_transform,
        "dora": getattr(config, "use_dora", False),
        "rslora": getattr(config, "use_rslora", False),
        "coverage": measure_coverage(model, NEW),
        **({"init": method.init} if isinstance(method, LowRankSettings) and method.changes_base else {}),
    }


def target_names(model: PeftModel) -> list[str]:
    """Last names of everything that has an adapter."""
    names = [*model.targeted_module_names, *model.targeted_parameter_names]
    return sorted({name.removesuffix(".weight").rpartition(".")[2] for name in names})


def find_saved_rank(model: PeftModel, request: PolicyRequest) -> int:
    """Rank of the adapter that `save` writes: of a stack or a merge, the sum of both."""
    config: Any = model.peft_config[NEW]
    method = request.config.method
    doubled = request.adapter is None and isinstance(method, LowRankSettings) and method.changes_base
    return int(
        config.r * (2 if doubled else 1)
        + (earlier_config(request).r if find_summed_adapter(request) is not None else 0)
    )


def find_summed_adapter(request: PolicyRequest) -> Path | None:
    """Return the earlier adapter that is written together with the new one."""
    return request.adapter if request.config.adapter in ("stack", "merge") else None
