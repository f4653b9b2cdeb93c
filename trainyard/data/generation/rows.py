"""Account of every row that was requested: asked = kept + rejected, per document and in total.

rows.arrow         the kept rows
quarantine.jsonl   {line, source, reason, detail, rows, row}: one line per rejection, with how many rows it cost
accounting.json    totals, and {doc_id, source, asked, kept, rejected: {reason: rows}} per document

Texts to rows: which port a template fills, and how the wordings of a question become rows.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
from pyarrow import ipc

from trainyard.data.quarantine import QUARANTINE_FILE, ROW_CHARS, make_printable
from trainyard.data.rows import (
    BATCH_ROWS,
    ROWS_FILE,
    SCHEMAS,
    TRAIN,
    UNSEEN_WORDING,
    DocumentRow,
    Message,
    PreferenceRow,
    SftRow,
    read_rows,
    to_batch,
)
from trainyard.json_types import JsonObject
from trainyard.spec.axes.data import GenerationTemplate, Port
from trainyard.spec.estimate.verdict import rows_to_generate
from trainyard.spec.nodes import AiGeneratorConfig

ACCOUNTING_FILE = "accounting.json"


class DocumentCounts(msgspec.Struct):
    """The rows of one document."""

    doc_id: str
    source: str
    asked: int
    kept: int = 0
    rejected: dict[str, int] = msgspec.field(default_factory=dict)


class Books:
    """Writes rows as they come and keeps the accounts. A context manager; `close` writes the accounting."""

    def __init__(self, folder: Path, port: Port) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.port = folder, port
        self.accounts: list[DocumentCounts] = []
        self.pending: list[Any] = []
        self.questions: set[bytes] = set()
        self.pairs = self.surplus = self.rejections = self.unseen_wording = 0

    def __enter__(self) -> Books:
        self.writer = ipc.new_file(self.folder / ROWS_FILE, SCHEMAS[self.port])
        self.quarantine = (self.folder / QUARANTINE_FILE).open("wb")
        return self

    def __exit__(self, *_error: object) -> None:
        self.flush()
        self.writer.close()
        self.quarantine.close()

    def ask(self, doc_id: str, source: str, rows: int) -> DocumentCounts:
        account = DocumentCounts(doc_id, source, rows)
        self.accounts.append(account)
        return account

    def first_time(self, question: str) -> bool:
        """Return whether the question is new; case and spaces are ignored."""
        before = len(self.questions)
        self.questions.add(question_key(question))
        return len(self.questions) > before

    def keep(self, account: DocumentCounts, rows: Sequence[SftRow | PreferenceRow]) -> None:
        account.kept += len(rows)
        self.pairs += 1
        self.unseen_wording += sum(row.split == "unseen_wording" for row in rows)
        self.pending += rows
        if len(self.pending) >= BATCH_ROWS:
            self.flush()

    def reject(self, account: DocumentCounts, reason: str, rows: int, detail: str, text: str = "") -> None:
        """Count `rows` rows of a document as rejected and write one line about it."""
        if not rows:
            return
        account.rejected[reason] = account.rejected.get(reason, 0) + rows
        self.rejections += 1
        line: JsonObject = {"line": self.rejections, "source": account.source, "reason": reason}
        line |= {"detail": make_printable(detail[:ROW_CHARS]), "rows": rows, "row": make_printable(text[:ROW_CHARS])}
        self.quarantine.write(msgspec.json.encode(line) + b"\n")

    def flush(self) -> None:
        if self.pending:
            self.writer.write_batch(to_batch(self.pending, self.port))
            self.pending = []

    @property
    def rows_requested(self) -> int:
        return sum(account.asked for account in self.accounts)

    @property
    def rows_kept(self) -> int:
        return sum(account.kept for account in self.accounts)

    @property
    def rejected(self) -> Counter[str]:
        return sum((Counter(account.rejected) for account in self.accounts), Counter[str]())

    def balance(self) -> JsonObject:
        """Return the totals; asserts that every document's rows and their sum add up."""
        for account in self.accounts:
            assert account.asked == account.kept + sum(account.rejected.values()), account
        rejected = dict(sorted(self.rejected.items()))
        return {"asked": self.rows_requested, "kept": self.rows_kept, "rejected": rejected, "surplus": self.surplus}

    def write_accounting(self, facts: JsonObject) -> None:
        """Write `accounting.json`: facts of the run, the balance, and one entry per document."""
        value = {**facts, **self.balance(), "documents": self.accounts}
        (self.folder / ACCOUNTING_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=1))


