"""The validator's pieces: batches of rows through the steps that look at one row, merged into what one process leaves.

A piece passes its blocks through all row steps before exact duplicates. What it leaves of each block: the lines of the
quarantine, the remaining rows with their words, and what the later steps need of them as columns (the hash of the
content, the share of grounded words, the entry of `KeptRows`, the runs for near-duplicates). Merging goes through the
blocks in order, with the set of contents that were seen, and writes the same working file and quarantine.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import ipc

from trainyard.data.pieces.contract import PIECES_FOLDER, FanOut, Piece, split_evenly
from trainyard.data.quality.blocks import Block, RowLedger, read_blocks
from trainyard.data.quality.duplicates import Shingles, identities
from trainyard.data.quality.filters import drop_repeated, drop_ungrounded, find_repeated, grounded_shares, row_validator
from trainyard.data.quality.lengths import TOKENIZER_FILE, load_token_counter
from trainyard.data.quality.row_schemas import MOST_BREACHES, too_many_breaches
from trainyard.data.quality.sets import ENTRY_COLUMNS, Entries, KeptRows, read_work_block, with_words, work_schema
from trainyard.data.quality.sieve import RowFilter, Vocabulary
from trainyard.data.quarantine import QUARANTINE_FILE, ROWS_WITH_TEXT
from trainyard.data.rows import ROWS_FILE
from trainyard.data.validation import ROW_STEPS, Report, RowStep, Sift
from trainyard.spec.axes.data import Port
from trainyard.spec.nodes import ValidatorConfig
from trainyard.stores.artifacts import Reference

KIND = "rows"
ALONE: Mapping[str, RowStep] = dict(takewhile(lambda step: step[0] != "exact_duplicates", ROW_STEPS.items()))
"""The steps that look at one row."""
WORK_FILE, COLUMNS_FILE, PIECE_FILE, VOCABULARY = "work.arrow", "columns.npz", "piece.json", "vocabulary"
KEY_BYTES = 16
"""Of the hash of a row's content."""


class CheckedBlock(msgspec.Struct):
    """A block of a piece."""

    read: int
    kept: int
    dropped: list[tuple[str, int]]
    """Reasons in the order of their first rows, and rows."""
    quarantine_bytes: int


class CheckedPiece(msgspec.Struct):
    """Counts of a piece, next to its files."""

    blocks: list[CheckedBlock]
    first: dict[str, str]
    truncated: int
    read_tokens: int
    sensitive_rows: dict[str, int]
    sensitive_matches: dict[str, int]
    limits: list[str]
    """Of each row that broke one when it was compared with `row_schema`."""


# --- a piece, on its worker -----------------------------------------------------------------------------------------


def check_rows(piece: Piece, shared: Path, folder: Path) -> None:
    """Pass the batches of a piece through the steps that look at one row."""
    config, port = ValidatorConfig.model_validate(piece["config"]), Port(piece["port"])
    ledger = RowLedger(folder / QUARANTINE_FILE)
    ledger.quarantine.touch()
    tokens = load_token_counter(shared)
    sieve = RowFilter(config, port, ledger, tokens, row_validator(config.row_schema))
    vocabulary = open_vocabulary(shared) if config.grounding is not None else None
    columns, blocks = Columns(), list[CheckedBlock]()
    try:
        with ipc.new_file(folder / WORK_FILE, work_schema(port)) as writer:
            for block in read_blocks(Path(piece["rows"]), port, range(*piece["batches"]), number=piece["number"]):
                read, before, size = len(block), ledger.dropped.copy(), ledger.quarantine.stat().st_size
                for step in ALONE.values():
                    block = step(block, sieve)
                dropped = [(name, rows - before[name]) for name, rows in ledger.dropped.items() if rows > before[name]]
                written = ledger.quarantine.stat().st_size - size
                blocks.append(CheckedBlock(read, len(block), dropped, written))
                if len(block):
                    writer.write_batch(with_words(block))
                    columns.add(block, config, vocabulary)
    finally:
        if sieve.row_validator is not None:
            sieve.row_validator.stop()
    columns.save(folder / COLUMNS_FILE)
    limits = [] if sieve.row_validator is None else sieve.row_validator.limits
    rows, matches = dict(sieve.sensitive.rows), dict(sieve.sensitive.matches)
    checked = CheckedPiece(blocks, ledger.first, sieve.truncated, sieve.read_tokens, rows, matches, limits)
    (folder / PIECE_FILE).write_bytes(msgspec.json.encode(checked))


