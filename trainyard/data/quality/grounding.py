"""Grounding: the share of an answer's different words that occur in its source document.

A word overlap, not a judgement: it finds answers that a model made up, and passes a wrong answer that is written with
the document's own words. Switched on by the validator's `grounding`; costs nothing otherwise.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from trainyard.data.quality.blocks import Block, read_blocks
from trainyard.data.quality.sensitive import mask_texts
from trainyard.data.quality.sieve import RowFilter, Vocabulary
from trainyard.data.quality.words import split_words
from trainyard.data.rows import ROWS_FILE
from trainyard.errors import InvalidInput
from trainyard.spec.axes.data import Port
from trainyard.spec.nodes import SensitiveRules


def load_vocabulary(documents: Path | None, masks: SensitiveRules) -> Vocabulary:
    """Return the words of every document of a documents folder: 8 bytes for each different word of each document.

    Documents are masked as their rows are: an answer that names `[EMAIL]` is then grounded.

    Raises `InvalidInput` (`E-DATA-NOT-FOUND`) without a folder.
    """
    if documents is None:
        raise InvalidInput(
            "The validator's grounding is set, but no documents reach it.",
            why="An answer is compared with the document that it was written from.",
            do="Put the validator behind a data_source of documents, or remove grounding.",
            code="E-DATA-NOT-FOUND",
        )
    vocabulary: Vocabulary = {}
    for block in read_blocks(documents / ROWS_FILE, Port.DOCUMENTS):
        of_block = split_words(mask_texts(pa.concat_arrays([block.column("text").fill_null("")]), masks))
        for index, doc_id in enumerate(block.column("doc_id").to_pylist()):
            vocabulary[document_key(doc_id)] = np.unique(of_block.of(index))
    return vocabulary


def document_key(doc_id: str | None) -> int:
    return xxhash.xxh3_64_intdigest((doc_id or "").encode())


def grounding(block: Block, sieve: RowFilter) -> Block:
    """Drop rows whose answer shares too few words with its document, and rows whose document is not known."""
    least = sieve.config.grounding
    if least is None or sieve.vocabulary is None or not len(block):
        return block
    answers = split_words(block.answer)
    shares = np.full(len(block), -1.0)
    for index, doc_id in enumerate(block.column("doc_id").to_pylist()):
        document = sieve.vocabulary.get(document_key(doc_id))
        if document is not None:
            shares[index] = share_found(np.unique(answers.of(index)), document)
    unknown = shares < 0
    block = sieve.ledger.drop(block, unknown, "no_document", "its source document is not among the documents")
    shares = shares[~unknown]
    detail = "{:.0%} of the answer's words are in its document, least {:.0%}"
    return sieve.ledger.drop(block, shares < least, "ungrounded", lambda row: detail.format(shares[row], least))


def share_found(answer: np.ndarray, document: np.ndarray) -> float:
    """Share of the (different) words of an answer that are among the document's; 1 for an answer without words."""
    return float(np.isin(answer, document, assume_unique=True).mean()) if len(answer) else 1.0
