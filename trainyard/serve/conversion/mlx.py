"""PEFT <-> mlx-lm. The matrices are each other's transpose: mlx multiplies from the right, `x @ a @ b`.

mlx-lm's `adapter_config.json` names the modules in full (`keys`), so one file says which blocks have an adapter; PEFT's
own config travels along under `peft`, which mlx-lm ignores, so that the way back gives the same config, too.
source: mlx-lm 0.32.2, mlx_lm/tuner/{lora,dora,utils}.py
"""

from __future__ import annotations

import json
from pathlib import Path

from trainyard.errors import Corrupt
from trainyard.json_types import JsonObject
from trainyard.serve.conversion.adapters import CONFIG_FILE, Adapter, peft_config, read_adapter, write_adapter
from trainyard.serve.conversion.architectures import make_refusal
from trainyard.serve.conversion.tensors import Tensors, read_tensors, write_tensors

MLX_FILE = "adapters.safetensors"


def peft_to_mlx(source: Path, target: Path) -> None:
    """Write the PEFT adapter in `source` as mlx-lm reads it. Raises as `read_adapter`."""
    adapter = read_adapter(source)
    target.mkdir(parents=True, exist_ok=True)
    left = {f"{module}.lora_a": tensor.transpose() for module, tensor in adapter.a.items()}
    right = {f"{module}.lora_b": tensor.transpose() for module, tensor in adapter.b.items()}
    write_tensors(
        target / MLX_FILE, {**left, **right, **{f"{module}.m": tensor for module, tensor in adapter.m.items()}}
    )
    config = {
        "fine_tune_type": "dora" if adapter.config.get("use_dora") else "lora",
        "num_layers": -1,
        "lora_parameters": {
            "rank": adapter.rank,
            "scale": adapter.scale,
            "dropout": float(adapter.config.get("lora_dropout") or 0.0),
            "keys": adapter.modules,
        },
        "peft": adapter.config,
    }
    (target / CONFIG_FILE).write_text(json.dumps(config, indent=2, sort_keys=True), encoding="utf-8")


def mlx_to_peft(source: Path, target: Path, base: str = "") -> None:
    """Write the mlx-lm adapter in `source` as PEFT reads it.

    Raises `InvalidInput` (`E-ADAPTER-INVALID`) for whole models and layers of experts, `Corrupt` for a half of a pair.
    """
    config = json.loads((source / CONFIG_FILE).read_text(encoding="utf-8"))
    if config.get("fine_tune_type", "lora") not in ("lora", "dora"):
        raise make_refusal(f"It was trained with {config['fine_tune_type']}: that is a model, not an adapter.")
    parts: dict[str, Tensors] = {"lora_a": {}, "lora_b": {}, "m": {}}
    for name, tensor in read_tensors(source / MLX_FILE).items():
        module, _, part = name.rpartition(".")
        if part not in parts:
            raise make_refusal(f"It contains {name}, which is not part of a low-rank pair.")
        if part != "m" and len(tensor.shape) != 2:
            raise make_refusal(f"{module} is a layer of experts, for which PEFT has no such matrices.")
        parts[part][module] = tensor if part == "m" else tensor.transpose()
    if not parts["lora_a"] or parts["lora_a"].keys() != parts["lora_b"].keys():
        raise Corrupt(f"The adapter in {source} is half of one.", do="Train it again.", code="E-CORRUPT")
    config = config.get("peft") or to_peft_config(config, parts, base)
    if base:
        config = {**config, "base_model_name_or_path": base}
    write_adapter(Adapter(config, parts["lora_a"], parts["lora_b"], parts["m"]), target)


def to_peft_config(config: JsonObject, parts: dict[str, Tensors], base: str) -> JsonObject:
    """Return PEFT's config of an adapter that mlx-lm made on its own."""
    lora = config["lora_parameters"]
    rank = int(lora["rank"])
    modules = sorted(parts["lora_a"])
    alpha = float(lora["scale"]) * rank
    dora = config.get("fine_tune_type") == "dora"
    return peft_config(
        rank=rank, alpha=alpha, dropout=float(lora.get("dropout") or 0.0), modules=modules, dora=dora, base=base
    )
