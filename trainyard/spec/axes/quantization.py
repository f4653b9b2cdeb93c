"""Quantization formats: which package makes each, what it can do, and how large it is.

Sources: QLoRA, arXiv 2305.14314 (nf4, fp4, double quantisation); LLM.int8(), arXiv 2208.07339; HQQ,
mobiusml.github.io/hqq_blog; GPTQ, arXiv 2210.17323; AWQ, arXiv 2306.00978.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainyard.spec.axes.axis import AxisValue, Facts
from trainyard.spec.axes.devices import CPU_AND_GPUS, Device
from trainyard.spec.packages import BITSANDBYTES, GGUF, GPTQMODEL, HQQ, TORCHAO, Package

NF4_BITS = 4 + 8 / 64 + 32 / (64 * 256)
"""With double quantisation: 4, a byte for each 64 weights and a float32 for each 256 of those."""


@dataclass(frozen=True, kw_only=True)
class QuantizationFacts(Facts):
    """A format."""

    package: Package
    note: str
    bits: float = NF4_BITS
    """Per weight of the linear layers; one scale a row (int8) is left out."""
    use: Literal["base", "compute", "export"] = "base"
    """A frozen base, the products of a training step, or a file to serve."""
    trains: bool = True
    """Whether an adapter can be trained through it."""
    calibrates: bool = False
    """Whether it is made from sample texts: such a base is loaded as somebody quantised it, not quantised here."""
    mergeable: bool = True
    """Whether an adapter trained through it can be merged: the same base has to exist in full precision."""
    devices: tuple[Device, ...] = CPU_AND_GPUS
    """Where its package documents that it computes. ROCm: bitsandbytes 0.50 (installation guide), gptqmodel 7.6 (its
    README), torchao (pytorch/ao#4131). hqq documents none."""


class Quantization(AxisValue):
    """In which format a frozen base is kept, or a result is written."""

    facts: QuantizationFacts

    NF4 = QuantizationFacts(
        "nf4",
        package=BITSANDBYTES,
        note="The default: 16 levels where a normal distribution has its weights, with double quantisation.",
    )
    FP4 = QuantizationFacts("fp4", package=BITSANDBYTES, note="As large as nf4 and coarser.")
    INT8 = QuantizationFacts(
        "int8",
        package=BITSANDBYTES,
        note="One scale a row. On CUDA the activations are rounded to int8 as well.",
        bits=8.0,
    )
    HQQ_INT4 = QuantizationFacts(
        "hqq_int4",
        package=HQQ,
        note="transformers 5.23 cannot load it: the base is loaded whole and converted layer by layer.",
        devices=(Device.CPU, Device.CUDA),
        bits=4 + 2 * 32 / 64,
    )
    TORCHAO_INT8 = QuantizationFacts("torchao_int8", package=TORCHAO, note="Weights only, one scale a row.", bits=8.0)
    GPTQ = QuantizationFacts(
        "gptq",
        package=GPTQMODEL,
        note="A base that is quantised already. gptqmodel 7.7 asks for a newer torch than this product has.",
        bits=4 + 20 / 128,
        calibrates=True,
        mergeable=False,
    )
    AWQ = QuantizationFacts(
        "awq",
        package=GPTQMODEL,
        note="A base that is quantised already; transformers reads it through gptqmodel.",
        bits=4 + 20 / 128,
        calibrates=True,
        mergeable=False,
    )
    FP8 = QuantizationFacts(
        "fp8",
        package=TORCHAO,
        note="engine.fp8: the products of a training step in float8; emulated, and slower, on a CPU.",
        use="compute",
        trains=False,
    )
    GGUF = QuantizationFacts(
        "gguf",
        package=GGUF,
        note="A file for llama.cpp, written after training by its converter; the package reads and checks it.",
        use="export",
        trains=False,
        mergeable=False,
    )
