"""Layers that an adapter of the wire reaches, by the names in the weight files of a base."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from trainyard.surfaces.tinker.layers import name_targets

ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
MLP = {"gate_proj", "up_proj", "down_proj"}


@pytest.mark.parametrize(
    ("attn", "mlp", "unembed", "expected"),
    [
        (True, True, True, {*ATTENTION, *MLP, "lm_head"}),
        (True, False, True, {*ATTENTION, "lm_head"}),
        (False, True, True, {*MLP, "lm_head"}),
        (False, True, False, MLP),
        (False, False, True, {"lm_head"}),
    ],
)
def test_layers_of_a_llama(attn: bool, mlp: bool, unembed: bool, expected: set[str], tiny_model: Path) -> None:
    """Also of a base that is not on this machine yet."""
    for base in (tiny_model, None):
        assert set(name_targets(base, attn=attn, mlp=mlp, unembed=unembed)) == expected


def test_words_stand_for_the_usual_choices(tiny_model: Path) -> None:
    assert name_targets(tiny_model, attn=True, mlp=True, unembed=False) == "all-linear"
    assert name_targets(tiny_model, attn=True, mlp=False, unembed=False) == "attention-only"


def test_layers_that_attention_and_mlp_call_alike_have_the_names_of_their_parents(tmp_path: Path) -> None:
    """GPT-2 has c_proj in both; a mixture has a router, which is not adapted; vectors and embeddings are no layers."""
    matrix, vector = np.zeros((2, 2), dtype=np.float32), np.zeros(2, dtype=np.float32)
    names = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj", "mlp.gate")
    tensors = {f"h.{block}.{name}.weight": matrix.copy() for block in (0, 1) for name in names}
    tensors |= {"wte.weight": matrix, "h.0.ln_1.weight": vector, "embed_out.weight": matrix.copy()}
    save_file(tensors, tmp_path / "model.safetensors")
    targets = name_targets(tmp_path, attn=True, mlp=True, unembed=True)
    assert targets == ("c_attn", "attn.c_proj", "c_fc", "mlp.c_proj", "embed_out")
