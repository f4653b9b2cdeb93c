"""A stream of documents as blocks of one length: every token once, in order, and the place kept across a stop."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np

from trainyard.errors import InvalidInput
from trainyard.train.head import IGNORED
from trainyard.train.tokens import Encoded

TOKEN = np.dtype(np.uint32)
WRITE_AT_ONCE = 1 << 20
"""Tokens that are gathered before they are written: 4 MiB."""


class StreamPacker:
    """Cuts documents, laid end to end, into blocks of `block` tokens.

    What does not fill a block waits for the next document; `finish` returns the rest as a shorter block. The state is
    this rest and how many documents were taken, so a stream that is opened again can be continued at that document.
    """

    def __init__(self, block: int) -> None:
        if block < 1:
            raise InvalidInput(f"A block of {block} tokens is too small.", do="Use 1 or more.", code="E-BATCH")
        self.block = block
        self.documents = 0
        """Documents taken."""
        self.waiting: list[int] = []
        """Tokens that do not fill a block yet: fewer than `block`."""

    def add(self, document: list[int]) -> list[list[int]]:
        """Take a document; returns the blocks that it fills."""
        stream = self.waiting + document
        whole = len(stream) - len(stream) % self.block
        self.waiting = stream[whole:]
        self.documents += 1
        return [stream[at : at + self.block] for at in range(0, whole, self.block)]

    def finish(self) -> list[int]:
        """What is left, as a last block; empty if nothing is."""
        rest, self.waiting = self.waiting, []
        return rest

    def pack(self, documents: Iterable[list[int]]) -> Iterator[list[int]]:
        """All blocks of the rest of a stream, the short one last."""
        for document in documents:
            yield from self.add(document)
        if rest := self.finish():
            yield rest

    def state_dict(self) -> dict[str, Any]:
        return {"block": self.block, "documents": self.documents, "waiting": list(self.waiting)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where the state was saved. Raises `InvalidInput` (`E-BATCH`) for blocks of another length."""
        if state["block"] != self.block:
            raise InvalidInput(
                f"The packer's state is of blocks of {state['block']} tokens, and this one makes {self.block}.",
                why="Other blocks would begin at other tokens: the rest of the run would not be the same run.",
                do="Continue with the same max_length, or start again from the base.",
                code="E-BATCH",
            )
        self.documents, self.waiting = state["documents"], list(state["waiting"])


class Blocks(Sequence[Encoded]):
    """Blocks of text on disk, read when a batch wants them: a corpus may be larger than the memory.

    Four bytes a token, in a file without a name under TMPDIR, which is gone with the process. Every block but the last
    has `block` tokens; its first token has no predecessor and is masked.
    """

    def __init__(self, blocks: Iterable[list[int]], block: int) -> None:
        self.block = block
        self._descriptor, path = tempfile.mkstemp(prefix="trainyard-blocks-")
        os.unlink(path)
        weakref.finalize(self, os.close, self._descriptor)
        self.tokens = 0
        gathered: list[int] = []
        for one in blocks:
            gathered += one
            if len(gathered) >= WRITE_AT_ONCE:
                self._write(gathered)
                gathered = []
        self._write(gathered)

    def _write(self, tokens: list[int]) -> None:
        unwritten = memoryview(np.asarray(tokens, dtype=TOKEN).tobytes())
        while unwritten:
            unwritten = unwritten[os.write(self._descriptor, unwritten) :]
        self.tokens += len(tokens)

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
        stored = os.pread(self._descriptor, size * TOKEN.itemsize, at * TOKEN.itemsize)
        ids = np.frombuffer(stored, dtype=TOKEN).tolist()
        return {"input_ids": ids, "labels": [IGNORED, *ids[1:]]}