@dataclass
class Columns:
    """What merging needs of each remaining row of a piece, and of each run of two words."""

    parts: dict[str, list[np.ndarray]] = field(default_factory=dict)

    def add(self, block: Block, config: ValidatorConfig, vocabulary: Vocabulary | None) -> None:
        entries, shingles = Entries(), Shingles()
        entries.add(block)
        columns = {f"entry{index}": column for index, column in enumerate(entries.columns[0])}
        if config.exact_duplicates:
            columns["keys"] = np.frombuffer(b"".join(identities(block)), np.uint8).reshape(-1, KEY_BYTES)
        if vocabulary is not None:
            columns["shares"] = grounded_shares(block, vocabulary)
        if config.near_duplicates is not None:
            shingles.add(block)
            columns |= {"runs": shingles.runs[0], "sizes": shingles.sizes[0], "answers": shingles.answers[0]}
        for name, column in columns.items():
            self.parts.setdefault(name, []).append(column)

    def save(self, path: Path) -> None:
        columns: dict[str, Any] = {name: np.concatenate(parts) for name, parts in self.parts.items()}
        np.savez(path, **columns)


def save_vocabulary(vocabulary: Vocabulary, shared: Path) -> None:
    """Write the words of all documents for the pieces, which map them into memory."""
    sizes = np.fromiter(map(len, vocabulary.values()), np.int64, len(vocabulary))
    np.save(shared / f"{VOCABULARY}_keys.npy", np.fromiter(vocabulary, np.uint64, len(vocabulary)))
    np.save(shared / f"{VOCABULARY}_ends.npy", np.cumsum(sizes))
    np.save(shared / f"{VOCABULARY}_words.npy", np.concatenate([np.zeros(0, np.uint64), *vocabulary.values()]))


def open_vocabulary(shared: Path) -> Vocabulary:
    """Return the words of every document, as views of the file."""
    keys, ends, words = (
        np.load(shared / f"{VOCABULARY}_{part}.npy", mmap_mode="r" if part == "words" else None)
        for part in ("keys", "ends", "words")
    )
    return dict(zip(keys.tolist(), np.split(words, ends[:-1]) if len(ends) else [], strict=True))


# --- all pieces, where the node runs --------------------------------------------------------------------------------


def sift_in_pieces(fan_out: FanOut, model: Path) -> Sift:
    """Return the counterpart of `pass_steps` that has pieces done. `model` has the tokenizer that counts."""

    def sift(sieve: RowFilter, source: Reference, work: Path, report: Report) -> KeptRows:
        shared = work.with_name(PIECES_FOLDER)
        shared.mkdir()
        try:
            shutil.copyfile(model / TOKENIZER_FILE, shared / TOKENIZER_FILE)
            if sieve.vocabulary is not None:
                save_vocabulary(sieve.vocabulary, shared)
            pieces = plan_pieces(sieve, source, fan_out.pieces)
            merging = Merging(sieve)
            with ipc.new_file(work, work_schema(sieve.port)) as writer:
                for folder in fan_out(KIND, pieces, shared):
                    merging.add_piece(folder, writer)
                    shutil.rmtree(folder)
                    rows = max(source.rows or sieve.ledger.read, 1)
                    report(0.7 * min(1.0, sieve.ledger.read / rows), f"checked {sieve.ledger.read} rows")
            return merging.entries.survivors(work, sieve.port)
        finally:
            shutil.rmtree(shared)

    return sift


def plan_pieces(sieve: RowFilter, source: Reference, count: int) -> list[Piece]:
    """Return the pieces of a set: whole Arrow batches, so that blocks are those of one process."""
    path = source.path / ROWS_FILE
    with pa.memory_map(str(path)) as stream, ipc.open_file(stream) as reader:
        rows = [reader.get_batch(index).num_rows for index in range(reader.num_record_batches)]
    starts = [0, *accumulate(rows)]
    shared: Piece = {
        "rows": str(path), "port": sieve.port.value, "config": sieve.config.model_dump(mode="json"),
    }  # fmt: skip
    return [
        {**shared, "batches": [first, last], "number": starts[first] + 1} for first, last in split_evenly(rows, count)
    ]


