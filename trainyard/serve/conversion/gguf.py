"""PEFT <-> GGUF: the adapter file of llama.cpp and ollama.

A module goes by llama.cpp's name for it. Its rotary embedding pairs other positions than that of transformers, so for
some architectures the rows of the query and key projections lie in another order, and those of B with them; A is the
same. The factor alpha is divided by the rank when the file is loaded. DoRA has no place in the file.
source: llama.cpp convert_lora_to_gguf.py, conversion/llama.py (`permute`), src/llama-adapter.cpp
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from trainyard.errors import Corrupt, TrainyardError
from trainyard.loading import load_object
from trainyard.serve.conversion.adapters import Adapter, peft_config, read_adapter, write_adapter
from trainyard.serve.conversion.architectures import Base, base_config, make_refusal
from trainyard.serve.conversion.tensors import Tensor, Tensors

CONFIG_KEY = "trainyard.peft_config"
"""PEFT's own config travels along under this key, which llama.cpp ignores, so that the way back is exact."""
DAMAGED = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError)
"""Exceptions of the reader for a file of another kind, cut off, or with unexpected types."""
ENDINGS = {"a": ".weight.lora_a", "b": ".weight.lora_b"}


LINEAR = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
          "mlp.up_proj", "mlp.down_proj")  # fmt: skip
FUSED = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")
"""Linear modules of a block, as transformers calls them. llama.cpp has one name for `up_proj` and `gate_up_proj`."""


def reorder(bits: np.ndarray[Any, Any], heads: int, *, back: bool = False) -> np.ndarray[Any, Any]:
    """Rows of transformers in the order of llama.cpp: halves of a head become neighbours; `back` is the inverse."""
    pairs = bits.shape[0] // heads // 2
    split = bits.reshape(heads, *((pairs, 2) if back else (2, pairs)), *bits.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2).reshape(bits.shape))