def question_key(question: str) -> bytes:
    """Return what two questions share that differ in case and spaces only."""
    plain = " ".join(question.lower().split()).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(plain, digest_size=12).digest()


def spread_by_weight(count: int, weights: Sequence[float]) -> list[int]:
    """`count` shares in proportion to the weights, by largest remainder; earlier entries win ties."""
    total = sum(weights)
    if not total:
        return [0] * len(weights)
    exact = [count * weight / total for weight in weights]
    shares = [int(value) for value in exact]
    order = sorted(range(len(weights)), key=lambda index: (shares[index] - exact[index], index))
    for index in order[: count - sum(shares)]:
        shares[index] += 1
    return shares


def spread_evenly(count: int, capacities: Sequence[int]) -> list[int]:
    """At most `count` shares, as even as capacities allow: who has little gives it all, the others share the rest."""
    shares = [0] * len(capacities)
    left = count
    for position, index in enumerate(sorted(range(len(capacities)), key=lambda index: (capacities[index], index))):
        shares[index] = min(capacities[index], left // (len(capacities) - position))
        left -= shares[index]
    return shares


def read_documents(folder: Path) -> Iterator[DocumentRow]:
    """Return the rows of a documents port."""
    return cast(Iterator[DocumentRow], read_rows(folder / ROWS_FILE, Port.DOCUMENTS))


def count_wordings(config: AiGeneratorConfig) -> int:
    """Rows of one pair: only questions are asked in several wordings."""
    return config.wordings if config.template is GenerationTemplate.QA else 1


def with_heldout(config: AiGeneratorConfig, documents: int) -> AiGeneratorConfig:
    """Return the config with all rows to write as its `count`: training rows and held-out rows.

    `documents` is how many can give rows.
    """
    shares = rows_to_generate(config.count, max(1, documents), count_wordings(config), config.holdout)
    return config.model_copy(update={"count": shares.generated})


def rows_per_pair(count: int, shares: Sequence[int], wordings: int) -> list[list[int]]:
    """Rows of each pair, per document, for `shares` pairs a document.

    Every pair has `wordings` rows; where that makes more than `count`, the last pair has fewer.
    """
    rows = [[wordings] * share for share in shares]
    surplus = wordings * sum(shares) - count
    if surplus > 0:
        last = max(index for index, share in enumerate(shares) if share)
        rows[last][-1] -= surplus
    return rows


def wording_rows(
    document: DocumentRow, pair: str, wordings: Sequence[str], answer: str, *, rows: int, config: AiGeneratorConfig
) -> list[SftRow]:
    """`rows` rows of a pair: of its first wordings and, with several, of the last.

    The last is then marked `unseen_wording` if a wording of each question is to be held out. Without a hold-out a
    trainer would drop the marked rows.
    """
    questions = [*wordings[: rows - 1], wordings[-1]] if rows > 1 else [wordings[0]]
    origin = (document.doc_id, document.source, TRAIN, pair)
    result = [SftRow([Message("user", question), Message("assistant", answer)], *origin) for question in questions]
    if config.holdout is not None and config.holdout.wording and len(result) > 1:
        result[-1].split = UNSEEN_WORDING
    return result


def preference_row(document: DocumentRow, prompt: str, chosen: str, rejected: str) -> PreferenceRow:
    better, worse = ([Message("assistant", text)] for text in (chosen, rejected))
    return PreferenceRow([Message("user", prompt)], better, worse, document.doc_id, document.source)
