"""Layers that get an adapter, named from the weight files of a base: attention, MLP, and the output layer.

The words of `target_modules` (`all-linear`, `attention-only`) leave the output layer out; a client of the wire may
train it, and then every layer is named.
"""

from __future__ import annotations

import re
from pathlib import Path

from trainyard.stores.models import read_safetensors_header, weight_files

OUTPUT_LAYERS = ("lm_head", "embed_out")
"""Names of the output layer in transformers; a base whose embeddings are tied has no file entry for it."""
IN_BLOCK = re.compile(r"(?:^|\.)\d+\.(.+?)(?:\.weight)?$")
ROUTERS = ("router", "gate", "wg", "shared_expert_gate")
USUAL_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
USUAL_MLP = ("gate_proj", "up_proj", "down_proj")
"""Of a base that is not on this machine yet."""


def name_targets(base: Path | None, *, attn: bool, mlp: bool, unembed: bool) -> str | tuple[str, ...]:
    """Return `target_modules` for an adapter: a word where there is one, else the names of its layers."""
    if not unembed and attn:
        return "all-linear" if mlp else "attention-only"
    attention, mlp_layers, output = list_layers(base) if base is not None else (USUAL_ATTENTION, USUAL_MLP, "lm_head")
    return (*(attention if attn else ()), *(mlp_layers if mlp else ()), *((output,) if unembed else ()))


def list_layers(base: Path) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """Return the layers of attention, the other layers of the blocks, and the output layer of a model folder."""
    shapes = {
        name: entry["shape"] for path in weight_files(base) for name, entry in read_safetensors_header(path).items()
    }
    inner = {match[1] for name, shape in shapes.items() if len(shape) > 1 and (match := IN_BLOCK.search(name))}
    layers = sorted(path for path in inner if not set(path.split(".")) & set(ROUTERS))
    attention = [path for path in layers if is_attention(path)]
    rest = [path for path in layers if not is_attention(path)]
    twice = {leaf(path) for path in attention} & {leaf(path) for path in rest}
    names = [tuple(dict.fromkeys(short_name(path, twice) for path in group)) for group in (attention, rest)]
    output = next((name for name in OUTPUT_LAYERS if f"{name}.weight" in shapes), OUTPUT_LAYERS[0])
    return names[0], names[1], output


def is_attention(path: str) -> bool:
    return any("attn" in part or "attention" in part for part in path.split(".")[:-1])


def leaf(path: str) -> str:
    return path.rpartition(".")[2]


def short_name(path: str, ambiguous: set[str]) -> str:
    """Return the last name of a layer, with its parent's where attention and MLP call a layer alike."""
    return ".".join(path.split(".")[-2:]) if leaf(path) in ambiguous else leaf(path)