def peft_to_gguf(source: Path, target: Path, base: Path) -> None:
    """Write the PEFT adapter in the folder `source` as the file `target`, for a base whose folder is given.

    Raises as `read_adapter`, and `InvalidInput` (`E-ADAPTER-INVALID`) for DoRA, an unknown architecture or module.
    """
    adapter, shape, gguf = read_adapter(source), Base.of(base_config(base)), load_object("gguf")
    if adapter.m:
        raise make_refusal("It is a DoRA adapter, and a GGUF adapter has no magnitudes.")
    named = map_names(gguf, shape)
    target.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(str(target), shape.architecture.name)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", adapter.scale * adapter.rank)
    writer.add_string(CONFIG_KEY, json.dumps(adapter.config, sort_keys=True))
    for module in adapter.modules:
        if module not in named:
            raise make_refusal(f"llama.cpp has no name for its module {module}.")
        heads = shape.count_heads(module)
        b = adapter.b[module]
        parts = {"a": adapter.a[module], "b": Tensor(b.dtype, reorder(b.bits, heads)) if heads else b}
        for part, tensor in parts.items():
            add(writer, gguf, named[module] + ENDINGS[part], tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add(writer: Any, gguf: Any, name: str, tensor: Tensor) -> None:
    kinds = gguf.GGMLQuantizationType
    if tensor.dtype == "BF16":  # numpy has no such type: its bytes are passed with the shape of bytes
        shape = [*tensor.shape[:-1], 2 * tensor.shape[-1]]
        writer.add_tensor(name, tensor.bits.view(np.uint8).reshape(shape), raw_dtype=kinds.BF16)
    elif tensor.dtype in ("F32", "F16"):
        writer.add_tensor(name, tensor.bits.view(np.float32 if tensor.dtype == "F32" else np.float16))
    else:
        raise make_refusal(f"{name} is of type {tensor.dtype}, and a GGUF adapter is F32, F16 or BF16.")


def gguf_to_peft(source: Path, target: Path, base: Path) -> None:
    """Write the GGUF adapter `source` as a PEFT adapter in the folder `target`.

    Raises `InvalidInput` (`E-ADAPTER-INVALID`) for anything but a low-rank adapter of this base, and `Corrupt`
    (`E-CORRUPT`) for a file that is damaged.
    """
    shape = Base.of(base_config(base))
    try:
        adapter = read_gguf_adapter(source, shape, str(base))
    except TrainyardError:  # some of these are ValueErrors, too
        raise
    except DAMAGED as error:
        raise Corrupt(
            f"{source.name} is not a whole GGUF adapter.", why=f"{type(error).__name__}: {str(error)[:200]!r}.",
            do="Copy it again, or train it again.", code="E-CORRUPT",
        ) from error  # fmt: skip
    write_adapter(adapter, target)


def read_gguf_adapter(source: Path, shape: Base, base: str) -> Adapter:
    """Return the adapter in a GGUF file, with the rows as transformers has them."""
    from trainyard.serve.conversion.gguf_files import WholeFileReader  # its base class is from gguf, which is optional

    gguf, reader = load_object("gguf"), WholeFileReader(str(source))
    alpha = reader.get_field("adapter.lora.alpha")
    if alpha is None or read_value(reader, "general.architecture") != shape.architecture.name:
        raise make_refusal(f"{source.name} is not a low-rank adapter for the architecture {shape.architecture.name}.")
    modules = {name: module for module, name in map_names(gguf, shape).items()}
    parts: dict[str, Tensors] = {"a": {}, "b": {}}
    for tensor in reader.tensors:
        part = next((part for part, ending in ENDINGS.items() if tensor.name.endswith(ending)), None)
        module = modules.get(tensor.name.removesuffix(ENDINGS[part])) if part else None
        if part is None or module is None:
            raise make_refusal(f"It contains {tensor.name!r}, which is not part of a low-rank pair.")
        weight = read_tensor(tensor)
        heads = shape.count_heads(module) if part == "b" else 0
        parts[part][module] = Tensor(weight.dtype, reorder(weight.bits, heads, back=True)) if heads else weight
    if not parts["a"] or parts["a"].keys() != parts["b"].keys():
        raise Corrupt(f"The adapter {source} is half of one.", do="Train it again.", code="E-CORRUPT")
    config_text = read_value(reader, CONFIG_KEY)
    config = json.loads(config_text) if config_text else build_config(parts, float(alpha.contents()), base)
    if not isinstance(config, dict):
        raise ValueError(f"{CONFIG_KEY} is not a config")
    return Adapter(config, parts["a"], parts["b"])


def build_config(parts: dict[str, Tensors], alpha: float, base: str) -> dict[str, object]:
    ranks = {tensor.shape[0] for tensor in parts["a"].values()}
    if len(ranks) != 1:
        raise make_refusal(f"Its modules have different ranks ({', '.join(map(str, sorted(ranks)))}).")
    return peft_config(rank=ranks.pop(), alpha=alpha, dropout=0.0, modules=sorted(parts["a"]), dora=False, base=base)


def read_tensor(tensor: Any) -> Tensor:
    """Return a tensor of a GGUF file, where shapes are in reverse order."""
    shape = tuple(int(size) for size in reversed(tensor.shape))
    dtype = tensor.tensor_type.name
    if dtype not in ("F32", "F16", "BF16"):
        raise make_refusal(f"{tensor.name} is quantised ({dtype}).")
    width = 4 if dtype == "F32" else 2
    return Tensor(dtype, np.frombuffer(tensor.data.tobytes(), dtype=f"<u{width}").reshape(shape))


def map_names(gguf: Any, shape: Base) -> dict[str, str]:
    """Our name of a linear module -> llama.cpp's, for every block and for the output layer."""
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == shape.architecture.name)
    tensor_names = gguf.get_tensor_name_map(arch, shape.blocks).mapping
    linear = FUSED if shape.architecture.fused else LINEAR
    # The table also contains the modules of other architectures.
    modules = {"lm_head", *(f"model.layers.{block}.{module}" for block in range(shape.blocks) for module in linear)}
    return {module: name for module, (_, name) in tensor_names.items() if module in modules}


def read_value(reader: Any, key: str) -> str | None:
    field = reader.get_field(key)
    return str(field.contents()) if field else None
