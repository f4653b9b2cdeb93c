"""The names that a user may have meant, for every operation that takes a name.

A field of a request that names something declares its kind (`completes`); `KNOWN` of `app/completion.py` lists
the names of a kind from the files of the home and of the project. Where an operation finds nothing by the name, its
error gets the nearest of them: one place for all operations and surfaces.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from trainyard.app.context import Context
from trainyard.errors import InvalidInput, NotFound, Refused
from trainyard.operations.fields import Argument, Option
from trainyard.spec.load.spellings import did_you_mean, nearest, nearest_paths

Unknown = NotFound | InvalidInput


def with_nearest(error: Unknown, request: BaseModel, context: Context) -> Unknown:
    """Return the error with the names that are most like the one that was not found, if any are.

    For a caller who is confined to a tenant nothing is added: the names are those of the whole home.
    """
    if context.caller.tenant or isinstance(error, Refused) or "Did you mean" in f"{error.why} {error.do}":
        return error
    for kind, word, is_file in iterate_named_fields(request):
        names = list_names(kind, word)
        if word not in error.what or word in names:
            continue
        near = nearest(word, names)
        near += nearest_paths(word, [Path()]) if is_file and not context.caller.remote else []
        if near:
            error.do = did_you_mean(near, error.do)
            error.args = (error.what, error.why, error.do, error.code)
            return error
    return error


def iterate_named_fields(request: BaseModel) -> Iterator[tuple[str, str, bool]]:
    """Kind and value of each field that names something, and whether it may be a file.

    Of `JOB/TRAINER` also the job.
    """
    for name, field in type(request).model_fields.items():
        declared = next((part for part in field.metadata if isinstance(part, Argument | Option)), Option())
        is_file = isinstance(declared, Argument) and declared.is_file
        value: object = getattr(request, name)
        for word in value if isinstance(value, tuple) else (value,):
            if isinstance(word, Path) or (isinstance(word, str) and word and (declared.completes or is_file)):
                yield declared.completes, str(word), is_file or isinstance(word, Path)
                if declared.completes == "run":
                    yield declared.completes, str(word).partition("/")[0], False


def list_names(kind: str, word: str) -> list[str]:
    from trainyard.app.completion import list_names  # only an error that names a known kind needs it

    names: list[str] = list_names(kind, [word]) if kind else []
    return names
