"""Exact duplicates by a 128-bit hash of the row, near-duplicates by MinHash; of each group the first row stays.

Near-duplicates are found in two stages, so that the common case stays in Rust and no row is lost to an estimate:

1. *Candidates.* Every row becomes the set of its runs of two words (system messages apart). `rensa` makes a MinHash
   signature of 128 values of each set, and its LSH flags the rows that share one band of the signature with another
   row. The number of bands is the least that finds a pair at the threshold with probability 0.999 or more: at 0.9
   that is 16 bands of 8 values (0.9999); a pair at 0.5 is flagged in 6 of 100 cases, a pair at 0.1 never.
2. *Proof.* Flagged rows are compared in order with the kept rows of their bands, by the exact Jaccard similarity of
   the two sets. A row is dropped only if that is at least the threshold, and if the answers alone share at least half
   of their runs: two different answers to questions about one long text are not duplicates.

Wordings of one question (`pair`) are never duplicates of each other. Sources: Broder 1997 (MinHash), Leskovec,
Rajaraman and Ullman, Mining of Massive Datasets, chapter 3 (bands).
Memory: about 8 bytes a word and 0.7 KiB a row while the stage runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np
import pyarrow.compute as pc
import xxhash
from rensa import RMinHash, RMinHashLSH

from trainyard.data.quality.blocks import MESSAGE_COLUMNS, Block
from trainyard.data.quality.words import WordTable
from trainyard.spec.axes.data import Port

SHINGLE_WORDS = 2
"""Runs of two words: order counts, and one changed word in fifty still leaves a similarity of 0.92."""
SIGNATURE = 128
SEED = 42
FOUND_AT_THRESHOLD = 0.999
SAME_ANSWER = 0.5
MAX_COMPARED = 256
"""Kept rows that one flagged row is compared with: bounds the work on sets where thousands of rows are alike."""


def identities(block: Block) -> list[bytes]:
    """16 bytes for each row that are equal where the rows' contents are; origin and label do not count."""
    if block.port is Port.TEXT:
        texts = block.answer
    else:
        parts = [block.column("tools").fill_null("")]
        if block.port is Port.PROMPTS:
            parts.append(block.answer)
        for name in MESSAGE_COLUMNS[block.port]:
            turns = block.turns(name)
            flat = pc.binary_join_element_wise(turns.roles, turns.contents, turns.calls, "\x1f")
            parts.append(turns.join_texts(flat, separator="\x1e"))
        texts = pc.binary_join_element_wise(*parts, "\x1d")
    # XXH3 of the UTF-8 bytes of each text, without making Python strings of them.
    offsets = np.frombuffer(texts.buffers()[1], np.int32, len(texts) + 1, texts.offset * 4).tolist()
    data = memoryview(texts.buffers()[2] or b"")
    return [xxhash.xxh3_128_digest(data[start:end]) for start, end in pairwise(offsets)]


@dataclass
class Shingles:
    """The runs of two words of every row that is still in the run, block by block."""

    runs: list[np.ndarray] = field(default_factory=list)
    sizes: list[np.ndarray] = field(default_factory=list)
    answers: list[np.ndarray] = field(default_factory=list)
    """Where in a row's runs those of the answer begin."""

    def add(self, block: Block) -> None:
        self.add_words(block.row_words, np.diff(block.words.offsets)[::2])

    def add_words(self, table: WordTable, questions: np.ndarray | None = None) -> None:
        """Take the words of rows; `questions` says how many of each row's first words are the question's."""
        runs = shingles(table)
        sizes = np.diff(runs.offsets)
        self.runs.append(runs.hashes)
        self.sizes.append(sizes)
        self.answers.append(np.zeros(len(sizes), np.int64) if questions is None else np.minimum(questions, sizes))

    def near_duplicates(self, threshold: float, pairs: np.ndarray | None = None) -> dict[int, int]:
        """Row -> the earlier row that it repeats, by index over all rows that were added.

        `pairs` is one uint64 a row, 0 for none: rows with the same one are not compared.
        """
        if not self.sizes:
            return {}
        flat, sizes = np.concatenate(self.runs), np.concatenate(self.sizes)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        matrix = RMinHash.digest_matrix_from_flat_token_hashes(flat, offsets, SIGNATURE, SEED)
        flags = RMinHashLSH(threshold, SIGNATURE, bands(threshold)).query_duplicate_flags_matrix_one_shot(matrix)
        # A row without any word has an empty set, which is similar to nothing.
        flagged = np.flatnonzero(np.asarray(flags, bool) & (sizes > 0))
        pairs = np.zeros(len(sizes), np.uint64) if pairs is None else pairs
        starts, tokens = np.concatenate(self.answers)[flagged].tolist(), flat.view("V8")
        spans = zip(flagged.tolist(), offsets[flagged].tolist(), offsets[flagged + 1].tolist(), starts, strict=True)
        rows = [
            FlaggedRow(index, tokens[start:end].tolist(), answer, int(pairs[index]))
            for index, start, end, answer in spans
        ]
        return prove_duplicates(rows, threshold)


