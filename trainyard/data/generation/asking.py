"""A language model writes the rows: many requests at once, each reply checked, a dead server noticed.

Requests are made in document order and accepted in the same order, whatever order the replies come in: the same
replies give the same files. At most `concurrency` are under way; a reply that waits for an earlier one costs its text
in memory, at most `WINDOW` times the concurrency.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import orjson
from jsonschema import Draft202012Validator

from trainyard.data.generation.candidates import CandidateBook, Further, further_answers
from trainyard.data.generation.rows import (
    Books,
    DocumentCounts,
    count_wordings,
    preference_row,
    read_documents,
    rows_per_pair,
    spread_by_weight,
    with_heldout,
    wording_rows,
)
from trainyard.data.prompts import FIELDS, Messages, Prompter, item_schema, reply_schema
from trainyard.data.quarantine import BadRow
from trainyard.data.rows import DocumentRow, PreferenceRow, SftRow
from trainyard.errors import TrainyardError, Unavailable
from trainyard.json_types import JsonObject
from trainyard.spec.axes.data import GenerationTemplate
from trainyard.spec.nodes import AiGeneratorConfig

MOST_PAIRS = 8
"""Pairs requested in one request; small models lose count beyond."""
PAIR_TOKENS = 96
WORDING_TOKENS = 32
LEAST_ANSWERED = 0.5
"""Below this share of answered requests the run fails instead of handing on what came back."""
WINDOW = 64
PATIENCE = 2
"""The server is given up after this many times `concurrency` failures in a row (at least 4)."""
FENCE = re.compile(r"\A\s*```(?:json)?[^\S\n]*\n(?P<inside>.*?)\n?```\s*\Z", re.S)
Progress = Callable[[float, str], None]


class BadPair(BadRow):
    """A reply or a pair that cannot be used; docs/generation.md lists the reasons."""


class Complete(Protocol):
    """A reply of a language model; see the package's docstring for the contract."""

    def __call__(self, messages: Messages, schema: JsonObject | None, seed: int) -> Awaitable[str]: ...


@dataclass(frozen=True)
class PairRequest:
    """A prompt: some pairs on one piece of a document."""

    document: DocumentRow
    account: DocumentCounts
    text: str
    rows: list[int]
    """Rows of each pair that is requested."""
    part: int
    parts: int
    seed: int


