"""Batches of rows with the texts that the steps check, and the ledger of the dropped rows.

Steps are columnar: they compute a mask over a block and hand it to `RowLedger.drop`, which counts the rows under a
reason, writes each to the quarantine file and returns the block without them. Nothing leaves a block another way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc

from trainyard.data.quality.words import WordTable, split_words
from trainyard.data.quarantine import ROW_CHARS, ROWS_WITH_TEXT
from trainyard.data.rows import BATCH_ROWS, SCHEMAS
from trainyard.errors import TrainyardError
from trainyard.spec.axes.data import Port

MAX_BLOCK_BYTES = 64 << 20
"""Blocks of long rows contain fewer of them, so that a block's texts never pass Arrow's 2 GiB of one string array."""
MESSAGE_COLUMNS: dict[Port, tuple[str, ...]] = {
    Port.SFT: ("messages",),
    Port.PREFERENCE: ("prompt", "chosen", "rejected"),
    Port.LABELLED: ("prompt", "completion"),
    Port.PROMPTS: ("prompt",),
    Port.TEXT: (),
}
ANSWERS = {port: columns[1:] for port, columns in MESSAGE_COLUMNS.items()}
"""Columns with the trained text; an SFT row's is the last message of `messages`, a text row's the text itself."""
PLAIN_ANSWERS = {Port.TEXT: "text", Port.PROMPTS: "answer"}
"""Columns of plain text in the place of an answer's turns."""

Detail = str | Callable[[int], str]


@dataclass(frozen=True)
class Turns:
    """A column of message lists, flat: `roles[offsets[i]:offsets[i + 1]]` are the roles of row `i`."""

    roles: pa.Array
    contents: pa.Array
    calls: pa.Array
    more: pa.Array
    offsets: np.ndarray

    @staticmethod
    def of(column: pa.Array) -> Turns:
        sizes = to_numpy(pc.list_value_length(column).fill_null(0))
        flat = column.flatten()
        roles, contents, calls, more = (part.fill_null("") for part in flat.flatten())
        return Turns(roles, contents, calls, more, np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]))

    def join_texts(self, texts: pa.Array, mask: np.ndarray | None = None, separator: str = "\n") -> pa.Array:
        """Return one text a row: those of its (wanted) messages in order."""
        counts = self.offsets
        if mask is not None:
            counts = np.concatenate([[0], np.cumsum(mask)])[self.offsets]
            texts = texts.filter(pa.array(mask))
        return pc.binary_join(pa.ListArray.from_arrays(pa.array(counts, pa.int32()), texts), separator)

    @cached_property
    def last(self) -> np.ndarray:
        """Whether a message is its row's last."""
        is_last = np.zeros(len(self.roles), bool)
        is_last[self.offsets[1:][np.diff(self.offsets) > 0] - 1] = True
        return is_last

    def is_role(self, role: str) -> np.ndarray:
        return to_numpy(pc.equal(self.roles, role))


@dataclass
class Block:
    """Rows of one Arrow batch that are still in the run, with their line numbers in the incoming set (from 1)."""

    port: Port
    batch: pa.RecordBatch
    numbers: np.ndarray
    tokens: np.ndarray | None = None
    """int64 tokens a row, set by the length step."""
    counted_words: WordTable | None = None
    _turns: dict[str, Turns] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def keep(self, mask: np.ndarray) -> Block:
        tokens = None if self.tokens is None else self.tokens[mask]
        word_table = None if self.counted_words is None else self.counted_words.keep(np.repeat(mask, 2))
        return Block(self.port, self.batch.filter(pa.array(mask)), self.numbers[mask], tokens, word_table)

    def column(self, name: str) -> pa.Array:
        return self.batch.column(name)

    def turns(self, name: str) -> Turns:
        if name not in self._turns:
            self._turns[name] = Turns.of(self.column(name))
        return self._turns[name]

    @cached_property
    def question(self) -> pa.Array:
        """Return the prompt of a row, without system messages; empty for text rows."""
        if self.port is Port.TEXT:
            return pa.array([""] * len(self), pa.string())
        turns = self.turns(MESSAGE_COLUMNS[self.port][0])
        mask = ~turns.is_role("system")
        return turns.join_texts(turns.contents, mask & ~turns.last if self.port is Port.SFT else mask)

    @cached_property
    def answer(self) -> pa.Array:
        """What the model is to learn: the last assistant turn, the chosen side, the completion, the text; or a prompt's
        answer, which rewards compare with."""
        if self.port in PLAIN_ANSWERS:
            return self.column(PLAIN_ANSWERS[self.port]).fill_null("")
        turns = self.turns((ANSWERS[self.port] or MESSAGE_COLUMNS[self.port])[0])
        return turns.join_texts(turns.contents, turns.last if self.port is Port.SFT else None)

    @cached_property
    def body(self) -> pa.Array:
        """Return the answer with everything else in which two rows may differ: tool calls, the rejected side."""
        if self.port in PLAIN_ANSWERS:
            return self.answer
        if self.port is Port.SFT:
            turns = self.turns("messages")
            return pc.binary_join_element_wise(self.answer, turns.join_texts(turns.calls), "\n")
        parts = [self.turns(name) for name in ANSWERS[self.port]]
        texts = [part.join_texts(side) for part in parts for side in (part.contents, part.calls)]
        return pc.binary_join_element_wise(*texts, "\n")

    @property
    def words(self) -> WordTable:
        """Words of question and body in turn: text 2i is row i's question, text 2i + 1 its body."""
        if self.counted_words is None:
            both = pa.concat_arrays([self.question, self.body])
            order = np.arange(2 * len(self)).reshape(2, -1).T.ravel()
            self.counted_words = split_words(both.take(pa.array(order)))
        return self.counted_words

    @property
    def row_words(self) -> WordTable:
        """Words of each row, question and body as one text."""
        return WordTable(self.words.hashes, self.words.offsets[::2])


