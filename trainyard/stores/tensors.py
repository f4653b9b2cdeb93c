"""Tensors of a safetensors file as they lie on the disk: enough to say whether a training has changed them (no torch).

The file is an 8-byte length, a JSON header {name: {dtype, shape, data_offsets}}, and the bytes.
Source: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from trainyard.json_types import JsonObject

HEADER_BYTES = 8
CHUNK = 1 << 20
ZERO_AT_START = re.compile(r"lora_(embedding_)?B\b|oft_[RS]\b|oft_r\b")
"""Names of the tensors of an adapter that are zero before its first step, and without which it is the base."""


def read_header(file: BinaryIO) -> tuple[JsonObject, int]:
    """Return the header of a safetensors file, and where its bytes begin."""
    length = int.from_bytes(file.read(HEADER_BYTES), "little")
    header = {name: facts for name, facts in json.loads(file.read(length)).items() if name != "__metadata__"}
    return header, HEADER_BYTES + length


def read_chunks(file: BinaryIO, start: int, facts: JsonObject) -> Iterator[bytes]:
    """Yield the bytes of a tensor in pieces."""
    begin, end = facts["data_offsets"]
    file.seek(start + begin)
    for at in range(0, end - begin, CHUNK):
        yield file.read(min(CHUNK, end - begin - at))


def has_changed(path: Path, earlier: Path | None = None) -> bool:
    """Return whether an adapter differs from the one it began with; without one, from the base.

    The first difference ends the reading. An adapter with tensors that begin at other values than zero has changed.
    """
    if earlier is not None:
        return differ(path, earlier)
    with path.open("rb") as file:
        header, start = read_header(file)
        zero = [facts for name, facts in header.items() if ZERO_AT_START.search(name)]
        whole = [name for name in header if not re.search(r"\.(lora_|oft_)", name)]
        return (
            bool(whole)
            or not zero
            or any(chunk.strip(b"\0") for facts in zero for chunk in read_chunks(file, start, facts))
        )


def differ(path: Path, other: Path) -> bool:
    """Return whether two files have other tensors, or a tensor with other bytes."""
    with path.open("rb") as file, other.open("rb") as second:
        (header, start), (before, second_start) = read_header(file), read_header(second)
        if {name: (facts["dtype"], facts["shape"]) for name, facts in header.items()} != {
            name: (facts["dtype"], facts["shape"]) for name, facts in before.items()
        }:
            return True
        for name, facts in header.items():
            pairs = zip(read_chunks(file, start, facts), read_chunks(second, second_start, before[name]), strict=True)
            if any(chunk != two for chunk, two in pairs):
                return True
    return False


EXPONENTS = {"F64": ("<u8", 0x7FF0 << 48), "F32": ("<u4", 0x7F800000), "F16": ("<u2", 0x7C00), "BF16": ("<u2", 0x7F80)}
"""Dtype -> its bits as an integer, and those of its exponent: all of them are set in NaN and infinity."""


def find_nonfinite(path: Path) -> str | None:
    """Return the name of the first tensor of a file with NaN or infinity; None if all its numbers are finite.

    Raises `ValueError` for a file that is not safetensors.
    """
    import numpy  # the command line starts without it

    with path.open("rb") as file:
        try:
            header, start = read_header(file)
        except (ValueError, MemoryError, OverflowError, AttributeError) as error:
            raise ValueError(f"{path.name} is not a safetensors file") from error
        for name, facts in header.items():
            if facts["dtype"] not in EXPONENTS:
                continue
            kind, exponent = EXPONENTS[facts["dtype"]]
            for chunk in read_chunks(file, start, facts):
                bits = numpy.frombuffer(chunk, kind)
                if ((bits & exponent) == exponent).any():
                    return name
    return None
