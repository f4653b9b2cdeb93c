"""Strategies: how a distributed training is shared. `train/parallel` and the backends' launchers implement them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pydantic import Field

from trainyard.spec.axes.axis import AxisValue, Facts, Variant, build_union, build_variants


@dataclass(frozen=True, kw_only=True)
class StrategyFacts(Facts):
    """A strategy. ZeRO: arXiv 1910.02054, section 3."""

    divided: tuple[str, ...] = ()
    """Parts of the memory that its processes divide among them."""
    sharded: bool = False
    """Whether torch's FSDP cuts the weights into parts."""


class Strategy(AxisValue):
    """Parallelism of a training; `single` is one process."""

    facts: StrategyFacts

    SINGLE = StrategyFacts("single")
    DDP = StrategyFacts("ddp")
    FSDP = StrategyFacts("fsdp", divided=("optimizer", "gradients", "weights"), sharded=True)
    FSDP_HYBRID = StrategyFacts("fsdp_hybrid", divided=("optimizer", "gradients", "weights"), sharded=True)
    ZERO1 = StrategyFacts("zero1", divided=("optimizer",))
    ZERO2 = StrategyFacts("zero2", divided=("optimizer", "gradients"))
    ZERO3 = StrategyFacts("zero3", divided=("optimizer", "gradients", "weights"))


# Islands: groups of processes that train separately and average their weights now and then


DEFAULT_ISLANDS = 2


class DilocoSettings(Variant):
    """Settings of DiLoCo (arXiv 2311.08105): each island takes `inner_steps` AdamW steps alone; then the mean of
    their changes is the gradient of an outer SGD step with Nesterov momentum.
    """

    type: DilocoEngine
    num_islands: int = Field(DEFAULT_ISLANDS, ge=2, le=1024, description="Groups of processes that train separately.")
    inner_steps: int = Field(
        100, ge=1, le=100_000, description="Steps of each island between two exchanges; the papers use 100 to 500."
    )
    outer_lr: float = Field(0.7, gt=0, le=10, description="Learning rate of the outer SGD; 1 takes the mean itself.")
    outer_momentum: float = Field(0.9, ge=0, lt=1, description="Nesterov momentum of the outer SGD.")
    pseudo_gradient_dtype: Literal["fp32", "bf16", "fp16", "int8"] = Field(
        "fp32", description="Type in which changes are sent; the rounding errors of int8 are added to the next one."
    )


class TorchftSettings(DilocoSettings):
    """Settings of torchft's DiLoCo, which continues when an island is lost and takes it in again. It sends fp32."""

    pseudo_gradient_dtype: Literal["fp32"] = "fp32"
    min_islands: int = Field(1, ge=1, le=1024, description="Islands without which an exchange waits.")
    timeout_s: int = Field(60, ge=1, le=86_400, description="Seconds after which an island that is silent is lost.")


@dataclass(frozen=True, kw_only=True)
class DilocoFacts(Facts):
    """An implementation of DiLoCo."""

    settings: type[DilocoSettings]
    """Model of the settings of `launch.diloco`."""


class DilocoEngine(AxisValue):
    """Implementation of DiLoCo: `native` resumes to the same bits, `torchft` survives the loss of an island."""

    facts: DilocoFacts

    NATIVE = DilocoFacts("native", settings=DilocoSettings)
    TORCHFT = DilocoFacts("torchft", settings=TorchftSettings)


DILOCO_SETTINGS: dict[DilocoEngine, Any] = build_variants(DilocoEngine, "Islands")
if TYPE_CHECKING:
    AnyDiloco: TypeAlias = DilocoSettings
else:
    AnyDiloco = build_union(DILOCO_SETTINGS, DilocoEngine.NATIVE)
PSEUDO_GRADIENT_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "int8": 1.0 + 4 / 4096}
"""Type of the values that are sent -> bytes per parameter; int8 has a scale for each 4,096."""
