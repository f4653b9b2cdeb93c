"""The pairs that documents give by rule, shown before a training: counts, examples, coverage, a model's cost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from trainyard.app.responses import Response
from trainyard.data.rows import DocumentRow
from trainyard.errors import InvalidInput
from trainyard.operations.data import PreviewInput
from trainyard.spec.nodes import AiGeneratorConfig, HoldoutRules

if TYPE_CHECKING:
    from trainyard.data.extractive.pairs import Pair
    from trainyard.data.generation.survey import PairSurvey

ENOUGH_SHARE = 1 / 3
"""Below this share of the wanted rows, a model should write the pairs."""
MOST_EMPTY = 20
"""Documents without a pair that are named."""


class GeneratedPair(Response):
    """A question with its wordings, and the answer in the words of the document."""

    question: str
    wordings: tuple[str, ...]
    """All wordings of the question; the last one is held out where a validator follows."""
    answer: str
    kind: str
    source: str


class ModelCost(Response):
    """Estimated tokens that a language model reads and writes for as many pairs."""

    calls: int
    prompt_tokens: int
    reply_tokens: int
    basis: str


class PairCounts(Response):
    """Number of pairs that documents give, of those that were requested."""

    documents: int
    documents_with_pairs: int
    documents_without_pairs: tuple[str, ...]
    """The first 20 documents that give no pair."""
    wanted_rows: int
    """Rows to train on that were requested."""
    wanted_pairs: int
    """Pairs that these rows need, with what a validator holds out."""
    found_pairs: int
    trained_rows: int
    """Rows to train on that the found pairs give, at most those requested."""
    found_share: float
    """Share of the wanted pairs that was found, at most 1."""
    enough: bool
    """Whether at least a third of the wanted pairs was found."""
    wordings: int


class GenerationPreview(PairCounts):
    """The pairs that the rules find in documents, without a model."""

    kinds: dict[str, int]
    """Kind of question -> pairs, the most frequent first."""
    examples: tuple[GeneratedPair, ...]
    """Pairs of different kinds, spread over the documents."""
    sentences: int
    used_sentences: int
    coverage: float
    """Share of the sentences, list items and table cells that are in an answer."""
    words: int
    words_per_pair: float | None
    last_resort_share: float
    """Share of the pairs that only ask what a page is about."""
    model_cost: ModelCost
    advice: str
    """What to do where few pairs were found; else empty."""


def survey_pairs(request: PreviewInput, documents: Iterable[DocumentRow]) -> tuple[GenerationPreview, PairSurvey]:
    """Return the preview of the pairs of some documents, and the pairs."""
    # Imported here: it brings the word lists, which a preview of rows does not need.
    from trainyard.data.generation import survey as rules  # brings the word lists

    characters: list[int] = []

    def count_documents() -> Iterable[DocumentRow]:
        for document in documents:
            characters.append(len(document.text))
            yield document

    survey: PairSurvey = rules.survey_documents(count_documents(), wordings=request.wordings)
    target_count, _, rows = rules.count_rows(survey, request.count, request.wordings, HoldoutRules())
    pair_count = len(survey.pairs)
    calls, prompt, reply = rules.model_cost(
        characters, target_count, AiGeneratorConfig(count=request.count, wordings=request.wordings)
    )
    share = min(1.0, pair_count / max(1, target_count))
    empty = [entry.document.source for entry in survey.documents if not entry.pairs]
    total = sum(entry.sentences for entry in survey.documents)
    preview = GenerationPreview(
        documents=len(survey.documents),
        documents_with_pairs=len(survey.documents) - len(empty),
        documents_without_pairs=tuple(empty[:MOST_EMPTY]),
        wanted_rows=request.count,
        wanted_pairs=target_count,
        found_pairs=pair_count,
        trained_rows=rows,
        found_share=round(share, 4),
        enough=share >= ENOUGH_SHARE,
        wordings=request.wordings,
        kinds=survey.kinds,
        examples=tuple(show_pair(document, pair) for document, pair in choose_examples(survey, request.rows)),
        sentences=total,
        used_sentences=sum(entry.used_sentences for entry in survey.documents),
        coverage=round(survey.coverage, 4),
        words=survey.words,
        words_per_pair=round(survey.words / pair_count, 1) if pair_count else None,
        last_resort_share=round(survey.last_resort_share, 4),
        model_cost=ModelCost(
            calls=calls, prompt_tokens=prompt, reply_tokens=reply,
            basis=f"{target_count:,} pairs in {request.wordings} wordings, 8 pairs a request, four characters a token",
        ),
        advice=advise(share, pair_count, survey),
    )  # fmt: skip
    return preview, survey


def check_documents(request: PreviewInput, port: str) -> None:
    """Raise `InvalidInput` (`E-DATA-FORMAT`) where the data set does not contain documents."""
    if port != "documents":
        raise InvalidInput(
            f"{request.path[:200]!r} has rows for {port}, not documents.",
            why="generate shows the pairs that are taken from documents; these rows are trained as they are.",
            do="Leave generate out, or name a folder with documents (.md .txt .rst .html .pdf .docx).",
            code="E-DATA-FORMAT",
        )


def choose_examples(survey: PairSurvey, count: int) -> list[tuple[DocumentRow, Pair]]:
    """Return pairs spread evenly over the kinds, and those of a kind over the documents."""
    kinds: dict[str, list[tuple[DocumentRow, Pair]]] = {}
    for entry in survey.pairs:
        kinds.setdefault(entry[1].rule, []).append(entry)
    examples: list[tuple[DocumentRow, Pair]] = []
    ordered = sorted(kinds.values(), key=len, reverse=True)
    for turn in range(count):
        for entries in ordered:
            share = max(1, count // max(1, len(ordered)) + 1)
            if turn < share and turn < len(entries) and len(examples) < count:
                examples.append(entries[turn * len(entries) // share])
    return list({id(pair): (document, pair) for document, pair in examples}.values())


def show_pair(document: DocumentRow, pair: Pair) -> GeneratedPair:
    return GeneratedPair(
        question=pair.wordings[0], wordings=tuple(pair.wordings), answer=pair.answer, kind=pair.rule,
        source=document.source,
    )  # fmt: skip


def advise(share: float, pair_count: int, survey: PairSurvey) -> str:
    if not pair_count:
        return "The rules find nothing to ask for here. Name a model that writes the pairs, or add text with headings."
    if share < ENOUGH_SHARE:
        return (
            f"The rules find {share:.0%} of the pairs that were requested. Ask for fewer rows (count), add "
            "documents, or name a model that writes the pairs (model)."
        )
    if survey.last_resort_share > ENOUGH_SHARE:
        return "Many pairs only ask what a page is about. Name a model that writes the pairs (model)."
    return ""
