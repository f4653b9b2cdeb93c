"""The weights that a double gives out: an adapter for a small local base, as PEFT saves one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save

ADAPTED = ("q_proj", "v_proj")


def make_adapter_files(base: Path, rank: int = 4) -> dict[str, bytes]:
    """Return the files of an adapter on the attention of a base whose second factors are not zero."""
    generator = np.random.default_rng(7)
    weights: dict[str, np.ndarray] = {}
    for file in sorted(base.glob("*.safetensors")):
        with safe_open(file, framework="np") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (no mapping)
                module = name.removesuffix(".weight")
                if module.rpartition(".")[2] not in ADAPTED:
                    continue
                outputs, inputs = tensors.get_slice(name).get_shape()
                for factor, shape in {"A": (rank, inputs), "B": (outputs, rank)}.items():
                    values = generator.standard_normal(shape).astype(np.float32) * 0.02
                    weights[f"base_model.model.{module}.lora_{factor}.weight"] = values
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank, "lora_dropout": 0.0,
        "target_modules": list(ADAPTED), "bias": "none", "base_model_name_or_path": "provider/base",
    }  # fmt: skip
    return {
        "adapter_config.json": json.dumps(config).encode(),
        "adapter_model.safetensors": save(weights, metadata={"format": "pt"}),
    }
