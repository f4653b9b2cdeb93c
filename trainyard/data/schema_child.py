"""The program that compares rows with one JSON Schema under limits: `python -m trainyard.data.schema_child`.

One line of JSON in: first the schema, then lists of rows; one line out for the schema and for each row, at once, so
that the row of which the child died is the first one without a line. A pattern that backtracks, `uniqueItems` of a long
list or references that never end use up the CPU time of their row, and the signal ends the process whatever it does.
Its parent's side is `trainyard.data.quality.row_schemas`.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from typing import IO, Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from jsonschema.protocols import Validator
from referencing import Registry
from referencing.exceptions import Unresolvable

from trainyard.data.limited.process import NETWORK, PROGRAMS, die_with_parent, limit_memory, refuse_calls

MEMORY_BYTES = 1 << 30
DETAIL_CHARS = 300
ENDLESS = (MemoryError, RecursionError, OverflowError)


def open_schema(schema: Any) -> tuple[Validator | None, dict[str, str]]:
    """A validator and the reply about its schema: empty, or why it cannot be used. Nothing is fetched.

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
    """The reply about one row: empty, or the first thing that is wrong with it."""
    try:
        error = next(validator.iter_errors(row), None)
        return {"problem": f"{error.json_path}: {error.message}"[:DETAIL_CHARS]} if error else {}
    except Unresolvable as unknown:
        return {"unknown": str(unknown.ref)}
    except ENDLESS as endless:
        return {"limit": f"more memory than is allowed ({type(endless).__name__})"}


def serve(lines: IO[bytes], out: IO[bytes]) -> None:
    """The child's loop. The first line brings the schema, every later one a list of rows."""

    def say(reply: dict[str, str]) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        out.write(json.dumps(reply).encode() + b"\n")
        out.flush()

    first = json.loads(next(lines))
    signal.setitimer(signal.ITIMER_PROF, first["cpu_s"])
    validator, reply = open_schema(first["schema"])
    say(reply)
    for line in lines:
        for row in json.loads(line):
            assert validator is not None, "its parent asks nothing of a schema that cannot be used"
            # The default action of SIGPROF ends the process, whatever it is doing.
            signal.setitimer(signal.ITIMER_PROF, first["cpu_s"])
            say(judge(validator, row))


def main() -> None:
    die_with_parent()
    limit_memory(MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    refuse_calls((*NETWORK, *PROGRAMS))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its parent decides
    serve(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
