"""Decontamination: training keeps no row that shows what a held-out row or an evaluation set asks.

A training row is dropped if it asks a whole question that is kept apart, or if it shares a run of `decontaminate`
words (13 by default) with a text that is kept apart. The method is that of Brown et al. 2020 (arXiv 2005.14165,
appendix C): lower case, no punctuation, 13-grams; and, as there, a run that occurs in more than 10 training documents
is boilerplate and does not count. That exception is for the run's held-out sets only; evaluation files are strict.

Two texts may share more, on purpose: rows of *unseen wording* are other questions about trained documents. Of those
only the questions are compared: runs of words with rows of other documents, whole questions with all rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from trainyard.data.quality.blocks import Block
from trainyard.data.quality.words import WordTable, split_words
from trainyard.errors import InvalidInput, NotFound

BOILERPLATE_DOCUMENTS = 10
"""A run of words in more training documents than this is boilerplate."""
QUESTION_KEYS = frozenset({"question", "prompt", "instruction", "input", "query", "ctx"})
SETTLE_AFTER = 1_000_000
"""Shared runs (24 bytes each) that may gather before boilerplate is sorted out; keeps repetitive sets small."""
MAX_BITMAP_BITS = 25
"""32 MiB at most, built again for each block: less time than one block's look-ups."""
SHARED = np.uint64(1)


@dataclass
class HeldOutIndex:
    """Index of a held-out set: its runs of words (each with its document) and its questions."""

    questions_only: bool = False
    strict: bool = False
    length: int = 13
    runs: list[np.ndarray] = field(default_factory=list)
    documents: list[np.ndarray] = field(default_factory=list)
    """The document of each run, where only questions count."""
    questions: list[np.ndarray] = field(default_factory=list)

    def add(self, block: Block, documents: np.ndarray, question_keys: np.ndarray) -> None:
        """Add the rows of a block; `documents` and `question_keys` (question hashes) have one uint64 per row."""
        self.add_words(questions(block) if self.questions_only else block.row_words, documents, question_keys)

    def add_words(self, table: WordTable, documents: np.ndarray, question_keys: np.ndarray) -> None:
        runs = table.runs(self.length)
        self.runs.append(runs.hashes)
        if self.questions_only:
            self.documents.append(documents[runs.owners()])
        self.questions.append(question_keys)

    def sealed(self) -> Sealed:
        """Return the set, sorted for look-up; a run that is in several documents is marked so."""
        question_keys = np.unique(concatenate(self.questions))
        question_keys = question_keys[question_keys != 0]
        runs, documents = concatenate(self.runs), concatenate(self.documents)
        self.runs, self.documents = [], []
        if not self.questions_only:
            return Sealed(self, np.unique(runs), documents[:0], question_keys)
        order = np.argsort(runs, kind="stable")
        runs, documents = runs[order], documents[order]
        starts = np.flatnonzero(np.concatenate([[True], runs[1:] != runs[:-1]])[: len(runs)])
        owners = documents[starts]
        if len(starts):
            lowest, highest = np.minimum.reduceat(documents, starts), np.maximum.reduceat(documents, starts)
            owners[lowest != highest] = SHARED
        return Sealed(self, runs[starts], owners, question_keys)


class Sealed:
    """A set kept apart, sorted, and what training rows share with it."""

    def __init__(self, apart: HeldOutIndex, runs: np.ndarray, owners: np.ndarray, questions: np.ndarray) -> None:
        self.apart, self.runs, self.owners, self.questions = apart, runs, owners, questions
        self.boilerplate = np.zeros(len(runs), bool)
        self.asks: list[np.ndarray] = []
        """Training rows that ask a question of the set."""
        self.shared: list[np.ndarray] = []
        """(run, document, row) of each run that a training row shares, three uint64 a column."""
        self.settled = 0
        """Shared runs that were left when they were last settled."""

    def compare(self, block: Block, rows: np.ndarray, documents: np.ndarray, question_keys: np.ndarray) -> None:
        """Note what training rows share with the set; `rows` are their indices over the run."""
        self.asks.append(rows[look_up(question_keys, self.questions)[0]])
        runs = (questions(block) if self.apart.questions_only else block.row_words).runs(self.apart.length)
        hit, index = look_up(runs.hashes, self.runs)
        owner, index = runs.owners()[hit], index[hit]
        counts = ~self.boilerplate[index]
        if self.apart.questions_only:
            counts &= self.owners[index] != documents[owner]
        owner, index = owner[counts], index[counts]
        if self.apart.strict:
            self.asks.append(np.unique(rows[owner]))
            return
        self.shared.append(np.stack([index.astype(np.uint64), documents[owner], rows[owner].astype(np.uint64)]))
        if sum(part.shape[1] for part in self.shared) > 2 * self.settled + SETTLE_AFTER:
            self.settle()

    def settle(self) -> np.ndarray:
        """Forget the runs that have turned out to be boilerplate. Returns the (run, document, row) that are left.

        A run that is not boilerplate is never forgotten, so counting what is left counts all its documents.
        """
        shared = np.concatenate([np.zeros((3, 0), np.uint64), *self.shared], axis=1)
        shared = shared[:, np.lexsort((shared[1], shared[0]))]
        new = np.ones(shared.shape[1], bool)
        new[1:] = (shared[0, 1:] != shared[0, :-1]) | (shared[1, 1:] != shared[1, :-1])
        documents = np.bincount(shared[0, new].astype(np.int64), minlength=len(self.runs))
        self.boilerplate |= documents > BOILERPLATE_DOCUMENTS
        shared = shared[:, ~self.boilerplate[shared[0].astype(np.int64)]]
        self.shared, self.settled = [shared], shared.shape[1]
        return shared

    def find_contaminated(self) -> np.ndarray:
        """Indices of the training rows that have to go."""
        rows = self.settle()[2].astype(np.int64)
        return np.unique(np.concatenate([rows, *self.asks]).astype(np.int64))