def shingles(table: WordTable) -> WordTable:
    """Runs of two words of each text; a text of one word is that word."""
    if np.diff(table.offsets).min(initial=SHINGLE_WORDS) >= SHINGLE_WORDS:
        return table.runs(SHINGLE_WORDS)
    sizes = np.diff(table.offsets)
    runs = table.runs(SHINGLE_WORDS)
    counts = np.where(sizes == 1, 1, np.diff(runs.offsets))
    offsets = np.concatenate([[0], np.cumsum(counts)])
    hashes = np.zeros(offsets[-1], np.uint64)
    single = np.repeat(sizes == 1, counts)
    hashes[single] = table.hashes[table.offsets[:-1][sizes == 1]]
    hashes[~single] = runs.hashes
    return WordTable(hashes, offsets)


def bands(threshold: float) -> int:
    """Fewest bands that flag a pair at the threshold with probability `FOUND_AT_THRESHOLD`: 1 - (1 - s^r)^b."""
    for count in (1, 2, 4, 8, 16, 32, 64):
        if 1 - (1 - threshold ** (SIGNATURE // count)) ** count >= FOUND_AT_THRESHOLD:
            return count
    return SIGNATURE


@dataclass
class FlaggedRow:
    """A flagged row."""

    index: int
    tokens: list[bytes]
    """Its runs, 8 bytes each."""
    answer_start: int
    pair: int

    @cached_property
    def all(self) -> frozenset[bytes]:
        return frozenset(self.tokens)

    @property
    def answer(self) -> frozenset[bytes]:
        return frozenset(self.tokens[self.answer_start :])


def prove_duplicates(rows: list[FlaggedRow], threshold: float) -> dict[int, int]:
    """Go through the flagged rows in order; one that is similar enough to a kept one is its duplicate."""
    index = RMinHashLSH(threshold, SIGNATURE, bands(threshold))
    signatures = RMinHash.from_token_sets([row.tokens for row in rows], SIGNATURE, SEED)
    duplicates: dict[int, int] = {}
    for position, (row, signature) in enumerate(zip(rows, signatures, strict=True)):
        for other in sorted(index.query(signature))[:MAX_COMPARED]:
            if row.pair and row.pair == rows[other].pair:
                continue
            # The answers alone have to be alike, too; that is known already where the answer is the whole row.
            whole = not row.answer_start and not rows[other].answer_start
            alike = whole or jaccard(row.answer, rows[other].answer) >= SAME_ANSWER
            if alike and jaccard(row.all, rows[other].all) >= threshold:
                duplicates[row.index] = rows[other].index
                break
        else:
            index.insert(position, signature)
    return duplicates


def jaccard(first: frozenset[bytes], other: frozenset[bytes]) -> float:
    """Shared members over all members; 1 for two empty sets."""
    shared = len(first & other)
    return shared / (len(first) + len(other) - shared) if first or other else 1.0
