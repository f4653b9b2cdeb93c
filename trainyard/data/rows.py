"""The rows that travel between nodes: six shapes, one Arrow file a set.

Every data set becomes one of these shapes when it is read, whatever its spelling was. On disk a set is a folder with
`rows.arrow` (Arrow IPC file, schema below) and whatever its maker adds (report, quarantine, held-out sets).

`doc_id` is 16 hex digits: of the SHA-256 of the source document's bytes, or of the XXH3-128 of the normalised row where
there is no document. Held-out documents are chosen by it. `source` says where a person finds the row: `file.jsonl:17`.
`split` is `train`, `unseen_documents` or `unseen_wording`. `pair` joins the wordings of one question.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import ipc

from trainyard.json_types import JsonObject
from trainyard.spec.axes.data import Port

ROWS_FILE = "rows.arrow"
BATCH_ROWS = 10_000

WEIGHT = "weight"
TEMPLATE_EXTRAS = ("name", "tool_call_id", "reasoning_content")
"""Further fields of a turn that chat templates read."""
EXTRAS = (*TEMPLATE_EXTRAS, WEIGHT)
"""Keys of `Message.more`. A weight is there only if it is 0: the turn is context, and gets no loss."""
TRAIN, UNSEEN_DOCUMENTS, UNSEEN_WORDING = "train", "unseen_documents", "unseen_wording"
EVALUATION = "evaluation"
"""Split of the rows that a trainer holds out for its own evaluations; no file has it."""
HELD_OUT_FOLDER = "heldout"
"""Where the held-out sets of a data set are, `<set>.arrow` each."""
HELD_OUT_SET = "heldout"
"""The held-out set that a data source reads from a place of its own."""


class Message(msgspec.Struct, gc=False, omit_defaults=True):
    """A turn. `tool_calls` is the JSON text of OpenAI's list of calls, or None."""

    role: str
    content: str
    tool_calls: str | None = None
    more: str | None = None
    """JSON text of what few turns have: some of `EXTRAS`. One column on disk, because it is nearly always null."""

    @property
    def extras(self) -> JsonObject:
        """Return the fields of the turn other than its text and calls, by name."""
        return msgspec.json.decode(self.more) if self.more else {}

    @property
    def learned(self) -> bool:
        """Whether a turn of the assistant takes part in the loss."""
        return self.more is None or self.extras.get(WEIGHT, 1) != 0


class DocumentRow(msgspec.Struct, gc=False):
    doc_id: str
    source: str
    kind: str
    """markdown, text, rst, html, pdf, docx, pptx, xlsx, epub, mail, notebook, code or commit."""
    title: str
    text: str


class SftRow(msgspec.Struct, gc=False):
    """`messages` ends with a turn of the assistant. Every turn of the assistant is learned, unless its weight is 0."""

    messages: list[Message]
    doc_id: str = ""
    source: str = ""
    split: str = TRAIN
    pair: str = ""
    tools: str | None = None
    """JSON text of the list of tool schemas."""


class PreferenceRow(msgspec.Struct, gc=False):
    prompt: list[Message]
    chosen: list[Message]
    rejected: list[Message]
    doc_id: str = ""
    source: str = ""
    split: str = TRAIN
    tools: str | None = None


class LabelledRow(msgspec.Struct, gc=False):
    """Unpaired preference (KTO): a completion and whether it is desirable."""

    prompt: list[Message]
    completion: list[Message]
    label: bool
    doc_id: str = ""
    source: str = ""
    split: str = TRAIN
    tools: str | None = None


class PromptRow(msgspec.Struct, gc=False):
    """A prompt whose completions are drawn; `answer` is what rewards compare them with, and may be empty."""

    prompt: list[Message]
    answer: str = ""
    doc_id: str = ""
    source: str = ""
    split: str = TRAIN
    tools: str | None = None


class TextRow(msgspec.Struct, gc=False):
    text: str
    doc_id: str = ""
    source: str = ""
    split: str = TRAIN


def to_chosen_row(row: PreferenceRow) -> SftRow:
    """Return a preference row as a row to imitate: its prompt with the better answer."""
    return SftRow([*row.prompt, *row.chosen], row.doc_id, row.source, row.split, "", row.tools)


Row = DocumentRow | SftRow | PreferenceRow | LabelledRow | PromptRow | TextRow

ROW_TYPES: dict[Port, type[Row]] = {
    Port.DOCUMENTS: DocumentRow,
    Port.SFT: SftRow,
    Port.PREFERENCE: PreferenceRow,
    Port.LABELLED: LabelledRow,
    Port.PROMPTS: PromptRow,
    Port.TEXT: TextRow,
}
MESSAGE = pa.struct([(name, pa.string()) for name in Message.__struct_fields__])
MESSAGES = pa.list_(MESSAGE)
_COLUMNS = {str: pa.string(), str | None: pa.string(), bool: pa.bool_(), list[Message]: MESSAGES}
SCHEMAS: dict[Port, pa.Schema] = {
    port: pa.schema([(field.name, _COLUMNS[field.type]) for field in msgspec.structs.fields(kind)])
    for port, kind in ROW_TYPES.items()
}


def to_batch(rows: list[Row], port: Port) -> pa.RecordBatch:
    """Return one Arrow batch of rows that all have the port's shape.

    Built column by column from flat lists and offsets: about 1 µs a row, where `RecordBatch.from_pylist` over the same
    rows as dicts takes 10.
    """
    columns = []
    for column in SCHEMAS[port]:
        values = list(map(operator.attrgetter(column.name), rows))
        if column.type == MESSAGES:  # the turns one after another, and where each conversation begins
            offsets = [0, *itertools.accumulate(map(len, values))]
            turns = list(itertools.chain.from_iterable(values))
            texts = (list(map(operator.attrgetter(name), turns)) for name in Message.__struct_fields__)
            columns.append(join_turns(offsets, [pa.array(contents, pa.string()) for contents in texts]))
        else:
            columns.append(pa.array(values, column.type))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMAS[port])


def join_turns(offsets: Sequence[int] | np.ndarray, fields: list[pa.Array]) -> pa.ListArray:
    """Return one column of the fields of all turns, cut at the offsets."""
    flat = pa.StructArray.from_arrays(fields, fields=list(MESSAGE))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), flat, type=MESSAGES)


def write_rows(path: Path, port: Port, rows: Iterable[Row]) -> int:
    """Write rows to an Arrow IPC file in batches of 10,000, so that memory stays flat. Returns how many."""
    count, left = 0, iter(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    with ipc.new_file(path, SCHEMAS[port]) as writer:
        while batch := list(itertools.islice(left, BATCH_ROWS)):
            writer.write_batch(to_batch(batch, port))
            count += len(batch)
    return count


def count_rows(path: Path) -> int | None:
    """Rows of a file, without reading them; None where there is no file."""
    if not path.is_file():
        return None
    with pa.memory_map(str(path)) as source, ipc.open_file(source) as reader:
        return sum(reader.get_batch(index).num_rows for index in range(reader.num_record_batches))


def read_rows(path: Path, port: Port) -> Iterator[Row]:
    """Yield the rows of an Arrow IPC file, batch by batch, memory-mapped."""
    with pa.memory_map(str(path)) as source, ipc.open_file(source) as reader:
        for index in range(reader.num_record_batches):
            for value in reader.get_batch(index).to_pylist():
                yield msgspec.convert(value, ROW_TYPES[port])
