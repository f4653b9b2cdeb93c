"""Quantization formats of a frozen base: how a model is loaded in one. Their facts are in `spec/axes/quantization`.

`probe` says whether it can be used here and, if not, which line installs what is missing; `load_config` gives what
`from_pretrained` takes; `convert` does what transformers leaves undone; `settle` makes a loaded model compute the same
in training and in evaluation, which bitsandbytes leaves out on a CPU.

    load       config = load_config(format, device, read_stored_config(folder))
               model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=config, …)
               convert(model, format, device); settle(model)

An adapter is merged into a reload of the base in full precision, never into the quantised weights: `mergeable` says
whether such a base exists.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from typing import Any

import torch
from transformers import AutoConfig, BitsAndBytesConfig, TorchAoConfig

from trainyard.errors import InvalidInput, Unavailable
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.loading import load_object
from trainyard.spec.axes.devices import Precision, join_devices
from trainyard.spec.axes.quantization import Quantization
from trainyard.train.model.precision import Availability, choose_frozen_dtype, find_accelerator

CPU = "cpu"
HQQ_GROUP = 64
"""Weights that share a scale and a zero point."""


def installed_version(package: str) -> str:
    """Installed version; empty if it is not here."""
    return importlib.metadata.version(package) if importlib.util.find_spec(package) else ""


def probe(format: Quantization, device: str) -> Availability:
    """Return whether a format can be used on a device (`cpu`, `cuda`, `mps`); imports no optional package."""
    row = format.facts
    missing = row.package.missing(lambda name: importlib.util.find_spec(name) is not None)
    if missing:
        why = f"{format.value} needs {' and '.join(missing)}, not installed here."
        return Availability(False, why, f"pip install '{row.package.install}'")
    here = find_accelerator(device)
    if here not in row.devices:
        why = f"{row.package.name} has no {format.value} on {here}."
        return Availability(False, why, f"Train on {join_devices(row.devices)}, or use lora without quantization.")
    first = here.facts.fp8_capability
    if format is Quantization.FP8 and first and torch.cuda.get_device_capability() < first:
        return Availability(False, "This GPU has no float8 products.", "Use engine.fp8: off, which computes in bf16.")
    return Availability(True)


def require(format: Quantization, device: str) -> None:
    """Raise `Unavailable` (`E-PACKAGE-MISSING`) with the install line if a format cannot be used on a device."""
    support = probe(format, device)
    if not support.ok:
        raise Unavailable(
            f"The format {format.value} cannot be used on {device} here.",
            why=support.why,
            do=support.fix,
            code="E-PACKAGE-MISSING",
        )


# Loading


def load_config(
    format: Quantization,
    device: str,
    stored: JsonMapping | None = None,
    precision: Precision = Precision.AUTO,
) -> Any:
    """Return what `from_pretrained(quantization_config=…)` takes for a format on a device; None where nothing is to be
    given.

    Quantised weights are multiplied in the dtype of `precision`. `stored` is the base's own quantization config
    (`read_stored_config`); gptq and awq need one. Raises `Unavailable` (`E-PACKAGE-MISSING`) and `InvalidInput`
    (`E-QUANTIZATION`).
    """
    row = format.facts
    if row.use != "base":
        raise InvalidInput(
            f"A base cannot be in {format.value} while an adapter is trained.",
            why=row.note,
            do="Use quantization nf4, fp4 or int8.",
            code="E-QUANTIZATION",
        )
    require(format, device)
    require_fitting_base(format, stored)
    if row.calibrates or format is Quantization.HQQ_INT4:
        return None  # the base says it itself; hqq converts after loading
    if format is Quantization.TORCHAO_INT8:
        return TorchAoConfig(load_object("torchao.quantization:Int8WeightOnlyConfig")(version=2))
    if format is Quantization.INT8:
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=format.value,
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=choose_frozen_dtype(device, precision),
    )


def read_stored_config(folder: str) -> JsonObject | None:
    """Return the quantization config that a base carries in its `config.json`; None for a base in full precision."""
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    stored = getattr(config, "quantization_config", None)
    return stored if stored is None or isinstance(stored, dict) else dict(stored.to_dict())


def require_fitting_base(format: Quantization, stored: JsonMapping | None) -> None:
    """A base that is to be quantised is not quantised yet, and one that has to be is. Raises `E-QUANTIZATION`."""
    has = str(stored.get("quant_method", "another format")).rpartition(".")[2].lower() if stored else ""
    method = format.value if format.facts.calibrates else ""
    if has == method:
        return
    is_in = f"is stored in {has}" if has else "is stored in full precision"
    do = f"Use a base that is quantised with {method}" if method else "Use the base in full precision"
    raise InvalidInput(
        f"Quantization {format.value} does not fit this base.",
        why=f"The base {is_in}" + (f", and {method} is made from sample texts, not here." if method else "."),
        do=f"{do}, or another quantization.",
        code="E-QUANTIZATION",
    )


def convert(model: torch.nn.Module, format: Quantization, device: str, precision: Precision = Precision.AUTO) -> int:
    """Convert the linear layers of a loaded model where transformers does not; returns how many it converted.

    hqq_int4: weights into groups of 64. Every other format was dealt with by `from_pretrained`, and nothing
    happens. The output layer stays as it is. Raises `E-PACKAGE-MISSING`.
    """
    if format is not Quantization.HQQ_INT4:
        return 0
    require(format, device)
    head = output_layer(model)
    linear_layers = [(name, layer) for name, layer in model.named_modules() if type(layer) is torch.nn.Linear]
    layers = [(name, layer) for name, layer in linear_layers if layer is not head]
    for name, layer in layers:
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, to_hqq(layer, device, precision))
    return len(layers)


def output_layer(model: Any) -> Any:
    """Return the layer that gives logits or a score; None if there is none."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    return getattr(model, "score", None) if head is None else head


