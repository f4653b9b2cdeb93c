"""Formats in which a frozen base is stored, products are computed, or a file is written."""

from __future__ import annotations

from enum import StrEnum


class Quantization(StrEnum):
    NF4 = "nf4"
    FP4 = "fp4"
    INT8 = "int8"
    HQQ_INT4 = "hqq_int4"
    TORCHAO_INT8 = "torchao_int8"
    GPTQ = "gptq"
    AWQ = "awq"
    FP8 = "fp8"
    GGUF = "gguf"
