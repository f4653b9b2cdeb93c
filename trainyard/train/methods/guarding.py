"""Guard of the base's weights while adapters come and go: a digest of them in memory, and what compares it.

The digest sums the bits of each weight tensor as integers, and those sums weighted by their place, at the speed of the
memory: 0.05 s a gigabyte. It finds what a library changes by design or mistake; it is not a signature.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from trainyard.errors import TrainyardError
from trainyard.stores.models import read_safetensors_header

ROW = 1024
"""Words that are summed before they are weighted; an exchange of two words within a row is not seen."""
ADDED = ("base_model.model.", "base_layer.", "original_module.", "token_adapter.")
"""What PEFT puts into the names of the base's weights."""
Digests = dict[str, tuple[int, int]]


def base_digests(model: Any) -> Digests:
    """Return name -> digest of every weight of the base; those of adapters are left out."""
    named = ((base_name(name), value) for name, value in model.named_parameters())
    return {name: weight_digest(value) for name, value in named if name is not None}


def base_name(name: str) -> str | None:
    """Return the name that a weight has in the base; None for one of an adapter."""
    for added in ADDED:
        name = name.replace(added, "")
    return None if ".lora_" in name or ".modules_to_save." in name or name.startswith("lora_") else name


@torch.no_grad()
def weight_digest(weight: torch.Tensor) -> tuple[int, int]:
    """Return two sums over the bits of a tensor, modulo 2**64, as signed numbers.

    A quantised weight of torchao is made of several tensors, of which none can be seen as bits through it: their sums
    are added up.
    """
    if is_traceable_wrapper_subclass(weight):
        names, _ = weight.__tensor_flatten__()
        parts = [weight_digest(getattr(weight, name)) for name in names]
        return sum(first for first, _ in parts), sum(second for _, second in parts)
    bits = weight.detach().contiguous().flatten().view(torch.uint8)
    if bits.storage_offset() % 8:
        bits = bits.clone()
    whole = len(bits) // (8 * ROW) * 8 * ROW
    sums = bits[:whole].view(torch.int64).view(-1, ROW).sum(dim=1)
    positions = torch.arange(1, len(sums) + 1, device=bits.device)
    rest = bits[whole:].to(torch.int64)
    rests = rest * torch.arange(1, len(rest) + 1, device=bits.device)
    return int(sums.sum() + rest.sum()), int((sums * positions).sum() + rests.sum())


def attach_adapter(model: Any, folder: Path, name: str) -> Any:
    """Return the model with one more adapter under this name, in PEFT's wrapper. Raises `ValueError` and what PEFT
    raises.

    PEFT only warns when names do not meet, and would then answer as the base under the adapter's name.
    """
    tensors = set(read_safetensors_header(folder / "adapter_model.safetensors"))
    if isinstance(model, PeftModel):
        model.load_adapter(str(folder), adapter_name=name, is_trainable=False)
    else:
        model = PeftModel.from_pretrained(model, str(folder), adapter_name=name, is_trainable=False)
    if unmatched := tensors ^ set(get_peft_model_state_dict(model, adapter_name=name)):
        raise ValueError(f"{len(unmatched)} tensors have no counterpart, such as {min(unmatched)}")
    return model


def require_unchanged_base(before: Digests, model: Any, adapter: str) -> None:
    """Compare the base's weights with their digests. Raises `TrainyardError` (`E-BASE-CHANGED`)."""
    now = base_digests(model)
    changed = [name for name, digest in before.items() if now.get(name) != digest]
    if changed:
        raise TrainyardError(
            f"The adapter {adapter} changed the base: {changed[0]} has other weights ({len(changed)} in all).",
            why="With it, the base and every other adapter would answer differently.",
            do="Convert the adapter to a plain LoRA, or merge it into a model of its own.",
            code="E-BASE-CHANGED",
        )


@contextmanager
def using_adapter(model: Any, name: str | None) -> Iterator[Any]:
    """The network with exactly this adapter switched on; None: with none."""
    if not isinstance(model, PeftModel):
        yield model
    elif name is None:
        with model.disable_adapter():
            yield model
    else:
        model.set_adapter(name)
        yield model
