"""Data sets, uploads, base models and renderers. Requests, texts and rows."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

from pydantic import BeforeValidator, Field, PrivateAttr

from trainyard.json_types import JsonObject
from trainyard.operations.backends import RenderersInput, renderers_text
from trainyard.operations.base import Nothing, Request
from trainyard.operations.fields import Argument, Option
from trainyard.operations.table import Operation, Scope
from trainyard.operations.tables import format_table
from trainyard.spec.axes.data import DataFormat
from trainyard.stores.metrics import format_duration

if TYPE_CHECKING:
    from trainyard.app.data.listing import DataColumns, DataList, ModelList
    from trainyard.app.data.preview import DataPreview
    from trainyard.app.data.uploads import DeletedUpload, UploadedFile


class PreviewInput(Request):
    path: Annotated[str, BeforeValidator(os.fspath), Argument("PATH")] = Field(
        min_length=1, max_length=4096, description="File or folder inside a data root, hub:org/name, or an address."
    )
    format: DataFormat | None = Field(None, description="Format of the rows; default: recognised.")
    columns: Annotated[JsonObject, Option("--column")] = Field(
        {}, description="Field of a row and its column, as prompt=question_text; may be repeated."
    )
    base_model: str | None = Field(None, description="Model whose tokenizer counts; default: the default base model.")
    template: str = Field("auto", description="Chat template: auto, a renderer's name, or a .jinja file.")
    max_length: int = Field(512, ge=1, le=1_000_000, description="Longest row in tokens, as in the training.")
    generate: bool = Field(False, description="Show the pairs that documents give by rule, without a model.")
    count: int = Field(200, ge=1, le=10_000_000, description="Rows to train on that are wanted, with generate.")
    wordings: int = Field(3, ge=1, le=8, description="Of each question, with generate.")
    rows: int = Field(10, ge=1, le=1000, description="Rows that are shown.")
    limit: int = Field(10_000, ge=1, le=10_000_000, description="Rows that are rendered and counted.")


class FolderInput(Request):
    folder: Annotated[str, Argument("FOLDER")] = Field(
        "", max_length=4096, description="Folder inside a data root; left out: the data roots themselves."
    )
    limit: int = Field(200, ge=1, le=10_000, description="Entries that are shown.")


class UploadInput(Request):
    """A file to keep. Over REST, its bytes are the body."""

    file: Annotated[Path | None, Argument("FILE", local=True)] = Field(None, description="A file of this machine.")
    name: Annotated[str, Option("--name")] = Field(
        "", max_length=1024, description="Name of the upload, such as chats.jsonl; default: the file's own."
    )
    folder: str = Field("", max_length=1024, description="Folder of uploads that it belongs to, as for documents.")
    _received: BinaryIO | None = PrivateAttr(None)

    @property
    def received(self) -> BinaryIO | None:
        """Return the bytes that came over REST."""
        return self._received

    def with_received(self, body: BinaryIO) -> UploadInput:
        """Return the request with the bytes that came with it, which no log and no answer contains."""
        request = self.model_copy()
        request._received = body
        return request


class UploadNameInput(Request):
    name: Annotated[str, Argument("NAME", completes="upload")] = Field(
        min_length=1, max_length=1024, description="Name of an uploaded file or folder."
    )


class ColumnsInput(Request):
    path: Annotated[str, BeforeValidator(os.fspath), Argument("PATH", is_file=True)] = Field(
        min_length=1, max_length=4096, description="File or folder of rows inside a data root."
    )


LONGEST = 600
"""Characters of a row that are shown; `--json` has all of it."""
BAR = 40
OPEN, CLOSE = "⟦", "⟧"
"""Around the text that is learned."""


def preview_text(result: DataPreview) -> str:
    """Return the rendered rows, then lengths, dropped rows, and the estimate. The raw rows were printed before."""
    if result.generation is not None:
        return generation_text(result)
    head = f"{result.model}, template {result.template}; {OPEN}learned text{CLOSE} has the loss"
    parts = [head, *(rendered_text(row) for row in result.rendered)]
    count = f"all {result.looked_at:,}" if result.complete else f"the first {result.looked_at:,}"
    parts.append(f"lengths in tokens, {count} rows:\n{histogram_text(result.lengths)}")
    rows = [[reason, f"{number:,}"] for reason, number in result.dropped.items()]
    rows += [["truncated at max_length", f"{result.lengths.truncated:,}"]] if result.lengths.truncated else []
    rows += [["duplicates", f"{result.lengths.duplicates:,}"]] if result.lengths.duplicates else []
    rows += [[hidden_text(part), f"{number:,}"] for part, number in result.hidden.items()]
    rows += [[f"ignored key {key}", f"{number:,}"] for key, number in result.raw.ignored_keys.items()]
    parts.append(format_table(rows, ("problem", "rows")) if rows else "nothing would be dropped, cut or ignored")
    if result.refusal:
        parts.append(result.refusal)
    if result.unreadable:
        bad = [
            [document.source, document.reason, cut(document.detail), cut(document.text)]
            for document in result.unreadable
        ]
        parts.append(format_table(bad, ("row", "reason", "detail", "text")))
    return "\n\n".join([*parts, estimate_text(result)])


def generation_text(result: Any) -> str:
    """Return the pairs by rule: their share of the requested number, kinds, examples, and the cost of a model."""
    generation = result.generation
    parts = [
        f"{generation.found_pairs:,} pairs by rule in {generation.documents:,} documents, "
        f"{generation.wanted_pairs:,} wanted for {generation.wanted_rows:,} rows ({generation.found_share:.0%}); "
        f"about {generation.trained_rows:,} rows to train on"
    ]
    used = f"{generation.used_sentences:,} of {generation.sentences:,} sentences, items and cells are in an answer"
    rate = f"; one pair for {generation.words_per_pair:,} words" if generation.words_per_pair else ""
    parts.append(
        f'coverage {generation.coverage:.0%}: {used}{rate}\nonly "what is it about": {generation.last_resort_share:.0%}'
    )
    if generation.kinds:
        parts.append(
            format_table([[name, f"{count:,}"] for name, count in generation.kinds.items()], ("kind", "pairs"))
        )
    for example in generation.examples:
        parts.append(f"--- {example.source}, {example.kind}\nQ: {cut(example.question)}\nA: {cut(example.answer)}")
    if generation.documents_without_pairs:
        missing = generation.documents - generation.documents_with_pairs
        parts.append(f"without a pair: {missing:,} documents, {', '.join(generation.documents_without_pairs[:5])}")
    cost = generation.model_cost
    tokens = f"{cost.prompt_tokens:,} tokens read, {cost.reply_tokens:,} written"
    parts.append(f"with a model instead: about {cost.calls:,} calls, {tokens}; {cost.basis}")
    if generation.advice:
        parts.append(generation.advice)
    return "\n\n".join([*parts, estimate_text(result)])


def hidden_text(part: str) -> str:
    """Return what a count of hidden parts, or of turns, is about."""
    turns = {"empty_turns": "says nothing: not learned", "unlearned_turns": "has no border: not learned"}
    if part in turns:
        return f"turn of the assistant {turns[part]}"
    return f"{part} not shown by the chat template"


def raw_text(part: Any) -> str:
    notes = "".join(f"; {note}" for note in part.notes)
    lines = [f"{part.path}: format {part.format}, rows for {part.port.value}{notes}"]
    return "\n".join([*lines, *(cut(json.dumps(row, ensure_ascii=False)) for row in part.rows)]) + "\n"


def rendered_text(row: Any) -> str:
    text = "".join(f"{OPEN}{part.text}{CLOSE}" if part.learned else part.text for part in row.parts)
    side = f", {row.side}" if row.side else ""
    return f"--- {row.source}{side}: {row.tokens} tokens, {row.learned_tokens} learned\n{cut(text)}"


def histogram_text(lengths: Any) -> str:
    most = max(bucket.rows for bucket in lengths.histogram)
    rows = [
        [f"<= {bucket.longest}", f"{bucket.rows:,}", "#" * round(BAR * bucket.rows / most)]
        for bucket in lengths.histogram
    ]
    share = f"{lengths.learned_share:.0%} of the tokens are learned"
    summary = f"mean {lengths.mean:,}, median {lengths.median:,}, longest {lengths.longest:,}; {share}"
    return f"{format_table(rows, ('tokens', 'rows', ''))}\n{summary}"


def estimate_text(result: Any) -> str:
    if result.estimated_tokens is None:
        return "rows in all: not known before they are read"
    about = "" if result.complete else "about "
    lines = [f"{about}{result.estimated_rows:,} rows, {about}{result.estimated_tokens:,} tokens an epoch"]
    if result.seconds is not None:
        lines.append(f"stage {result.stage}, default settings: about {format_duration(result.seconds)}; {result.basis}")
    elif result.stage is not None:
        lines.append(f"stage {result.stage}, default settings: {result.basis}")
    else:
        lines.append("an ai_generator makes rows of documents; stage cpt learns their whole text")
    return "\n".join(lines)


def cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text):,} characters)"


def query_text(result: Any) -> str:
    if not result.rows:
        return "no rows"
    return format_table([tuple(str(value) for value in row.values()) for row in result.rows], tuple(result.rows[0]))


def counts_text(result: Any) -> str:
    kinds = [(f"  {name}", f"{count:,}") for name, count in result.entities_by_kind.items()]
    edges = [(f"  {name}", f"{count:,}") for name, count in result.relations_by_kind.items()]
    rows = [("documents", f"{result.documents:,}"), ("entities", f"{result.entities:,}"), *kinds]
    return "\n".join(
        f"{name:<24}{count:>12}" for name, count in [*rows, ("relations", f"{result.relations:,}"), *edges]
    )


def exported_text(result: Any) -> str:
    return f"{result.file}: {result.lines:,} lines"


def data_list_text(data_list: DataList) -> str:
    """Return the entries of a folder, and where relative paths start."""
    rows = [
        (entry.path, "upload" if entry.uploaded else entry.kind, "" if entry.bytes is None else f"{entry.bytes:,}")
        for entry in data_list.entries
    ]
    more = "" if data_list.complete else "\nThere are more: --limit shows them."
    listed = format_table(rows, ("path", "kind", "bytes")) if rows else "There is no file that a chain may read."
    return f"{listed}{more}\n\nRelative paths start in {data_list.start}."


def models_text(model_list: ModelList) -> str:
    """Return the base models of this machine."""
    rows = [
        (
            model.name,
            model.place,
            "" if model.bytes is None else f"{model.bytes:,}",
            "default" if model.name == model_list.default else "",
        )
        for model in model_list.models
    ]
    return format_table(rows, ("name", "place", "bytes", ""))


def uploaded_text(upload: UploadedFile) -> str:
    """Return the name of an upload in chains, and a command that uses it."""
    state = "kept" if upload.is_new else "there already"
    return f"{upload.path}: {upload.bytes:,} bytes, {state}\n\nNext: trainyard data preview {shlex.quote(upload.path)}"


def deleted_upload_text(upload: DeletedUpload) -> str:
    return (
        f"{upload.name}: removed, {upload.files:,} {'file' if upload.files == 1 else 'files'}, {upload.bytes:,} bytes"
    )


def columns_text(file: DataColumns) -> str:
    """Return the columns with an example of each, and the fields that they may be mapped to."""
    if not file.columns:
        return f"{file.path} has no columns: its rows are documents or lines of text."
    rows = [[column.name, cut(column.example)] for column in file.columns]
    return f"{format_table(rows, ('column', 'first value'))}\n\nfields: {', '.join(file.fields)}"


READ, RUN, ADMIN = Scope

ROWS: dict[str, Operation] = {
    "models": Operation(
        "The base models on this machine: the starter, the default, folders, and the cache of the Hub.",
        request=Nothing, run="app.data.listing:list_models", text=models_text, scope=READ,
        route="GET /api/v1/models", tenants=True,
    ),
    "data list": Operation(
        "The files and folders that a chain may read, as a path names them.",
        request=FolderInput, run="app.data.listing:list_data", text=data_list_text, scope=READ,
        example="trainyard data list handbook",
        route="GET /api/v1/data", tenants=True,
    ),
    "data upload": Operation(
        "Copy a file of this machine into the tenant's folder of uploads, from where chains read it.",
        request=UploadInput, run="app.data.uploads:upload_file", text=uploaded_text, scope=RUN,
        example="trainyard data upload ~/Downloads/chats.jsonl",
        route="PUT /api/v1/data/uploads/{name}", status=201, tenants=True, takes_file=True,
    ),
    "data delete": Operation(
        "Remove an uploaded file, or an uploaded folder with its files.",
        request=UploadNameInput, run="app.data.uploads:delete_upload", text=deleted_upload_text, scope=RUN,
        route="DELETE /api/v1/data/uploads/{name}", tenants=True,
    ),
    "data columns": Operation(
        "The columns of a file of rows, and the fields that `columns` of a data set maps them to.",
        request=ColumnsInput, run="app.data.listing:show_columns", text=columns_text, scope=READ,
        example="trainyard data columns tickets.csv",
        route="GET /api/v1/data/columns", tenants=True, confined=True,
    ),
    "data preview": Operation(
        "A data set as a training would see it: format, rendered rows, learned tokens, lengths, problems, cost.",
        request=PreviewInput, run="app.data.preview:preview", text=preview_text, scope=READ,
        example="trainyard data preview chats.jsonl --base-model Qwen/Qwen3-4B --max-length 2048",
        part_text=raw_text, route="GET /api/v1/data/preview", heavy=True, tenants=True, confined=True,
    ),
    "renderers verify": Operation(
        "Try the chat templates that are known, or a .jinja file: are turns kept, which tokens end an answer.",
        request=RenderersInput, run="app.data.renderers:verify_renderers", text=renderers_text, scope=READ,
        local="It reads templates anywhere on this machine.",
    ),
}  # fmt: skip
"""Name -> row, in the order of the help."""
