"""A stream of documents as blocks of one length: every token once, in order."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from typing import overload

import numpy as np

from trainyard.train.contracts import IGNORED, Encoded

TOKEN = np.dtype(np.uint32)


class Blocks(Sequence[Encoded]):
    """Documents, laid end to end and cut into blocks, on disk: a corpus may be larger than the memory.

    Four bytes a token, in a file without a name under TMPDIR, which is gone with the process. Every block but the last
    has `block` tokens, and is read when a batch wants it; its first token has no predecessor and is masked.
    """

    def __init__(self, documents: Iterable[list[int]], block: int) -> None:
        self.block = block
        self.tokens = 0
        """Tokens in the blocks; what lies behind them in the file belongs to none."""
        self._file = tempfile.TemporaryFile(prefix="trainyard-blocks-")  # noqa: SIM115 (closed with the object)
        weakref.finalize(self, self._file.close)
        for document in documents:
            self._file.write(np.asarray(document, dtype=TOKEN).tobytes())
            self.tokens += len(document)
        self._file.flush()

    def __len__(self) -> int:
        return (self.tokens + self.block - 1) // self.block

    @overload
    def __getitem__(self, index: int) -> Encoded: ...
    @overload
    def __getitem__(self, index: slice) -> list[Encoded]: ...
    def __getitem__(self, index: int | slice) -> Encoded | list[Encoded]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        at = range(len(self))[index] * self.block
        size = min(self.block, self.tokens - at)
        stored = os.pread(self._file.fileno(), size * TOKEN.itemsize, at * TOKEN.itemsize)
        ids = np.frombuffer(stored, dtype=TOKEN).tolist()
        return {"input_ids": ids, "labels": [IGNORED, *ids[1:]]}
