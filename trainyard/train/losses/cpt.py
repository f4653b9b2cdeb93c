"""CPT, continued pretraining: predict every token of running text.

Documents are tokenised, each ended by the end-of-text token, laid end to end and cut into blocks of `max_length`: no
padding, and every token occurs once. A block may contain parts of several documents, and attention crosses their
borders as it does in pretraining: the end-of-text token marks them. The first token of a block has no
predecessor in it and is masked, one in `max_length`.

A stream of documents as blocks of one length: every token once, in order.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np
from transformers import PreTrainedTokenizerBase

from trainyard.data.rows import DocumentRow, TextRow
from trainyard.spec.axes.stages import Stage
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import IGNORED, Encoded, StageSpec
from trainyard.train.losses import sft
from trainyard.train.rows.batching import pad
from trainyard.train.rows.tokens import TokenLedger, require_end_of_text, training_rows

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


def encode(
    rows: Iterable[TextRow | DocumentRow], tokenizer: PreTrainedTokenizerBase, config: TrainerConfig
) -> tuple[Sequence[Encoded], TokenLedger]:
    """Return blocks as {input_ids, labels}, stored on disk. No document is too long: it may fill several blocks."""
    ledger, block = TokenLedger(), config.hyperparameters.max_length
    texts = (TextRow(row.text, row.doc_id, row.source) if isinstance(row, DocumentRow) else row for row in rows)
    blocks = Blocks(documents(training_rows(texts, ledger), tokenizer, ledger), block)
    if blocks.tokens % block == 1:  # nothing can be learned from a last block of a single token
        blocks.tokens -= 1
        ledger.dropped = 1
    ledger.masked, ledger.trained = len(blocks), blocks.tokens - len(blocks)
    assert ledger.balanced, ledger
    return blocks, ledger


def documents(rows: Iterable[TextRow], tokenizer: PreTrainedTokenizerBase, ledger: TokenLedger) -> Iterator[list[int]]:
    """Yield the tokens of each document that has any, with one end-of-text token.

    Special tokens that a text spells out stay text. Raises `InvalidInput` (`E-TOKENIZER`) for a tokenizer without an
    end-of-text token: documents would run into one another.
    """
    end = require_end_of_text(tokenizer)
    for row in rows:
        if not row.text:
            ledger.rows["dropped_empty"] += 1
            continue
        ids = list(tokenizer(row.text, split_special_tokens=True, verbose=False)["input_ids"])
        ids += [] if ids and ids[-1] == end else [end]
        ledger.read += len(ids)
        ledger.rows["trained"] += 1
        yield ids


CPT = StageSpec(Stage.CPT.facts, encode, sft.width, pad, sft.units, sft.score, sft.loss)