def to_hqq(layer: torch.nn.Linear, device: str, precision: Precision = Precision.AUTO) -> Any:
    recipe = load_object("hqq.core.quantize:BaseQuantizeConfig")(nbits=4, group_size=HQQ_GROUP)
    dtype = choose_frozen_dtype(device, precision)
    return load_object("hqq.core.quantize:HQQLinear")(layer, recipe, compute_dtype=dtype, device=device)


def is_hqq(layer: torch.nn.Module) -> bool:
    """Return whether a layer is hqq's, which is not a subclass of torch's; does not import hqq."""
    return type(layer).__name__ == "HQQLinear"


def is_packed(layer: torch.nn.Module) -> bool:
    """Return whether a layer is one of gptqmodel's (gptq, awq): integers in words, and no `weight`."""
    return hasattr(layer, "qweight") and hasattr(layer, "in_features")


def align_train_eval(model: torch.nn.Module) -> int:
    """Make the quantised layers compute the same in training and in evaluation; returns how many there are.

    Call it once after loading. Without it, on a CPU: an evaluation forward of a 4-bit layer repacks the weight for
    bfloat16 for good, and every later training forward loses the gradient; an evaluation forward of an 8-bit layer
    rounds the activations to int8 and a training forward does not, so that a policy differs from its own reference.
    """
    if importlib.util.find_spec("bitsandbytes") is None:
        return 0
    layers, count = load_object("bitsandbytes.nn"), 0
    for layer in model.modules():
        if isinstance(layer, layers.Linear4bit):
            layer.support_avx512bf16_for_cpu = False
            count += 1
        elif isinstance(layer, layers.Linear8bitLt):
            layer.register_forward_pre_hook(select_training_path)
            count += 1
    return count


def select_training_path(layer: torch.nn.Module, _: Any) -> None:
    """Before a forward of an 8-bit layer: take the path that training takes (the layer itself has no dropout)."""
    layer.training = True
