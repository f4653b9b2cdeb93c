"""Reading GGUF files that anybody may have written. Imports the package gguf, so it is loaded when it is used.

The package's reader believes the numbers in a file: beyond its end it reads nothing, as often as an array claims to
have items. Here each piece has to be there, and there are at most so many.
"""

from __future__ import annotations

from typing import Any

import gguf

MOST_PIECES = 2_000_000
"""Numbers and texts of a header: a vocabulary of 256,000 tokens has 1.5 million with scores and types."""


class WholeFileReader(gguf.GGUFReader):
    """Reads a file that is all there. Raises what Python raises for anything else, soon."""

    pieces = 0

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
        self.pieces += 1
        values = super()._get(offset, dtype, count, override_order)
        if len(values) < count or self.pieces > MOST_PIECES:
            raise ValueError("a part of it is missing" if len(values) < count else "its header has too many parts")
        return values
