"""Targets: where a deployer makes an adapter answer."""

from __future__ import annotations

from enum import StrEnum


class TargetType(StrEnum):
    """Where a deployer makes an adapter answer."""

    REGISTRY = "registry"
    EMBEDDED = "embedded"
    VLLM = "vllm"
    LLAMA_SERVER = "llama_server"
    OLLAMA = "ollama"
    MLX = "mlx"
