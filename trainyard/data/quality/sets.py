"""Steps over the whole set: near-duplicates, held-out sets, decontamination.

Each row that passed the row steps leaves a small entry in `KeptRows` (42 bytes) and itself in the working file. Every
set step has the signature `(survivors, sieve) -> None` and writes the fate of rows; a row whose fate is no longer
`TRAIN` is not looked at again, except that a wording falls when its question is no longer trained.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from trainyard.data.quality.blocks import Block, read_blocks
from trainyard.data.quality.decontamination import HeldOutIndex, question_hashes
from trainyard.data.quality.duplicates import Shingles, identities
from trainyard.data.quality.sieve import RowFilter
from trainyard.data.quality.words import WordTable
from trainyard.data.rows import SCHEMAS, UNSEEN_DOCUMENTS, UNSEEN_WORDING, Row
from trainyard.spec.axes.data import Port
from trainyard.spec.nodes import ValidatorConfig

MOST = 0.5
"""At most half of the documents are held out, whatever number of rows is asked."""
FEWEST_ANSWER_WORDS = 5
"""Of an answer that makes rows belong together."""
WITHOUT_CONTENT = ("doc_id", "source", "split", "pair")
"""Fields of a row that say where it is from."""


class RowStatus(IntEnum):
    """Destination of a row. From `NEAR_DUPLICATE` on it is dropped, and the name is its reason."""

    TRAIN = 0
    UNSEEN_DOCUMENTS = 1
    UNSEEN_WORDING = 2
    NEAR_DUPLICATE = 3
    SPARE_WORDING = 4
    SEEN_WORDING = 5
    UNTRAINED_WORDING = 6
    CONTAMINATED_UNSEEN_DOCUMENTS = 7
    CONTAMINATED_UNSEEN_WORDING = 8
    CONTAMINATED_EVALUATION_SETS = 9

    @property
    def reason(self) -> str:
        return self.name.lower()


DETAILS = {
    RowStatus.NEAR_DUPLICATE: "almost the same as line {origin}",
    RowStatus.SPARE_WORDING: "another wording of this question is in the set of unseen documents",
    RowStatus.SEEN_WORDING: "training asks this question in the same words, so it cannot test an unseen wording",
    RowStatus.UNTRAINED_WORDING: "the other wordings of this question are not in training any more",
    RowStatus.CONTAMINATED_UNSEEN_DOCUMENTS: "shares a question or a run of words with the set of unseen documents",
    RowStatus.CONTAMINATED_UNSEEN_WORDING: "shares a question or a run of words with the set of unseen wording",
    RowStatus.CONTAMINATED_EVALUATION_SETS: "shares a question or a run of words with an evaluation set",
}
MARKS = {UNSEEN_DOCUMENTS: 1, UNSEEN_WORDING: 2}


@dataclass
class KeptRows:
    """An entry a row of the working file, as columns."""

    path: Path
    port: Port
    numbers: np.ndarray
    """Line in the incoming set."""
    documents: np.ndarray
    """uint64 place of the row's document in the hold-out order; equal for equal documents."""
    pairs: np.ndarray
    """uint64, equal for wordings of one question; 0 for none."""
    question_keys: np.ndarray
    """uint64 hash of the question's words; 0 for none."""
    tokens: np.ndarray
    marks: np.ndarray
    """Reservation by the generator: 0 nothing, 1 unseen documents, 2 unseen wording."""
    fates: np.ndarray
    origins: dict[int, int] = field(default_factory=dict)
    """Near-duplicate -> line of the row that it repeats."""

    def __len__(self) -> int:
        return len(self.numbers)

    def are(self, fate: RowStatus) -> np.ndarray:
        return np.asarray(self.fates == fate)

    def blocks(self) -> Iterator[tuple[Block, np.ndarray]]:
        """Yield the working file again: blocks with their lines in the incoming set, and the entries of their rows."""
        for block in read_blocks(self.path, self.port):
            entries = block.numbers - 1
            yield read_work_block(block.batch, self.port, self.numbers[entries]), entries

    def detail(self, entry: int) -> str:
        return DETAILS[RowStatus(self.fates[entry])].format(origin=self.origins.get(entry, 0))


