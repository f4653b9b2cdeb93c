"""State of a validator over one set: its rules, and the values that its steps keep from row to row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from trainyard.data.quality.blocks import RowLedger
from trainyard.data.quality.decontamination import HeldOutIndex
from trainyard.data.quality.duplicates import Shingles
from trainyard.data.quality.row_schemas import RowSchema
from trainyard.data.rows import Message
from trainyard.spec.axes.data import Port
from trainyard.spec.nodes import ValidatorConfig

Item = list[Message] | str
TokenCounter = Callable[[Sequence[Item]], list[int]]
"""Tokens of each conversation (with its template) or plain text, counted as a batch."""
Vocabulary = dict[int, np.ndarray]
"""Hash of a document's id -> its different word hashes, sorted."""


@dataclass
class SensitiveCounts:
    """Counts of rows that contain a kind of sensitive text, and of its occurrences."""

    rows: Counter[str] = field(default_factory=Counter)
    matches: Counter[str] = field(default_factory=Counter)


@dataclass
class RowFilter:
    """The run of a validator."""

    config: ValidatorConfig
    port: Port
    ledger: RowLedger
    tokens: TokenCounter
    row_validator: RowSchema | None = None
    vocabulary: Vocabulary | None = None
    evaluation: HeldOutIndex | None = None
    seen: set[bytes] = field(default_factory=set)
    shingles: Shingles = field(default_factory=Shingles)
    sensitive: SensitiveCounts = field(default_factory=SensitiveCounts)
    truncated: int = 0
    read_tokens: int = 0
