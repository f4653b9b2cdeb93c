"""Zip archives with documents inside: what they may expand to, and XML parts without declarations of entities."""

from __future__ import annotations

import io
import re
import struct
import zipfile
import zlib

from lxml import etree

from trainyard.data.quarantine import BadRow

MAX_ARCHIVE_EXPANSION = 100
MAX_ENTRIES = 10_000
"""Of one archive; a book of 1,000 chapters with a picture each has 2,000."""
DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, SyntaxError, ValueError, LookupError, TypeError),
    *(AttributeError, ArithmeticError, AssertionError, RuntimeError, OSError, EOFError),
)
"""Exceptions of the libraries for a damaged file; each means the same to the user."""
DECLARED = re.compile(rb"<!(?:DOCTYPE|ENTITY)", re.IGNORECASE)
DECLARATION_BYTES = 1 << 16
"""Of a part, in which a declaration can be: it comes before the first element."""


def damaged_file_error(kind: str, error: Exception) -> BadRow:
    return BadRow("unreadable", f"the {kind} is damaged ({type(error).__name__}: {error})"[:300])


def open_archive(data: bytes, kind: str) -> zipfile.ZipFile:
    """Return the archive, if what it says of itself is within the limits. Raises `BadRow`.

    `zipfile` reads no entry beyond the size that its directory gives, so that what is summed up here is a bound.
    """
    archive = zipfile.ZipFile(io.BytesIO(data))
    entries = archive.infolist()
    expanded = sum(entry.file_size for entry in entries)
    if expanded > max(1 << 20, MAX_ARCHIVE_EXPANSION * len(data)):
        raise BadRow("too_large", f"the {kind} expands to {expanded:,} bytes out of {len(data):,}")
    if len(entries) > MAX_ENTRIES:
        raise BadRow("too_large", f"the {kind} has {len(entries):,} entries")
    if any(entry.flag_bits & 1 for entry in entries):
        raise BadRow("encrypted", f"the {kind} needs a password")
    return archive


def refuse_declarations(archive: zipfile.ZipFile, kind: str) -> None:
    """Raise `BadRow` for an XML part that declares a document type: office files have none, entity bombs do."""
    for entry in archive.infolist():
        if entry.filename.lower().endswith((".xml", ".rels")):
            with archive.open(entry) as part:
                if DECLARED.search(part.read(DECLARATION_BYTES)):
                    raise BadRow("unreadable", f"the part {entry.filename[:80]!r} of the {kind} declares entities")


def parse_xml(data: bytes, kind: str) -> etree._Element:
    """Return the root of an XML part; no entity is expanded and nothing else is loaded."""
    if DECLARED.search(data[:DECLARATION_BYTES]):
        raise BadRow("unreadable", f"a part of the {kind} declares entities")
    return etree.fromstring(data, etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False))
