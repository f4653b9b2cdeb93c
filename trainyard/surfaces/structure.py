"""Limits on what JSON may contain, checked before any object is built: brackets and commas outside texts are counted.

Eight megabytes of `{}` are 2.7 million objects of Python: gigabytes, and half a minute of validation. To count them
takes milliseconds, and none of them is made.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.errors import LimitExceeded


@dataclass(frozen=True)
class JsonLimits:
    """Limits on the objects and lists, texts (keys included), and values of a body."""

    containers: int
    texts: int
    values: int


USUAL = JsonLimits(containers=60_000, texts=200_000, values=200_000)
"""Enough for a chain of ten thousand nodes, each with its needs and its config."""
BATCHES = JsonLimits(containers=200_000, texts=400_000, values=4_000_000)
"""Of calls of sessions: rows and prompts, and the tokens of a batch as lists of numbers."""


def require_structure(body: bytes, limits: JsonLimits) -> None:
    """Raise `LimitExceeded` (`E-BODY-LENGTH`) for JSON with more parts than the limits allow."""
    containers, values = count_parts(body)
    if containers <= limits.containers and values <= limits.values and body.count(b'"') <= 2 * limits.texts:
        return  # what is inside of texts was counted, too, so it is no more than this
    bare = body.replace(rb"\\", b"").replace(rb"\"", b"")
    texts = bare.count(b'"') // 2
    if texts <= limits.texts:
        containers, values = count_parts(b"".join(bare.split(b'"')[::2]))
    for number, most, noun in (
        (texts, limits.texts, "texts and keys"),
        (containers, limits.containers, "objects and lists"),
        (values, limits.values, "values"),
    ):
        if number > most:
            raise LimitExceeded(
                f"The body has more than {most:,} {noun}.", do="Send less at a time.", code="E-BODY-LENGTH"
            )


def count_parts(body: bytes) -> tuple[int, int]:
    """Return the number of objects and lists, and that of values at most."""
    containers = body.count(b"{") + body.count(b"[")
    return containers, containers + body.count(b",")
