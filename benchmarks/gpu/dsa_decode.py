"""How long does one more token take after 32,768 to 131,072 tokens: sparse attention next to dense SDPA, in bf16?

The layer, the cache and both ways are those of `benchmarks/latent/dsa_decode.py`; one row and eight rows at once. A
single row is bound by the starts of its small kernels on a card, eight rows by what they read.

    python -m benchmarks.gpu dsa_decode
"""

from __future__ import annotations

import gc
import sys
import time

import torch

from benchmarks.gpu.place import PLACE, WHY, Place, result_name
from benchmarks.harness import OK, Row, finish
from benchmarks.latent.dsa_decode import Decoded, Setting, decode

LENGTHS, ROWS = (32_768, 65_536, 131_072), (1, 8)
BAR_LENGTH, BAR = 65_536, 3.0
REHEARSED = (256, 512)


def setting_of(place: Place, rows: int) -> Setting:
    """bf16 on a card; in a rehearsal few tokens in float32."""
    if place.rehearsal:
        return Setting(rows=rows, top_k=64, tokens=2)
    return Setting(place.device, torch.bfloat16, rows, tokens=31, wait=place.synchronize, clock=time.perf_counter)


def rows_of(found: list[Decoded], place: Place) -> list[Row]:
    """The attention of eight rows at 65,536 tokens has the bar; everything else is reported."""
    lines = []
    for one in found:
        bar = BAR if (one.length, one.rows) == (BAR_LENGTH, max(ROWS)) else 0.0
        bars = place.bars({"attention": bar, "layer": 0.0}, least=True)
        at = f"{one.rows} x {one.length} tokens"
        pairs = {
            "attention": (one.dense_attention, one.sparse_attention),
            "layer": (one.dense_layer, one.sparse_layer),
        }
        lines += [
            Row.ratio_at_least(f"{name}, ms dense, {at}", dense, sparse, "ms sparse", bars[name])
            for name, (dense, sparse) in pairs.items()
        ]
    return lines


def main() -> int:
    if PLACE is None:
        print(f"dsa_decode: {WHY}")
        return OK
    found = []
    for rows in ROWS:
        for length in REHEARSED if PLACE.rehearsal else LENGTHS:
            found.append(decode(setting_of(PLACE, rows), length))
            print(f"{found[-1]}", flush=True)
            gc.collect()
            if not PLACE.rehearsal:
                torch.cuda.empty_cache()
    return finish(result_name("gpu_dsa_decode", PLACE), rows_of(found, PLACE), {})


if __name__ == "__main__":
    sys.exit(main())
