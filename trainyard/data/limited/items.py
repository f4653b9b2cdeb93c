"""Bytes that somebody else has read: a document of a night's streams to its parts, a line of a corpus to its tuple."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import orjson

from trainyard.data.corpus_tuples import bad, spell
from trainyard.data.limited.requests import ParsedItem, ParseItem
from trainyard.data.readers.parts import find_parts
from trainyard.errors import InvalidInput, Refused
from trainyard.spec.load.text import parse_text


def parse_item(item: ParseItem) -> ParsedItem:
    """Return the content of the item, or why it cannot be read."""
    try:
        return PARSERS[item.parser](item)
    except Refused as refused:
        return ParsedItem(unreadable=refused.reasons[0].because)
    except InvalidInput as error:
        return ParsedItem(unreadable=error.why)


def parse_document(item: ParseItem) -> ParsedItem:
    return ParsedItem(parts=find_parts(item.data.decode(), item.most_chars, item.overlap_chars))


def parse_values(item: ParseItem) -> ParsedItem:
    """Return a document of YAML or JSON: it has to be valid, and is read as text."""
    parse_text(item.data, max_bytes=len(item.data))
    return parse_document(item)


def parse_line(item: ParseItem, method: str) -> ParsedItem:
    """Return a line of a corpus in the one spelling of its tuple."""
    try:
        value = orjson.loads(item.data)
    except orjson.JSONDecodeError as error:
        raise bad(f"it is not valid JSON: {error}") from error
    return ParsedItem(value=spell(value, method))


PARSERS: Mapping[str, Callable[[ParseItem], ParsedItem]] = {
    "text": parse_document,
    "markdown": parse_document,
    "yaml": parse_values,
    "json": parse_values,
    "sft": partial(parse_line, method="sft"),
    "dpo": partial(parse_line, method="dpo"),
}
"""What turns bytes into parts or a tuple, by the parser of a stream or the method of a bucket."""
