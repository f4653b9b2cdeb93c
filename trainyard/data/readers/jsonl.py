"""JSON Lines: one JSON value a line, read in blocks so that memory stays flat.

Two ways, one meaning. The fast one decodes into typed structs and takes only what it can prove exact; a line on
which it fails goes through the strict parser, which decides whether the row is good and names the reason if it is not.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

from trainyard.data.formats.fast import FAST_ERRORS, FastDecoder, fast_decoder, key_bounds
from trainyard.data.formats.json_values import strict_json
from trainyard.data.formats.shapes import Normaliser
from trainyard.data.quarantine import BadRow
from trainyard.data.readers.chunks import Chunk
from trainyard.data.readers.streams import LineBlock

SAMPLE_ROWS = 100
SHOWN_BYTES = 400
FAST_LINES = 1000
"""Lines of a block that are looked at for the fast way; a block of bad lines would else be parsed twice."""


def sample(block: LineBlock, most_lines: int | None = None) -> list[Any]:
    """Return the first values of a file that can be parsed, to detect its format."""
    lines = itertools.islice(block.lines, most_lines)
    parsed = (value for value in map(parse_line, lines) if not isinstance(value, BadRow))
    return list(itertools.islice(parsed, SAMPLE_ROWS))


def first_fault(block: LineBlock) -> tuple[int, BadRow, str] | None:
    """(line, reason, text) of the first line of a block, of which no line is JSON."""
    if block.too_long:
        return block.first_line, long_line_error(block), block.data[:SHOWN_BYTES].decode("utf-8", "replace")
    for number, line in enumerate(block.lines, block.first_line):
        if line and not line.isspace() and isinstance(reason := parse_line(line), BadRow):
            return number, reason, line[:SHOWN_BYTES].decode("utf-8", "replace")
    return None


def long_line_error(block: LineBlock) -> BadRow:
    return BadRow("line_too_long", f"the row has {block.too_long:,} bytes")


def read_jsonl(blocks: Iterator[LineBlock], name: str, normalise: Normaliser) -> Iterator[Chunk]:
    """Chunks of rows, one for each block of lines."""
    fast: FastDecoder | None = None
    for block in blocks:
        chunk = Chunk(name, size=block.end)
        if block.too_long:
            chunk.add_bad(block.first_line, block.offset, long_line_error(block), block.data)
        else:
            fast = fast or choose_decoder(block, normalise)
            convert(block, chunk, normalise, fast)
        yield chunk


def choose_decoder(block: LineBlock, normalise: Normaliser) -> FastDecoder | None:
    """The decoder for rows like the first good one of the file; None if those are all bad, or are to be converted."""
    if normalise.convert is not None:
        return None
    for record in sample(block, FAST_LINES):
        try:
            kind = normalise.kind(frozenset(record))
        except (BadRow, TypeError):
            continue
        if kind.shape is normalise.detected.shape:
            return fast_decoder(normalise, frozenset(record))
    return None


def convert(block: LineBlock, chunk: Chunk, normalise: Normaliser, fast: FastDecoder | None) -> None:
    """Add every line of a block to the chunk as a good or a bad row; blank lines are ignored."""
    bounds = key_bounds(block.text, block.newlines)
    if fast is not None:
        with contextlib.suppress(BadRow, *FAST_ERRORS):
            values = list(map(fast.decoder.decode, block.lines))
            if list(map(fast.num_keys, values)) == bounds:
                chunk.take_all(list(map(fast.read, values)), block.first_line)
                return
    offset = block.offset
    for number, (line, bound) in enumerate(zip(block.lines, bounds, strict=True), block.first_line):
        value = fast.decode(line, bound) if fast is not None else None
        if fast is not None and value is not None:
            chunk.add(fast.read, value, number, offset, line)
        elif line and not line.isspace():
            chunk.add(normalise, parse_line(line), number, offset, line)
        offset += len(line) + 1


def parse_line(line: bytes) -> object:
    try:
        return strict_json(line)
    except BadRow as reason:
        return reason
