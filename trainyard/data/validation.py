"""The validator's work: keep the good rows, count every other one with its reason, set evaluation rows aside.

The set is read once in blocks through `ROW_STEPS` (each drops rows from a block); what is left goes to a working file,
and one small entry a row stays in memory. `SET_STEPS` then look at all rows together and decide each row's fate. The
working file is read once more and every row is written where its fate says:

    <port>/rows.arrow                       training
    <port>/heldout/unseen_documents.arrow   rows of held-out documents
    <port>/heldout/unseen_wording.arrow     other wordings of trained questions
    <port>/quarantine.jsonl                 everything else: line, source, reason, detail, row
    <port>/report.json                      the balance: read = kept + held out + dropped by reason
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc

from trainyard.data.mixing import count_by_set
from trainyard.data.quality import sets
from trainyard.data.quality.blocks import Block, RowLedger, read_blocks
from trainyard.data.quality.decontamination import load_evaluation_sets
from trainyard.data.quality.filters import (
    check_format,
    check_schema,
    exact_duplicates,
    grounding,
    load_vocabulary,
    quality,
    row_validator,
)
from trainyard.data.quality.lengths import length, load_token_counter
from trainyard.data.quality.sensitive import check_sensitive, sensitive_facts
from trainyard.data.quality.sets import Entries, KeptRows, RowStatus, with_words, work_schema
from trainyard.data.quality.sieve import RowFilter, TokenCounter
from trainyard.data.quarantine import QUARANTINE_FILE, REPORT_FILE
from trainyard.data.rows import HELD_OUT_FOLDER, ROWS_FILE, SCHEMAS, TRAIN, UNSEEN_DOCUMENTS, UNSEEN_WORDING
from trainyard.errors import InvalidInput
from trainyard.json_types import JsonObject
from trainyard.spec.axes.data import Port
from trainyard.spec.estimate.verdict import describe_small_sets
from trainyard.spec.nodes import ValidatorConfig
from trainyard.stores.artifacts import Produced, ProducedSet, Reference
from trainyard.stores.whole import write_json_durably

__all__ = ["ROW_STEPS", "SET_STEPS", "TokenCounter", "load_token_counter", "validate"]

PORTS = (Port.SFT, Port.PREFERENCE, Port.LABELLED, Port.PROMPTS, Port.TEXT)
WORK_FILE = ".work.arrow"
DESTINATIONS = {
    RowStatus.TRAIN: (TRAIN, ROWS_FILE),
    RowStatus.UNSEEN_DOCUMENTS: (UNSEEN_DOCUMENTS, f"{HELD_OUT_FOLDER}/{UNSEEN_DOCUMENTS}.arrow"),
    RowStatus.UNSEEN_WORDING: (UNSEEN_WORDING, f"{HELD_OUT_FOLDER}/{UNSEEN_WORDING}.arrow"),
}
MOST_NAMED = 5
"""Held-out documents whose names are kept."""
LINE = re.compile(r":\d+$")
"""End of the source of a row that is a line of a file."""
Report = Callable[[float, str], None]


RowStep = Callable[[Block, RowFilter], Block]
ROW_STEPS: dict[str, RowStep] = {
    "sensitive": check_sensitive,
    "format": check_format,
    "row_schema": check_schema,
    "length": length,
    "quality": quality,
    "exact_duplicates": exact_duplicates,
    "grounding": grounding,
}
"""What a row has to pass, in order. What is sensitive is masked before a step can write it anywhere. Grounding comes
before near-duplicates, so that of two similar answers the grounded one stays."""

SetStep = Callable[[KeptRows, RowFilter], None]
SET_STEPS: dict[str, SetStep] = {
    "near_duplicates": sets.drop_near_duplicates,
    "holdout": sets.holdout,
    "decontamination": sets.decontamination,
}
"""Decisions made with all rows, in order: no near-duplicate of a held-out row is left for training."""


Sift = Callable[[RowFilter, Reference, Path, Report], KeptRows]
"""(rules, rows, working file, progress) -> the rows that have passed the row steps, in the working file."""


def validate(
    config: ValidatorConfig,
    source: Reference,
    folder: Path,
    *,
    tokens: TokenCounter,
    documents: Path | None = None,
    report: Report,
    sift: Sift | None = None,
) -> Produced:
    """Validate one set of rows into `folder/<port>`.

    `source` is a port of rows, `documents` the folder of a documents port, needed for grounding only.
    `report(fraction, text)` gets the progress. `sift` has the row steps done elsewhere (`data/pieces`).

    Raises `InvalidInput`: `E-DATA-FORMAT` (not rows, no schema), `E-DATA-EMPTY` (no rows, none kept),
    `E-DATA-TOO-LONG`, `E-EVALUATION-SET`, `E-DATA-NOT-FOUND`; `LimitExceeded` (`E-DATA-LIMIT`) for a `row_schema` that
    takes too long; `TrainyardError` `E-BATCH`.
    """
    port = source.kind
    if port not in PORTS:
        raise InvalidInput(
            f"A validator cannot check {port.value}.",
            why=f"It checks rows: {', '.join(port.value for port in PORTS)}.",
            do="Put a generator between the documents and the validator, or leave the validator out.",
            code="E-DATA-FORMAT",
        )
    out = folder / port.value
    out.mkdir(parents=True, exist_ok=True)
    # Everything that the rules need besides the rows is read and checked before the first row.
    sieve = RowFilter(config, port, RowLedger(out / QUARANTINE_FILE), tokens, row_validator(config.row_schema))
    if config.grounding is not None:
        sieve.vocabulary = load_vocabulary(documents, config.sensitive)
    if config.decontaminate:
        sieve.evaluation = load_evaluation_sets(config.evaluation_sets, config.decontaminate)
    sieve.ledger.quarantine.touch()
    try:
        survivors = (sift or pass_steps)(sieve, source, out / WORK_FILE, report)
        for index, (name, step) in enumerate(SET_STEPS.items()):
            report(0.7 + 0.05 * index, f"{name.replace('_', ' ')} among {len(survivors)} rows")
            step(survivors, sieve)
        report(0.9, "writing")
        written = write(survivors, sieve.ledger, out, tuple(source.facts.get("mixture") or ()))
    finally:
        (out / WORK_FILE).unlink(missing_ok=True)
        if sieve.row_validator is not None:
            sieve.row_validator.stop()
    sieve.ledger.check_balance()
    if not sieve.ledger.kept_rows:
        raise no_rows_left_error(sieve.ledger)
    engine, file_format = source.facts.get("engine"), source.facts.get("format") or "rows"
    facts = {
        **summary(survivors, sieve),
        **written,
        "gold": f"synthetic ({engine})" if engine else f"file ({file_format})",
    }
    write_json_durably(out / REPORT_FILE, {**facts, "config": config.model_dump(mode="json")})
    report(1.0, f"kept {facts['kept']} of {facts['read']} rows")
    part = ProducedSet(folder=port.value, rows=facts["kept"], facts=facts)
    return Produced(outputs={port: part}, facts=facts)


def pass_steps(sieve: RowFilter, source: Reference, work: Path, report: Report) -> KeptRows:
    """Pass every block through the row steps; the remaining rows go to the working file."""
    entries, ledger = Entries(), sieve.ledger
    with ipc.new_file(work, work_schema(sieve.port)) as writer:
        for block in read_blocks(source.path / ROWS_FILE, sieve.port):
            ledger.read += len(block)
            for step in ROW_STEPS.values():
                block = step(block, sieve)
            if len(block):
                entries.add(block)
                if sieve.config.near_duplicates is not None:
                    sieve.shingles.add(block)
                writer.write_batch(with_words(block))
            report(0.7 * min(1.0, ledger.read / max(source.rows or ledger.read, 1)), f"checked {ledger.read} rows")
    return entries.survivors(work, sieve.port)


def write(survivors: KeptRows, ledger: RowLedger, out: Path, names: Sequence[str] = ()) -> JsonObject:
    """Return every row of the working file to where its fate says, and the dropped ones to quarantine.

    Returns the rows and tokens for training of each set of a mixture, which `names` lists, and the first documents
    that are held out, by their names.
    """
    unseen: dict[str, None] = {}
    counts = {name: {"rows": 0, "tokens": 0} for name in names}
    with ExitStack() as files:
        writers: dict[RowStatus, ipc.RecordBatchFileWriter] = {}
        for block, entries in survivors.blocks():
            fates = survivors.fates[entries]
            for fate, (split, name) in DESTINATIONS.items():
                mask = fates == fate
                if not mask.any():
                    continue
                if fate not in writers:
                    (out / name).parent.mkdir(exist_ok=True)
                    writers[fate] = files.enter_context(ipc.new_file(out / name, SCHEMAS[survivors.port]))
                batch, rows = block.keep(mask).batch, int(mask.sum())
                column = batch.schema.get_field_index("split")
                marked = pa.array([split] * rows, pa.string())
                writers[fate].write_batch(batch.set_column(column, batch.schema.field(column), marked))
                if fate is RowStatus.TRAIN:
                    ledger.kept_rows += rows
                    for name, in_set in count_by_set(block.column("source"), names).items():
                        counts[name]["rows"] += int((in_set & mask).sum())
                        counts[name]["tokens"] += int(survivors.tokens[entries[in_set & mask]].sum())
                else:
                    ledger.heldout[split] = ledger.heldout.get(split, 0) + rows
                if fate is RowStatus.UNSEEN_DOCUMENTS and len(unseen) < MOST_NAMED:
                    sources = pc.unique(block.column("source").filter(pa.array(mask))).to_pylist()
                    unseen |= dict.fromkeys(source for source in sources if source and not LINE.search(source))
            dropped = np.flatnonzero(fates >= RowStatus.NEAR_DUPLICATE)
            if len(dropped):
                reasons = [RowStatus(fate).reason for fate in fates[dropped].tolist()]
                details = {row: survivors.detail(int(entries[row])) for row in dropped.tolist()}
                ledger.quarantine_rows(block, dropped, reasons, details.__getitem__)
    return ({"mixture": counts} if counts else {}) | ({"unseen_names": list(unseen)[:MOST_NAMED]} if unseen else {})


def summary(survivors: KeptRows, sieve: RowFilter) -> dict[str, object]:
    """Return the row counts and the numbers for tables, as in `report.json` and in the reference's facts."""
    ledger, train = sieve.ledger, survivors.are(RowStatus.TRAIN)
    held_out = np.isin(survivors.documents, survivors.documents[survivors.are(RowStatus.UNSEEN_DOCUMENTS)])
    return {
        "port": sieve.port.value,
        "read": ledger.read,
        "kept": ledger.kept_rows,
        "heldout": {name: ledger.heldout.get(name, 0) for name in (UNSEEN_DOCUMENTS, UNSEEN_WORDING)},
        "dropped": dict(sorted(ledger.dropped.items())),
        "truncated": sieve.truncated,
        "sensitive": sensitive_facts(sieve.config.sensitive, sieve.sensitive),
        "documents": {
            "trained": len(np.unique(survivors.documents[train])),
            "heldout": len(np.unique(survivors.documents[held_out])),
        },
        "tokens": {
            "read": sieve.read_tokens,
            "kept": int(survivors.tokens[train].sum()),
            "longest": int(survivors.tokens[train].max(initial=0)),
        },
        "warnings": sets.list_small_sets(survivors, sieve.config),
        "cautions": describe_small_sets(ledger.kept_rows, max(ledger.heldout.values()) if ledger.heldout else None),
    }


def no_rows_left_error(ledger: RowLedger) -> InvalidInput:
    """Return the error for a set of which no row is left."""
    if not ledger.read:
        return InvalidInput(
            "The set that reached the validator has no rows.",
            do="Look at the report of the node before it.",
            code="E-DATA-EMPTY",
        )
    lines = [f"{reason} {rows} (first: {ledger.first[reason]})" for reason, rows in ledger.dropped.most_common()]
    return InvalidInput(
        f"The validator kept none of {ledger.read} rows.",
        why="Dropped: " + "; ".join(lines) + f". Held out: {sum(ledger.heldout.values())}.",
        do="Loosen the rule that dropped most rows, or correct the data.",
        code="E-DATA-EMPTY",
    )
