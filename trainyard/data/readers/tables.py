"""JSON arrays as values, and records of every kind of table as chunks; each piece by piece, so memory stays flat."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from trainyard.data.formats.json_values import finite, refuse_constant, unique_keys
from trainyard.data.formats.shapes import Normaliser
from trainyard.data.quarantine import BadRow
from trainyard.data.readers.chunks import CHUNK_BYTES, CHUNK_ROWS, Chunk
from trainyard.data.readers.streams import ESCAPED_BYTE, Limits
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
        """Drop what was read and add the next block; False at the end of the file."""
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
