"""CRC32C (Castagnoli, RFC 3720 appendix B.4) with NumPy, for stores without the bucket client and its C extension.

A CRC is linear over GF(2): the text is cut into lanes of equal length that are worked on side by side, one table
look-up for all lanes at once, and the lanes are joined by the matrix that stands for "so many zero bytes more". About
150 MB/s on one core for large texts; a byte a time is 3 MB/s.
"""

from __future__ import annotations

import base64
from functools import cache
from pathlib import Path

import numpy as np

POLYNOMIAL = 0x82F63B78
"""Reflected 0x1EDC6F41."""
LANE_BYTES = 1024
BLOCK_BYTES = 8 << 20
_ALL = 0xFFFFFFFF


def _table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> np.uint32(1)) ^ np.uint32(POLYNOMIAL), table >> np.uint32(1))
    return table


_TABLE = _table()
_LIST = [int(value) for value in _TABLE]


class Crc32c:
    """The running checksum of a text that comes in pieces."""

    def __init__(self) -> None:
        self._value = _ALL

    def update(self, data: bytes) -> Crc32c:
        for start in range(0, len(data), BLOCK_BYTES):
            self._value = _advance(self._value, data[start : start + BLOCK_BYTES])
        return self

    @property
    def value(self) -> int:
        return self._value ^ _ALL

    def text(self) -> str:
        """Base64 of the big-endian value, as Cloud Storage writes it."""
        return base64.b64encode(self.value.to_bytes(4, "big")).decode("ascii")


def crc32c(data: bytes) -> str:
    return Crc32c().update(data).text()


def file_crc32c(path: Path) -> str:
    checksum = Crc32c()
    with path.open("rb") as stream:
        while block := stream.read(BLOCK_BYTES):
            checksum.update(block)
    return checksum.text()


def _advance(register: int, data: bytes) -> int:
    """The register after these bytes."""
    lanes = len(data) // LANE_BYTES
    if lanes >= 4:
        register = _advance_lanes(register, data[: lanes * LANE_BYTES], lanes)
        data = data[lanes * LANE_BYTES :]
    for byte in data:
        register = _LIST[(register ^ byte) & 0xFF] ^ (register >> 8)
    return register


def _advance_lanes(register: int, data: bytes, lanes: int) -> int:
    columns = np.ascontiguousarray(np.frombuffer(data, dtype=np.uint8).reshape(lanes, LANE_BYTES).T)
    registers = np.zeros(lanes, dtype=np.uint32)
    for column in columns:
        registers = _TABLE[(registers ^ column) & np.uint32(0xFF)] ^ (registers >> np.uint32(8))
    shift = _zeros(LANE_BYTES)
    for lane in registers:
        register = _times(shift, register) ^ int(lane)
    return register


@cache
def _zeros(length: int) -> tuple[tuple[int, ...], ...]:
    """What `length` zero bytes do to a register, as one table of 256 rows for each of its four bytes."""
    basis = []
    for bit in range(32):
        register = 1 << bit
        for _ in range(length):
            register = _LIST[register & 0xFF] ^ (register >> 8)
        basis.append(register)
    return tuple(tuple(_combined(basis[8 * part : 8 * part + 8], byte) for byte in range(256)) for part in range(4))


def _combined(rows: list[int], byte: int) -> int:
    result = 0
    for bit, row in enumerate(rows):
        if byte >> bit & 1:
            result ^= row
    return result


def _times(tables: tuple[tuple[int, ...], ...], register: int) -> int:
    return (
        tables[0][register & 0xFF]
        ^ tables[1][register >> 8 & 0xFF]
        ^ tables[2][register >> 16 & 0xFF]
        ^ tables[3][register >> 24]
    )
