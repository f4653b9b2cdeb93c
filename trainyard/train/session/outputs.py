"""Logits and hidden states that a `forward` hands out: by file, or in the reply while they are small."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from trainyard.errors import InvalidInput
from trainyard.json_types import JsonObject
from trainyard.stores.whole import file_sha256
from trainyard.train.contracts import Batch

INLINE_BYTES = 8 << 20
"""Most bytes of logits or hidden states that a reply contains; larger outputs are returned by reference."""
OUTPUTS = ("logits", "hidden_states")


def require_outputs(names: Sequence[str]) -> None:
    """Raise `InvalidInput` (`E-NAME`) for an unknown name of an output."""
    unknown = set(names) - set(OUTPUTS)
    if unknown:
        raise InvalidInput(
            f"forward has no output {sorted(unknown)[0]!r}.", do="Ask for logits or hidden_states.", code="E-NAME"
        )


def read_outputs(model: Any, batch: Batch, names: Sequence[str]) -> dict[str, torch.Tensor]:
    """Return the outputs of one pass over the batch's `input_ids`, in float32 on the CPU."""
    model_inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "position_ids") if name in batch}
    output = model(**model_inputs, output_hidden_states="hidden_states" in names, use_cache=False)
    tensors = {"logits": output.logits.float()} if "logits" in names else {}
    if "hidden_states" in names:
        tensors["hidden_states"] = torch.stack(list(output.hidden_states)).float()
    return {name: value.cpu().contiguous() for name, value in tensors.items()}


def dump_output(name: str, value: torch.Tensor, path: Path, *, inline: bool) -> JsonObject:
    """Return one output for a reply: {shape, values}, or {shape, file, sha256} with the tensor in `path`.

    Raises `InvalidInput` (`E-STEP`).
    """
    size = value.numel() * value.element_size()
    if inline and size > INLINE_BYTES:
        raise InvalidInput(
            f"{name} takes {size:,} bytes, and a reply contains at most {INLINE_BYTES:,}.",
            do="Leave inline out: the reply then names a file.",
            code="E-STEP",
        )
    if inline:
        return {"shape": list(value.shape), "values": value.flatten().tolist()}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: value}, path)
    return {"shape": list(value.shape), "file": str(path), "sha256": file_sha256(path)}
