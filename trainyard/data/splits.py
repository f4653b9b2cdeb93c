"""Which documents are held out of training: a pure function of their ids, the same in every process and every run.

Documents are put in the order of `sha256("holdout:" + doc_id)`, and the first ones are taken until both wishes are
met: the share of the documents and the number of rows. Adding a document moves no other one in that order, so a set
that grows keeps its held-out documents (as far as the same share reaches).
"""

from __future__ import annotations

import hashlib
import math

import numpy as np

MOST = 0.5
"""At most half of the documents are held out, whatever number of rows is asked."""


def holdout_order(doc_id: str) -> int:
    """The place of a document in the order: the first 8 bytes of its SHA-256, as a number."""
    return int.from_bytes(hashlib.sha256(b"holdout:" + doc_id.encode()).digest()[:8], "big")


def documents_needed(rows: np.ndarray, fraction: float, min_rows: int) -> int:
    """How many of the first documents are held out, from the rows of each in the documents' order."""
    if fraction <= 0:
        return 0
    # 0.1 x 30 is 3.0000000000000004 in binary: without the small number, four documents would be taken.
    by_share = math.ceil(fraction * len(rows) - 1e-9)
    by_rows = int(np.searchsorted(np.cumsum(rows), min_rows)) + 1 if min_rows > 0 else 0
    return min(max(by_share, by_rows), int(len(rows) * MOST))
