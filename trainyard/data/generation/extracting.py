"""The extractive engine's part: how many pairs of which document, and no question twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from trainyard.data.extractive.pairs import Pair, pairs
from trainyard.data.generation import shapes
from trainyard.data.generation.accounting import Books, spread_evenly
from trainyard.data.rows import DocumentRow
from trainyard.errors import TrainyardError
from trainyard.spec.axes.data import GenerationTemplate
from trainyard.spec.nodes import AiGeneratorConfig


def take(config: AiGeneratorConfig, documents: Path, books: Books, report: Callable[[float, str], None]) -> None:
    """Write the pairs of all documents, evenly spread, to the books.

    Raises `TrainyardError` (`E-DATA-EMPTY`) when the rules find nothing in any document.
    """
    wordings = shapes.count_wordings(config)
    by_document: list[tuple[DocumentRow, list[Pair]]] = []
    for number, document in enumerate(shapes.read_documents(documents), 1):
        document_pairs = [
            pair for pair in pairs(document, config.template, wordings=wordings) if books.first_time(pair.wordings[0])
        ]
        by_document.append(
            (DocumentRow(document.doc_id, document.source, document.kind, document.title, ""), document_pairs)
        )
        report(0.0, f"{number:,} documents read")
    if not any(document_pairs for _, document_pairs in by_document):
        raise TrainyardError(
            f"The extractive engine found no pair for template {config.template.value!r} in "
            f"{len(by_document):,} documents.",
            why="It reads headings, definitions, tables, docstrings and commit messages; these documents have none.",
            do="Give documents with headings, or name a model that writes the pairs.",
            code="E-DATA-EMPTY",
        )
    config = shapes.with_heldout(config, sum(bool(document_pairs) for _, document_pairs in by_document))
    shares = spread_evenly(-(-config.count // wordings), [len(document_pairs) for _, document_pairs in by_document])
    rows = shapes.rows_per_pair(config.count, shares, wordings)
    short = spread_evenly(max(0, config.count - sum(map(sum, rows))), [config.count] * len(by_document))
    for (document, document_pairs), wanted_rows, missing in zip(by_document, rows, short, strict=True):
        account = books.ask(document.doc_id, document.source, sum(wanted_rows) + missing)
        books.reject(account, "no_more_pairs", missing, f"its text gives {len(document_pairs)} pairs by rule")
        selection = choose_pairs(document_pairs, len(wanted_rows))
        answers = list(dict.fromkeys(pair.answer for pair in selection))
        for pair, count in zip(selection, wanted_rows, strict=True):
            if config.template is not GenerationTemplate.PREFERENCE:
                pair_rows = shapes.wording_rows(
                    document, pair.id, pair.wordings, pair.answer, rows=count, config=config
                )
                books.keep(account, pair_rows)
            elif len(answers) < 2:
                books.reject(account, "no_other_answer", count, "no second answer that could be the rejected one")
            else:
                other = answers[(answers.index(pair.answer) + 1) % len(answers)]
                books.keep(account, [shapes.preference_row(document, pair.wordings[0], pair.answer, other)])


def choose_pairs(pairs: list[Pair], count: int) -> list[Pair]:
    """`count` pairs: the most worthwhile kinds first, and of the last kind evenly over the document."""
    kinds: dict[int, list[Pair]] = defaultdict(list)
    for pair in pairs:
        kinds[pair.worth].append(pair)
    selection: list[Pair] = []
    for _, kind in sorted(kinds.items()):
        size = min(len(kind), count - len(selection))
        selection += [kind[step * len(kind) // size] for step in range(size)]
    return selection
