"""Muon: torch's bits in bf16, a step of the same direction in fp32, and a dtype that a resume keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trainyard.train.optimizers import DTYPES, Muon, newton_schulz_dtype, orthogonalize, scale_by_shape, scale_to_adamw

SHAPES = ((24, 16), (16, 24), (16, 16))


def matrices() -> list[torch.nn.Parameter]:
    torch.manual_seed(3)
    return [torch.nn.Parameter(torch.randn(*shape)) for shape in SHAPES]


def steps(optimizer: Any, parameters: list[torch.nn.Parameter], count: int) -> None:
    for _ in range(count):
        optimizer.zero_grad()
        sum((parameter**2).sum() + parameter.sin().sum() for parameter in parameters).backward()  # type: ignore[union-attr]
        optimizer.step()


@pytest.mark.parametrize(("scale", "adjustment"), [(scale_by_shape, "original"), (scale_to_adamw, "match_rms_adamw")])
def test_bits_are_torchs_in_bf16(scale: Any, adjustment: str) -> None:
    parameters, reference = matrices(), matrices()
    steps(Muon(parameters, lr=0.02, weight_decay=0.1, newton_schulz="bf16", scale=scale), parameters, 6)
    steps(torch.optim.Muon(reference, lr=0.02, weight_decay=0.1, momentum=0.95, adjust_lr_fn=adjustment), reference, 6)
    assert all(torch.equal(parameter, other) for parameter, other in zip(parameters, reference, strict=True))


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("shape", SHAPES)
def test_singular_values_end_near_one(shape: tuple[int, int], dtype: str) -> None:
    torch.manual_seed(0)
    result = orthogonalize(torch.randn(*shape), DTYPES[dtype])
    assert result.shape == shape
    values = torch.linalg.svdvals(result.float())
    assert 0.3 < values.min() < values.max() < 1.6


def test_fp32_steps_in_the_direction_of_bf16() -> None:
    full, half = matrices(), matrices()
    before = [parameter.detach().clone() for parameter in full]
    steps(Muon(full, lr=0.02, newton_schulz="fp32"), full, 1)
    steps(Muon(half, lr=0.02, newton_schulz="bf16"), half, 1)
    for parameter, other, start in zip(full, half, before, strict=True):
        assert (
            torch.nn.functional.cosine_similarity((parameter - start).flatten(), (other - start).flatten(), 0) > 0.995
        )


@pytest.mark.parametrize(("saved", "here"), [("bf16", "fp32"), ("fp32", "bf16")])
def test_resume_continues_in_the_saved_dtype(saved: str, here: str) -> None:
    straight, stopped = matrices(), matrices()
    steps(Muon(straight, lr=0.02, newton_schulz=saved), straight, 5)
    first = Muon(stopped, lr=0.02, newton_schulz=saved)
    steps(first, stopped, 2)
    second = Muon(stopped, lr=0.02, newton_schulz=here)
    second.load_state_dict(first.state_dict())
    assert second.param_groups[0]["newton_schulz"] == saved
    steps(second, stopped, 3)
    assert all(torch.equal(parameter, other) for parameter, other in zip(straight, stopped, strict=True))


def test_state_of_torchs_muon_continues_in_bf16() -> None:
    parameters = matrices()
    reference = torch.optim.Muon(parameters, lr=0.02)
    steps(reference, parameters, 2)
    optimizer = Muon(parameters, lr=0.02, newton_schulz="fp32")
    optimizer.load_state_dict(reference.state_dict())
    assert optimizer.param_groups[0]["newton_schulz"] == "bf16"


def test_dtype_is_what_the_cpu_is_fast_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert newton_schulz_dtype("cpu") == "fp32"
    assert Muon(matrices()).param_groups[0]["newton_schulz"] == "fp32"


def test_vectors_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Muon moves matrices; this parameter has the shape \(3,\)"):
        Muon([torch.nn.Parameter(torch.zeros(3))])
