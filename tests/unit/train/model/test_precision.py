"""Which precision is taken, and the reason that is recorded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from trainyard.errors import InvalidInput, Unavailable
from trainyard.spec.axes.devices import Device, Precision
from trainyard.train.contracts import Head
from trainyard.train.model.head import require_head
from trainyard.train.model.precision import (
    AttentionSupport,
    choose_attention,
    choose_fp8,
    choose_precision,
    cpu_bf16,
    fits_fp8,
    read_hidden_size,
)


@pytest.mark.parametrize(
    ("device", "native", "hidden", "precision", "why"),
    [
        ("cpu", None, 4096, Precision.FP32, "this cpu has no native bf16"),
        ("cpu", "amx_bf16", 896, Precision.BF16, r"1\.5 times as fast as fp32 at width 896 with amx_bf16"),
        ("cpu", "avx512_bf16", 384, Precision.BF16, r"1\.3 times as fast as fp32 at width 384"),
        ("cpu", "avx512_bf16", 256, Precision.FP32, r"bf16 is 1\.2 times as fast at width 256 with avx512_bf16"),
        ("cpu", "avx512_bf16", 16, Precision.FP32, r"bf16 is 0\.6 times as fast at width 16"),
        ("cpu", "avx512_bf16", None, Precision.FP32, "the width of the model is not known"),
        ("cuda", "cuda", None, Precision.BF16, "native on this device"),
        ("cuda", None, None, Precision.FP16, "no native bf16; fp16 with a loss scale"),
        ("mps", None, None, Precision.FP32, "this mps has no native bf16"),
    ],
)
def test_automatic_choice(device: str, native: str | None, hidden: int | None, precision: Precision, why: str) -> None:
    choice = choose_precision(Precision.AUTO, device, native=native, hidden=hidden)
    assert choice.precision is precision
    assert re.search(why, choice.why)


def test_width_is_read_from_a_config() -> None:
    assert read_hidden_size({"hidden_size": 64}) == read_hidden_size({"n_embd": 64}) == 64
    assert read_hidden_size({"text_config": {"hidden_size": 128}}) == 128
    assert read_hidden_size({"model_type": "resnet"}) is None


def test_what_was_asked_for_is_taken() -> None:
    choice = choose_precision(Precision.BF16, "cpu", native=None)
    assert (choice.precision, choice.why) == (Precision.BF16, "asked for")


def test_fp16_on_a_cpu_is_refused() -> None:
    with pytest.raises(InvalidInput, match="E-DEVICE: precision fp16 was asked for on a CPU"):
        choose_precision(Precision.FP16, "cpu", native=None)


@pytest.mark.parametrize(
    ("requested", "device", "name"),
    [("auto", "cpu", "sdpa"), ("auto", "mps", "sdpa"), ("sdpa", "cuda", "sdpa"), ("eager", "cpu", "eager")],
)
def test_attention_kernel_is_chosen_with_its_reason(requested: str, device: str, name: str) -> None:
    choice = choose_attention(requested, Device(device), capability=(9, 0) if device == "cuda" else None)
    assert choice.name == name
    assert choice.why


@pytest.mark.parametrize("requested", ["fa2", "fa3"])
def test_a_kernel_asked_for_by_name_is_never_replaced(requested: str) -> None:
    with pytest.raises(Unavailable, match=rf"E-PACKAGE-MISSING: The attention kernel {requested}.*needs a CUDA device"):
        choose_attention(requested, Device.CPU)


BLOOM = AttentionSupport("BloomForCausalLM", frozenset({"eager"}))
GEMMA = AttentionSupport("Gemma2ForCausalLM", frozenset({"fa3", "fa2", "eager"}))
MAMBA = AttentionSupport("MambaForCausalLM", frozenset({"eager"}), attends=False)


@pytest.mark.parametrize("device", ["cpu", "cuda", "mps"])
@pytest.mark.parametrize(
    ("architecture", "why"),
    [
        (BLOOM, "transformers has no sdpa attention for BloomForCausalLM"),
        (GEMMA, "transformers has no sdpa attention for Gemma2ForCausalLM"),
        (MAMBA, "MambaForCausalLM has no attention"),
    ],
)
def test_a_family_without_sdpa_is_computed_eagerly(device: str, architecture: AttentionSupport, why: str) -> None:
    choice = choose_attention("auto", Device(device), capability=(8, 0), architecture=architecture)
    assert (choice.name, choice.why) == ("eager", why)
    with pytest.raises(Unavailable, match=f"E-PACKAGE-MISSING: .* sdpa was requested, .*{why}.*attention: auto"):
        choose_attention("sdpa", Device(device), architecture=architecture)


def test_fp8_falls_back_only_under_auto_and_says_why() -> None:
    assert choose_fp8("off", Device.CPU) is None
    fallback = choose_fp8("auto", Device.CPU)
    assert fallback is not None
    assert (fallback.name, fallback.why) == ("", "fp8 is off: a cpu does not multiply fp8")
    old = choose_fp8("auto", Device.CUDA, capability=(8, 0))
    assert old is not None
    assert "capability (8, 0) is below (8, 9)" in old.why
    with pytest.raises(Unavailable, match="E-PACKAGE-MISSING: fp8 training was requested"):
        choose_fp8("torchao", Device.CPU)
    with pytest.raises(InvalidInput, match=r"E-PACKAGE-MISSING: MS-AMP is no longer maintained\."):
        choose_fp8("ms-amp", Device.CUDA, capability=(9, 0))


def test_only_layers_of_fitting_sizes_become_fp8() -> None:
    assert fits_fp8(torch.nn.Linear(64, 128), "model.layers.0.mlp.up_proj")
    assert not fits_fp8(torch.nn.Linear(64, 130), "model.layers.0.mlp.up_proj")
    assert not fits_fp8(torch.nn.Linear(64, 128), "lm_head")


def test_ligers_head_is_refused_where_it_cannot_run() -> None:
    require_head(Head.CHUNKED, "cpu")
    with pytest.raises(Unavailable, match=r"E-PACKAGE-MISSING: Liger's kernels were .* need a CUDA device"):
        require_head(Head.LIGER, "cpu")


@pytest.mark.parametrize(
    ("flags", "environment", "expected"),
    [
        ("fpu sse avx512_bf16 amx_bf16", {}, "amx_bf16"),
        ("fpu avx512_bf16", {}, "avx512_bf16"),
        ("fpu avx2", {}, None),
        ("fpu avx512_bf16 amx_bf16", {"ONEDNN_MAX_CPU_ISA": "AVX2"}, None),
        ("fpu avx512_bf16 amx_bf16", {"ATEN_CPU_CAPABILITY": "avx2"}, None),
        ("fpu avx512_bf16", {"ONEDNN_MAX_CPU_ISA": "ALL", "ATEN_CPU_CAPABILITY": "avx512"}, "avx512_bf16"),
    ],
)
def test_bf16_instructions_are_found(
    tmp_path: Path, flags: str, environment: dict[str, str], expected: str | None
) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(f"processor : 0\nflags : {flags}\n")
    assert cpu_bf16(path, environment) == expected
    assert cpu_bf16(tmp_path / "absent", {}) is None
