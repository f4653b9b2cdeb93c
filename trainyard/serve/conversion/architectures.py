"""Limits of a layout, seen from configs alone: the adapter's and its base's. Reads no weights, imports no numpy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from trainyard.errors import InvalidInput
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.spec.axes.latent import LATENT_FILE


class Layout(StrEnum):
    """Layout of an adapter's files."""

    PEFT = "peft"
    MLX = "mlx"
    GGUF = "gguf"


@dataclass(frozen=True)
class Architecture:
    """Names of a family of models in llama.cpp."""

    name: str
    permuted: bool = False
    """Whether the rows of the query and key projections are reordered."""
    fused: bool = False
    """Whether query, key and value are one matrix, and gate and up projection another."""


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture("llama", permuted=True),
    "mistral": Architecture("llama", permuted=True),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3"),
    "phi3": Architecture("phi3", fused=True),
    "gemma2": Architecture("gemma2"),
}
"""`model_type` of a base -> its architecture there. To add one: a row, and a run of the test against llama.cpp."""


@dataclass(frozen=True)
class Base:
    """Settings of a base that decide the names and the order of rows."""

    architecture: Architecture
    blocks: int
    heads: int
    kv_heads: int

    @classmethod
    def of(cls, config: JsonMapping) -> Base:
        kind = str(config.get("model_type"))
        if kind not in ARCHITECTURES:
            raise make_refusal(f"Its base is of type {kind}; known are {', '.join(ARCHITECTURES)}.")
        heads = int(config["num_attention_heads"])
        kv_heads = int(config.get("num_key_value_heads") or heads)
        return cls(ARCHITECTURES[kind], int(config["num_hidden_layers"]), heads, kv_heads)

    def count_heads(self, module: str) -> int:
        """Heads whose rows are reordered in this module; 0 if none are."""
        if not self.architecture.permuted:
            return 0
        return {"q_proj": self.heads, "k_proj": self.kv_heads}.get(module.rpartition(".")[2], 0)


def base_config(base: Path) -> JsonObject:
    if not (base / "config.json").is_file():
        raise make_refusal(f"Its base at {base} has no config.json, which names its architecture.")
    config: dict[str, object] = json.loads((base / "config.json").read_text(encoding="utf-8"))
    return config


def make_refusal(
    why: str, do: str = "Deploy it to a target that reads PEFT adapters, or train it with method lora."
) -> InvalidInput:
    return InvalidInput("The adapter cannot be converted.", why=why, do=do, code="E-ADAPTER-INVALID")


def require_words_only(folder: Path) -> None:
    """Raise `InvalidInput` (`E-ADAPTER-INVALID`) for an adapter that was trained to think before it answers."""
    if (folder / LATENT_FILE).is_file():
        raise make_refusal(
            f"It was trained with a latent technique ({LATENT_FILE}), which no other layout and no other server has.",
            "Deploy it to target embedded, or train it with latent type hidden_cot, whose result is an ordinary one.",
        )


def require_plain(config: Mapping[str, object]) -> None:
    """Only what every layout can say: one rank and one factor for all modules, no whole modules, no biases."""
    if config.get("peft_type") != "LORA":
        raise make_refusal(f"It is of type {config.get('peft_type')}; only low-rank adapters have other layouts.")
    for key in ("rank_pattern", "alpha_pattern", "modules_to_save", "lora_bias", "target_parameters"):
        if config.get(key):
            raise make_refusal(f"It has {key} {config[key]}, which the other layouts have no words for.")
    if config.get("bias", "none") != "none":
        raise make_refusal(f"It trained biases (bias: {config['bias']}).")