def work_schema(port: Port) -> pa.Schema:
    """Rows with their words, the question's first, so that words are counted once in a run."""
    return SCHEMAS[port].append(pa.field("words", pa.list_(pa.uint64()))).append(pa.field("asked", pa.int64()))


def with_words(block: Block) -> pa.RecordBatch:
    """Return a block's rows for the working file."""
    table = block.row_words
    column = pa.ListArray.from_arrays(pa.array(table.offsets, pa.int32()), pa.array(table.hashes))
    sizes = pa.array(np.diff(block.words.offsets)[::2])
    return block.batch.append_column("words", column).append_column("asked", sizes)


def read_work_block(batch: pa.RecordBatch, port: Port, numbers: np.ndarray, tokens: np.ndarray | None = None) -> Block:
    """Return the block of a batch of the working file."""
    rows = batch.select(SCHEMAS[port].names)
    # The words, question and body in turn.
    column = batch.column("words")
    starts = column.offsets.to_numpy().astype(np.int64)
    ends = np.stack([starts[:-1] + batch.column("asked").to_numpy(), starts[1:]], axis=1).ravel() - starts[0]
    table = WordTable(column.flatten().to_numpy(), np.concatenate([[0], ends]))
    return Block(port, rows, numbers, tokens, table)


ENTRY_COLUMNS = 7
"""Of `Entries`: lines, documents, pairs, questions, tokens, marks, answers."""


@dataclass
class Entries:
    """Collects the entries of `KeptRows` block by block."""

    columns: list[tuple[np.ndarray, ...]] = field(default_factory=list)

    def add(self, block: Block) -> None:
        documents, pairs = origins(block)
        splits = block.column("split").to_pylist()
        marks = np.fromiter((MARKS.get(split, 0) for split in splits), np.uint8, len(block))
        assert block.tokens is not None
        answers = answer_places(block)
        self.columns.append((block.numbers, documents, pairs, question_hashes(block), block.tokens, marks, answers))

    def survivors(self, path: Path, port: Port) -> KeptRows:
        kinds = (np.int64, np.uint64, np.uint64, np.uint64, np.int64, np.uint8, np.uint64)
        whole = [
            np.concatenate([np.zeros(0, kind), *(part[index] for part in self.columns)]).astype(kind)
            for index, kind in enumerate(kinds)
        ]
        numbers, documents, pairs, question_keys, tokens, marks, answers = whole
        documents = join_same_answers(documents, answers)
        fates = np.zeros(len(numbers), np.uint8)
        return KeptRows(path, port, numbers, documents, pairs, question_keys, tokens, marks, fates)


def origins(block: Block) -> tuple[np.ndarray, np.ndarray]:
    """(document, pair) of each row as numbers. A row without a document is its own."""
    ids = block.column("doc_id").to_pylist()
    if not all(ids):
        ids = [doc_id or key.hex() for doc_id, key in zip(ids, identities(block), strict=True)]
    orders = {doc_id: holdout_order(doc_id) for doc_id in set(ids)}
    documents = np.fromiter((orders[doc_id] for doc_id in ids), np.uint64, len(block))
    if "pair" not in block.batch.schema.names:
        return documents, np.zeros(len(block), np.uint64)
    names = zip(ids, block.column("pair").to_pylist(), strict=True)
    keys = (xxhash.xxh3_64_intdigest(f"{doc_id}\0{pair}".encode()) if pair else 0 for doc_id, pair in names)
    return documents, np.fromiter(keys, np.uint64, len(block))


def answer_places(block: Block) -> np.ndarray:
    """uint64 place of each row's answer in the hold-out order; 0 for a short one, such as a label."""
    if block.port is Port.TEXT:
        return np.zeros(len(block), np.uint64)
    lengths = np.diff(block.words.offsets)[1::2].tolist()
    answers = block.answer.to_pylist()
    return np.fromiter(
        (
            holdout_order(answer) if length >= FEWEST_ANSWER_WORDS else 0
            for answer, length in zip(answers, lengths, strict=True)
        ),
        np.uint64, len(block),
    )  # fmt: skip


