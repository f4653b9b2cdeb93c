"""The program that matches an adapter's patterns with a model's module names under limits.

The line of `python -m trainyard.stores.pattern_child` is
{"patterns": [[field, pattern, "match" or "fullmatch"]], "names": […]}. Python's own engine is used because PEFT uses
it: what is quick here is quick there.
"""

from __future__ import annotations

import re

from trainyard.json_types import JsonObject
from trainyard.sandbox.limits import Answer, Reply, serve_lines

MEMORY_BYTES = 256 << 20


def first_problem(patterns: list[list[str]], names: list[str]) -> str:
    """Return the first pattern that is not a regular expression, or needs too much memory; empty if all work."""
    for field, text, how in patterns:
        try:
            compiled = re.compile(text)
            for name in names:
                compiled.fullmatch(name) if how == "fullmatch" else compiled.match(name)
        except re.error as error:
            return f"{field}: {error}."
        except (MemoryError, RecursionError, OverflowError) as error:
            return f"{field} needs too much memory ({type(error).__name__})."
    return ""


def match_patterns(setup: JsonObject) -> tuple[Reply, Answer]:
    """Return the first problem of the patterns in the only line, as its reply."""
    return {"problem": first_problem(setup["patterns"], setup["names"])[:500]}, lambda line: ()


if __name__ == "__main__":
    serve_lines(match_patterns)
