"""Bytes of a file as UTF-8 blocks and as blocks of whole lines: gzip, encodings and every size cap live here.

Blocks are about 1 MiB, so memory does not depend on the file. Recognised by content, not by name: gzip (magic bytes),
UTF-8 with a byte order mark, UTF-16 (converted), lines that end with CR alone. A binary file is refused.

Tables in the code page of Windows: recognised where the text can be nothing else, refused where it may be another.

Excel writes CSV in the code page of its machine. Western Europe and America have Windows-1252 (Latin-1 is the part of
it that has no typographic signs). A wrong code page trains wrong letters, so that a text is read only if none of its
words looks like one of another page: runs of letters outside of ASCII (Cyrillic, Greek, Chinese, Japanese), signs and
capitals inside of words (Polish, Mac), letters that no Western language has together (Czech, Hungarian, Turkish).
"""

from __future__ import annotations

import codecs
import itertools
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import BinaryIO

import numpy as np

from trainyard.errors import InvalidInput, LimitExceeded

WINDOWS_1252 = "windows-1252"
ESCAPED_BYTE = re.compile("[\udc80-\udcff]")
WORD_SIGN = re.compile(r"[^\W\d_][\xa1-\xb3\xb5\xb6\xb8-\xbf\x80-\x90][^\W\d_]")
"""A sign between two letters; the acute accent and the middle dot occur there in Western texts."""
INNER_CAPITAL = re.compile(r"[a-z][À-ÖØ-ÞŠŒŽŸ][a-z]")
LONG_RUN = re.compile(r"[^\x00-\x7f]{3,}")
SEPARATE = ("šžŠŽ", "èæðìùÈÆÐÌÙ"), ("õÕ", "ûÛ"), ("þÞ", "ýÝ"), ("ð", "ý"), ("ø", "ìù")
"""Letters of which a Western text has those of one group only."""
MOST_IN_RUNS = 0.3


def windows_encoding(head: bytes) -> str:
    """`windows-1252` for the beginning of a text in it, and an empty text for UTF-8, and for what is not recognised.

    A text with valid letters in UTF-8 is in UTF-8, however many of its bytes are broken: those rows are bad.
    """
    text = head.decode("utf-8", "surrogateescape")
    broken = len(ESCAPED_BYTE.findall(text[:-4]))  # a letter may be cut at the end
    whole = sum(not letter.isascii() for letter in text[:-4]) - broken if broken else 0
    if not broken or 10 * whole > broken:
        return ""
    try:
        decoded = head.decode("cp1252")
    except UnicodeDecodeError:
        return ""
    return WINDOWS_1252 if is_western(decoded) else ""


def is_western(text: str) -> bool:
    """Whether a text decoded as Windows-1252 has no sign of another code page."""
    outside = sum(not letter.isascii() for letter in text)
    in_runs = sum(map(len, LONG_RUN.findall(text)))
    if in_runs > MOST_IN_RUNS * outside or WORD_SIGN.search(text) or INNER_CAPITAL.search(text):
        return False
    return not any(any(map(text.__contains__, left)) and any(map(text.__contains__, right)) for left, right in SEPARATE)


BLOCK_BYTES = 1 << 20
SNIFFED_BYTES = 8192
GZIP_MAGIC = b"\x1f\x8b"
NEWLINE = ord("\n")
NO_NEWLINES = np.array([], np.int64)
OTHER_MAGIC = {
    b"\x28\xb5\x2f\xfd": "it is compressed with zstd",
    b"BZh": "it is compressed with bzip2",
    b"\xfd7zXZ\0": "it is compressed with xz",
    b"PK\x03\x04": "it is a zip archive",
    b"%PDF-": "it is a PDF",
    b"PAR1": "it is a Parquet file",
}
"""How files begin that are often given by mistake, for the message."""
CONTROL = bytes(code for code in range(32) if code not in b"\t\n\r\f\x1b") + b"\x7f"


