"""Forms of a request's fields on a command line. Knows neither a command line library nor pydantic.

A request is a frozen pydantic model in this folder. It is imported without numpy, pyarrow, torch, httpx and Prefect.
The description of a field is the help of its option, its default is the option's default. What cannot be seen from the
annotation is declared on the field:

    job: Annotated[str, Argument("JOB")]                 given by its place
    wait: Annotated[bool, Option("--wait/--no-wait")]    other names than --field-name
    repo: Path                                           --repo, required because it has no default
    tags: Annotated[tuple[str, ...], Option("--tag")]    may be repeated
    parameters: dict[str, Any]                           key=value, may be repeated; dots reach inside
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Argument:
    """A field that is given by its place."""

    metavar: str
    is_file: bool = False
    """A text that may be the path of a file, so that a shell completes paths. A `Path` needs no such word."""
    completes: str = ""
    """What else a shell completes: a key of `KNOWN` in `app/completion.py`."""
    local: bool = False
    """Only a caller on this machine may set it: an address, or what prints while an operation is running."""


class Option:
    """A field that is given by a name other than `--field-name`, or whose values a shell completes."""

    def __init__(self, *names: str, completes: str = "", local: bool = False) -> None:
        self.names = names
        self.completes, self.local = completes, local  # as those of an `Argument`


class FieldError(ValueError):
    """A value that a field does not take."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(field, message)
        self.field, self.message = field, message