def to_numpy(array: pa.Array) -> np.ndarray:
    """Return an Arrow array without nulls as NumPy, copied where its layout differs (booleans)."""
    return np.asarray(array.to_numpy(zero_copy_only=False))


def read_blocks(path: Path, port: Port, batches: range | None = None, *, number: int = 1) -> Iterator[Block]:
    """Yield the rows of an Arrow IPC file in blocks of at most 10,000 rows and 64 MiB.

    `batches` are some of the file's Arrow batches, `number` is the line of their first row; by default all.
    Read, not memory-mapped: mapped pages count as resident, and the run has to stay small on a set of many GB.
    """
    fields = {field.name: field for field in SCHEMAS[port]}
    with pa.OSFile(str(path)) as stream, ipc.open_file(stream) as reader:
        for index in range(reader.num_record_batches) if batches is None else batches:
            batch = reader.get_batch(index)
            # Fields that turns have got since an earlier release wrote the file.
            schema = pa.schema([fields.get(field.name, field) for field in batch.schema])
            batch = batch if batch.schema.equals(schema) else batch.cast(schema)
            step = max(1, min(BATCH_ROWS, MAX_BLOCK_BYTES * int(batch.num_rows) // max(int(batch.nbytes), 1)))
            for start in range(0, batch.num_rows, step):
                part = batch.slice(start, step)
                yield Block(port, part, np.arange(number, number + part.num_rows))
                number += part.num_rows


@dataclass
class RowLedger:
    """Account of every row that was read. `read = kept + held out + dropped`, or the run fails."""

    quarantine: Path
    read: int = 0
    kept_rows: int = 0
    heldout: dict[str, int] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)
    """Reason -> where its first row is and why, for messages."""

    def drop(self, block: Block, mask: np.ndarray, reason: str, detail: Detail) -> Block:
        """Return the block without the masked rows, which are counted under `reason` and written to quarantine.

        `detail` is a sentence, or a function from a row's index in the block to one.
        """
        if not mask.any():
            return block
        self.quarantine_rows(block, np.flatnonzero(mask), [reason], detail)
        return block.keep(~mask)

    def quarantine_rows(self, block: Block, indices: np.ndarray, reasons: Sequence[str], detail: Detail) -> None:
        """Count and write rows of a block; `reasons` has one entry for all rows, or one a row."""
        rows = block.batch.take(pa.array(indices)).to_pylist()
        with self.quarantine.open("ab") as stream:
            for position, (index, row) in enumerate(zip(indices.tolist(), rows, strict=True)):
                reason = reasons[position if len(reasons) > 1 else 0]
                text = detail(index) if callable(detail) else detail
                line, source = int(block.numbers[index]), row.get("source") or ""
                entry: dict[str, object] = {"line": line, "source": source, "reason": reason, "detail": text}
                if self.dropped.total() < ROWS_WITH_TEXT:
                    entry["row"] = msgspec.json.encode(row).decode()[:ROW_CHARS]
                stream.write(msgspec.json.encode(entry) + b"\n")
                self.dropped[reason] += 1
                self.first.setdefault(reason, f"{source or 'row'} (line {line}): {text}")

    def check_balance(self) -> None:
        """Raise `TrainyardError` (`E-BATCH`) if a row is unaccounted for or counted twice."""
        out = self.kept_rows + sum(self.heldout.values()) + self.dropped.total()
        if self.read != out:
            raise TrainyardError(
                f"The validator's balance is wrong: read {self.read}, kept {self.kept_rows}, held out "
                f"{sum(self.heldout.values())}, dropped {self.dropped.total()}.",
                why="A row was lost or counted twice; this is a defect of the validator, not of the data.",
                do="Report it with the config of the validator; the set was not handed on.",
                code="E-BATCH",
            )
