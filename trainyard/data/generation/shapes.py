"""Texts to rows: which port a template fills, and how the wordings of a question become rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

from trainyard.data.rows import ROWS_FILE, TRAIN, UNSEEN_WORDING, DocumentRow, Message, PreferenceRow, SftRow, read_rows
from trainyard.spec.axes.data import GenerationTemplate, Port
from trainyard.spec.estimate.heldout import rows_to_generate
from trainyard.spec.nodes import AiGeneratorConfig


def read_documents(folder: Path) -> Iterator[DocumentRow]:
    """Return the rows of a documents port."""
    return cast(Iterator[DocumentRow], read_rows(folder / ROWS_FILE, Port.DOCUMENTS))


def count_wordings(config: AiGeneratorConfig) -> int:
    """Rows of one pair: only questions are asked in several wordings."""
    return config.wordings if config.template is GenerationTemplate.QA else 1


def with_heldout(config: AiGeneratorConfig, documents: int) -> AiGeneratorConfig:
    """Return the config with all rows that are to be written as its `count`: those to train on, and what is held out.

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
