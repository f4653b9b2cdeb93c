"""JSON arrays as values, and records of every kind of table as chunks; each piece by piece, so memory stays flat.

JSON Lines: one JSON value a line, read in blocks so that memory stays flat.

Two ways, one meaning. The fast one decodes into typed structs and takes only what it can prove exact; a line on
which it fails goes through the strict parser, which decides whether the row is good and names the reason if it is not.
"""

from __future__ import annotations

import codecs
import contextlib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from trainyard.data.formats.fast import FAST_ERRORS, FastDecoder, fast_decoder, key_bounds
from trainyard.data.formats.json_values import finite, refuse_constant, strict_json, unique_keys
from trainyard.data.formats.shapes import Normaliser
from trainyard.data.quarantine import BadRow
from trainyard.data.readers.chunks import CHUNK_BYTES, CHUNK_ROWS, Chunk
from trainyard.data.readers.streams import ESCAPED_BYTE, Limits, LineBlock
from trainyard.errors import InvalidInput

BETWEEN_VALUES = re.compile(r"[\s,]*")
MOST_TEXT = 2000


class ValueStream:
    """The values of a JSON array (or of values one after another), parsed out of a sliding window of text."""

    def __init__(self, blocks: Iterator[bytes], name: str, limits: Limits) -> None:
        self._blocks, self._name, self._limits = blocks, name, limits
        self._decode = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode
        self._fault: BadRow | None = None
        self._escaped = False
        """Whether bytes were read that are not UTF-8."""
        self._decoder = json.JSONDecoder(
            object_pairs_hook=self._lenient(unique_keys, dict),
            parse_float=self._lenient(finite, float),
            parse_constant=self._lenient(refuse_constant, float),
        )
        self._window, self._at = "", 0
        self.line, self.offset = 1, 0

    def _lenient(self, strict: Callable[[Any], Any], instead: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """A hook that continues to the end of a bad value: the end is needed to find the next one in an array."""

        def hook(value: object) -> Any:
            try:
                return strict(value)
            except BadRow as fault:
                self._fault = self._fault or fault
                return instead(value)

        return hook

    def __iter__(self) -> Iterator[tuple[int, int, Any, Any]]:
        """(line, byte offset, value or `BadRow`, what the quarantine shows) of each value."""
        self._skip(re.compile(r"\s*\[?"))
        while True:
            self._skip(BETWEEN_VALUES)
            if self._at >= len(self._window) or self._window[self._at] == "]":
                if self._window[self._at :].strip() not in ("", "]"):
                    raise self._broken_error("text follows the end of the array")
                return
            self._fault = None
            value, end = self._parse()
            text = self._window[self._at : end] if self._fault or self._escaped else ""
            if self._escaped and (byte := ESCAPED_BYTE.search(text)):
                line = self.line + text[: byte.start()].count("\n")
                self._fault = BadRow("not_utf8", f"a byte of line {line} is not UTF-8: {ord(byte[0]) & 0xFF:#04x}")
            yield self.line, self.offset, self._fault or value, text[:MOST_TEXT] if self._fault else value
            self._advance(end)

    def _skip(self, pattern: re.Pattern[str]) -> None:
        while True:
            match = pattern.match(self._window, self._at)
            assert match is not None
            self._advance(match.end())
            if self._at < len(self._window) or not self._refill():
                return

    def _advance(self, end: int) -> None:
        passed = self._window[self._at : end]
        self.line += passed.count("\n")
        self.offset += len(passed) if passed.isascii() else len(passed.encode("utf-8", "surrogateescape"))
        self._at = end

    def _refill(self) -> bool:
        """Drop the parsed bytes and add the next block; False at the end of the file."""
        block = next(self._blocks, None)
        if block is None:
            return False
        text = self._decode(block)
        self._escaped = self._escaped or (not text.isascii() and ESCAPED_BYTE.search(text) is not None)
        self._window, self._at = self._window[self._at :] + text, 0
        return True

    def _parse(self) -> tuple[object, int]:
        while True:
            try:
                value, end = self._decoder.raw_decode(self._window, self._at)
            except json.JSONDecodeError as error:
                if len(self._window) - self._at > self._limits.line:
                    raise self._broken_error(f"one value is longer than {self._limits.line:,} characters") from error
                if not self._refill():
                    raise self._broken_error(f"{error.msg} behind it") from error
            except RecursionError as error:
                raise self._broken_error("it is nested too deeply") from error
            except ValueError as error:
                raise self._broken_error("a number has too many digits") from error
            else:
                if end < len(self._window) or not self._refill():
                    return value, end

    def _broken_error(self, why: str) -> InvalidInput:
        return InvalidInput(
            f"{self._name} is not valid JSON in the value at line {self.line}, byte {self.offset}: {why}.",
            why="The values behind it cannot be found, and a part must not pass for the whole.",
            do="Correct the file, or write it as JSON Lines, where one bad row costs only itself.",
            code="E-DATA-UNREADABLE",
        )


def build_chunks(
    records: Iterable[tuple[int, int, object, object]], name: str, normalise: Normaliser
) -> Iterator[Chunk]:
    """Chunks of records that come as (line, offset, record, what the quarantine shows)."""
    chunk, begin = Chunk(name), 0
    for line, offset, record, text in records:
        chunk.add(normalise, record, line, offset, text)
        chunk.size = offset - begin
        if len(chunk) >= CHUNK_ROWS or chunk.size >= CHUNK_BYTES:
            yield chunk
            chunk, begin = Chunk(name), offset
    yield chunk


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