@dataclass(frozen=True)
class Limits:
    """Caps of reading, in bytes unless named otherwise. Tests lower them; no chain can raise them."""

    line: int = 16 << 20
    """Longest row; a longer one is skipped without being kept in memory and goes to quarantine."""
    document: int = 32 << 20
    """Largest document; a longer one goes to quarantine."""
    expanded: int = 64 << 30
    """Most bytes that a compressed file may expand to."""
    expansion: int = 200
    """Most bytes out of one byte in; real rows compress 3 to 30 times, a bomb about 1,000 times."""
    expansion_grace: int = 8 << 20
    """Expanded bytes below which the ratio is not judged."""
    download: int = 16 << 30
    """Largest file that is fetched from an address."""
    text: int = 64 << 20
    """Longest text of one document; markup can repeat a piece of it any number of times."""
    document_memory: int = 1 << 30
    """Address space that reading one document may take, over what its process has at first."""
    rows_memory: int = 3 << 30
    """The same for a set: a group of Parquet rows and 10,000 pending rows are in memory together."""
    document_cpu_s: float = 10.0
    """CPU seconds for a document, and more for a large one; a damaged page of PDF may take a second."""
    document_cpu_s_per_mib: float = 20.0
    chunk_cpu_s: float = 120.0
    """CPU seconds for a piece of a file of rows (about 1 MiB) and for the files of a folder to be listed."""
    set_cpu_s: int = 4 * 3600
    """CPU seconds for a whole set; 4 hours are 500 GB of JSON Lines. A git process has as many."""
    breaches: int = 100
    """Documents of a set that may go over their limits; each takes its whole time first."""
    documents_per_child: int = 1000
    """Documents until a fresh process reads the next ones."""

    def are_exceeded(self, expanded: int, file_bytes: int) -> bool:
        """Whether `expanded` bytes out of `file_bytes` are more than a file may expand to."""
        return expanded > self.expanded or (expanded > self.expansion_grace and expanded > file_bytes * self.expansion)


@dataclass
class TextStream:
    """A file as UTF-8: `blocks` yields its bytes without a byte order mark."""

    blocks: Iterator[bytes]
    encoding: str
    compressed: bool


@dataclass(frozen=True)
class LineBlock:
    """Complete lines. `data` contains them with their newlines, and may end with the beginning of the next line."""

    data: bytes
    newlines: np.ndarray
    """Places of the newlines in `data`; what follows the last one belongs to the next block."""
    first_line: int
    offset: int
    """Position of the first byte in the UTF-8 text."""
    too_long: int = 0
    """If not 0: `data` is the beginning of one line of that many bytes, which was skipped."""

    @property
    def end(self) -> int:
        return int(self.newlines[-1]) + 1 if len(self.newlines) else 0

    @cached_property
    def lines(self) -> list[bytes]:
        """Return the lines without their newlines."""
        return self.data.split(b"\n", len(self.newlines))[:-1]

    @property
    def text(self) -> np.ndarray:
        """Return the bytes of the whole lines."""
        return np.frombuffer(self.data, np.uint8, self.end)


