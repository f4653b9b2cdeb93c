"""A low-rank adapter between the layouts: its shape, and the two matrices of each module as PEFT stores them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

from trainyard.errors import Corrupt, NotFound
from trainyard.json_types import JsonObject
from trainyard.serve.conversion.architectures import make_refusal, require_plain, require_words_only
from trainyard.serve.conversion.tensors import Tensor, Tensors, read_tensors, write_tensors

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
A, B, MAGNITUDE = ".lora_A.weight", ".lora_B.weight", ".lora_magnitude_vector"


@dataclass(frozen=True)
class Adapter:
    """An adapter; `a[module]` is (rank, in), `b[module]` (out, rank), `m[module]` (out) for DoRA."""

    config: JsonObject
    """PEFT's `adapter_config.json`."""
    a: Tensors
    b: Tensors
    m: Tensors = field(default_factory=dict)

    @property
    def rank(self) -> int:
        return int(self.config["r"])

    @property
    def scale(self) -> float:
        """Return the factor of the product of the two matrices."""
        divisor = math.sqrt(self.rank) if self.config.get("use_rslora") else self.rank
        return float(self.config["lora_alpha"]) / divisor

    @property
    def modules(self) -> list[str]:
        return sorted(self.a)


def read_adapter(folder: Path) -> Adapter:
    """Return a PEFT adapter that the other layouts have words for.

    Raises `NotFound` (`E-ADAPTER-NOT-FOUND`), `Corrupt` (`E-CORRUPT`), `InvalidInput` (`E-ADAPTER-INVALID`).
    """
    if not (folder / CONFIG_FILE).is_file() or not (folder / WEIGHTS_FILE).is_file():
        raise NotFound(
            f"There is no adapter in {folder}.",
            why=f"An adapter is a folder with {CONFIG_FILE} and {WEIGHTS_FILE}.",
            do="Name the folder of a trained adapter.",
            code="E-ADAPTER-NOT-FOUND",
        )
    require_words_only(folder)
    config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    require_plain(config)
    parts: dict[str, Tensors] = {A: {}, B: {}, MAGNITUDE: {}}
    for name, tensor in read_tensors(folder / WEIGHTS_FILE).items():
        ending = next((end for end in parts if name.endswith(end)), None)
        if ending is None or not name.startswith(PREFIX):
            raise make_refusal(f"It contains {name}, which is not part of a low-rank pair.")
        parts[ending][name.removeprefix(PREFIX).removesuffix(ending)] = tensor
    adapter = Adapter(config, parts[A], parts[B], parts[MAGNITUDE])
    require_whole(adapter, folder)
    return adapter


def require_whole(adapter: Adapter, folder: Path) -> None:
    shapes = [(adapter.a[module].shape[0], adapter.b[module].shape[-1]) for module in adapter.a if module in adapter.b]
    pairs = adapter.a.keys() == adapter.b.keys()
    magnitudes = adapter.m.keys() == (adapter.a.keys() if adapter.config.get("use_dora") else set())
    if not adapter.a or not pairs or not magnitudes or set(shapes) != {(adapter.rank, adapter.rank)}:
        raise Corrupt(
            f"The matrices of the adapter in {folder} do not fit its config.",
            why=f"{len(adapter.a)} A, {len(adapter.b)} B, rank {adapter.rank}.",
            do="Train it again.",
            code="E-CORRUPT",
        )


def write_adapter(adapter: Adapter, folder: Path) -> None:
    """Write a PEFT adapter that `read_adapter`, PEFT and vLLM read."""
    folder.mkdir(parents=True, exist_ok=True)
    named = {A: adapter.a, B: adapter.b, MAGNITUDE: adapter.m}
    tensors: dict[str, Tensor] = {
        f"{PREFIX}{module}{ending}": tensor for ending, part in named.items() for module, tensor in part.items()
    }
    write_tensors(folder / WEIGHTS_FILE, tensors)
    text = json.dumps(adapter.config, indent=2, sort_keys=True)
    (folder / CONFIG_FILE).write_text(text, encoding="utf-8")


def peft_config(*, rank: int, alpha: float, dropout: float, modules: list[str], dora: bool, base: str) -> JsonObject:
    """Return a config for an adapter from these fields, which are all that its own layout has."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": int(alpha) if float(alpha).is_integer() else alpha,
        "lora_dropout": dropout,
        "target_modules": sorted(modules),
        "use_dora": dora,
        "use_rslora": False,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
