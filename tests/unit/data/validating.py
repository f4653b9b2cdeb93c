"""Small sets of rows for the validator's tests, and its outputs read back."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from trainyard.data.quality.blocks import Block, RowLedger
from trainyard.data.quality.sets import documents_needed, holdout_order
from trainyard.data.quality.sieve import Item, RowFilter
from trainyard.data.rows import (
    ROWS_FILE,
    LabelledRow,
    Message,
    PreferenceRow,
    Row,
    SftRow,
    TextRow,
    read_rows,
    to_batch,
    write_rows,
)
from trainyard.data.validation import validate
from trainyard.spec.axes.data import Port
from trainyard.spec.nodes import ValidatorConfig
from trainyard.stores.artifacts import Produced, Reference

PORTS = {SftRow: Port.SFT, PreferenceRow: Port.PREFERENCE, LabelledRow: Port.LABELLED, TextRow: Port.TEXT}
LOOSE: dict[str, Any] = {
    "near_duplicates": None,
    "decontaminate": 0,
    "quality": {"min_answer_chars": 0, "max_symbol_fraction": 1, "max_repeated_line_fraction": 1},
    "holdout": {"documents": 0, "min_rows": 0, "wording": False},
}
"""A validator that drops nothing but what the test at hand is about."""


def count_words(items: Sequence[Item]) -> list[int]:
    """A token counter: one token a word, none for the template."""
    return [len(item.split()) if isinstance(item, str) else sum(len(m.content.split()) for m in item) for item in items]


def qa(question: str = "What is it?", answer: str = "It is a chain.", **fields: Any) -> SftRow:
    return SftRow([Message("user", question), Message("assistant", answer)], **fields)


def preference(
    prompt: str = "Which?", chosen: str = "The first.", rejected: str = "None.", **more: Any
) -> PreferenceRow:
    sides = [[Message("assistant", text)] for text in (chosen, rejected)]
    return PreferenceRow([Message("user", prompt)], *sides, **more)


def make_labelled(
    prompt: str = "Which?", completion: str = "The first.", label: bool = True, **more: Any
) -> LabelledRow:
    return LabelledRow([Message("user", prompt)], [Message("assistant", completion)], label, **more)


def sieve(tmp_path: Path, port: Port = Port.SFT, **config: Any) -> RowFilter:
    rules = ValidatorConfig(**{**LOOSE, **config})
    return RowFilter(rules, port, RowLedger(tmp_path / "quarantine.jsonl"), count_words)


def block(rows: Sequence[Row]) -> Block:
    port = PORTS[type(rows[0])]
    batch = to_batch(list(rows), port)
    return Block(port, batch, 1 + pa.array(range(len(rows)), pa.int64()).to_numpy())


@dataclass
class Validated:
    """What a run of the validator left."""

    produced: Produced
    folder: Path
    port: Port

    @property
    def facts(self) -> dict[str, Any]:
        return self.produced.facts

    @property
    def kept_rows(self) -> list[Any]:
        return list(read_rows(self.folder / ROWS_FILE, self.port))

    def heldout(self, name: str) -> list[Any]:
        path = self.folder / "heldout" / f"{name}.arrow"
        return list(read_rows(path, self.port)) if path.exists() else []

    @property
    def quarantine(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "quarantine.jsonl").read_text().splitlines()]

    @property
    def report(self) -> dict[str, Any]:
        return json.loads((self.folder / "report.json").read_text())


def run(
    rows: Sequence[Row], folder: Path, *, port: Port | None = None, documents: Path | None = None, **config: Any
) -> Validated:
    """Validate rows with a loose config, changed by the keywords."""
    port = port or PORTS[type(rows[0])]
    write_rows(folder / "in" / ROWS_FILE, port, rows)
    source = Reference(uri=f"file://{folder / 'in'}", sha256="", kind=port, rows=len(rows))
    produced = validate(
        ValidatorConfig(**{**LOOSE, **config}),
        source,
        folder / "out",
        tokens=count_words,
        documents=documents,
        report=lambda fraction, text: None,
    )
    return Validated(produced, folder / "out" / port.value, port)


def heldout_documents(
    doc_ids: Iterable[str], fraction: float, rows_per_document: Mapping[str, int] | None = None, min_rows: int = 0
) -> set[str]:
    """The documents to hold out.

    `doc_ids` in any order, repetitions are ignored except that, without `rows_per_document`, they count as that many
    rows. A fraction of 0 switches holding out off. Not enough rows in half of the documents: half is what is taken.
    """
    counts = Counter(doc_ids)
    ordered = sorted(counts, key=lambda doc_id: (holdout_order(doc_id), doc_id))
    rows = [counts[doc_id] if rows_per_document is None else rows_per_document.get(doc_id, 0) for doc_id in ordered]
    return set(ordered[: documents_needed(np.asarray(rows, np.int64), fraction, min_rows)])