def peek(blocks: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """Return the first block, and all of them."""
    first = next(blocks, b"")
    return first, itertools.chain([first], blocks)


def raw_blocks(stream: BinaryIO, block_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
    while block := stream.read(block_bytes):
        yield block


def open_text(stream: BinaryIO, name: str, limits: Limits, *, of_windows: bool = False) -> TextStream:
    """Return the text of a file, with `of_windows` also one in the code page of Windows that is recognised as such.

    Raises `InvalidInput` (`E-DATA-UNREADABLE`); reading `blocks` may raise as `gunzip`.
    """
    first, blocks = peek(raw_blocks(stream, min(BLOCK_BYTES, limits.line)))
    compressed = first.startswith(GZIP_MAGIC)
    if compressed:
        first, blocks = peek(gunzip(blocks, name, limits))
    encoding = detect_encoding(first[:SNIFFED_BYTES], name)
    if of_windows and encoding == "utf-8":
        encoding = windows_encoding(first) or encoding
    return TextStream(convert_to_utf8(blocks, encoding), encoding, compressed)


def gunzip(blocks: Iterator[bytes], name: str, limits: Limits) -> Iterator[bytes]:
    """Expand gzip members block by block.

    Raises `LimitExceeded` (`E-DATA-LIMIT`) beyond the caps and `InvalidInput` (`E-DATA-UNREADABLE`) for a file that is
    cut off or damaged: rows behind the damage are lost, so the run must not continue as if it had read them all.
    """
    member = zlib.decompressobj(zlib.MAX_WBITS | 16)
    compressed = expanded = 0
    whole = False
    for block in blocks:
        compressed += len(block)
        while block:
            try:
                out = member.decompress(block, BLOCK_BYTES)
            except zlib.error as error:
                raise broken_gzip_error(name, f"it is damaged after {expanded:,} expanded bytes ({error})") from error
            expanded += len(out)
            if limits.are_exceeded(expanded, compressed):
                raise LimitExceeded(
                    f"{name} expands to more than is read: {expanded:,} bytes out of {compressed:,}.",
                    why=f"The caps are {limits.expansion} to 1 and {limits.expanded:,} bytes; "
                    "it looks like a decompression bomb.",
                    do="Give the file uncompressed if it is meant.",
                    code="E-DATA-LIMIT",
                )
            if out:
                yield out
            block = member.unconsumed_tail
            whole = member.eof
            if whole:
                block = member.unused_data.lstrip(b"\0")
                member = zlib.decompressobj(zlib.MAX_WBITS | 16)
    if not whole:
        raise broken_gzip_error(name, f"it ends in the middle, after {expanded:,} expanded bytes")


def broken_gzip_error(name: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"{name} is not a whole gzip file: {why}.",
        why="The rows behind that place cannot be read, and a part must not pass for the whole.",
        do="Fetch or write the file again.",
        code="E-DATA-UNREADABLE",
    )


def detect_encoding(head: bytes, name: str) -> str:
    """`utf-8`, `utf-8-sig`, `utf-16-le` or `utf-16-be`. Raises `InvalidInput` (`E-DATA-UNREADABLE`)."""
    if head.startswith(codecs.BOM_UTF8):
        return "utf-8-sig"
    if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        raise binary(name, "it is UTF-32 text")
    if head.startswith(codecs.BOM_UTF16_LE):
        return "utf-16-le"
    if head.startswith(codecs.BOM_UTF16_BE):
        return "utf-16-be"
    file_type = next((file_type for magic, file_type in OTHER_MAGIC.items() if head.startswith(magic)), None)
    if file_type:
        raise binary(name, file_type)
    even, odd = head[0::2].count(0), head[1::2].count(0)
    if len(head) >= 4 and max(even, odd) > 0.4 * len(head) / 2 and min(even, odd) == 0:
        return "utf-16-be" if even else "utf-16-le"
    control = len(head) - len(head.translate(None, CONTROL))
    if control > max(8, 0.02 * len(head)):
        raise binary(name, f"{control} of its first {len(head)} bytes are control characters")
    return "utf-8"


def binary(name: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"{name} is a binary file, not text: {why}.",
        do="Give UTF-8 text (JSON Lines, JSON, CSV, Markdown, …), gzipped or not, or Parquet, PDF, DOCX by name.",
        code="E-DATA-UNREADABLE",
    )


def convert_to_utf8(blocks: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    """The same text in UTF-8, without a byte order mark, with CR line ends turned into LF.

    Half a surrogate pair is kept as the replacement character, which the JSON then shows to a reader.
    """
    if encoding.startswith("utf-16"):
        blocks = (text.encode() for text in codecs.iterdecode(blocks, encoding, "replace"))
    if encoding == WINDOWS_1252:  # five bytes have no letter in it; they stay, and their rows are bad
        blocks = (block.decode("cp1252", "surrogateescape").encode("utf-8", "surrogateescape") for block in blocks)
    first = next(blocks, b"").removeprefix(codecs.BOM_UTF8)
    only_cr = b"\r" in first and b"\n" not in first
    for block in itertools.chain([first], blocks):
        yield block.replace(b"\r", b"\n") if only_cr else block


def line_blocks(blocks: Iterator[bytes], limits: Limits) -> Iterator[LineBlock]:
    """Cut the text into lines, block by block. A line over the cap is skipped without being kept in memory."""
    rest = b""
    line, offset, skipped = 1, 0, 0
    for block in blocks:
        if skipped:
            cut = block.find(b"\n") + 1
            if not cut:
                skipped += len(block)
                continue
            yield LineBlock(rest, NO_NEWLINES, line, offset, too_long=skipped + cut - 1)
            line, offset, skipped, rest, block = line + 1, offset + skipped + cut, 0, b"", block[cut:]
        data = rest + block if rest else block
        whole = LineBlock(data, np.flatnonzero(np.frombuffer(data, np.uint8) == NEWLINE), line, offset)
        if whole.end:
            yield whole
            line, offset = line + len(whole.newlines), offset + whole.end
        rest = data[whole.end :]
        if len(rest) > limits.line:
            rest, skipped = rest[:SNIFFED_BYTES], len(rest)
    if skipped:
        yield LineBlock(rest, NO_NEWLINES, line, offset, too_long=skipped)
    elif rest:
        yield LineBlock(rest + b"\n", np.array([len(rest)]), line, offset)
