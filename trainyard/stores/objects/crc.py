"""CRC32C (Castagnoli, RFC 3720 appendix B.4) as Cloud Storage writes it: base64 of the big-endian value."""

from __future__ import annotations

import base64

import google_crc32c


def crc32c(data: bytes) -> str:
    value: int = google_crc32c.value(data)
    return base64.b64encode(value.to_bytes(4, "big")).decode("ascii")
