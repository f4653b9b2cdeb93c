"""The program that compares rows with one JSON Schema under limits: `python -m trainyard.data.schema_child`.

One line of JSON in: first the schema, then lists of rows; one line out for the schema and for each row, at once, so
that the row of which the child died is the first one without a line. A pattern that backtracks, `uniqueItems` of a long
list or references that never end use up the CPU time of their row, and the signal ends the process whatever it does.
Its parent's side is `trainyard.data.quality.row_schemas`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from jsonschema.protocols import Validator
from referencing import Registry
from referencing.exceptions import Unresolvable

from trainyard.sandbox.limits import Answer, Reply, serve_lines

MEMORY_BYTES = 1 << 30
DETAIL_CHARS = 300
ENDLESS = (MemoryError, RecursionError, OverflowError)


def open_schema(schema: object) -> tuple[Validator | None, dict[str, str]]:
    """Return a validator and the reply about its schema: empty, or why it cannot be used. Nothing is fetched.

    A row without content is compared first: of a schema that takes long for it, no row can be judged.
    """
    try:
        Draft202012Validator.check_schema(schema)
        validator = Draft202012Validator(schema, registry=Registry())
        next(validator.iter_errors({}), None)
    except SchemaError as error:
        return None, {"refused": error.message[:DETAIL_CHARS]}
    except Unresolvable as error:
        return None, {"unknown": str(error.ref)}
    except ENDLESS as error:
        return None, {"limit": f"more memory than is allowed ({type(error).__name__})"}
    return validator, {}


def judge(validator: Validator, row: Any) -> dict[str, str]:
    """Return the reply about one row: empty, or the first thing that is wrong with it."""
    try:
        error = next(validator.iter_errors(row), None)
        return {"problem": f"{error.json_path}: {error.message}"[:DETAIL_CHARS]} if error else {}
    except Unresolvable as unknown:
        return {"unknown": str(unknown.ref)}
    except ENDLESS as endless:
        return {"limit": f"more memory than is allowed ({type(endless).__name__})"}


def open_rows(setup: Mapping[str, object]) -> tuple[Reply, Answer]:
    """Open the schema of the first line, and return what judges each list of rows, one reply a row."""
    validator, reply = open_schema(setup["schema"])

    def answer_line(line: bytes) -> Iterator[Reply]:
        assert validator is not None, "its parent asks nothing of a schema that cannot be used"
        return (judge(validator, row) for row in json.loads(line))

    return reply, answer_line


if __name__ == "__main__":
    serve_lines(open_rows)
