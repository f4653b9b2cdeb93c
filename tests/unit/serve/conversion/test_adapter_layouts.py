"""Adapters through the layouts of other tools and back: every bit is the same, and nothing is dropped in silence."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from tests.unit.serve.conversion.adapter_files import FUSED_WIDTHS, MLP_WIDTHS, RANK, WIDTHS, make_adapter, make_base
from trainyard.errors import Corrupt, InvalidInput, NotFound
from trainyard.loading import load_object
from trainyard.serve.conversion.adapters import CONFIG_FILE, WEIGHTS_FILE, read_adapter
from trainyard.serve.conversion.gguf import gguf_to_peft, peft_to_gguf, reorder
from trainyard.serve.conversion.mlx import MLX_FILE, mlx_to_peft, peft_to_mlx
from trainyard.serve.conversion.tensors import read_tensors

DTYPES = ["F32", "F16", "BF16"]


def same(left: Path, right: Path) -> bool:
    """Whether two adapters are the same: every byte of the weights, every word of the config."""
    configs = [json.loads((folder / CONFIG_FILE).read_text()) for folder in (left, right)]
    return (left / WEIGHTS_FILE).read_bytes() == (right / WEIGHTS_FILE).read_bytes() and configs[0] == configs[1]


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_to_mlx_and_back_gives_the_same_bytes(dtype: str, dora: bool, tmp_path: Path) -> None:
    source = make_adapter(tmp_path / "peft", dtype, dora=dora)
    peft_to_mlx(source, tmp_path / "mlx")
    mlx_to_peft(tmp_path / "mlx", tmp_path / "back")
    assert same(source, tmp_path / "back")


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral", "phi3", "gemma2"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_to_gguf_and_back_gives_the_same_bytes(dtype: str, kind: str, tmp_path: Path) -> None:
    """Every linear module of a block, by the name that it has in this architecture."""
    widths = FUSED_WIDTHS if kind == "phi3" else {**WIDTHS, **MLP_WIDTHS}
    source, base = make_adapter(tmp_path / "peft", dtype, widths=widths), make_base(tmp_path / "base", kind)
    peft_to_gguf(source, tmp_path / "adapter.gguf", base)
    gguf_to_peft(tmp_path / "adapter.gguf", tmp_path / "back", base)
    assert same(source, tmp_path / "back")


def test_mlx_names_the_modules_and_scales_as_peft_does(tmp_path: Path) -> None:
    peft_to_mlx(make_adapter(tmp_path / "peft", use_rslora=True), tmp_path / "mlx")
    mlx_config = json.loads((tmp_path / "mlx" / CONFIG_FILE).read_text())
    assert mlx_config["fine_tune_type"] == "lora"
    assert mlx_config["num_layers"] == -1
    assert mlx_config["lora_parameters"]["scale"] == pytest.approx(5.5 / RANK**0.5)
    assert mlx_config["lora_parameters"]["keys"][0] == "model.layers.0.self_attn.k_proj"
    held = read_tensors(tmp_path / "mlx" / MLX_FILE)
    assert held["model.layers.0.self_attn.q_proj.lora_a"].shape == (16, RANK)
    assert held["model.layers.0.self_attn.k_proj.lora_b"].shape == (RANK, 8)


def test_an_adapter_that_mlx_made_by_itself_becomes_peft(tmp_path: Path) -> None:
    peft_to_mlx(make_adapter(tmp_path / "peft"), tmp_path / "mlx")
    path = tmp_path / "mlx" / CONFIG_FILE
    mlx_config = json.loads(path.read_text())
    path.write_text(json.dumps({name: value for name, value in mlx_config.items() if name != "peft"}))
    mlx_to_peft(tmp_path / "mlx", tmp_path / "back", "org/base")
    adapter = read_adapter(tmp_path / "back")
    assert adapter.config["base_model_name_or_path"] == "org/base"
    assert (adapter.rank, adapter.config["lora_alpha"]) == (RANK, 5.5)
    assert len(adapter.modules) == len(adapter.config["target_modules"]) == 8


def test_an_adapter_of_llama_cpp_becomes_peft(tmp_path: Path) -> None:
    """As `convert_lora_to_gguf.py` writes it: no config of PEFT's in the file."""
    base = make_base(tmp_path / "base")
    peft_to_gguf(make_adapter(tmp_path / "peft"), tmp_path / "own.gguf", base)
    reader, gguf = load_object("gguf").GGUFReader(str(tmp_path / "own.gguf")), load_object("gguf")
    writer = gguf.GGUFWriter(str(tmp_path / "plain.gguf"), "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 6.0)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    gguf_to_peft(tmp_path / "plain.gguf", tmp_path / "back", base)
    adapter = read_adapter(tmp_path / "back")
    assert (adapter.rank, adapter.config["lora_alpha"]) == (RANK, 6)
    assert (tmp_path / "back" / WEIGHTS_FILE).read_bytes() == (tmp_path / "peft" / WEIGHTS_FILE).read_bytes()


def test_gguf_names_and_scale_are_those_of_llama_cpp(tmp_path: Path) -> None:
    peft_to_gguf(make_adapter(tmp_path / "peft"), tmp_path / "adapter.gguf", make_base(tmp_path / "base"))
    reader = load_object("gguf").GGUFReader(str(tmp_path / "adapter.gguf"))
    assert reader.get_field("adapter.lora.alpha").contents() == 5.5
    shapes = {tensor.name: tuple(map(int, tensor.shape)) for tensor in reader.tensors}
    assert shapes["blk.1.attn_q.weight.lora_a"] == (16, RANK)
    assert shapes["blk.1.attn_k.weight.lora_b"] == (RANK, 8)
    assert len(shapes) == 16


@given(heads=st.integers(1, 5), half=st.integers(1, 4), width=st.integers(1, 3))
def test_rows_are_reordered_and_restored(heads: int, half: int, width: int) -> None:
    rows = np.arange(heads * 2 * half * width).reshape(heads * 2 * half, width)
    there = reorder(rows, heads)
    assert np.array_equal(reorder(there, heads, back=True), rows)
    assert np.array_equal(there[0], rows[0])
    assert np.array_equal(there[1], rows[half])  # the second half of a head stands beside the first


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern"),
        ({"alpha_pattern": {"q_proj": 8}}, "alpha_pattern"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"peft_type": "OFT"}, "of type OFT"),
        ({"bias": "all"}, "trained biases"),
    ],
)
def test_what_the_other_layouts_have_no_words_for_is_refused(config: dict[str, Any], why: str, tmp_path: Path) -> None:
    source, base = make_adapter(tmp_path / "peft", **config), make_base(tmp_path / "base")
    message = f"E-ADAPTER-INVALID: The adapter cannot be converted.*{why}"
    with pytest.raises(InvalidInput, match=message):
        peft_to_mlx(source, tmp_path / "mlx")
    with pytest.raises(InvalidInput, match=message):
        peft_to_gguf(source, tmp_path / "adapter.gguf", base)


