"""Techniques of latent reasoning: what stage sft lets a model compute before it answers. `train/latent` does it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from trainyard.spec.axes.axis import AxisValue, Facts, Variant, build_variants, union_of


class LatentSettings(Variant):
    """A technique with its settings."""

    type: Latent

    @property
    def facts(self) -> LatentFacts:
        return self.type.facts

    @property
    def resets_optimizer(self) -> bool:
        """Whether the states of the optimizer begin again where the rows of an epoch change their form."""
        return False


class PauseSettings(LatentSettings):
    """Vectors of its own that the model reads between the prompt and its answer (arXiv 2310.02226)."""

    count: int = Field(10, ge=1, le=1024, description="Pauses before the answer, in training and when it is served.")


@dataclass(frozen=True, kw_only=True)
class LatentFacts(Facts):
    """One technique."""

    settings: type[LatentSettings]
    reads_steps: bool = False
    """Whether its rows need the steps of their reasoning."""
    keeps_cache: bool = False
    """Whether a batch is computed in several passes, each of which reads the keys and values of those before it."""


class Latent(AxisValue):
    """A technique of latent reasoning."""

    facts: LatentFacts

    PAUSE = LatentFacts("pause", settings=PauseSettings)


LATENT_SETTINGS: Mapping[Latent, type[LatentSettings]] = build_variants(Latent, "Latent")

if TYPE_CHECKING:
    AnyLatent = LatentSettings
else:
    AnyLatent = union_of(LATENT_SETTINGS, Latent.PAUSE)
