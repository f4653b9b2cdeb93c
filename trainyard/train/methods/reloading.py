"""Load a written adapter again and run it once, before anything says that it is there.

The reloaded adapter is put into the model that trained it, under a name of its own: the base is in memory already, so
this costs the adapter's files and two passes over a few tokens. Where that base is another one than that of the files,
an offset makes up for it:

| trained on              | reloaded adapter and             |
|---|---|
| the base                | nothing                          |
| base + earlier (merge)  | the earlier adapter, subtracted  |
| base - initial (PiSSA)  | what the adapter began with      |

Load a written adapter onto its base and run it once, in a process that has neither in memory.

The base is loaded on the CPU, in the dtype of its files. A base that PyTorch cannot load here is a reason, not an
error: the adapter may be right all the same.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import peft
import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from transformers import AutoConfig

from trainyard.errors import LimitExceeded, TrainyardError
from trainyard.spec.estimate.shape import is_of_mlx
from trainyard.stores.models import base_modules, check_adapter_folder
from trainyard.train.methods.adapters import (
    NEW,
    Weights,
    fill_adapter,
    inject,
    load_adapter,
    probe_logits,
    read_config,
    tuner,
)
from trainyard.train.methods.contract import Head
from trainyard.train.methods.loading import load_model, require_memory
from trainyard.train.methods.targets import full_parameters
from trainyard.train.model.head import evaluating

RELOADED, OFFSET = "reloaded", "offset"
SHAPE = (1, 8)
"""Rows and tokens of the comparison."""
TOLERANCES = {torch.float32: 1e-3, torch.float64: 1e-3, torch.bfloat16: 4e-2, torch.float16: 1e-2}
"""Most that a logit may differ, as a share of the largest: the sums are the same in another order."""


def require_reloaded(
    model: Any, folder: Path, head: Head, *, merged: Path | None = None, initial: Weights | None = None
) -> float:
    """Load the adapter of `folder` next to the trained one and compare their logits; returns the largest difference.

    `merged` is an earlier adapter that is summed into the model's weights, `initial` what a new one began with. Raises
    `TrainyardError` (`E-ADAPTER-INVALID`) for other logits, and what loading raises.
    """
    expected_BTV = run_once(model)
    with restore_adapters(model):
        config = read_config(folder, head, trainable=False)
        add_copy(model, config, RELOADED)
        fill_adapter(model, folder, set(config.modules_to_save or ()), RELOADED, str(model.device))
        active = [RELOADED]
        if merged is not None:
            subtract_earlier(model, merged, head)
            active.append(OFFSET)
        elif initial is not None:
            add_initial(model, initial)
            active.append(OFFSET)
        tuner(model).set_adapter(active, inference_mode=True)
        reloaded_BTV = run_once(model)
    return compare_logits(expected_BTV, reloaded_BTV, choose_tolerance(model), folder)


def compare_logits(expected_BTV: torch.Tensor, reloaded_BTV: torch.Tensor, tolerance: float, folder: Path) -> float:
    """Return the largest difference of a logit. Raises as `require_reloaded`; logits that were not finite before are
    not a
    fault of the files."""
    if not expected_BTV.isfinite().all():
        return 0.0
    difference = float((expected_BTV - reloaded_BTV).abs().max())
    allowed = tolerance * max(1.0, float(expected_BTV.abs().max()))
    if not difference <= allowed:  # also when it is not a number
        raise TrainyardError(
            f"The adapter was written, and loaded again it answers differently: a logit differs by {difference:.3g}.",
            why=f"At most {allowed:.3g} is allowed; the files in {folder.name} are not the adapter that was trained.",
            do="Train with method lora and without settings of its shape, and report this base and these settings.",
            code="E-ADAPTER-INVALID",
        )
    return difference


def choose_tolerance(model: Any) -> float:
    dtypes = {weight.dtype for weight in model.parameters()}
    return max((TOLERANCES[dtype] for dtype in dtypes if dtype in TOLERANCES), default=TOLERANCES[torch.float32])


def run_once(model: Any) -> torch.Tensor:
    with torch.compiler.set_stance("force_eager"):
        return probe_logits(model, SHAPE)


def add_copy(model: PeftModel, config: Any, name: str) -> None:
    """Add an adapter for the comparison, with layers as this model calls them."""
    if getattr(config, "target_parameters", None):
        config.target_parameters = full_parameters(model, config.target_parameters)
    inject(model, config, name)


def subtract_earlier(model: PeftModel, folder: Path, head: Head) -> None:
    """Add the earlier adapter with the opposite sign; its whole modules are in the sum already."""
    config = read_config(folder, head, trainable=False)
    config.modules_to_save = None
    add_copy(model, config, OFFSET)
    saved = peft.load_peft_weights(str(folder), device=str(model.device))
    fill_factors(model, {name: value for name, value in saved.items() if ".lora_" in name})
    for layer in model.modules():
        if isinstance(layer, LoraLayer) and OFFSET in layer.scaling:
            layer.scaling[OFFSET] = -layer.scaling[OFFSET]


def add_initial(model: PeftModel, initial: Weights) -> None:
    """Add the adapter's initial weights."""
    config: Any = copy.deepcopy(model.peft_config[NEW])
    config.modules_to_save, config.inference_mode = None, True
    config.init_lora_weights = True  # its own word would change the base
    add_copy(model, config, OFFSET)
    fill_factors(model, initial)


