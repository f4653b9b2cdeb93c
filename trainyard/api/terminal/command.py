"""Carry out one command: the operation of a name, with its progress on stderr and its result on stdout."""

from __future__ import annotations

from functools import partial
from typing import Any

from pydantic import BaseModel

from trainyard.api.context import Context
from trainyard.api.operations import OPERATIONS, load
from trainyard.api.terminal.progress import Progress
from trainyard.inherited import keep_files_private
from trainyard.settings import settings


def perform(name: str, request: BaseModel, *, as_json: bool) -> int:
    """Carry an operation out and print its result; returns the exit code. Raises what the operation raises."""
    keep_files_private()
    operation = OPERATIONS[name]
    implementation = load(operation.implementation)
    with Progress() as progress:
        tell = partial(print_part, name, as_json)
        context = Context(settings(), say=progress.say, on_progress=progress.event, tell=tell)
        result = implementation(request, context)
    if getattr(result, "told", False):
        return 0
    print(result.model_dump_json(indent=2) if as_json else render(name, result))
    return int(getattr(result, "exit_code", 0))


def render(name: str, result: Any) -> str:
    """The result of an operation as text for people."""
    return str(load(OPERATIONS[name].renderer)(result))


def print_part(name: str, as_json: bool, part: BaseModel) -> None:
    """Print one part of a result that comes bit by bit; with `--json` each part is a line."""
    print(part.model_dump_json() if as_json else load(OPERATIONS[name].part_renderer)(part), flush=True)
