"""A data set as a training would see it: its format, its rows through the chat template, their lengths, the cost.

The rows come through the same readers, the same renderer and the same tokenizer as in a run. First the format and the
first rows are reported, then the first 10,000 are rendered. Imports transformers.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jinja2.exceptions import TemplateError
from pydantic import ValidationError

from trainyard.app.context import Context, get_settings
from trainyard.app.data.pairs import GenerationPreview, check_documents, survey_pairs
from trainyard.app.plan.machine import find_base_folder, find_base_shape
from trainyard.app.responses import Response
from trainyard.backends.timings import read_timings, timing_key
from trainyard.compute.gpus import list_devices
from trainyard.data.limited.service import keep_service
from trainyard.data.paths import data_roots, open_inside, resolve_inside
from trainyard.data.quarantine import QUARANTINE_FILE
from trainyard.data.remote.kinds import pin_sources
from trainyard.data.renderers.tokenizer import load_tokenizer, render_without_torch
from trainyard.data.rows import (
    ROWS_FILE,
    DocumentRow,
    LabelledRow,
    Message,
    PreferenceRow,
    PromptRow,
    Row,
    SftRow,
    TextRow,
    read_rows,
)
from trainyard.data.sources import read_source
from trainyard.errors import InvalidInput, NotFound
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.operations.data import PreviewInput
from trainyard.settings import Settings
from trainyard.spec.axes.data import BAD_FRACTION, COLUMN_FIELDS, DataFormat, Port
from trainyard.spec.axes.stages import Stage
from trainyard.spec.estimate.estimate import count_steps
from trainyard.spec.estimate.timing import TimeEstimate, Workload, count_tokens, estimate_time
from trainyard.spec.nodes import DataSourceConfig
from trainyard.spec.training import TrainerConfig, resolve_trainer
from trainyard.stores.models import resolve_model

if TYPE_CHECKING:
    from trainyard.data.generation.survey import PairSurvey
    from trainyard.data.renderers.rendering import Cut, Piece, Renderer  # imports transformers

STAGES = {Port.SFT: Stage.SFT, Port.PREFERENCE: Stage.DPO, Port.LABELLED: Stage.KTO, Port.TEXT: Stage.CPT}
"""The stage that the estimate is about."""
BINS = 10
ROWS_PER_BATCH = 500
"""Rows that are tokenised together; the tokenizer uses every core for a batch."""
MOST_REASONS, MOST_REASON_CHARS = 5, 200
"""Different words of a chat template that are shown, and characters of each."""
REFUSED = "refused by the chat template"
COUNTED_BYTES = 8 << 20
"""Beginning of a file from which its number of lines is estimated."""
LINES = frozenset({".jsonl", ".ndjson", ".csv", ".tsv"})


class RawRows(Response):
    """The first rows, as they were read."""

    path: str
    format: str
    port: Port
    rows: tuple[JsonObject, ...]
    ignored_keys: dict[str, int]
    notes: tuple[str, ...] = ()
    """How files were read where they left a choice: their encoding, delimiter, comments."""


class RenderedPart(Response):
    text: str
    learned: bool
    """Whether the loss is on this text."""


class RenderedRow(Response):
    """A row, or one side of a pair, as the model reads it."""

    source: str
    side: str
    """chosen or rejected, of a pair; `turn N` of a turn that is learned in an example of its own."""
    parts: tuple[RenderedPart, ...]
    tokens: int
    learned_tokens: int


class UnreadableRow(Response):
    """A row that no training would get."""

    source: str
    """Name of the file, and number of the line."""
    reason: str
    detail: str
    text: str
    """At most its first 2,000 characters."""


class LengthBin(Response):
    longest: int
    """Tokens of the longest row that counts here."""
    rows: int


class LengthStatistics(Response):
    """Lengths in tokens, with the chat template."""

    histogram: tuple[LengthBin, ...]
    mean: float
    median: int
    longest: int
    learned_share: float
    """Share of the tokens that have a loss."""
    truncated: int
    """Rows that are longer than the longest allowed."""
    duplicates: int
    refused_share: float
    """Share of the rows that the template refuses; above `max_bad_fraction` of the data source a training fails."""


class RunVerdict(Response):
    """Verdict on whether a run accepts the rows."""

    refusal: str = ""
    """Why a run with the default `max_bad_fraction` would refuse the rows; empty if it would not."""


class PreviewCost(RunVerdict):
    """Estimated cost of one training on a data set with the default settings."""

    estimated_rows: int | None
    estimated_tokens: int | None
    stage: str | None
    seconds: float | None
    basis: str


class DataPreview(PreviewCost):
    """Description of a data set, and how a training reads it."""

    raw: RawRows
    model: str
    template: str
    rendered: tuple[RenderedRow, ...]
    looked_at: int
    """Rows that were read for what follows."""
    complete: bool
    """Whether these are all rows."""
    dropped: dict[str, int]
    """Reason -> rows: unreadable ones, ones that the template refuses and why, ones of which the cut leaves no
    answer."""
    hidden: dict[str, int]
    """Part (system, turn, tool_calls, tools, …) -> rows of which the chat template does not show it, as a trainer
    counts them; empty_turns and unlearned_turns: turns of the assistant that are not learned."""
    unreadable: tuple[UnreadableRow, ...]
    """The first of the unreadable ones, at most as many as `rows`."""
    lengths: LengthStatistics
    generation: GenerationPreview | None = None
    """With `generate`: the pairs that the documents give by rule. Lengths and costs are then those of these pairs."""


def preview(request: PreviewInput, context: Context) -> DataPreview:
    """Show a data set as a training would see it.

    Raises `NotFound`, `InvalidInput`, `Refused` and `LimitExceeded` of the readers and of the base model.
    """
    settings = get_settings(context)
    name = request.base_model or settings.default_base_model
    if request.generate:
        return preview_generation(request, name, context, settings)
    if context.surface == "cli":
        render_without_torch()  # this process shows the rows and ends
    with tempfile.TemporaryDirectory() as scratch, keep_service():
        raw, rows, _ = read_first(request, request.rows, Path(scratch) / "first", settings)
        context.on_part(raw)
        # The reader is a process of its own: the rows arrive while the tokenizer is imported here.
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(
                copy_context().run, read_first, request, request.limit, Path(scratch) / "more", settings
            )
            lengths = Lengths(load_renderer(name, request.template, settings), request.max_length)
            raw, rows, facts = reading.result()
        rendered_rows: list[RenderedRow] = []
        while batch := list(islice(rows, ROWS_PER_BATCH)):
            rendered_rows += lengths.add(batch, keep=request.rows if len(rendered_rows) < request.rows else 0)
    stage, complete = STAGES.get(raw.port), facts["kept"] < request.limit
    estimated_rows = facts["kept"] if complete else estimate_rows(request.path, settings)
    estimated = estimate_training(stage, name, estimated_rows, lengths, settings)
    return DataPreview(
        raw=raw,
        model=name,
        template=lengths.renderer.spec.name,
        rendered=tuple(rendered_rows[: request.rows]),
        looked_at=facts["read"],
        complete=complete,
        dropped={**{reason: n for reason, n in facts["dropped"].items() if reason != "duplicate"}, **lengths.dropped},
        hidden=dict(sorted(lengths.hidden.items())),
        unreadable=facts["bad_rows"],
        lengths=lengths.statistics(),
        estimated_rows=estimated_rows,
        estimated_tokens=estimated.tokens,
        stage=None if stage is None else stage.value,
        seconds=estimated.seconds,
        basis=estimated.basis,
        refusal=find_refusal(facts, lengths),
    )


def find_refusal(facts: JsonMapping, lengths: Lengths) -> str:
    """Say that a run would refuse rows of which too many are bad, or refused by the template."""
    bad, read = int(facts.get("quarantined", 0)), int(facts["read"])
    if read and (bad / read > BAD_FRACTION or bad == read):
        lost, remedy = f"{bad:,} of {read:,} rows are bad ({bad / read:.1%})", "correct the rows"
    elif lengths.rows and lengths.refused / lengths.rows > BAD_FRACTION:
        share = lengths.refused / lengths.rows
        lost = f"the chat template refuses {lengths.refused:,} of {lengths.rows:,} rows ({share:.1%})"
        remedy = "choose another template"
    else:
        return ""
    limit = f"at most {BAD_FRACTION:.1%} may be; {remedy}, or raise max_bad_fraction"
    return f"A run would be refused (E-DATA-BAD-ROWS): {lost}, and {limit}."


def preview_generation(request: PreviewInput, name: str, context: Context, settings: Settings) -> DataPreview:
    """Show the pairs that documents give by rule. The chat template is not rendered: no transformers, no torch."""
    with tempfile.TemporaryDirectory() as scratch, keep_service():
        raw, rows, facts = read_first(request, request.limit, Path(scratch) / "first", settings)
        check_documents(request, raw.port.value)
        context.on_part(raw.model_copy(update={"rows": ()}))
        generation, survey = survey_pairs(request, (row for row in rows if isinstance(row, DocumentRow)))
    lengths = Lengths(None, request.max_length)
    lengths.add_pairs(count_pairs(survey, resolve_model(name, settings).path))
    stage = Stage.SFT
    estimated = estimate_training(stage, name, generation.trained_rows, lengths, settings)
    return DataPreview(
        raw=raw, model=name, template=request.template, rendered=(), looked_at=facts["read"],
        complete=facts["kept"] < request.limit,
        dropped={reason: n for reason, n in facts["dropped"].items() if reason != "duplicate"},
        hidden={}, unreadable=facts["bad_rows"], lengths=lengths.statistics(), estimated_rows=generation.trained_rows,
        estimated_tokens=estimated.tokens, stage=stage.value, seconds=estimated.seconds, basis=estimated.basis,
        generation=generation,
    )  # fmt: skip


def count_pairs(survey: PairSurvey, folder: Path | None) -> list[tuple[int, int]]:
    """Return (tokens, tokens with a loss) of the first wording of each pair; the template's tokens are estimated."""
    answers = [pair.answer for _, pair in survey.pairs]
    questions = [pair.wordings[0] for _, pair in survey.pairs]
    if folder is None or not answers:
        sizes = [(len(question) // 4, len(answer) // 4) for question, answer in zip(questions, answers, strict=True)]
        return [(question + answer + 12, answer) for question, answer in sizes]
    from trainyard.data.quality.lengths import load_token_counter  # imports pyarrow

    count = load_token_counter(folder)
    whole = count(
        [[Message("user", text), Message("assistant", answer)] for text, answer in zip(questions, answers, strict=True)]
    )
    return list(zip(whole, count(answers), strict=True))


def read_first(
    request: PreviewInput, limit: int, folder: Path, settings: Settings
) -> tuple[RawRows, Iterator[Row], JsonObject]:
    """Return the first rows of the data set: shown, to be read on, and the balance of the reading."""
    source_fields: dict[str, object] = {
        **parse_source(request.path),
        "max_rows": limit,
        "format": request.format or DataFormat.AUTO,
    }
    source_fields |= {"columns": request.columns} if request.columns else {}
    try:
        config = DataSourceConfig.model_validate({**source_fields, "max_bad_fraction": 1.0})
    except ValidationError as error:
        if request.columns:
            problem = error.errors()[0]
            raise InvalidInput(
                f"columns is not valid: {problem['msg'].removeprefix('Value error, ')}.",
                why=f"Its fields are {', '.join(COLUMN_FIELDS)}.", do="Give each field one column.", code="E-PARAMETER",
            ) from error  # fmt: skip
        raise InvalidInput(
            f"{request.path[:200]!r} is not a valid place of a data set.", why=f"{error.errors()[0]['msg']}.",
            do="Give a path, hub:org/name, or an address.", code="E-PARAMETER",
        ) from error  # fmt: skip
    folder.mkdir()
    pin_sources(config, settings, run="", refresh=False, say=lambda text: None)
    result = read_source(config, folder, settings=settings, report=lambda fraction, text: None, judged=False)
    ((port, part),) = result.outputs.items()
    rows_path = folder / part.folder / ROWS_FILE
    first_rows = tuple(dump_row(row) for row in islice(read_rows(rows_path, port), request.rows))
    facts = {**part.facts, "bad_rows": first_bad_rows(folder / part.folder, request.rows)}
    raw = RawRows(
        path=request.path, format=facts["format"], port=port, rows=first_rows, ignored_keys=facts["ignored_keys"],
        notes=tuple(dict.fromkeys(facts.get("notes", ()))),
    )  # fmt: skip
    return raw, read_rows(rows_path, port), facts


def first_bad_rows(folder: Path, count: int) -> tuple[UnreadableRow, ...]:
    """Return the first rows that the reader quarantined."""
    with (folder / QUARANTINE_FILE).open("rb") as stream:
        rows = [json.loads(line) for line in islice(stream, count)]
    return tuple(
        UnreadableRow(source=row["source"], reason=row["reason"], detail=row["detail"], text=row.get("row", ""))
        for row in rows
    )


def parse_source(text: str) -> dict[str, str]:
    """Return the field of a data source that a place is for: `hub:org/name`, an address, else a path."""
    if text.startswith("hub:"):
        return {"hub": text}
    return {"url": text} if "://" in text else {"path": text}


def dump_row(row: Row) -> JsonObject:
    """Return a row without what reading adds to it, its origin excepted."""
    added = {"doc_id", "split", "pair", "kind"}
    values = {name: getattr(row, name) for name in row.__struct_fields__ if name not in added}
    return {name: dump_messages(value) for name, value in values.items() if value not in (None, "")}


def dump_messages(value: object) -> object:
    if not isinstance(value, list):
        return value
    return [
        {"role": message.role, "content": message.content}
        | ({"tool_calls": message.tool_calls} if message.tool_calls else {})
        | message.extras
        for message in value
    ]


def load_renderer(name: str, template: str, settings: Settings) -> Renderer:
    """Return the renderer of a base model, with its own template or the one that is requested."""
    location = resolve_model(name, settings).location
    try:
        tokenizer = load_tokenizer(str(location))
    except OSError as error:
        raise NotFound(
            f"The tokenizer of {name!r} cannot be loaded.",
            why=str(error).splitlines()[0],
            do="Name a folder with the tokenizer, or fetch the model while there is a network.",
            code="E-MODEL-NOT-FOUND",
        ) from error
    # Imported here: transformers takes seconds, and the pairs of documents do not need it.
    from trainyard.data.renderers.rendering import Renderer  # imports transformers
    from trainyard.data.renderers.tokenizer import choose_for_tokenizer  # imports transformers

    chosen = choose_for_tokenizer(tokenizer, template, roots=data_roots(settings))
    return Renderer(tokenizer, chosen.spec, chosen.text)


class Lengths:
    """Renders rows as the trainers do, and remembers their lengths."""

    def __init__(self, renderer: Renderer | None, max_length: int) -> None:
        self._renderer, self.max_length = renderer, max_length
        self.tokens: list[int] = []
        self.learned = 0
        self.truncated = 0
        self.rows = self.refused = 0
        self.dropped: dict[str, int] = {}
        self.hidden: Counter[str] = Counter()
        self.seen: set[int] = set()
        self.duplicates = 0

    @property
    def renderer(self) -> Renderer:
        assert self._renderer is not None
        return self._renderer

    def add_pairs(self, sizes: Sequence[tuple[int, int]]) -> None:
        """Count rows of which the tokens, and those with a loss, are known."""
        for total, learned in sizes:
            self.rows += 1
            self.tokens.append(total)
            self.learned += learned
            self.truncated += total > self.max_length

    def add(self, rows: Sequence[Row], *, keep: int) -> list[RenderedRow]:
        """Count the rows; returns the sides of the first `keep` as text."""
        rendered = [(row, sides) for row in rows if (sides := self.render(row)) is not None]
        sizes = iter(self.sizes([pieces for _, sides in rendered for pieces in sides.values()]))
        rendered_rows: list[RenderedRow] = []
        for number, (row, sides) in enumerate(rendered):
            counted = {name: next(sizes) for name in sides}
            self.count(row, counted)
            if number < keep:
                rendered_rows += [
                    RenderedRow(
                        source=row.source, side=name, tokens=counted[name][0], learned_tokens=counted[name][1],
                        parts=tuple(map(show_piece, pieces)),
                    )
                    for name, pieces in sides.items()
                ]  # fmt: skip
        return rendered_rows

    def render(self, row: Row) -> dict[str, list[Piece]] | None:
        """Return the sides of a row; None where the template refuses it."""
        self.rows += 1
        try:
            sides = self.sides(row)
        except TemplateError as error:
            self.refused += 1
            text = " ".join(str(error).split())[:MOST_REASON_CHARS] or type(error).__name__
            reasons = [reason for reason in self.dropped if reason.startswith(REFUSED)]
            reason = f"{REFUSED}: {text}"
            self.drop(reason if reason in reasons or len(reasons) < MOST_REASONS else f"{REFUSED}: other reasons")
            return None
        key = hash(tuple(piece.text for pieces in sides.values() for piece in pieces))
        self.duplicates += key in self.seen
        self.seen.add(key)
        return sides

    def count(self, row: Row, counted: dict[str, tuple[int, int, int]]) -> None:
        """Add a row. A document or prompt has no loss, nor a greatest length: rows are made of a document.

        Of a pair the longer side counts; of a conversation that makes several examples the sum.
        """
        is_document, combine = isinstance(row, DocumentRow | PromptRow), sum if isinstance(row, SftRow) else max
        total, learned, learned_in_limit = (combine(column) for column in zip(*counted.values(), strict=True))
        if not learned_in_limit and total and not is_document:
            self.drop(f"nothing to learn within {self.max_length} tokens")
        elif not is_document:
            self.truncated += any(tokens > self.max_length for tokens, _, _ in counted.values())
        self.tokens.append(total)
        self.learned += learned

    def drop(self, reason: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1

    @property
    def mean(self) -> float:
        return float(np.mean(self.tokens or [0]))

    def statistics(self) -> LengthStatistics:
        tokens = np.asarray(self.tokens or [0])
        return LengthStatistics(
            histogram=tuple(draw_bins(tokens)),
            mean=round(self.mean, 1),
            median=int(np.median(tokens)),
            longest=int(tokens.max()),
            learned_share=round(self.learned / max(int(tokens.sum()), 1), 4),
            truncated=self.truncated,
            duplicates=self.duplicates,
            refused_share=round(self.refused / max(1, self.rows), 4),
        )

    def sides(self, row: Row) -> dict[str, list[Piece]]:
        """Return name of a side -> its text; a pair has two, a conversation more if turns are learned apart from it."""
        from trainyard.data.renderers.rendering import Piece, build_turn  # imports transformers

        if isinstance(row, PromptRow):
            return {
                "": [Piece(self.renderer.text([build_turn(turn) for turn in row.prompt], row.tools, ask=True), False)]
            }
        if isinstance(row, TextRow | DocumentRow):
            return {"": [Piece(row.text, isinstance(row, TextRow))]}
        if isinstance(row, SftRow):
            cut = self.renderer.cut(row.messages, row.tools)
            whole, *apart = cut.examples
            sides = {"": whole, **{f"turn {pieces[-1].message + 1}": pieces for pieces in apart}}
        elif isinstance(row, PreferenceRow):
            cut = self.renderer.cut_answers(row.prompt, (row.chosen, row.rejected), row.tools)
            sides = with_prompt(cut, "chosen", "rejected")
        else:
            assert isinstance(row, LabelledRow)
            cut = self.renderer.cut_answers(row.prompt, (row.completion,), row.tools)
            sides = with_prompt(cut, "desirable" if row.label else "undesirable")
        self.hidden.update(dict.fromkeys(cut.hidden, 1))
        turns = {"empty_turns": cut.empty, "unlearned_turns": cut.unlearned}
        self.hidden.update({name: count for name, count in turns.items() if count})
        return sides

    def sizes(self, conversations: Sequence[Sequence[Piece]]) -> Iterator[tuple[int, int, int]]:
        """Of each: (tokens, tokens with a loss, those of them within the longest length)."""
        for pieces, ids in zip(conversations, self.renderer.ids_of_pieces(conversations), strict=True):
            total = learned = learned_in_limit = 0
            for piece, size in zip(pieces, map(len, ids), strict=True):
                if piece.learned:
                    learned += size
                    learned_in_limit += max(0, min(size, self.max_length - total))
                total += size
            yield total, learned, learned_in_limit


def show_piece(piece: Piece) -> RenderedPart:
    """Return a stretch of a row without the marks around control tokens that stay text."""
    from trainyard.data.renderers.spans import remove_marks  # imports transformers

    return RenderedPart(text=remove_marks(piece.text), learned=piece.learned)


def with_prompt(cut: Cut, *names: str) -> dict[str, list[Piece]]:
    """Return the answers under their names, each after the prompt."""
    from trainyard.data.renderers.rendering import Piece  # imports transformers

    return {name: [Piece(cut.prompt, False), *pieces] for name, pieces in zip(names, cut.examples, strict=True)}


def draw_bins(tokens: np.ndarray) -> Iterator[LengthBin]:
    """At most ten bins of equal width."""
    width = max(1, math.ceil(int(tokens.max()) / BINS))
    bins = np.maximum(tokens - 1, 0) // width
    for index in range(int(bins.max()) + 1):
        yield LengthBin(longest=(index + 1) * width, rows=int((bins == index).sum()))


def estimate_rows(text: str, settings: Settings) -> int | None:
    """Return rows of a file of lines, from the mean length of those at its beginning; None for anything else."""
    if "path" not in parse_source(text):
        return None
    roots = data_roots(settings)
    path = resolve_inside(text, roots)
    if not path.is_file() or path.suffix.lower() not in LINES:
        return None
    with open_inside(path, roots) as stream:
        beginning = stream.read(COUNTED_BYTES)
        size = os.fstat(stream.fileno()).st_size
    lines = max(1, beginning.count(b"\n"))
    return round(lines * size / max(1, len(beginning)))


def estimate_training(
    stage: Stage | None, name: str, rows: int | None, lengths: Lengths, settings: Settings
) -> TimeEstimate:
    """Return tokens and seconds of one training by default settings, as a plan estimates them."""
    sequences = stage.facts.sequences_with_graph if stage else 1
    mean = max(1.0, lengths.mean * sequences)
    if not lengths.tokens:
        return TimeEstimate(None, None, 0, "time: no row is left to train on")
    if stage is None:
        return TimeEstimate(None, None, count_tokens(rows, mean), "time: not known without a stage and rows")
    hyperparameters = {"max_length": lengths.max_length}
    trainer = TrainerConfig.model_validate({"stage": stage.value, "hyperparameters": hyperparameters})
    config, device = resolve_trainer(trainer, name), list_devices()[0]
    steps = None if rows is None else count_steps(config.hyperparameters, rows)
    timings = read_timings(timing_key(config, find_base_folder(name, settings), device, settings), settings)
    return estimate_time(find_base_shape(name, settings), config, Workload(rows, steps, mean), timings)
