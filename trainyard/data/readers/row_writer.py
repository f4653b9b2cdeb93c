"""The writing end of every reader: rows to `rows.arrow`, bad rows to the quarantine, everything counted."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from types import TracebackType

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import ipc
from xxhash import xxh3_128_digest

from trainyard.data.quarantine import QUARANTINE_FILE, Balance, Quarantine
from trainyard.data.readers.chunks import Chunk
from trainyard.data.rows import BATCH_ROWS, ROWS_FILE, SCHEMAS, Row, to_batch
from trainyard.spec.axes.data import Port

ENCODER = msgspec.json.Encoder()
PENDING_BYTES = 256 << 20
"""Rows that are kept in memory until they are written: 10,000, or fewer large ones."""


class SeenRows:
    """Exact duplicates of any number of rows in 16 bytes each: digests in sorted runs, merged as they grow.

    A set of Python bytes objects takes about 110 bytes a row; on a 2 GB file of 2.5 million rows that alone would be
    270 MB. Here a batch is looked up in each run by binary search. Runs double in length, so there are about
    log2(rows / batch) of them and each digest is merged that often: about 0.5 µs a row in all at 2.5 million rows.

    Two rows count as equal when all 128 bits of their digests are.
    """

    def __init__(self) -> None:
        self._runs: list[tuple[np.ndarray, np.ndarray]] = []
        """(high 64 bits sorted, low 64 bits in the same order), longest first."""

    def __len__(self) -> int:
        return sum(len(high) for high, _ in self._runs)

    def fresh(self, digests: list[bytes]) -> np.ndarray:
        """Which of these digests (16 bytes each) are new, as booleans; the new ones are remembered."""
        high, low = np.frombuffer(b"".join(digests), dtype=">u8").reshape(-1, 2).T.astype("u8")
        order = np.argsort(high, kind="stable")
        high, low = high[order], low[order]
        new = np.ones(len(high), dtype=bool)
        new[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
        for run_high, run_low in self._runs:
            at = np.minimum(np.searchsorted(run_high, high), len(run_high) - 1)
            new &= (run_high[at] != high) | (run_low[at] != low)
        result = np.empty(len(new), dtype=bool)
        result[order] = new
        high, low = high[new], low[new]
        while self._runs and len(self._runs[-1][0]) <= 2 * len(high):
            other_high, other_low = self._runs.pop()
            high, low = np.concatenate((other_high, high)), np.concatenate((other_low, low))
            order = np.argsort(high, kind="stable")
            high, low = high[order], low[order]
        if len(high):
            self._runs.append((high, low))
        return result


class RowWriter:
    """A set being written into `folder`. A context manager; `take` chunks, then read `balance`.

    XXH3-128 of a row's normalised content (`source` and `doc_id` still empty) finds exact duplicates, and its first
    half is the `doc_id` of a row that came from no document.
    """

    def __init__(self, folder: Path, port: Port, *, deduplicate: bool = False, max_rows: int | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port, self.balance = port, Balance()
        self._left = max_rows
        self._seen = SeenRows() if deduplicate else None
        self._pending: list[Row] = []
        self._digests: list[bytes] = []
        self._pending_bytes = 0
        self._file = pa.OSFile(str(folder / ROWS_FILE), "wb")
        self._writer = ipc.new_file(self._file, SCHEMAS[port])
        self.quarantine = Quarantine(folder / QUARANTINE_FILE, self.balance)

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self._flush()
        self._writer.close()
        self._file.close()
        self.quarantine.close()

    @property
    def full(self) -> bool:
        """Whether `max_rows` rows were taken."""
        return self._left is not None and self._left <= 0

    @property
    def num_rows(self) -> int:
        """Rows so far, bad ones left out."""
        return self.balance.read - self.balance.bad + len(self._pending)

    def take(self, chunk: Chunk) -> None:
        """Count and keep a chunk, as far as `max_rows` allows."""
        rows, kinds = chunk.rows, chunk.kinds
        if self._left is not None:
            rows, kinds = rows[: self._left], kinds[: self._left]
            self._left -= len(rows)
        for bad in itertools.takewhile(lambda bad: not self.full or bad.before < len(rows), chunk.bad):
            self.quarantine.add(chunk.source, bad.line, bad.offset, bad.reason, bad.text)
        for kind, count in Counter(kinds).items():
            self.balance.shapes[kind.shape.name] += count
            self.balance.ignore(kind.ignored, count)
        # Each row gets its digest, its place, and its `doc_id` if it came from no document.
        encode, digests = ENCODER.encode, self._digests
        for row, source in zip(rows, chunk.sources, strict=False):
            digest = xxh3_128_digest(encode(row))
            digests.append(digest)
            row.source = source
            if not row.doc_id:
                row.doc_id = digest[:8].hex()
        self._pending += rows
        self._pending_bytes += chunk.size
        if len(self._pending) >= BATCH_ROWS or self._pending_bytes >= PENDING_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._pending:
            return
        rows = self._pending
        self.balance.read += len(rows)
        if self._seen is not None:
            rows = list(itertools.compress(rows, self._seen.fresh(self._digests).tolist()))
            self.balance.dropped["duplicate"] += len(self._pending) - len(rows)
        if rows:
            self._writer.write_batch(to_batch(rows, self.port))
        self.balance.kept_rows += len(rows)
        self._pending, self._digests, self._pending_bytes = [], [], 0
