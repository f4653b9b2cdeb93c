"""Counts of the pairs that the rules find in documents, before anything is trained or written."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from trainyard.data.extractive import sentences
from trainyard.data.extractive.facts import LAST_RESORT
from trainyard.data.extractive.outline import outline
from trainyard.data.extractive.pairs import Pair, pairs
from trainyard.data.generation import rows
from trainyard.data.generation.asking import MOST_PAIRS, PAIR_TOKENS, WORDING_TOKENS
from trainyard.data.generation.rows import question_key
from trainyard.data.rows import DocumentRow
from trainyard.spec.axes.data import GenerationTemplate
from trainyard.spec.nodes import AiGeneratorConfig, HoldoutRules

CHARS_PER_TOKEN = 4
PROMPT_TOKENS = 250
"""Tokens of the instructions in a request, about."""


@dataclass
class SurveyedDocument:
    """The pairs of one document."""

    document: DocumentRow
    pairs: list[Pair]
    words: int
    sentences: int
    used_sentences: int


@dataclass
class PairSurvey:
    """Pairs that the rules find in documents, counted."""

    documents: list[SurveyedDocument] = field(default_factory=list)

    @property
    def pairs(self) -> list[tuple[DocumentRow, Pair]]:
        return [(entry.document, pair) for entry in self.documents for pair in entry.pairs]

    @property
    def kinds(self) -> dict[str, int]:
        """Return rule -> pairs, the most frequent first."""
        return dict(Counter(pair.rule for _, pair in self.pairs).most_common())

    @property
    def last_resort_share(self) -> float:
        """Return the share of pairs that ask only what a page is about."""
        return sum(pair.worth >= LAST_RESORT for _, pair in self.pairs) / max(1, len(self.pairs))

    @property
    def coverage(self) -> float:
        """Return the share of the sentences that are in an answer."""
        total = sum(entry.sentences for entry in self.documents)
        return sum(entry.used_sentences for entry in self.documents) / max(1, total)

    @property
    def words(self) -> int:
        return sum(entry.words for entry in self.documents)


def survey_documents(documents: Iterable[DocumentRow], *, wordings: int) -> PairSurvey:
    """Return the pairs of the documents, without questions that an earlier document asks."""
    survey, seen = PairSurvey(), set[bytes]()
    for document in documents:
        fresh = []
        for pair in pairs(document, GenerationTemplate.QA, wordings=wordings):
            if (key := question_key(pair.wordings[0])) not in seen:
                seen.add(key)
                fresh.append(pair)
        survey.documents.append(survey_document(document, fresh))
    return survey


def survey_document(document: DocumentRow, fresh: list[Pair]) -> SurveyedDocument:
    answers = keep_letters(" ".join(pair.answer for pair in fresh))
    texts = [keep_letters(text) for text in split_sentences(document)]
    used = sum(text in answers for text in texts)
    words = sentences.num_words(document.text)
    return SurveyedDocument(
        DocumentRow(document.doc_id, document.source, document.kind, document.title, ""), fresh, words, len(texts), used
    )


def split_sentences(document: DocumentRow) -> Iterator[str]:
    """Yield the sentences, list items and table cells of a document that have three words or more."""
    if document.kind in ("code", "commit"):
        return
    for section in outline(document.kind, document.text):
        texts = [block.text for block in section.blocks] + [cell for row in section.rows for cell in row[1:]]
        for text in texts:
            yield from (part for part in sentences.sentences(text) if sentences.num_words(part) >= 3)


def keep_letters(text: str) -> str:
    """Return the letters and digits of a text, for comparison."""
    return " ".join(re.findall(r"\w+", text.lower()))


def count_rows(survey: PairSurvey, count: int, wordings: int, holdout: HoldoutRules | None) -> tuple[int, int, int]:
    """Return (pairs wanted for `count` rows to train on, pairs used, rows to train on that these leave).

    The hold-out is that of the validator: whole documents, and one wording of every other question.
    """
    config = AiGeneratorConfig(count=count, wordings=wordings, holdout=holdout)
    sources = sum(bool(entry.pairs) for entry in survey.documents)
    needed = math.ceil(rows.with_heldout(config, sources).count / wordings)
    used = min(needed, len(survey.pairs))
    return needed, used, min(count, round(count * used / max(1, needed)))


def model_cost(characters: Sequence[int], pairs_wanted: int, config: AiGeneratorConfig) -> tuple[int, int, int]:
    """Return (requests, prompt tokens, reply tokens) of a model that would write as many pairs.

    `characters` are those of each document; a request shows one piece of a document and asks for a few pairs.
    """
    pieces = sum(math.ceil(max(1, count) / config.max_chars) for count in characters)
    calls = max(math.ceil(pairs_wanted / MOST_PAIRS), min(pieces, pairs_wanted))
    piece_chars = min(sum(characters) / max(1, pieces), config.max_chars)
    prompt = round(calls * (PROMPT_TOKENS + piece_chars / CHARS_PER_TOKEN))
    return calls, prompt, pairs_wanted * (PAIR_TOKENS + WORDING_TOKENS * config.wordings)
