"""Which precision is taken, and the reason that is recorded."""

from __future__ import annotations

import re

import pytest

from trainyard.errors import InvalidInput
from trainyard.spec.axes import Precision
from trainyard.train.precision import choose_precision


def unmeasured(_: bool) -> float:
    raise AssertionError("nothing had to be measured")


@pytest.mark.parametrize(
    ("device", "native", "seconds", "precision", "why"),
    [
        ("cpu", None, None, Precision.FP32, "this cpu has no native bf16"),
        ("cpu", "amx_bf16", (2.0, 1.0), Precision.BF16, r"2\.00 times as fast as fp32 here \(amx_bf16\)"),
        ("cpu", "avx512_bf16", (1.0, 1.0), Precision.FP32, r"bf16 was only 1\.00 times as fast"),
        ("cuda", "cuda", None, Precision.BF16, "native on this device"),
        ("cuda", None, None, Precision.FP32, "no native bf16"),
    ],
)
def test_automatic_choice(
    device: str, native: str | None, seconds: tuple[float, float] | None, precision: Precision, why: str
) -> None:
    measure = (lambda bf16: seconds[bf16]) if seconds else unmeasured
    choice = choose_precision(Precision.AUTO, device, native=native, seconds_per_step=measure)
    assert choice.precision is precision
    assert re.search(why, choice.why)


def test_what_was_asked_for_is_taken() -> None:
    choice = choose_precision(Precision.BF16, "cpu", native=None, seconds_per_step=unmeasured)
    assert (choice.precision, choice.why) == (Precision.BF16, "asked for")


def test_fp16_on_a_cpu_is_refused() -> None:
    with pytest.raises(InvalidInput, match="E-PRECISION: precision fp16 was asked for on a CPU"):
        choose_precision(Precision.FP16, "cpu", native=None, seconds_per_step=unmeasured)
