"""The program that matches an adapter's patterns with a model's module names.

`python -m trainyard.stores.base_models.pattern_child`: standard input is
{"patterns": [[field, pattern, "match" or "fullmatch"]], "names": […], "cpu_s": …}. It prints what is wrong with a
pattern and ends with 1; SIGPROF ends it when a pattern takes too long. Python's own engine is used because PEFT uses
it: what is quick here is quick there.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import sys
from typing import Any

MEMORY_BYTES = 256 << 20


def first_problem(patterns: list[list[str]], names: list[str]) -> str:
    """The first pattern that is not a regular expression, or needs too much memory; empty if all work."""
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


def main() -> int:
    asked: dict[str, Any] = json.load(sys.stdin)
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The default action of SIGPROF ends the process in the middle of a match.
    signal.setitimer(signal.ITIMER_PROF, float(asked["cpu_s"]))
    wrong = first_problem(asked["patterns"], asked["names"])
    if wrong:
        print(wrong[:500])
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