def join_same_answers(documents: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """Return the documents, with those of one row that give the same answer as one.

    Such a set asks for each answer in several ways. With one row held out, decontamination would drop all others that
    give its answer.
    """
    _, of_row, rows = np.unique(documents, return_inverse=True, return_counts=True)
    _, of_answer, answered = np.unique(answers, return_inverse=True, return_counts=True)
    joined = (answers != 0) & (rows[of_row] == 1) & (answered[of_answer] > 1)
    return np.where(joined, answers, documents)


# --- near-duplicates ------------------------------------------------------------------------------------------------


def drop_near_duplicates(survivors: KeptRows, sieve: RowFilter) -> None:
    """Rows that are almost an earlier row."""
    if sieve.config.near_duplicates is None:
        return
    duplicates = sieve.shingles.near_duplicates(sieve.config.near_duplicates, survivors.pairs)
    sieve.shingles = Shingles()
    for entry, earlier in duplicates.items():
        survivors.fates[entry] = RowStatus.NEAR_DUPLICATE
        survivors.origins[entry] = int(survivors.numbers[earlier])


# --- held-out sets --------------------------------------------------------------------------------------------------
#
# Which documents are held out is a pure function of their ids, the same in every process and every run: they are put in
# the order of `sha256("holdout:" + doc_id)`, and the first ones are taken until both wishes are met: the share of the
# documents and the number of rows. Adding a document moves no other one in that order, so a set that grows keeps its
# held-out documents (as far as the same share reaches).
#
# The rows that a trainer holds out for its own evaluations are chosen in the same way, by their content and its seed.


def holdout_order(doc_id: str) -> int:
    """Return the place of a document in the order: the first 8 bytes of its SHA-256, as a number."""
    return order_key(b"holdout:" + doc_id.encode())


def order_key(name: bytes) -> int:
    return int.from_bytes(hashlib.sha256(name).digest()[:8], "big")


def row_order(row: Row, seed: int) -> int:
    """The place of a row in the order of a seed. Equal rows have the same, and so have the wordings of one question."""
    pair = getattr(row, "pair", "")
    fields = msgspec.structs.asdict(row)
    content = [row.doc_id, pair] if pair else [fields[name] for name in fields if name not in WITHOUT_CONTENT]
    return order_key(b"evaluation:%d:" % seed + msgspec.json.encode(content))


def first_rows(orders: Iterable[int], share: float, most: int) -> set[int]:
    """Return the places that are held out: the first ones, up to a share of the rows and `most` of them.

    At least one is taken and at least one is left for training; empty where there is only one.
    """
    values, rows = np.unique(np.fromiter(orders, np.uint64), return_counts=True)
    count = min(most, math.ceil(share * int(rows.sum()) - 1e-9))
    groups = int(np.searchsorted(np.cumsum(rows), count)) + 1
    return set(values[: min(groups, len(values) - 1)].tolist()) if len(values) > 1 else set()


def documents_needed(rows: np.ndarray, fraction: float, min_rows: int) -> int:
    """Return how many of the first documents are held out, from the rows of each in the documents' order."""
    if fraction <= 0:
        return 0
    # 0.1 x 30 is 3.0000000000000004 in binary: without the small number, four documents would be taken.
    by_share = math.ceil(fraction * len(rows) - 1e-9)
    by_rows = int(np.searchsorted(np.cumsum(rows), min_rows)) + 1 if min_rows > 0 else 0
    return min(max(by_share, by_rows), int(len(rows) * MOST))


def holdout(survivors: KeptRows, sieve: RowFilter) -> None:
    """Rows of held-out documents, then one wording of each question that training asks in other words."""
    alive = survivors.are(RowStatus.TRAIN)
    # The first documents of the order, and those with a row that its maker marked so.
    documents, of_row = np.unique(survivors.documents[alive], return_inverse=True)
    rows = np.bincount(of_row[last_wording(survivors, alive)[alive]], minlength=len(documents))
    first = documents[: documents_needed(rows, sieve.config.holdout.documents, sieve.config.holdout.min_rows)]
    marked = survivors.documents[alive & (survivors.marks == MARKS[UNSEEN_DOCUMENTS])]
    held_out = alive & np.isin(survivors.documents, np.union1d(first, marked))
    survivors.fates[held_out] = RowStatus.SPARE_WORDING
    survivors.fates[last_wording(survivors, held_out)] = RowStatus.UNSEEN_DOCUMENTS
    if sieve.config.holdout.wording:
        # A marked wording if training asks the same question, but never in the same words.
        train = survivors.are(RowStatus.TRAIN)
        marked_rows = train & (survivors.marks == MARKS[UNSEEN_WORDING])
        eligible = marked_rows & find_trained(survivors, train & ~marked_rows)
        question_keys = survivors.question_keys[train & ~eligible]
        survivors.fates[eligible] = RowStatus.UNSEEN_WORDING
        survivors.fates[eligible & np.isin(survivors.question_keys, question_keys[question_keys != 0])] = (
            RowStatus.SEEN_WORDING
        )


def last_wording(survivors: KeptRows, among: np.ndarray) -> np.ndarray:
    """Return one row of each question: the last wording among these rows, and every row without other wordings."""
    entries = np.flatnonzero(among & (survivors.pairs != 0))[::-1]
    _, first = np.unique(survivors.pairs[entries], return_index=True)
    is_last = among & (survivors.pairs == 0)
    is_last[entries[first]] = True
    return np.asarray(is_last)


def find_trained(survivors: KeptRows, train: np.ndarray) -> np.ndarray:
    """Rows whose question (or document, where rows have no pair) is asked by a training row."""
    by_pair = np.isin(survivors.pairs, survivors.pairs[train])
    by_document = np.isin(survivors.documents, survivors.documents[train])
    return np.asarray(np.where(survivors.pairs != 0, by_pair, by_document))


# --- decontamination ------------------------------------------------------------------------------------------------


def decontamination(survivors: KeptRows, sieve: RowFilter) -> None:
    """Training rows that show a question or a run of words of a set that is kept apart."""
    length = sieve.config.decontaminate
    if not length:
        return
    documents, wording = HeldOutIndex(length=length), HeldOutIndex(questions_only=True, length=length)
    for block, entries in survivors.blocks():
        for fate, apart in ((RowStatus.UNSEEN_DOCUMENTS, documents), (RowStatus.UNSEEN_WORDING, wording)):
            mask = survivors.fates[entries] == fate
            if mask.any():
                masked = entries[mask]
                apart.add(block.keep(mask), survivors.documents[masked], survivors.question_keys[masked])
    sealed = {
        RowStatus.CONTAMINATED_UNSEEN_DOCUMENTS: documents.sealed(),
        RowStatus.CONTAMINATED_UNSEEN_WORDING: wording.sealed(),
    }
    if sieve.evaluation is not None:
        sealed[RowStatus.CONTAMINATED_EVALUATION_SETS] = sieve.evaluation.sealed()
    for block, entries in survivors.blocks():
        mask = survivors.fates[entries] == RowStatus.TRAIN
        if mask.any():
            part, train_entries = block.keep(mask), entries[mask]
            for sealed_set in sealed.values():
                sealed_set.compare(
                    part, train_entries, survivors.documents[train_entries], survivors.question_keys[train_entries]
                )
    for fate, sealed_set in sealed.items():
        rows = sealed_set.find_contaminated()
        survivors.fates[rows[survivors.fates[rows] == RowStatus.TRAIN]] = fate
    held_out = survivors.are(RowStatus.UNSEEN_WORDING)
    survivors.fates[held_out & ~find_trained(survivors, survivors.are(RowStatus.TRAIN))] = RowStatus.UNTRAINED_WORDING


def list_small_sets(survivors: KeptRows, config: ValidatorConfig) -> list[str]:
    """Return a sentence for each held-out set that is smaller than asked."""
    rules, sentences = config.holdout, []
    held_out = int(survivors.are(RowStatus.UNSEEN_DOCUMENTS).sum())
    if rules.documents > 0 and held_out < rules.min_rows:
        count = len(np.unique(survivors.documents[survivors.fates != RowStatus.NEAR_DUPLICATE]))
        sentences.append(
            f"unseen_documents has {held_out} rows, asked were {rules.min_rows}: of {count} documents at most half may "
            "be held out. Add documents, or lower holdout.min_rows."
        )
    marked = int((survivors.marks == MARKS[UNSEEN_WORDING]).sum())
    wordings = int(survivors.are(RowStatus.UNSEEN_WORDING).sum())
    if rules.wording and marked and wordings < rules.min_rows:
        sentences.append(
            f"unseen_wording has {wordings} rows, asked were {rules.min_rows}: {marked} rows were marked for it. "
            "Generate more rows, or lower holdout.min_rows."
        )
    return sentences
