"""Safetensors files as opaque numbers: enough to transpose and reorder, whatever the dtype.

numpy knows no bfloat16, and a conversion has no need to: an element is so and so many bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Dtypes of weights: the name in a file's header -> the writer's name."""
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True)
class Tensor:
    """A tensor of a file; `bits` are its elements as unsigned integers of their width."""

    dtype: str
    bits: np.ndarray[Any, Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.bits.shape)

    def transpose(self) -> Tensor:
        return Tensor(self.dtype, np.ascontiguousarray(self.bits.T))


Tensors = dict[str, Tensor]


def read_tensors(path: Path) -> Tensors:
    """Return every tensor of a safetensors file. Raises `KeyError` for a dtype that no weights have."""
    tensors: Tensors = {}
    for name, entry in safetensors.deserialize(path.read_bytes()):
        width = BYTES[entry["dtype"]]
        bits = np.frombuffer(bytes(entry["data"]), dtype=f"<u{width}").reshape(entry["shape"])
        tensors[name] = Tensor(entry["dtype"], bits)
    return tensors


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    contiguous = {name: np.ascontiguousarray(tensor.bits) for name, tensor in sorted(tensors.items())}
    entries = {
        name: safetensors.TensorSpec(
            dtype=NAMES[tensors[name].dtype], shape=bits.shape, data_ptr=bits.ctypes.data, data_len=bits.nbytes
        )
        for name, bits in contiguous.items()
    }
    safetensors.serialize_file(entries, str(path), {"format": "pt"})
