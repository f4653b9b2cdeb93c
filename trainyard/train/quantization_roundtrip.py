"""Measured loss of each format: a layer of normal weights there and back, and the table of the manual.

`python -m trainyard.train.quantization_roundtrip` prints the table of docs/quantization.md; a test compares the two.
A format whose package is not installed says "not run here", and so does one that only comes ready made (gptq, awq).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from bitsandbytes import functional

from trainyard.loading import load_object
from trainyard.spec.axes.quantization import Quantization
from trainyard.train import quantization
from trainyard.train.model.precision import convert_to_fp8

SIDE = 512
"""Rows and columns of the measured layer: every format's group divides it."""
SEED = 0
NOT_RUN = "not run here"
Stored = tuple[torch.Tensor, int]
"""The weight as it comes back, and the bytes that it was stored in."""


@dataclass(frozen=True)
class RoundTrip:
    """Effect of a format on normal weights."""

    error: float
    """Root mean square of the difference over that of the weights."""
    bits: float
    """Stored bits per weight, scales included; 0 where nothing is stored in the format."""
    version: str


def round_trip(format: Quantization) -> RoundTrip | None:
    """Measure a format on the CPU; None if it cannot run here."""
    store = STORES.get(format)
    if store is None or not quantization.probe(format, quantization.CPU).ok:
        return None
    weight = torch.randn(SIDE, SIDE, generator=torch.Generator().manual_seed(SEED))
    back, stored = store(weight)
    error = ((back.float() - weight).square().mean() / weight.square().mean()).sqrt()
    package = format.facts.package.name
    return RoundTrip(float(error), 8 * stored / weight.numel(), f"{package} {quantization.installed_version(package)}")


def sum_bytes(*tensors: torch.Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def four_bits(kind: str) -> Callable[[torch.Tensor], Stored]:
    """nf4 or fp4 as a base is loaded in it: with double quantisation. The code books belong to no layer."""

    def store(weight: torch.Tensor) -> Stored:
        packed, state = functional.quantize_4bit(weight, compress_statistics=True, quant_type=kind)
        return functional.dequantize_4bit(packed, state), sum_bytes(packed, state.absmax, state.state2.absmax)

    return store


def int8(weight: torch.Tensor) -> Stored:
    rounded, scales, _ = functional.int8_vectorwise_quant(weight.half())
    return functional.int8_vectorwise_dequant(rounded, scales), sum_bytes(rounded, scales)


def hqq(weight: torch.Tensor) -> Stored:
    layer = quantization.to_hqq(linear(weight), quantization.CPU)
    return layer.dequantize(), sum_bytes(layer.W_q, layer.meta["scale"], layer.meta["zero"])


def torchao_int8(weight: torch.Tensor) -> Stored:
    layer = linear(weight)
    load_object("torchao.quantization:quantize_")(
        layer, load_object("torchao.quantization:Int8WeightOnlyConfig")(version=2)
    )
    quantized: Any = layer.weight
    return quantized.dequantize(), sum_bytes(quantized.qdata, quantized.scale)


def fp8(weight: torch.Tensor) -> Stored:
    """Return the weight as a float8 product sees it: the outputs for the unit vectors, which are exact in float8.

    Nothing is stored in float8: a training step moves the weight in full precision.
    """
    model = torch.nn.Sequential(linear(weight))
    convert_to_fp8(model, emulate=True)
    with torch.no_grad():
        return model(torch.eye(SIDE)).T, 0


def gguf(weight: torch.Tensor) -> Stored:
    """Q8_0, the format of llama.cpp that the package writes itself: blocks of 32 with a float16 scale."""
    kind = load_object("gguf:GGMLQuantizationType").Q8_0
    stored = load_object("gguf.quants:quantize")(weight.numpy(), kind)
    return torch.from_numpy(load_object("gguf.quants:dequantize")(stored, kind)), stored.nbytes


def linear(weight: torch.Tensor) -> torch.nn.Linear:
    layer = torch.nn.Linear(SIDE, SIDE, bias=False)
    layer.weight = torch.nn.Parameter(weight.clone(), requires_grad=False)
    return layer


STORES: dict[Quantization, Callable[[torch.Tensor], Stored]] = {
    Quantization.NF4: four_bits("nf4"),
    Quantization.FP4: four_bits("fp4"),
    Quantization.INT8: int8,
    Quantization.HQQ_INT4: hqq,
    Quantization.TORCHAO_INT8: torchao_int8,
    Quantization.FP8: fp8,
    Quantization.GGUF: gguf,
}


# The manual's table


def build_table() -> list[str]:
    """Return the rows of docs/quantization.md, measured now."""
    names = ["format", "package", "calibrated", "trains", "use", "devices", "merges", "error", "bits", "run-with"]
    return [cells(names), cells(["---"] * len(names)), *(build_line(format) for format in Quantization)]


def build_line(format: Quantization) -> str:
    row, trip = format.facts, round_trip(format)
    measured = [NOT_RUN, "-", "-"] if trip is None else [f"{trip.error:.4f}", bits(trip), trip.version]
    facts = [
        f"`{format.value}`", row.package.name, word(row.calibrates), word(row.trains), row.use, ", ".join(row.devices),
        word(row.mergeable),
    ]  # fmt: skip
    return cells([*facts, *measured])


def bits(trip: RoundTrip) -> str:
    return f"{trip.bits:.3f}" if trip.bits else "-"


def cells(values: list[str]) -> str:
    return "| " + " | ".join(values) + " |"


def word(flag: bool) -> str:
    return "yes" if flag else "no"


if __name__ == "__main__":
    print("\n".join(build_table()))
