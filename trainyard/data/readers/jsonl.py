"""JSON Lines: one JSON value a line, read in blocks so that memory stays flat.

Two ways, one meaning. The fast one decodes into typed structs and takes only what it can prove exact; a line on
which it fails goes through the strict parser, which decides whether the row is good and names the reason if it is not.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import msgspec
import numpy as np

from trainyard.data.formats.fast import FastDecoder, fast_decoder, has_nul_escape, key_bounds, one_object_a_line
from trainyard.data.formats.shapes import Normaliser
from trainyard.data.quarantine import BadRow
from trainyard.data.readers.chunks import Bad, Chunk
from trainyard.data.readers.streams import LineBlock
from trainyard.data.rows import Row

NUL_ESCAPE = b"\\u0000"
SAMPLE_ROWS = 100
FAST_LINES = 1000
"""Lines of a block that are looked at for the fast way; a block of bad lines would else be parsed twice."""
FAST_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def sample(block: LineBlock, most_lines: int | None = None) -> list[Any]:
    """The first values of a file that can be parsed, to detect its format."""
    lines = itertools.islice(block.lines, most_lines)
    parsed = (value for value in map(parsed_or_bad, lines) if not isinstance(value, BadRow))
    return list(itertools.islice(parsed, SAMPLE_ROWS))


def read_jsonl(blocks: Iterator[LineBlock], name: str, normalise: Normaliser) -> Iterator[Chunk]:
    """Chunks of rows, one for each block of lines."""
    fast: FastDecoder | None = None
    for block in blocks:
        chunk = Chunk(name, size=block.end)
        if block.too_long:
            reason = BadRow("line_too_long", f"the row has {block.too_long:,} bytes")
            chunk.bad.append(Bad(0, block.first_line, block.offset, reason, block.data))
        else:
            fast = fast or fast_for(block, normalise)
            convert(block, chunk, normalise, fast)
        yield chunk


def fast_for(block: LineBlock, normalise: Normaliser) -> FastDecoder | None:
    """The decoder for rows like the first good one of the file; None if its first rows are all bad."""
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
    values: list[Any] = []
    if fast is not None:
        values, exact = decode_lines(fast, block)
        if exact and (rows := rows_or_none(fast, values)) is not None:
            chunk.rows, chunk.kinds = rows, [fast.kind] * len(rows)
            chunk.places = [
                f"{chunk.source}:{number}" for number in range(block.first_line, block.first_line + len(rows))
            ]
            return
    lines = itertools.zip_longest(block.lines, values)
    convert_each(lines, block, chunk, normalise, fast)


def convert_each(
    lines: Iterable[tuple[bytes, Any]], block: LineBlock, chunk: Chunk, normalise: Normaliser, fast: FastDecoder | None
) -> None:
    """Line by line: take the decoded value where there is one, else parse strictly."""
    offset = block.offset
    for number, (line, value) in enumerate(lines, block.first_line):
        if value is not None and fast is not None:
            try:
                (row,) = fast.rows([value])
            except BadRow as reason:
                chunk.bad.append(Bad(len(chunk.rows), number, offset, reason, line))
            else:
                chunk.rows.append(row)
                chunk.kinds.append(fast.kind)
                chunk.places.append(f"{chunk.source}:{number}")
        elif line and not line.isspace():
            chunk.add(normalise, parsed_or_bad(line), number, offset, line)
        offset += len(line) + 1


def decode_lines(fast: FastDecoder, block: LineBlock) -> tuple[list[Any], bool]:
    """The decoded lines, None where the value is not proved to be the whole line; and whether all of them are."""
    text, newlines = block.text, block.newlines
    values = decode_at_once(fast, text) if one_object_a_line(text, newlines) else None
    if values is None or len(values) != len(newlines):
        values = [decoded_or_none(fast, line) for line in block.lines]
    if has_nul_escape(text):
        values = [None if NUL_ESCAPE in line else value for value, line in zip(values, block.lines, strict=True)]
    found, bounds = fast.num_keys(values), key_bounds(text, newlines)
    if found == bounds:
        return values, True
    exact = zip(values, found, bounds, strict=True)
    return [value if count == bound else None for value, count, bound in exact], False


def decode_at_once(fast: FastDecoder, text: np.ndarray) -> list[Any] | None:
    """All lines in one call, which saves cutting them apart; None if one of them fails."""
    try:
        return fast.decoder.decode_lines(text.data)
    except FAST_ERRORS:
        return None


def rows_or_none(fast: FastDecoder, values: list[Any]) -> list[Row] | None:
    """The rows of a block without a bad one."""
    try:
        return fast.rows(values)
    except BadRow:
        return None


def decoded_or_none(fast: FastDecoder, line: bytes) -> Any:
    try:
        return fast.decoder.decode(line)
    except FAST_ERRORS:
        return None


def parsed_or_bad(line: bytes) -> Any:
    try:
        return strict_json(line)
    except BadRow as reason:
        return reason


def strict_json(line: bytes) -> Any:
    """Parse one JSON value as RFC 8259 means it: no NaN, no duplicate keys, no overflow. Raises `BadRow`."""
    try:
        return STRICT.decode(line.decode())
    except UnicodeDecodeError as error:
        raise BadRow("not_utf8", f"byte {error.start} of the row is not UTF-8") from error
    except RecursionError as error:
        raise BadRow("too_deep", "the row is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise BadRow("not_json", f"{error.msg} at character {error.pos}") from error
    except ValueError as error:
        raise BadRow("bad_number", "a number has too many digits") from error


def refuse_constant(name: str) -> NoReturn:
    raise BadRow("not_a_number", f"{name} is not JSON")


def finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise BadRow("not_a_number", f"{text[:20]} is too large for a number")
    return value


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise BadRow("duplicate_key", f"the key {twice[:40]!r} occurs twice")
    return record


STRICT = json.JSONDecoder(parse_constant=refuse_constant, parse_float=finite, object_pairs_hook=unique_keys)
"""Made once: `json.loads` with hooks makes one for each line."""