def questions(block: Block) -> WordTable:
    """Words of the questions of a block."""
    return block.words.keep(np.arange(len(block.words)) % 2 == 0)


def question_hashes(block: Block) -> np.ndarray:
    """uint64 hash of each row's question by its words, or by its characters where it has no word; 0 for none."""
    hashes = questions(block).text_hashes()
    for index in np.flatnonzero(hashes == 0).tolist():
        text = block.question[index].as_py().strip()
        hashes[index] = xxhash.xxh3_64_intdigest(text.encode()) if text else 0
    return hashes


def look_up(values: np.ndarray, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each value, whether it is in the sorted table, and where it would be."""
    hit, index = np.zeros(len(values), bool), np.zeros(len(values), np.int64)
    if not len(table) or not len(values):
        return hit, index
    # Most values are not there. A look at a bitmap of their first bits, 16 times as long as the table, spares nearly
    # all of them the binary search, whose cache misses would be half of the validator's time.
    shift = np.uint64(64 - min(max((16 * len(table)).bit_length(), 10), MAX_BITMAP_BITS))
    bitmap = np.zeros(1 << (64 - int(shift)), bool)
    bitmap[table >> shift] = True
    likely = np.flatnonzero(bitmap[values >> shift])
    index[likely] = np.minimum(np.searchsorted(table, values[likely]), len(table) - 1)
    hit[likely] = table[index[likely]] == values[likely]
    return hit, index


def concatenate(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, np.uint64)


# --- evaluation files -----------------------------------------------------------------------------------------------


def load_evaluation_sets(paths: tuple[str, ...], length: int) -> HeldOutIndex | None:
    """Questions and texts of task files: JSON Lines, or one JSON list. None without files.

    Raises `NotFound` (`E-EVALUATION-SET`) or `InvalidInput` (`E-EVALUATION-SET`) naming file and line.
    """
    if not paths:
        return None
    apart = HeldOutIndex(strict=True, length=length)
    for path in paths:
        for questions, texts in tasks(Path(path)):
            table = split_words(pa.array([*questions, "\n".join(texts)], pa.string()))
            hashes = table.text_hashes()
            apart.add_words(table, np.zeros(len(table), np.uint64), hashes[: len(questions)])
    return apart


def tasks(path: Path) -> Iterator[tuple[list[str], list[str]]]:
    """(questions, all texts) of each task of a file."""
    if not path.is_file():
        raise NotFound(
            f"The evaluation set {path} does not exist.",
            do="Correct evaluation_sets of the validator.",
            code="E-EVALUATION-SET",
        )
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            line = line.removeprefix(b"\xef\xbb\xbf").strip()
            if not line:
                continue
            if number == 1 and line.startswith(b"["):
                yield from (task_texts(task) for task in decode(line + stream.read(), path, number))
                return
            yield task_texts(decode(line, path, number))


def decode(text: bytes, path: Path, number: int) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(
            f"Line {number} of the evaluation set {path} is not JSON: {error}.",
            do="Give a file with one JSON object a line, or one JSON list.",
            code="E-EVALUATION-SET",
        ) from error


def task_texts(task: Any) -> tuple[list[str], list[str]]:
    """Return the questions of a task (by the names that task files use) and all its texts."""
    questions, texts, open_ = [], [], [("", task)]
    while open_:
        key, value = open_.pop()
        if isinstance(value, str):
            texts.append(value)
            if key in QUESTION_KEYS:
                questions.append(value)
        elif isinstance(value, dict):
            is_user = value.get("role") == "user"
            open_ += [("question" if is_user and name == "content" else name, part) for name, part in value.items()]
        elif isinstance(value, list):
            open_ += [(key, part) for part in value]
    return questions, texts
