"""Methods: which weights are trainable, by which settings, and what a training leaves. `train/methods` chooses them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from trainyard.spec.axes.axis import AxisValue, Facts, MainInt, Variant, build_union, build_variants, omit_default

ADAPTER_PROFILES: dict[str, dict[str, object]] = {
    "platform": {"rank": 32, "alpha": 64.0, "dropout": 0.0, "target_modules": "all-linear"},
    "classic": {"rank": 8, "alpha": 16.0, "dropout": 0.05, "target_modules": ("q_proj", "v_proj")},
    "nightly": {
        "rank": 16,
        "alpha": 32.0,
        "dropout": 0.0,
        "target_modules": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    },
}
"""Profile -> what fills the settings that are left out."""


DEFAULT_INIT, LOFTQ = "default", "loftq"


class MethodSettings(Variant):
    """A method with its settings."""

    type: Method

    @property
    def facts(self) -> MethodFacts:
        return self.type.facts


class FullSettings(MethodSettings):
    """Every weight is trainable: there is nothing to set."""


class AdapterSettings(MethodSettings):
    """Target layers of an adapter. `profile` fills what is left out.

    `platform`: rank 32, alpha 64, dropout 0, all linear layers. `classic`: rank 8, alpha 16, dropout 0.05, q and v
    projections. `nightly`: rank 16, alpha 32, dropout 0, the seven projections.
    """

    profile: Literal["platform", "classic", "nightly"] = Field("platform", description="Fills missing fields.")
    dropout: float | None = Field(None, ge=0, lt=1, description="Of the inputs of the adapter.")
    target_modules: Literal["all-linear", "attention-only"] | tuple[str, ...] | None = Field(
        None, description="Layers that get an adapter: a word, or names of modules."
    )
    modules_to_save: tuple[str, ...] = Field((), description="Modules that are trained whole.")
    layers: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(None, description="Only these block indices.")


class LowRankSettings(AdapterSettings):
    """The shape of a low-rank adapter. `profile` fills what is left out.

    `platform`: rank 32, alpha 64, dropout 0, all linear layers. `classic`: rank 8, alpha 16, dropout 0.05, q and v
    projections. `nightly`: rank 16, alpha 32, dropout 0, the seven projections.
    """

    rank: MainInt | None = Field(None, ge=1, le=256, description="Width of the two matrices.")
    alpha: float | None = Field(None, gt=0, le=4096, description="Scale; default: twice the rank.")
    rslora: bool = Field(False, description="Scale by alpha / sqrt(rank), arXiv 2312.03732.")
    init: str = omit_default(
        DEFAULT_INIT, pattern=r"^(default|pissa|pissa_niter_[1-9][0-9]?|loftq)$",
        description="First weights: default (changes nothing), pissa or pissa_niter_N (arXiv 2404.02948), loftq "
        "(arXiv 2310.08659). The saved adapter has twice the rank, and fits the base as it is.",
    )  # fmt: skip

    @property
    def changes_base(self) -> bool:
        """Return whether the base is another one while the adapter trains, so that what the adapter began with is
        subtracted
        when it is saved."""
        return self.init != DEFAULT_INIT


class LoraPlusSettings(LowRankSettings):
    """The shape of the adapter, and how much faster its second matrix learns (arXiv 2402.12354)."""

    ratio: float = Field(16.0, ge=1, le=1024, description="Learning rate of B over that of A.")


class OftSettings(AdapterSettings):
    """Target layers of the rotations, and their size. Of a profile, dropout and target modules apply."""

    block_size: int = Field(32, ge=2, le=4096, description="Inputs that rotate together.")


class FreezeSettings(MethodSettings):
    """Number of last blocks that are trainable, or, with `interval`, how often others are drawn."""

    blocks: int = Field(2, ge=1, le=1024, description="Last blocks that are trainable; with interval, random ones.")
    head: bool = Field(False, description="Whether the output layer is trainable, too.")
    interval: int | None = omit_default(
        None, ge=1, le=1_000_000,
        description="Steps after which other blocks are drawn; embeddings and output layer are always trainable then "
        "(LISA, arXiv 2403.17919).",
    )  # fmt: skip


class AutoSettings(MethodSettings):
    """The first of full, lora, qlora and freeze that fits the memory, as `trainyard plan` prints it.

    When qlora as it is asked for does not fit either: smaller micro-batches with more of them in a step, gradient
    checkpointing, then rows of half the length, down to `min_length`. A chain is resolved to what was chosen.
    """

    memory_gb: float | None = Field(
        None, gt=0, le=100_000, description="GiB of each device to choose for; default: those of this machine's."
    )
    min_length: int = Field(256, ge=8, le=1_048_576, description="Tokens below which rows are not cut to fit.")
    rank: MainInt = Field(32, ge=1, le=256, description="Width of the adapter, where one is chosen; alpha is twice it.")


def adapter_settings(method: MethodSettings) -> AdapterSettings:
    """Return the settings of a method that is known to leave an adapter."""
    assert isinstance(method, AdapterSettings), method
    return method


def with_type(settings: MethodSettings, method: Method) -> MethodSettings:
    """Another method with those of the settings that it has as well."""
    shared = METHOD_SETTINGS[method].model_fields.keys() & settings.model_fields_set - {"type"}
    return method.settings(**{name: getattr(settings, name) for name in shared})


def find_trained_rank(method: MethodSettings) -> int:
    """Rank of the adapter that is trained; 0 where there is none."""
    return (method.rank or 0) if isinstance(method, LowRankSettings) else 0


def find_rank(method: MethodSettings) -> int:
    """Rank of the adapter that a method leaves; 0 where it has none. What an adapter began with is subtracted by as
    many ranks more."""
    doubled = isinstance(method, LowRankSettings) and method.changes_base
    return find_trained_rank(method) * (2 if doubled else 1)


@dataclass(frozen=True, kw_only=True)
class MethodFacts(Facts):
    """A method."""

    settings: type[MethodSettings] = LowRankSettings
    """Its settings."""
    summed: bool = True
    """Whether its adapter is a plain sum of low-rank matrices, so that two can be written as one."""
    quantised: bool = False
    """Whether the base is in 4 or 8 bits."""

    @property
    def adapter(self) -> bool:
        """Return whether it leaves an adapter next to an unchanged base; the others write a whole model."""
        return issubclass(self.settings, AdapterSettings)


class Method(AxisValue):
    """Method: which weights are trainable."""

    facts: MethodFacts

    FULL = MethodFacts("full", settings=FullSettings, summed=False)
    LORA = MethodFacts("lora")
    QLORA = MethodFacts("qlora", quantised=True)
    DORA = MethodFacts("dora", summed=False)
    LORA_PLUS = MethodFacts("lora_plus", settings=LoraPlusSettings)
    OFT = MethodFacts("oft", settings=OftSettings, summed=False)
    FREEZE = MethodFacts("freeze", settings=FreezeSettings, summed=False)
    AUTO = MethodFacts("auto", settings=AutoSettings, summed=False)

    def settings(self, **settings: Any) -> MethodSettings:
        """Return the method with its settings: `Method.LORA.settings(rank=8)`."""
        return METHOD_SETTINGS[self](type=self, **settings)


METHOD_SETTINGS: Mapping[Method, type[MethodSettings]] = build_variants(Method, "Method")
TRAINED_METHODS = tuple(method for method in Method if method is not Method.AUTO)
"""The methods that a training has; `auto` is resolved to one of them before."""
ADAPTER_METHODS = frozenset(method for method in Method if method.facts.adapter)

if TYPE_CHECKING:
    AnyMethod = MethodSettings
else:
    AnyMethod = build_union(METHOD_SETTINGS, Method.LORA)
