"""Small adapters as PEFT stores them, of random numbers in any format, and the config of a base for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from trainyard.serve.conversion.adapters import Adapter, peft_config, write_adapter
from trainyard.serve.conversion.tensors import BYTES, Tensor

HIDDEN, HEADS, KV_HEADS, RANK = 16, 4, 2, 3
WIDTHS = {"q_proj": 16, "k_proj": 8, "v_proj": 8, "o_proj": 16}


def random_tensor(generator: np.random.Generator, dtype: str, *shape: int) -> Tensor:
    width = BYTES[dtype]
    return Tensor(dtype, generator.integers(0, 2 ** (8 * width), shape, dtype=f"u{width}", endpoint=False))


def make_adapter(folder: Path, dtype: str = "F32", *, dora: bool = False, seed: int = 0, **config: Any) -> Path:
    """An adapter on the attention of two blocks; any bits count as numbers, so nothing may be rounded on the way."""
    draw = np.random.default_rng(seed)
    modules = [f"model.layers.{block}.self_attn.{name}" for block in range(2) for name in WIDTHS]
    a = {module: random_tensor(draw, dtype, RANK, HIDDEN) for module in modules}
    b = {module: random_tensor(draw, dtype, WIDTHS[module.rpartition(".")[2]], RANK) for module in modules}
    m = {module: random_tensor(draw, dtype, b[module].shape[0]) for module in modules} if dora else {}
    made = peft_config(rank=RANK, alpha=5.5, dropout=0.1, modules=sorted(WIDTHS), dora=dora, base="base")
    write_adapter(Adapter({**made, **config}, a, b, m), folder)
    return folder


def make_base(folder: Path, kind: str = "llama") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": kind, "num_hidden_layers": 2, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return folder
