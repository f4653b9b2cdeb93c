"""Small adapters as PEFT stores them, of random numbers in any format, and the config of a base for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from trainyard.serve.conversion.adapters import Adapter, peft_config, write_adapter
from trainyard.serve.conversion.tensors import BYTES, Tensor

HIDDEN, HEADS, KV_HEADS, RANK = 16, 4, 2, 3
WIDTHS = {"self_attn.q_proj": 16, "self_attn.k_proj": 8, "self_attn.v_proj": 8, "self_attn.o_proj": 16}
MLP_WIDTHS = {"mlp.gate_proj": 40, "mlp.up_proj": 40, "mlp.down_proj": 16}
FUSED_WIDTHS = {"self_attn.qkv_proj": 32, "self_attn.o_proj": 16, "mlp.gate_up_proj": 80, "mlp.down_proj": 16}
"""Linear module of a block -> what it puts out; what it takes is the same for all here."""


def random_tensor(generator: np.random.Generator, dtype: str, *shape: int) -> Tensor:
    width = BYTES[dtype]
    return Tensor(dtype, generator.integers(0, 2 ** (8 * width), shape, dtype=f"u{width}", endpoint=False))


def make_finite(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Clear the highest bit of each exponent: no number is NaN or infinite."""
    return {
        name: Tensor(tensor.dtype, tensor.bits & ~np.array(1 << (8 * BYTES[tensor.dtype] - 2), tensor.bits.dtype))
        for name, tensor in tensors.items()
    }


def make_adapter(
    folder: Path,
    dtype: str = "F32",
    *,
    dora: bool = False,
    seed: int = 0,
    widths: dict[str, int] = WIDTHS,
    **config: Any,
) -> Path:
    """An adapter on two blocks of random bits, so nothing may be rounded on the way."""
    draw = np.random.default_rng(seed)
    outs = {f"model.layers.{block}.{name}": width for block in range(2) for name, width in widths.items()}
    a = {module: random_tensor(draw, dtype, RANK, HIDDEN) for module in outs}
    b = {module: random_tensor(draw, dtype, width, RANK) for module, width in outs.items()}
    m = {module: random_tensor(draw, dtype, width) for module, width in outs.items()} if dora else {}
    names = sorted(name.rpartition(".")[2] for name in widths)
    defaults = peft_config(rank=RANK, alpha=5.5, dropout=0.1, modules=names, dora=dora, base="base")
    write_adapter(Adapter({**defaults, **config}, make_finite(a), make_finite(b), make_finite(m)), folder)
    return folder


def make_base(folder: Path, kind: str = "llama") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": kind, "num_hidden_layers": 2, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return folder
