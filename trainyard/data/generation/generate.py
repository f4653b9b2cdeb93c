"""The generator's work: rows from documents, by a language model or by rule, with an exact account of each.

A language model is reached through `complete`, which the caller hands in (rooms below `serve` know no servers):

    await complete(messages, schema, seed) -> text

`messages` are OpenAI chat messages, `schema` is the JSON Schema that the reply has to meet, `seed` differs per
request and is the same in every run. It raises `TrainyardError` when no reply could be had, after its own retries.
If it is an async context manager it is entered for the time of the run; if it has `usage() -> dict[str, int]`, those
counts (requests, attempts, tokens) are in the result's facts. `trainyard.serve.client.client.Completer` is one.

The extractive engine's part: how many pairs of which document, and no question twice.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from trainyard.data.extractive.pairs import Pair, pairs
from trainyard.data.generation.asking import Complete, ask, check_answered
from trainyard.data.generation.candidates import CandidateBook
from trainyard.data.generation.rows import (
    Books,
    count_wordings,
    preference_row,
    read_documents,
    rows_per_pair,
    spread_evenly,
    with_heldout,
    wording_rows,
)
from trainyard.data.rows import DocumentRow
from trainyard.errors import InvalidInput, TrainyardError
from trainyard.spec.axes.data import GenerationTemplate, GeneratorKind, Port
from trainyard.spec.nodes import AiGeneratorConfig
from trainyard.stores.artifacts import Facts, Produced, ProducedSet

Findings = Iterable[tuple[DocumentRow, Callable[[], list[Pair]]]]
FindPairs = Callable[[AiGeneratorConfig, Path], Findings]
"""(config, documents) -> each document in order, and what finds its pairs."""


def find_in_documents(config: AiGeneratorConfig, documents: Path) -> Findings:
    for document in read_documents(documents):
        yield document, partial(pairs, document, config.template, wordings=count_wordings(config))


def take(
    config: AiGeneratorConfig,
    findings: Findings,
    books: Books,
    report: Callable[[float, str], None],
    deadline: float,
) -> None:
    """Write the pairs of the documents, evenly spread, to the books.

    No document is begun after `deadline` (s, monotonic clock) but the first.
    Raises `TrainyardError` (`E-DATA-EMPTY`) when the rules find nothing in any document.
    """
    wordings = count_wordings(config)
    by_document: list[tuple[DocumentRow, list[Pair]]] = []
    for number, (document, find_pairs) in enumerate(findings, 1):
        if by_document and time.monotonic() > deadline:
            break
        document_pairs = [pair for pair in find_pairs() if books.first_time(pair.wordings[0])]
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
    config = with_heldout(config, sum(bool(document_pairs) for _, document_pairs in by_document))
    shares = spread_evenly(-(-config.count // wordings), [len(document_pairs) for _, document_pairs in by_document])
    rows = rows_per_pair(config.count, shares, wordings)
    short = spread_evenly(max(0, config.count - sum(map(sum, rows))), [config.count] * len(by_document))
    for (document, document_pairs), wanted_rows, missing in zip(by_document, rows, short, strict=True):
        account = books.ask(document.doc_id, document.source, sum(wanted_rows) + missing)
        books.reject(account, "no_more_pairs", missing, f"its text gives {len(document_pairs)} pairs by rule")
        selection = choose_pairs(document_pairs, len(wanted_rows))
        answers = list(dict.fromkeys(pair.answer for pair in selection))
        for pair, count in zip(selection, wanted_rows, strict=True):
            if config.template is not GenerationTemplate.PREFERENCE:
                pair_rows = wording_rows(document, pair.id, pair.wordings, pair.answer, rows=count, config=config)
                books.keep(account, pair_rows)
            elif len(answers) < 2:
                books.reject(account, "no_other_answer", count, "no second answer that could be the rejected one")
            else:
                other = answers[(answers.index(pair.answer) + 1) % len(answers)]
                books.keep(account, [preference_row(document, pair.wordings[0], pair.answer, other)])


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


Report = Callable[[float, str], None]
REPORT_EVERY_S = 0.5


def generate(
    config: AiGeneratorConfig,
    documents: Path,
    folder: Path,
    *,
    complete: Complete | None,
    report: Report,
    deadline: float = math.inf,
    find: FindPairs = find_in_documents,
) -> Produced:
    """Write the rows that `config` asks for into `folder/<port>`; without `complete` they are extracted by rule, from
    the documents that were begun before `deadline` (s, monotonic clock; `documents` of the facts is their number).
    `find` has the rules applied elsewhere (`data/pieces`).

    `documents` is the folder of a documents port. Blocks; must not be called on a running event loop. Raises
    `InvalidInput` (`E-DATA-NOT-FOUND`, `E-PROMPT`, `E-PROMPT-…`), `TrainyardError`
    (`E-DATA-EMPTY`) and `Unavailable` with the server's code when less than half of the rows were answered.
    """
    if complete is None and config.prompt is not None:
        raise InvalidInput(
            "config.prompt was given, but no model that could read it.",
            why="The extractive engine takes pairs from the text by rule and has no prompt.",
            do="Name a model (and its endpoint), or leave config.prompt out.",
            code="E-PROMPT",
        )
    if next(read_documents(documents), None) is None:
        raise InvalidInput(
            "The generator was given no documents.",
            do="Point the data source at a folder with documents (.md .txt .rst .html .pdf .docx or code).",
            code="E-DATA-NOT-FOUND",
        )
    port = Port.PREFERENCE if config.template is GenerationTemplate.PREFERENCE else Port.SFT
    started = time.monotonic()
    usage: dict[str, int] = {}
    candidates = CandidateBook(folder / port.value, config.best_of) if config.best_of > 1 else None
    with Books(folder / port.value, port) as books:
        if complete is None:
            take(config, find(config, documents), books, report_rarely(report), deadline)
        else:
            with candidates or nullcontext():
                line = asyncio.run(
                    ask(config, documents, books, complete, report_rarely(report), candidates=candidates)
                )
            usage = complete.usage() if hasattr(complete, "usage") else {}
            check_answered(line, books)
    facts: Facts = {
        "engine": (GeneratorKind.EXTRACTIVE if complete is None else config.engine or GeneratorKind.OPENAI).value,
        "model": config.model,
        "template": config.template.value,
        "wanted": config.count,
        "pairs": books.pairs,
        "unseen_wording": books.unseen_wording,
    }
    books.write_accounting(facts)
    seen = len(books.accounts)
    report(1.0, f"{books.rows_kept:,} of {books.rows_requested:,} rows kept from {seen:,} documents")
    if candidates is not None:
        facts["candidates"] = {
            "best_of": config.best_of,
            "drawn": candidates.num_candidates,
            "missing": candidates.missing,
        }
    facts |= {**books.balance(), "documents": seen, "seconds": round(time.monotonic() - started, 3), "usage": usage}
    return Produced(outputs={port: ProducedSet(folder=port.value, rows=books.rows_kept, facts=facts)}, facts=facts)


def report_rarely(report: Report) -> Report:
    """Return the same report, at most twice a second."""
    last = 0.0

    def report_now_and_then(fraction: float, text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= REPORT_EVERY_S:
            last = time.monotonic()
            report(fraction, text)

    return report_now_and_then
