"""Run one command: the operation of a name, with its progress on stderr and its result on stdout."""

from __future__ import annotations

import gc
from functools import cached_property, partial
from typing import Any

from pydantic import BaseModel

from trainyard.app.context import Context
from trainyard.inherited import keep_files_private
from trainyard.json_types import JsonObject
from trainyard.loading import load_object
from trainyard.operations.table import OPERATIONS
from trainyard.settings import settings
from trainyard.surfaces.invocation import build_request, execute_operation, load_implementation


class LateProgress:
    """Progress whose module, with rich, is imported when there is something to show."""

    @cached_property
    def progress(self) -> Any:
        from trainyard.surfaces.cli.progress import Progress  # imports rich

        return Progress()

    def say(self, text: str) -> None:
        self.progress.say(text)

    def event(self, event: JsonObject) -> None:
        self.progress.event(event)

    def close(self) -> None:
        if "progress" in vars(self):
            self.progress.close()


def perform(name: str, fields: JsonObject, *, as_json: bool) -> int:
    """Run an operation and print its result; return the exit code.

    Raises `FieldError` for a value that the request does not take, and the operation's errors.
    """
    keep_files_private()
    request = build_request(name, fields)
    load_implementation(name)  # imported before collections of garbage, which would look at every new object
    gc.enable()
    progress = LateProgress()
    try:
        on_part = partial(print_part, name, as_json)
        reader = OPERATIONS[name].read_input
        next_input = load_object(f"trainyard.{reader}") if reader else None
        context = Context(settings(), progress.say, progress.event, on_part, next_input, surface="cli")
        result = execute_operation(name, request, context)
    finally:
        progress.close()
    if not getattr(result, "streamed", False):
        print(result.model_dump_json(indent=2) if as_json else render(name, result))
    return int(getattr(result, "exit_code", 0))


def render(name: str, result: Any) -> str:
    """Return the result of an operation as text for people."""
    return OPERATIONS[name].text(result)


def print_part(name: str, as_json: bool, part: BaseModel) -> None:
    """Print one part of a streamed result; with `--json` each part is a line."""
    text = OPERATIONS[name].part_text
    print(part.model_dump_json() if as_json or text is None else text(part), flush=True)
