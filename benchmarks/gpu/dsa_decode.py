"""How long does one more token take after 32,768 to 131,072 tokens: sparse attention next to dense SDPA, in bf16?

The layer, the cache and both ways are those of `benchmarks/latent/dsa_decode.py`; one row, eight and 32 rows at once. A
few rows are bound by the starts of their small kernels on a card, many by what they read. The dense layer is measured
with torch's own choice of a kernel as well, which is cuDNN's on Hopper.

    python -m benchmarks.gpu dsa_decode
"""

from __future__ import annotations

import gc
import sys
import time

import torch

from benchmarks.gpu.platform import PLATFORM, WHY, Platform, result_name
from benchmarks.harness import OK, Row, finish
from benchmarks.latent.dsa_decode import Decoded, Setting, decode
from trainyard.train.methods.loading import exclude_cudnn_attention

CASES = [(rows, length) for rows in (1, 8) for length in (32_768, 65_536, 131_072)] + [(32, 32_768), (32, 65_536)]
BAR_CASE, BAR = (8, 65_536), 3.0
REHEARSED = [(rows, length) for rows in (1, 8) for length in (256, 512)]


def setting_of(platform: Platform, rows: int) -> Setting:
    """bf16 on a card; in a rehearsal few tokens in float32."""
    if platform.rehearsal:
        return Setting(rows=rows, top_k=64, tokens=2)
    return Setting(platform.device, torch.bfloat16, rows, tokens=31, wait=platform.synchronize, clock=time.perf_counter)


def rows_of(decodings: list[Decoded], by_cudnn: Decoded, platform: Platform) -> list[Row]:
    """The attention of eight rows at 65,536 tokens has the bar; everything else is reported."""
    lines = []
    for decoding in decodings:
        bar = BAR if (decoding.rows, decoding.length) == BAR_CASE else 0.0
        bars = platform.bars({"attention": bar, "layer": 0.0}, least=True)
        at = f"{decoding.rows} x {decoding.length} tokens"
        pairs = {
            "attention": (decoding.dense_attention, decoding.sparse_attention),
            "layer": (decoding.dense_layer, decoding.sparse_layer),
        }
        lines += [
            Row.ratio_at_least(f"{name}, ms dense, {at}", dense, sparse, "ms sparse", bars[name])
            for name, (dense, sparse) in pairs.items()
        ]
    at = f"{by_cudnn.rows} x {by_cudnn.length} tokens"
    (counterpart,) = [
        decoding for decoding in decodings if (decoding.rows, decoding.length) == (by_cudnn.rows, by_cudnn.length)
    ]
    metric = f"dense layer, ms, {at}"
    return [
        *lines,
        Row.ratio_at_most(metric, counterpart.dense_layer, by_cudnn.dense_layer, "ms with cuDNN", float("inf")),
    ]


def measure(platform: Platform, rows: int, length: int) -> Decoded:
    """One case, after which the card is empty."""
    decoding = decode(setting_of(platform, rows), length)
    print(f"{decoding}", flush=True)
    gc.collect()
    if not platform.rehearsal:
        torch.cuda.empty_cache()
    return decoding


def main() -> int:
    if PLATFORM is None:
        print(f"dsa_decode: {WHY}")
        return OK
    cases = REHEARSED if PLATFORM.rehearsal else CASES
    by_cudnn = measure(PLATFORM, *cases[-1] if PLATFORM.rehearsal else BAR_CASE)
    exclude_cudnn_attention()
    decodings = [measure(PLATFORM, rows, length) for rows, length in cases]
    return finish(result_name("gpu_dsa_decode", PLATFORM), rows_of(decodings, by_cudnn, PLATFORM), {})


if __name__ == "__main__":
    sys.exit(main())