@dataclass
class Merging:
    """State of merging: what one process has after the blocks so far."""

    sieve: RowFilter
    entries: Entries = field(default_factory=Entries)
    limits: list[str] = field(default_factory=list)

    def add_piece(self, folder: Path, writer: ipc.RecordBatchFileWriter) -> None:
        """Take the blocks of a finished piece. Raises `LimitExceeded` (`E-DATA-LIMIT`)."""
        sieve, checked = self.sieve, msgspec.json.decode((folder / PIECE_FILE).read_bytes(), type=CheckedPiece)
        sieve.truncated += checked.truncated
        sieve.read_tokens += checked.read_tokens
        sieve.sensitive.rows.update(checked.sensitive_rows)
        sieve.sensitive.matches.update(checked.sensitive_matches)
        self.limits += checked.limits
        if len(self.limits) >= MOST_BREACHES:
            raise too_many_breaches(self.limits[MOST_BREACHES - 1], MOST_BREACHES)
        with (
            np.load(folder / COLUMNS_FILE) as columns,
            (folder / QUARANTINE_FILE).open("rb") as lines,
            pa.OSFile(str(folder / WORK_FILE)) as stream,
            ipc.open_file(stream) as reader,
        ):
            arrays, start, batch, run = dict(columns), 0, 0, 0
            for block in checked.blocks:
                sieve.ledger.read += block.read
                take_lines(sieve.ledger, lines.read(block.quarantine_bytes), block.dropped, checked.first)
                if not block.kept:
                    continue
                part = {name: column[start : start + block.kept] for name, column in arrays.items() if name != "runs"}
                if "sizes" in part:
                    part["runs"] = arrays["runs"][run : run + int(part["sizes"].sum())]
                    run += len(part["runs"])
                self.add_block(reader.get_batch(batch), part, writer)
                start, batch = start + block.kept, batch + 1

    def add_block(
        self, batch: pa.RecordBatch, columns: Mapping[str, np.ndarray], writer: ipc.RecordBatchFileWriter
    ) -> None:
        """Drop what an earlier row repeats and what is not grounded; keep the rest as one process does."""
        sieve, numbers, tokens = self.sieve, columns["entry0"], columns["entry4"]
        block, kept = read_work_block(batch, sieve.port, numbers, tokens), np.ones(len(numbers), bool)
        if "keys" in columns:
            repeated = find_repeated(split_keys(columns["keys"]), sieve.seen)
            block, kept = drop_repeated(block, repeated, sieve.ledger), ~repeated
        if "shares" in columns and sieve.config.grounding is not None:
            block = drop_ungrounded(block, columns["shares"][kept], sieve.config.grounding, sieve.ledger)
            kept &= columns["shares"] >= sieve.config.grounding
        if not kept.any():
            return
        self.entries.columns.append(tuple(columns[f"entry{index}"][kept] for index in range(ENTRY_COLUMNS)))
        if "sizes" in columns:
            sizes = columns["sizes"]
            sieve.shingles.runs.append(columns["runs"][np.repeat(kept, sizes)])
            sieve.shingles.sizes.append(sizes[kept])
            sieve.shingles.answers.append(columns["answers"][kept])
        writer.write_batch(with_words(block))


def split_keys(keys: np.ndarray) -> list[bytes]:
    data = keys.tobytes()
    return [data[at : at + KEY_BYTES] for at in range(0, len(data), KEY_BYTES)]


def take_lines(ledger: RowLedger, lines: bytes, dropped: list[tuple[str, int]], first: Mapping[str, str]) -> None:
    """Count the dropped rows of a block and append their lines; of a large quarantine without the rows' texts."""
    left = max(0, ROWS_WITH_TEXT - ledger.dropped.total())
    for reason, rows in dropped:
        ledger.dropped[reason] += rows
        ledger.first.setdefault(reason, first[reason])
    with ledger.quarantine.open("ab") as stream:
        if sum(rows for _, rows in dropped) <= left:
            stream.write(lines)
            return
        for index, line in enumerate(lines.split(b"\n")[:-1]):
            if index >= left:
                entry = msgspec.json.decode(line)
                entry.pop("row", None)
                line = msgspec.json.encode(entry)
            stream.write(line + b"\n")