def fill_factors(model: PeftModel, weights: Weights) -> None:
    peft.set_peft_model_state_dict(model, weights, adapter_name=OFFSET)


@contextmanager
def restore_adapters(model: PeftModel) -> Iterator[None]:
    """Restore the adapters, the active one, the trainable weights, and the state of the random numbers."""
    active = list(tuner(model).active_adapters)
    trainable = {name: value.requires_grad for name, value in model.named_parameters()}
    devices = [model.device] if model.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices), evaluating(model):
            yield
    finally:
        tuner(model).set_adapter(active)  # first: PEFT warns where an adapter that is active goes
        for name in (RELOADED, OFFSET):
            if name in model.peft_config:
                model.delete_adapter(name)
        for name, value in model.named_parameters():
            if name in trainable and value.requires_grad != trainable[name]:
                value.requires_grad_(trainable[name])


def try_adapter(folder: Path, base: str, head: Head) -> str:
    """Run the adapter of `folder` once on its base; returns why that is not possible here, empty if it was run.

    Names, shapes and numbers are compared in both cases. Raises `TrainyardError` (`E-ADAPTER-INVALID`) for an adapter
    that does not fit its config or base, and for weights or logits that are not finite.
    """
    check_adapter_folder(folder, base_modules(Path(base)))
    require_finite_files(folder)
    reason = explain_unloadable(base)
    if not reason:
        try:
            run_adapter(folder, base, head)
        except ImportError as error:  # of the package that a quantized base is read with
            reason = f"its base needs a package that is not installed: {' '.join(str(error).split())[:200]}"
    return reason


def explain_unloadable(base: str) -> str:
    """Return why the base cannot be loaded here; empty if it can."""
    config = AutoConfig.from_pretrained(base, trust_remote_code=False)
    if is_of_mlx(config.to_dict()):
        return "its base is packed for MLX, and PyTorch cannot read that"
    try:
        require_memory(base, getattr(config, "dtype", None) or torch.float32)
    except LimitExceeded as error:
        return f"{error.what} {error.why}".rstrip(".")
    return ""


def require_finite_files(folder: Path) -> None:
    """Raise `TrainyardError` (`E-ADAPTER-INVALID`) naming the first tensor with NaN or infinity."""
    for name, value in peft.load_peft_weights(str(folder), device="cpu").items():
        if value.is_floating_point() and not value.isfinite().all():
            raise make_invalid(f"The weight {name} of the adapter is not finite.", "It contains NaN or infinity.")


def run_adapter(folder: Path, base: str, head: Head) -> None:
    """Run the base with the adapter once. Raises `TrainyardError` (`E-ADAPTER-INVALID`)."""
    options = {"trust_remote_code": False, "use_safetensors": True, "dtype": "auto"}
    model = load_model(base, head, options).eval()
    try:
        adapted: Any = load_adapter(model, folder, read_config(folder, head, trainable=False), NEW, "cpu").eval()
        logits_BTV = probe_logits(adapted, SHAPE)
    except (TrainyardError, ImportError):
        raise
    except Exception as error:  # PEFT has no error class of its own
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise make_invalid("The adapter does not fit its base.", reason) from error
    if not logits_BTV.isfinite().all():
        why = "A weight of it is infinite, not a number, or far too large."
        raise make_invalid("With this adapter the base answers with numbers that are not finite.", why)


def make_invalid(message: str, why: str) -> TrainyardError:
    do = "Train it again with a lower learning_rate, or take another version of it; of a training, child.log says more."
    return TrainyardError(message, why=why, do=do, code="E-ADAPTER-INVALID")
