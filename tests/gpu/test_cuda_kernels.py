"""Kernels that compute the same in another way: packed rows, flash attention, Liger's cross-entropy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from transformers.models.llama import modeling_llama

from benchmarks.gpu.engine import config, train_steps
from benchmarks.gpu.models import chat_rows
from benchmarks.gpu.platform import Platform
from trainyard.backends.native.assembly import NativeRun
from trainyard.data.rows import SftRow
from trainyard.train.model.precision import ATTENTION_NAMES, FLASH_PACKAGES
from trainyard.train.model.sequence_attention import KERNEL, attend_at_once, attend_in_turn, border_inputs, set_kernel
from trainyard.train.session.determinism import strict_kernels

pytestmark = pytest.mark.gpu
LONGEST, ROWS, STEPS = 96, 24, 6
CLOSE, CLOSE_IN_BF16 = 1e-4, 0.02
Build = Callable[..., NativeRun]
Needs = Callable[[str], Any]


def make_rows() -> list[SftRow]:
    """Of very different lengths."""
    return chat_rows(ROWS, LONGEST, mean=40)


def settings(platform: Platform, precision: str, **engine: Any) -> Any:
    hyperparameters = {
        "precision": precision,
        "batch_size": 8,
        "max_length": LONGEST,
        "max_steps": STEPS,
        "learning_rate": 5e-4,
    }
    return config(platform, "sft", "full", engine=engine, **hyperparameters)


def losses(build: Build, trainer_config: Any) -> list[float]:
    return train_steps(build(trainer_config, rows=make_rows()))


@pytest.mark.parametrize("stage", ["sft", "cpt"])
def test_packed_rows_train_like_padded_ones(stage: str, platform: Platform, build: Build) -> None:
    trainer_config = {**settings(platform, "fp32", batching="packed", attention="sdpa"), "stage": stage}
    stage_rows = make_rows() if stage == "sft" else None
    run = build(trainer_config, rows=stage_rows)
    assert run.cut.mode == "packed", run.cut.why
    padded = build({**trainer_config, "engine": {"batching": "padded", "attention": "sdpa"}}, rows=stage_rows)
    assert train_steps(run) == pytest.approx(train_steps(padded), abs=CLOSE)


@pytest.mark.parametrize("kernel", list(FLASH_PACKAGES))
def test_flash_attention_trains_packed_rows_like_sdpa(kernel: str, card: Platform, build: Build, needs: Needs) -> None:
    needs(FLASH_PACKAGES[kernel])
    if kernel == "fa3" and not card.is_hopper():
        pytest.skip(f"{card.name()} is not a Hopper card")
    run = build(settings(card, "bf16", batching="packed", attention=kernel), rows=make_rows())
    assert run.policy.model.config._attn_implementation == ATTENTION_NAMES[kernel]
    there = losses(build, settings(card, "bf16", batching="packed", attention="sdpa"))
    assert train_steps(run) == pytest.approx(there, rel=CLOSE_IN_BF16)


def test_auto_takes_flash_attention_where_it_is_installed(card: Platform, build: Build) -> None:
    run = build(settings(card, "bf16"), rows=make_rows())
    order = ("fa3", "fa2") if card.is_hopper() else ("fa2",)
    attention = next((ATTENTION_NAMES[name] for name in order if card.has(FLASH_PACKAGES[name])), KERNEL)
    assert run.policy.model.config._attn_implementation == attention


@pytest.mark.parametrize("heads", [2, 8])
@pytest.mark.parametrize("window", [None, 16])
def test_torchs_flash_kernel_computes_each_sequence(heads: int, window: int | None, card: Platform) -> None:
    torch.manual_seed(0)
    lengths = torch.tensor([3, 130, 1, 66])
    positions = torch.cat([torch.arange(int(length)) for length in lengths])[None].to(card.device)
    borders = border_inputs({"input_ids": positions, "position_ids": positions})
    states = tuple(
        torch.randn(int(lengths.sum()), each, 64, device=card.device, dtype=torch.bfloat16, requires_grad=True)
        for each in (8, heads, heads)
    )
    weights = torch.randn_like(states[0])

    def with_gradients(kernel: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        out = kernel(states, borders["cu_seq_lens_q"], borders["max_length_q"], None, window)
        with strict_kernels():
            return [out, *torch.autograd.grad((out * weights).sum(), states)]

    at_once, again, in_turn = map(with_gradients, (attend_at_once, attend_at_once, attend_in_turn))
    for first, same, other in zip(at_once, again, in_turn, strict=True):
        assert torch.equal(first, same)
        assert torch.allclose(first, other, rtol=CLOSE_IN_BF16, atol=CLOSE_IN_BF16)


@pytest.mark.parametrize("batching", ["packed", "padded"])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_sequences_train_separately_as_with_a_mask(method: str, batching: str, card: Platform, build: Build) -> None:
    trainer_config = {**settings(card, "bf16", batching=batching, attention="sdpa"), "method": method}
    run, masked = build(trainer_config, rows=make_rows()), build(trainer_config, rows=make_rows())
    assert run.policy.model.config._attn_implementation == KERNEL, run.policy.facts["row_attention"]
    set_kernel(masked.policy.model.get_base_model() if method == "lora" else masked.policy.model, "sdpa")
    assert train_steps(run) == pytest.approx(train_steps(masked), rel=CLOSE_IN_BF16)


def test_a_chunked_output_layer_gives_the_same_losses(platform: Platform, build: Build) -> None:
    whole, chunked = (losses(build, settings(platform, "fp32", head=head)) for head in ("full", "chunked"))
    assert chunked == pytest.approx(whole, abs=CLOSE)


def test_ligers_cross_entropy_gives_the_same_losses(card: Platform, build: Build, needs: Needs) -> None:
    needs("liger_kernel")
    whole, liger = (losses(build, settings(card, "fp32", head=head)) for head in ("full", "liger"))
    assert liger == pytest.approx(whole, abs=CLOSE)


def test_ligers_cross_entropy_takes_less_memory_than_all_logits(card: Platform, build: Build, needs: Needs) -> None:
    needs("liger_kernel")
    peaks = {}
    for head in ("full", "liger"):
        run = build(settings(card, "bf16", head=head, batching="padded"), rows=make_rows())
        torch.cuda.reset_peak_memory_stats()
        train_steps(run)
        peaks[head] = torch.cuda.max_memory_allocated()
    assert peaks["liger"] <= peaks["full"]


@pytest.fixture
def restored_family() -> Iterator[None]:
    """Llama's classes as they were: Liger replaces them for the rest of the process."""
    before = dict(vars(modeling_llama))
    yield
    vars(modeling_llama).update(before)


@pytest.mark.usefixtures("restored_family")
def test_ligers_norm_rope_and_swiglu_give_the_same_losses(card: Platform, build: Build, needs: Needs) -> None:
    needs("liger_kernel")
    plain, fused = (losses(build, settings(card, "fp32", kernels=kernels)) for kernels in ("torch", "liger"))
    assert fused == pytest.approx(plain, abs=CLOSE)


def test_compiled_blocks_give_the_same_losses(card: Platform, build: Build) -> None:
    plain, compiled = (losses(build, settings(card, "fp32", compile=compile)) for compile in (False, True))
    assert compiled == pytest.approx(plain, abs=CLOSE)
