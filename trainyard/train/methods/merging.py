"""Write an adapter into its base for good, and measure that the model still says the same.

The base is loaded in float32: a sum in 4 bits rounds the adapter away (it moves logits by more than one), and in
bfloat16 it loses the small half of it. The logits of the sum are compared with those of base and adapter before it is
rounded, and what was written is loaded and run once.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoConfig, AutoTokenizer

from trainyard.errors import InvalidInput, TrainyardError
from trainyard.json_types import JsonObject
from trainyard.train.methods.adapters import NEW, TOLERANCE, load_adapter, probe_logits, read_config, write_into_base
from trainyard.train.methods.loading import load_model, require_memory


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