def pieces(text: str, most: int) -> list[str]:
    """Pieces of at most `most` characters, cut at the last blank line, line end or space that fits."""
    parts = []
    while len(text) > most:
        cut = next((at for mark in ("\n\n", "\n", " ") if (at := text.rfind(mark, most // 2, most)) > 0), most)
        parts.append(text[:cut])
        text = text[cut:].lstrip()
    return [piece for piece in (*parts, text) if piece.strip()]


def pairs_per_request(config: AiGeneratorConfig) -> int:
    """So many pairs that their JSON fits `max_tokens`."""
    return max(1, min(MOST_PAIRS, config.max_tokens // (PAIR_TOKENS + WORDING_TOKENS * count_wordings(config))))


def requests(config: AiGeneratorConfig, documents: Path, books: Books) -> Iterator[PairRequest]:
    """Yield every request of a run, in document order. Opens the accounts of the documents as it comes to them."""
    lengths = [len(row.text.strip()) for row in read_documents(documents)]
    wordings = count_wordings(config)
    shares = spread_by_weight(-(-config.count // wordings), lengths)
    rows = rows_per_pair(config.count, shares, wordings) if any(shares) else []
    seed = config.seed
    for document, row_counts in zip(read_documents(documents), rows, strict=False):
        account = books.ask(document.doc_id, document.source, sum(row_counts))
        parts = pieces(document.text, config.max_chars)
        start = 0
        for text, share in zip(parts, spread_by_weight(len(row_counts), [len(part) for part in parts]), strict=True):
            counts = row_counts[start : start + share]
            start += share
            size = pairs_per_request(config)
            batches = [counts[at : at + size] for at in range(0, len(counts), size)]
            for part, batch in enumerate(batches, 1):
                yield PairRequest(document, account, text, batch, part, len(batches), seed)
                seed = (seed + 1) % 2**31


class Line:
    """The way to the server: asks, counts failures in a row, and is cut when there were too many."""

    def __init__(self, complete: Complete, patience: int) -> None:
        self.complete, self.patience = complete, patience
        self.in_a_row = self.num_requests = self.answered = 0
        self.last: TrainyardError | None = None

    @property
    def cut(self) -> bool:
        return self.in_a_row >= self.patience

    async def ask(self, messages: Messages, schema: JsonObject, seed: int) -> str | BadPair:
        """The reply's text, or why there is none; too many failures in a row end the line."""
        reply = await self.ask_more(messages, schema, seed)
        if not self.cut:
            self.in_a_row = 0 if isinstance(reply, str) else self.in_a_row + 1
        return reply

    async def ask_more(self, messages: Messages, schema: JsonObject, seed: int) -> str | BadPair:
        """Return the same for a reply without which no row is lost: its failure does not count."""
        if self.cut:
            return BadPair("not_asked", f"The server was given up after {self.in_a_row} failures in a row.")
        self.num_requests += 1
        try:
            text = await self.complete(messages, schema, seed)
        except TrainyardError as error:
            self.last = error
            return BadPair(shorten_code(error), str(error))
        self.answered += 1
        return text


def shorten_code(error: TrainyardError) -> str:
    """`E-SERVER-TIMEOUT` -> `server_timeout`: rooms distinguish each other's errors by their codes."""
    return error.code.removeprefix("E-").lower().replace("-", "_")


async def ask(
    config: AiGeneratorConfig,
    documents: Path,
    books: Books,
    complete: Complete,
    report: Progress,
    *,
    candidates: CandidateBook | None = None,
) -> Line:
    """Ask for all rows and write what comes back to the books. Never raises for a server that fails.

    `concurrency` requests are kept under way; their replies are accepted in order. With `candidates` each question is
    answered `best_of` times.
    """
    config = with_heldout(config, sum(bool(row.text.strip()) for row in read_documents(documents)))
    line, wordings = Line(complete, max(4, PATIENCE * config.concurrency)), count_wordings(config)
    reader, slots = ReplyReader(config, books, candidates), asyncio.Semaphore(config.concurrency)
    waiting: deque[tuple[PairRequest, asyncio.Task[Reply]]] = deque()
    schemas = {size: reply_schema(config.template, wordings, size) for size in range(1, MOST_PAIRS + 1)}
    settled = 0

    async def accept() -> None:
        nonlocal settled
        request, task = waiting.popleft()
        reader.accept(request, await task)
        settled += sum(request.rows)
        report(
            min(1.0, settled / config.count), f"{settled:,} of {config.count:,} rows settled, {reader.rows_kept:,} kept"
        )

    async with AsyncExitStack() as stack:
        prompter = stack.enter_context(Prompter(config.template, wordings=wordings, prompt=config.prompt))
        if hasattr(complete, "__aenter__"):
            await stack.enter_async_context(complete)  # type: ignore[arg-type]
        try:
            for request in requests(config, documents, books):
                document = {name: getattr(request.document, name) for name in ("title", "source", "kind")}
                variables, size = {**document, "text": request.text}, len(request.rows)
                messages = prompter.messages(variables, pairs=size, part=request.part, parts=request.parts)
                await slots.acquire()
                task = asyncio.create_task(draw(line, config, request, (messages, schemas[size]), document))
                task.add_done_callback(lambda _: slots.release())
                waiting.append((request, task))
                while waiting and (waiting[0][1].done() or len(waiting) > WINDOW * config.concurrency):
                    await accept()
            while waiting:
                await accept()
        finally:
            for _, task in waiting:
                task.cancel()
            await asyncio.gather(*(task for _, task in waiting), return_exceptions=True)
    return line


@dataclass(frozen=True)
class Reply:
    """Reply to one request: its pairs, and further answers to their questions."""

    pairs: str | BadPair
    further: Sequence[Further] = ()


async def draw(
    line: Line,
    config: AiGeneratorConfig,
    request: PairRequest,
    prompt: tuple[Messages, JsonObject],
    document: dict[str, str],
) -> Reply:
    """The reply to one request, and with `best_of` the further answers to its questions, one request after another."""
    pairs = await line.ask(*prompt, request.seed)
    if config.best_of == 1:
        return Reply(pairs)
    questions = collect_questions(pairs, config, len(request.rows))
    variables = {**document, "text": request.text}
    return Reply(pairs, await further_answers(line.ask_more, config, variables, questions, request.seed))


def collect_questions(reply: str | BadPair, config: AiGeneratorConfig, most: int) -> dict[int, str]:
    """Place of each pair of the right form -> its question, in its first wording."""
    try:
        items = parse_pairs(reply)
    except BadPair:
        return {}
    valid = Draft202012Validator(item_schema(config.template, count_wordings(config)))
    fine = {index: item for index, item in enumerate(items[:most]) if valid.is_valid(item)}
    if config.template is GenerationTemplate.QA:
        return {index: item["questions"][0] for index, item in fine.items()}
    return {index: item[FIELDS[config.template][0]] for index, item in fine.items()}


def parse_pairs(reply: str | BadPair) -> list[Any]:
    """Return the list of pairs of a reply. Raises `BadPair` when there is none, or when it is not JSON of that form."""
    if isinstance(reply, BadPair):
        raise reply
    fenced = FENCE.match(reply)
    try:
        value = orjson.loads(fenced["inside"] if fenced else reply)
    except (orjson.JSONDecodeError, UnicodeEncodeError) as error:
        raise BadPair("invalid_json", str(error)) from error
    items = value.get("pairs") if isinstance(value, dict) else value
    if not isinstance(items, list):
        raise BadPair("wrong_form", 'the reply is not of the form {"pairs": […]}')
    return items


class ReplyReader:
    """Checks replies and turns them into rows; every row that was asked for is kept or rejected with a reason."""

    def __init__(self, config: AiGeneratorConfig, books: Books, candidates: CandidateBook | None = None) -> None:
        self.config, self.template, self.books, self.candidates = config, config.template, books, candidates
        self.validator = Draft202012Validator(item_schema(config.template, count_wordings(config)))
        self.rows_kept = 0

    def accept(self, request: PairRequest, response: Reply) -> None:
        reply = response.pairs
        try:
            items = parse_pairs(reply)
        except BadPair as bad:
            text = reply if isinstance(reply, str) else ""
            self.books.reject(request.account, bad.reason, sum(request.rows), bad.detail, text)
            return
        for index, (rows, item) in enumerate(zip(request.rows, items, strict=False)):
            try:
                pair_rows = self.rows(request, rows, item)
            except BadPair as bad:
                self.books.reject(request.account, bad.reason, rows, bad.detail, orjson.dumps(item).decode())
            else:
                self.books.keep(request.account, pair_rows)
                self.rows_kept += len(pair_rows)
                if self.candidates is not None:
                    self.candidates.keep(pair_rows, response.further, index)
        if len(items) < len(request.rows):
            detail = f"{len(request.rows)} pairs were requested, {len(items)} came back"
            self.books.reject(request.account, "missing", sum(request.rows[len(items) :]), detail, str(reply))
        self.books.surplus += max(0, len(items) - len(request.rows))

    def rows(self, request: PairRequest, rows: int, item: Any) -> list[SftRow] | list[PreferenceRow]:
        """Return the rows of a pair. Raises `BadPair` for one that cannot be used."""
        if fault := next(self.validator.iter_errors(item), None):
            raise BadPair("wrong_form", fault.message)
        is_qa = self.template is GenerationTemplate.QA
        texts = [*item["questions"], item["answer"]] if is_qa else list(item.values())
        if any(not text.strip() for text in texts):
            raise BadPair("empty_text", "a text of the pair has only white space")
        wordings = item["questions"] if is_qa else texts[:1]
        if len({" ".join(question.lower().split()) for question in wordings}) < len(wordings):
            raise BadPair("same_wording", "two wordings of the question are the same")
        if self.template is GenerationTemplate.PREFERENCE and item["chosen"].strip() == item["rejected"].strip():
            raise BadPair("same_reply", "chosen and rejected are the same")
        new = [self.books.first_time(question) for question in wordings]
        if not all(new):
            raise BadPair("duplicate", "the question was asked before")
        document = request.document
        if self.template is GenerationTemplate.PREFERENCE:
            return [preference_row(document, *(item[name].strip() for name in FIELDS[self.template]))]
        if is_qa:
            questions, answer = [question.strip() for question in item["questions"]], item["answer"].strip()
        else:
            question, answer = (item[name].strip() for name in FIELDS[self.template])
            questions = [question]
        text = "\0".join((document.doc_id, questions[0], answer))
        pair = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
        return wording_rows(document, pair, questions, answer, rows=rows, config=self.config)


def check_answered(line: Line, books: Books) -> None:
    """Fail when the server answered less than half of the requests that were planned, or nothing could be kept."""
    rejected = books.rejected
    lost = sum(count for reason, count in rejected.items() if reason == "not_asked" or reason.startswith("server_"))
    counts = ", ".join(f"{reason} {count:,}" for reason, count in sorted(rejected.items()))
    if line.last is not None and lost > (1 - LEAST_ANSWERED) * books.rows_requested:
        raise Unavailable(
            f"The model server failed for {lost:,} of {books.rows_requested:,} rows ({counts}); {books.rows_kept:,} "
            "were kept.",
            why=f"{line.last.what} {line.last.why}".strip(),
            do=f"{line.last.do} At least half of the rows have to be answered; then run the chain again.".strip(),
            code=line.last.code,
        )
    if not books.rows_kept:
        raise TrainyardError(
            f"None of the {books.rows_requested:,} rows that were requested could be kept ({counts}).",
            why="The model's replies do not meet the schema, or repeat themselves.",
            do="Use a model or a server that follows response_format json_schema, or raise config.max_tokens.",
            code="E-DATA-EMPTY",
        )
