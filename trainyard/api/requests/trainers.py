"""Requests about trainers: which there are, whether they resume bit by bit, and how they write conversations."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trainyard.api.requests.base import Request
from trainyard.api.requests.fields import Argument, Option
from trainyard.spec.axes.backends import Installable
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


class ProveInput(Request):
    everything: Annotated[bool, Option("--all")] = Field(
        False, description="All 82 combinations of stage, method and options."
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
