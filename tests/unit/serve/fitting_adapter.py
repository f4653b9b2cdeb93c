"""A small adapter that fits a base, and four that do not; written without torch."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from trainyard.serve.conversion.adapters import WEIGHTS_FILE, peft_config
from trainyard.stores.models import read_safetensors_header, weight_files

FAULTS = ("not finite", "ignored key", "wrong shape", "other base")
RANK = 4


def fitting_adapter(folder: Path, base: Path, fault: str = "", **training: Any) -> Path:
    """Write a random adapter on the query projections of `base`, with its tokenizer; `fault` breaks it."""
    draw = np.random.default_rng(0)
    weights = {}
    for path in weight_files(base):
        for name, facts in read_safetensors_header(path).items():
            if not name.endswith("q_proj.weight"):
                continue
            outputs, inputs = (2 * size if fault == "other base" else size for size in facts["shape"])
            module = f"base_model.model.{name.removesuffix('.weight')}"
            weights[f"{module}.lora_A.weight"] = draw.normal(size=(RANK, inputs)).astype(np.float32)
            weights[f"{module}.lora_B.weight"] = draw.normal(size=(outputs, RANK)).astype(np.float32)
    first = min(weights)
    if fault == "not finite":
        weights[first][0, 0] = np.nan
    if fault == "ignored key":
        weights[first.replace("q_proj", "gate_proj")] = weights.pop(first)
    if fault == "wrong shape":
        weights[first] = weights[first][:, :-1].copy()
    config = peft_config(rank=RANK, alpha=8.0, dropout=0.0, modules=["q_proj"], dora=False, base=str(base))
    folder.mkdir(parents=True)
    save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps(config))
    record = {"base_model": str(base), "base_path": str(base), "stage": "sft", "method": "lora", **training}
    (folder / "training.json").write_text(json.dumps(record))
    (folder / "tokenizer").mkdir()
    for path in base.glob("*token*"):
        shutil.copyfile(path, folder / "tokenizer" / path.name)
    if (base / "chat_template.jinja").is_file():
        shutil.copyfile(base / "chat_template.jinja", folder / "tokenizer" / "chat_template.jinja")
    return folder
