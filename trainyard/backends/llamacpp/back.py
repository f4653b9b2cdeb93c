"""From a GGUF file back to a model of transformers: the weights of the base's own files, name by name.

Whether the way back is right is not believed but tried: the base's own GGUF file must come back as the base, bit for
bit, before anything is trained (`comes_back`). Where it does not, the result stays a GGUF file.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from trainyard.errors import InvalidInput
from trainyard.json_types import JsonMapping
from trainyard.loading import load_object
from trainyard.serve.conversion.architectures import Base, base_config
from trainyard.serve.conversion.gguf import reorder
from trainyard.serve.conversion.tensors import Tensor, Tensors, read_tensors, write_tensors

INDEX_FILE = "model.safetensors.index.json"
Array = np.ndarray[Any, Any]


def comes_back(file: Path, base: Path) -> bool:
    """Whether the weights in a GGUF file of `base` are those of `base`."""
    try:
        return all(
            np.array_equal(to_float32(tensor).view(np.uint32), weights[name].bits)
            for stored, weights in iterate_files(file, base)
            for name, tensor in stored.items()
        )
    except (InvalidInput, KeyError):  # an architecture or a weight that we have no name for
        return False


def iterate_files(file: Path, base: Path) -> Iterator[tuple[Tensors, Tensors]]:
    """(weights as stored, weights of the GGUF file under the same names), for each file of the base."""
    gguf, shape = load_object("gguf"), Base.of(base_config(base))
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(str(file)).tensors}
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == shape.architecture.name)
    names = gguf.get_tensor_name_map(arch, shape.blocks)
    for path in sorted(base.glob("*.safetensors")):
        stored = read_tensors(path)
        yield stored, {name: convert_back(names, tensors, shape, name) for name in stored}


def convert_back(names: Any, tensors: JsonMapping, shape: Base, name: str) -> Tensor:
    """Return one weight. Raises `KeyError` where llama.cpp has none of that name."""
    tensor = tensors[names.get_name(name, try_suffixes=(".weight", ".bias"))]
    if tensor.tensor_type.name != "F32":
        raise KeyError(name)
    size = tuple(int(length) for length in reversed(tensor.shape))
    bits = np.frombuffer(tensor.data.tobytes(), dtype="<u4").reshape(size)
    heads = shape.count_heads(name.rpartition(".")[0])
    return Tensor("F32", reorder(bits, heads, back=True) if heads else bits)


def to_float32(tensor: Tensor) -> Array:
    """Return a stored weight as float32, which is exact for bfloat16 and float16."""
    if tensor.dtype == "BF16":
        return (tensor.bits.astype(np.uint32) << 16).view(np.float32)
    return tensor.bits.view({"F32": np.float32, "F16": np.float16}[tensor.dtype]).astype(np.float32)


def write_back(file: Path, base: Path, target: Path) -> None:
    """Write the weights of a GGUF file as a model folder with the layout of its base, in float32."""
    total = 0
    for path, (_, weights) in zip(sorted(base.glob("*.safetensors")), iterate_files(file, base), strict=True):
        write_tensors(target / path.name, weights)
        total += sum(tensor.bits.nbytes for tensor in weights.values())
    changes: dict[str, Callable[[Any], Any]] = {
        "config.json": lambda config: {"dtype": "float32"},
        INDEX_FILE: lambda index: {"metadata": {**index.get("metadata", {}), "total_size": total}},
    }
    for name, change in changes.items():
        if (base / name).is_file():
            value = json.loads((base / name).read_text(encoding="utf-8"))
            text = json.dumps({**value, **change(value)}, indent=2, sort_keys=True)
            (target / name).write_text(text, encoding="utf-8")
    if (base / "generation_config.json").is_file():
        shutil.copyfile(base / "generation_config.json", target / "generation_config.json")
