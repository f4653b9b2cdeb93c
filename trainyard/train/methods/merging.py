"""Write adapters into a base for good, and prove that the model still says the same.

The base is loaded again in float32: a sum in 4 bits rounds the adapter away (it moves logits by more than one), and in
bfloat16 it loses the small half of it. The logits of the merged model are compared with those of base plus adapters
before anything is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer

from trainyard.errors import Conflict, InvalidInput
from trainyard.stores.whole import write_folder
from trainyard.train.methods.adapters import NEW, load_adapter, make_diverged_error, read_config, written_in
from trainyard.train.methods.contract import Head
from trainyard.train.methods.loading import load_model, require_same_base, training_record

TOLERANCE = 1e-3
"""Most that a logit may move in float32; sums in another order move logits of usual size by some 1e-5."""
PROBE_SHAPE = (4, 64)
"""Rows and tokens of the comparison."""


def merge(
    base: str,
    adapters: Sequence[Path],
    target: Path,
    *,
    head: Head = "causal",
    dtype: torch.dtype = torch.float32,
    tolerance: float = TOLERANCE,
) -> dict[str, Any]:
    """Merge `adapters` into `base`, in order, and write the model in `dtype` with the last adapter's tokenizer.

    Returns {adapters, tolerance, divergence, saved_divergence, dtype}: the largest difference of a logit after the sum
    in float32, and that of the model as written. Raises `InvalidInput` (`E-MERGE`), `Conflict`
    (`E-FILE-EXISTS`), `Refused` (`R-BASE-MISMATCH`) and `TrainyardError` (`E-MERGE`), which leave nothing.
    """
    require_full_precision(base)
    require_one_base(adapters)
    if target.exists():
        raise Conflict(
            f"{target} exists already.",
            do="Name a folder that is not there; nothing is overwritten.",
            code="E-FILE-EXISTS",
        )
    model = load_full_precision(base, head)
    model, unmerged_BTV, divergence = summed(model, adapters, head)
    if not divergence <= tolerance:  # also when it is not a number
        raise make_diverged_error(
            f"The merged model differs from base plus adapter: a logit moved by {divergence:.3g}.",
            f"At most {tolerance:.3g} is allowed.",
        )
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    model.config.dtype = dtype
    write(model, base, adapters, target)
    saved = largest_difference(unmerged_BTV, probe_logits(model))
    return {
        "adapters": [str(adapter) for adapter in adapters],
        "tolerance": tolerance,
        "divergence": divergence,
        "saved_divergence": saved,
        "dtype": str(dtype).removeprefix("torch."),
    }


def require_full_precision(base: str) -> None:
    """Refuse a base that is stored in few bits."""
    config = AutoConfig.from_pretrained(base, trust_remote_code=False)
    if getattr(config, "quantization_config", None) is not None:
        raise InvalidInput(
            f"The base {base} is quantised.",
            why="A sum with weights in few bits rounds the adapter away: the model would say something else.",
            do="Merge into the full-precision weights that it was made from, then quantise the result.",
            code="E-MERGE",
        )


def require_one_base(adapters: Sequence[Path]) -> None:
    """All adapters have to be of the same base, as far as they say."""
    digests = [training_record(adapter).get("base_sha256") for adapter in adapters]
    known = next((digest for digest in digests if digest), "")
    for adapter in adapters:
        require_same_base(adapter, known)


def load_full_precision(base: str, head: Head) -> Any:
    options = {"trust_remote_code": False, "use_safetensors": True, "dtype": torch.float32}
    return load_model(base, head, options).eval()


def summed(model: Any, adapters: Sequence[Path], head: Head) -> tuple[Any, torch.Tensor, float]:
    """The model with all adapters written into it, the logits before the last one was, and the largest difference."""
    before_BTV, worst = probe_logits(model), 0.0
    for adapter in adapters:
        config = read_config(adapter, head, trainable=False)
        wrapped = load_adapter(model, adapter, config, NEW, "cpu").eval()
        before_BTV = probe_logits(wrapped)
        model = written_in(wrapped)
        found = largest_difference(before_BTV, probe_logits(model))
        worst = found if not found <= worst else worst  # a difference that is not a number stays
    return model, before_BTV, worst


def probe_logits(model: Any) -> torch.Tensor:
    """Logits of fixed token ids, spread over the vocabulary."""
    vocabulary = model.config.get_text_config().vocab_size
    generator = torch.Generator().manual_seed(0)
    ids_BT = torch.randint(vocabulary, PROBE_SHAPE, generator=generator)
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=ids_BT, attention_mask=torch.ones_like(ids_BT)).logits
    return logits.float()


def largest_difference(left_BTV: torch.Tensor, right_BTV: torch.Tensor) -> float:
    return float((left_BTV - right_BTV).abs().max())


def write(model: Any, base: str, adapters: Sequence[Path], target: Path) -> None:
    """The model and its tokenizer, whole or not at all."""
    places = [adapter / "tokenizer" for adapter in adapters if (adapter / "tokenizer").is_dir()]
    source = str(places[-1]) if places else base

    def save(folder: Path) -> None:
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(source, trust_remote_code=False).save_pretrained(folder)

    write_folder(target, save, facts=None)
