"""Code that a model has written: the part of a completion that is code, and whether it passes a row's assertions.

It runs in `sandbox`, which the operating system confines, in another process than the assertions. About 10 ms
for a completion, and 0.1 s for the first of a batch.
"""

from __future__ import annotations

import re

from trainyard.sandbox.service import run_code

BLOCK = re.compile(r"```[a-zA-Z0-9_-]*[ \t]*\n(.*?)```", re.DOTALL)


def last_block(text: str) -> str:
    """The last fenced block of a text, or the text itself where it has none."""
    blocks: list[str] = BLOCK.findall(text)
    return blocks[-1] if blocks else text


def passes_assertions(code: str, assertions: str, *, timeout_s: int, memory_mb: int) -> bool:
    """Whether the code runs to its end, and then the assertions about what it defines, inside the limits.

    Raises `Unavailable` (`E-SANDBOX`) where the system confines no code.
    """
    return run_code(code, assertions, timeout_s=timeout_s, memory_mb=memory_mb).passed


def run_python(code: str, *, timeout_s: int, memory_mb: int) -> tuple[bool, str]:
    """Return whether it ran to its end, and what it printed (the last 4,096 characters)."""
    outcome = run_code(code, "", timeout_s=timeout_s, memory_mb=memory_mb)
    return outcome.passed, outcome.printed
