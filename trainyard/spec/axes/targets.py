"""Targets: where a deployer makes an adapter answer, and which adapters each serves. `serve/targets` deploys them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainyard.spec.axes.axis import AxisValue, Facts
from trainyard.spec.axes.methods import ADAPTER_METHODS, Method

MergedFormat = Literal["safetensors", "gguf"]
PLAIN = frozenset(method for method in Method if method.facts.summed)
"""Methods whose adapters are two low-rank matrices a layer, and nothing else."""


@dataclass(frozen=True, kw_only=True)
class TargetFacts(Facts):
    """A kind of target."""

    server: Literal["none", "running", "started"]
    """Whether it is a folder, a server that is up before the deployment, or one that the deployer starts because its
    adapters are fixed when it starts."""
    hot_load: bool = False
    """Whether adapters are loaded while it runs; whole models are not."""
    needs_address: bool = False
    converts_to: Literal["GGUF", "mlx"] | None = None
    """The layout that adapters are converted to."""
    methods: frozenset[Method] = ADAPTER_METHODS
    """Methods whose adapters it serves."""
    whole_modules: bool = True
    """Whether an adapter may contain whole modules (`method.modules_to_save`)."""
    merged: tuple[MergedFormat, ...] = ()
    """Formats in which it takes base and adapter as one model."""
    max_lora_rank: int | None = None
    """The highest rank that it serves unless it was started with another."""


class TargetType(AxisValue):
    """Target of a deployer, where an adapter becomes live."""

    facts: TargetFacts

    REGISTRY = TargetFacts("registry", server="none", merged=("safetensors", "gguf"))
    EMBEDDED = TargetFacts("embedded", server="running", hot_load=True)
    VLLM = TargetFacts(
        "vllm",
        server="running",
        hot_load=True,
        needs_address=True,
        methods=PLAIN,
        whole_modules=False,
        max_lora_rank=16,  # without --max-lora-rank
    )
    LLAMA_SERVER = TargetFacts(
        "llama_server",
        server="started",
        converts_to="GGUF",
        merged=("gguf",),
        methods=PLAIN,
        whole_modules=False,
    )
    OLLAMA = TargetFacts("ollama", server="running", converts_to="GGUF", methods=PLAIN, whole_modules=False)
    MLX = TargetFacts(
        "mlx",
        server="started",
        converts_to="mlx",
        merged=("safetensors",),
        methods=ADAPTER_METHODS - {Method.OFT},
        whole_modules=False,
    )
