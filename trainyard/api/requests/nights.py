"""Requests about nights and the corpora that they train on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from trainyard.api.requests.base import Request
from trainyard.api.requests.fields import Argument, Option

CONFIG = "YAML; default: nightly.yaml of the home."
BUCKET = "A bucket of the config; default: the first of its kind."


class NightInput(Request):
    """Where the config comes from: a file, a preset, or TRAINYARD_HOME/nightly.yaml; else the defaults."""

    config: Annotated[Path | None, Option(local=True)] = Field(None, description=CONFIG)
    preset: Annotated[str | None, Option(completes="night preset")] = Field(
        None, description="A night's preset of deployments/presets, such as nightly-l4."
    )


class RunNightInput(NightInput):
    run: str | None = Field(None, description="The night's name; default: its date.")
    again: bool = Field(False, description="Run a night that is done once more, as NAME-2, NAME-3, …")


class WorkerInput(NightInput):
    once: bool = Field(False, description="Look once and end.")


class SimulateInput(Request):
    nights: int = Field(1_000, ge=1, le=10_000_000, description="At least so many nights.")
    seed: int = Field(0, ge=0, description="The same seed gives the same nights.")
    inject: str | None = Field(None, description="A mistake to put in, which has to be found.")
    processes: int | None = Field(None, ge=1, le=256, description="Default: one per core.")
    campaign: int | None = Field(None, ge=0, description="Replay the one campaign that has this seed.")
    """`nights` and `seed` choose nothing then."""


class EngineeringInput(Request):
    repo: Path = Field(description="A git repository.")
    bucket: str | None = Field(None, description=BUCKET)
    briefs: Path | None = Field(None, description="JSON object: commit -> brief of its review.")
    config: Annotated[Path | None, Option(local=True)] = Field(None, description=CONFIG)


class AddInput(Request):
    action: Annotated[Literal["add"], Argument("add")] = Field("add", description="What to do: add.")
    file: Annotated[Path | None, Option(local=True)] = Field(None, description="JSON lines {prompt, shadow, verdict}.")
    prompt: str | None = Field(None, description="What was asked.")
    shadow: str | None = Field(None, description="What the model said.")
    verdict: str | None = Field(None, description="What a person vouches for.")
    bucket: str | None = Field(None, description=BUCKET)
    config: Annotated[Path | None, Option(local=True)] = Field(None, description=CONFIG)
