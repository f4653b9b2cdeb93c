"""Load a written adapter onto its base and run it once, in a process that has neither in memory.

The base is loaded on the CPU, in the dtype of its files. A base that PyTorch cannot load here is a reason, not an
error: the adapter may be right all the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import torch
from transformers import AutoConfig

from trainyard.errors import LimitExceeded, TrainyardError
from trainyard.spec.estimate.bases import is_of_mlx
from trainyard.stores.models import base_modules, check_adapter_folder
from trainyard.train.methods.adapters import NEW, load_adapter, probe_logits, read_config
from trainyard.train.methods.contract import Head
from trainyard.train.methods.loading import load_model, require_memory
from trainyard.train.methods.reloading import SHAPE


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
