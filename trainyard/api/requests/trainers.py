"""Requests about trainers: which there are, whether they resume bit by bit, and how they write conversations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from trainyard.api.requests.base import Parameters, Request
from trainyard.api.requests.chains import PARAMETERS, ChainText
from trainyard.api.requests.fields import Argument, Option
from trainyard.spec.axes.backends import BackendName, Installable
from trainyard.spec.axes.methods import Method
from trainyard.spec.axes.stages import Stage


class BackendsInput(Request):
    imports: Annotated[bool, Option("--imports/--no-imports")] = Field(
        True, description="Run import tests that are due."
    )


class InstallInput(Request):
    names: Annotated[tuple[Installable, ...], Argument("NAME")] = Field(
        (), description="Trainers, or vllm; default: all trainers that need one."
    )
    background: bool = Field(False, description="Return at once; `backends` says how far it is.")


class CancelInstallInput(Request):
    name: Annotated[Installable, Argument("NAME")] = Field(description="What is being installed.")


class BackendTestInput(Request):
    name: Annotated[BackendName, Argument("NAME")] = Field(description="A trainer.")
    watch: Annotated[bool, Option("-w", "--watch", local=True)] = Field(False, description="Follow it to its end.")


class ProveInput(Request):
    everything: Annotated[bool, Option("--all")] = Field(
        False, description="All 96 combinations of stage, method and options."
    )
    stages: Annotated[tuple[Stage, ...], Option("--stage")] = Field((), description="Only this stage; may be repeated.")
    methods: Annotated[tuple[Method, ...], Option("--method")] = Field(
        (), description="Only this method; may be repeated."
    )
    jobs: int = Field(2, ge=1, le=64, description="Combinations at a time.")


class RenderersInput(Request):
    names: Annotated[tuple[str, ...], Argument("NAME", is_file=True)] = Field(
        (), description="Renderers, templates or .jinja files; default: all."
    )


# Training scripts

SCRIPT_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"


class ScriptNameInput(Request):
    name: Annotated[str, Argument("NAME")] = Field(
        pattern=SCRIPT_NAME, description="Name of a training script of this home, or built-in."
    )


class SaveScriptInput(ScriptNameInput):
    file: Annotated[Path | None, Argument("FILE", local=True)] = Field(None, description="The script as it shall be.")
    text: str = Field("", max_length=1 << 20, description="Its text, in place of a file.")
    if_match: str = Field("", max_length=200, description="ETag of the script that was edited; empty for a new one.")


class DraftScriptInput(Request):
    target: Annotated[str | ChainText, Argument("TEMPLATE|FILE", is_file=True, completes="template")] = Field(
        description="A template's name, or a chain or job."
    )
    parameters: Parameters = Field({}, description=PARAMETERS)
    node: str | None = Field(None, max_length=200, description="Which trainer, if there are several.")