def test_gguf_has_no_place_for_dora_nor_for_an_unknown_family(tmp_path: Path) -> None:
    dora, plain = make_adapter(tmp_path / "dora", dora=True), make_adapter(tmp_path / "plain")
    with pytest.raises(InvalidInput, match=r"E-ADAPTER-INVALID.*no magnitudes"):
        peft_to_gguf(dora, tmp_path / "a.gguf", make_base(tmp_path / "base"))
    with pytest.raises(InvalidInput, match=r"E-ADAPTER-INVALID.*of type mamba; known are llama"):
        peft_to_gguf(plain, tmp_path / "a.gguf", make_base(tmp_path / "other", "mamba"))
    with pytest.raises(InvalidInput, match=r"E-ADAPTER-INVALID.*has no config\.json"):
        peft_to_gguf(plain, tmp_path / "a.gguf", tmp_path / "nowhere")


def test_half_an_adapter_and_none_at_all_are_told_apart(tmp_path: Path) -> None:
    source = make_adapter(tmp_path / "peft")
    weights = load_file(source / WEIGHTS_FILE)
    del weights[next(name for name in weights if "lora_B" in name)]
    save_file(weights, source / WEIGHTS_FILE)
    with pytest.raises(Corrupt, match="E-CORRUPT: The matrices of the adapter"):
        peft_to_mlx(source, tmp_path / "mlx")
    save_file({"base_model.model.score.weight": torch.zeros(2)}, source / WEIGHTS_FILE)
    with pytest.raises(InvalidInput, match=r"E-ADAPTER-INVALID.*score\.weight, which is not part of a low-rank pair"):
        peft_to_mlx(source, tmp_path / "mlx")
    with pytest.raises(NotFound, match="E-ADAPTER-NOT-FOUND"):
        peft_to_mlx(tmp_path / "nothing", tmp_path / "mlx")


def test_a_whole_model_and_experts_of_mlx_are_no_adapters(tmp_path: Path) -> None:
    folder = tmp_path / "mlx"
    folder.mkdir()
    (folder / CONFIG_FILE).write_text(json.dumps({"fine_tune_type": "full"}))
    with pytest.raises(InvalidInput, match=r"E-ADAPTER-INVALID.*that is a model"):
        mlx_to_peft(folder, tmp_path / "back")
    (folder / CONFIG_FILE).write_text(json.dumps({"fine_tune_type": "lora", "lora_parameters": {}}))
    save_file({"model.layers.0.mlp.switch.lora_a": torch.zeros(2, 3, 4)}, folder / MLX_FILE)
    with pytest.raises(InvalidInput, match=r"E-ADAPTER-INVALID.*layer of experts"):
        mlx_to_peft(folder, tmp_path / "back")


def test_a_damaged_gguf_adapter_is_reported_as_one(tmp_path: Path) -> None:
    source, base = make_adapter(tmp_path / "peft"), make_base(tmp_path / "base")
    peft_to_gguf(source, tmp_path / "adapter.gguf", base)
    whole = (tmp_path / "adapter.gguf").read_bytes()
    for size in (0, 3, 4, 20, 100, len(whole) // 2, len(whole) - 40):
        (tmp_path / "cut.gguf").write_bytes(whole[:size])
        with pytest.raises(Corrupt, match=r"E-CORRUPT: cut.gguf is not a whole GGUF adapter"):
            gguf_to_peft(tmp_path / "cut.gguf", tmp_path / "back", base)
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("kind", [0, 4, 8, 9, 99])
def test_an_array_that_claims_to_be_endless_ends_soon(kind: int, tmp_path: Path) -> None:
    """A header with one list of 2^60 items of a type; the package's own reader would read it without end."""
    base = make_base(tmp_path / "base")
    head = struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + struct.pack("<Q", 1) + b"a" + struct.pack("<IIQ", 9, kind, 2**60)
    (tmp_path / "endless.gguf").write_bytes(head + bytes(50))
    start_s = time.process_time()
    with pytest.raises(Corrupt, match=r"E-CORRUPT: endless.gguf is not a whole GGUF adapter"):
        gguf_to_peft(tmp_path / "endless.gguf", tmp_path / "back", base)
    assert time.process_time() - start_s < 5
