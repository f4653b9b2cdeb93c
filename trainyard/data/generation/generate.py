"""The generator's work: rows from documents, by a language model or by rule, with an exact account of each.

A language model is reached through `complete`, which the caller hands in (rooms below `serve` know no servers):

    await complete(messages, schema, seed) -> text

`messages` are OpenAI chat messages, `schema` is the JSON Schema that the reply has to meet, `seed` differs per
request and is the same in every run. It raises `TrainyardError` when no reply could be had, after its own retries.
If it is an async context manager it is entered for the time of the run; if it has `usage() -> dict[str, int]`, those
counts (requests, attempts, tokens) are in the result's facts. `trainyard.serve.client.client.Completer` is one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from trainyard.data.generation.accounting import Books
from trainyard.data.generation.asking import Complete, ask, check_answered
from trainyard.data.generation.candidates import CandidateBook
from trainyard.data.generation.extracting import take
from trainyard.data.generation.shapes import read_documents
from trainyard.errors import InvalidInput
from trainyard.spec.axes.data import GenerationTemplate, GeneratorKind, Port
from trainyard.spec.nodes import AiGeneratorConfig
from trainyard.stores.artifacts import Facts, Produced, ProducedSet

Report = Callable[[float, str], None]
REPORT_EVERY_S = 0.5


def generate(
    config: AiGeneratorConfig, documents: Path, folder: Path, *, complete: Complete | None, report: Report
) -> Produced:
    """Write the rows that `config` asks for into `folder/<port>`; without `complete` they are extracted by rule.

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
            take(config, documents, books, report_rarely(report))
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
