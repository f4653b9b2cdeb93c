"""The rows of a job as a file that a trainer outside our process reads: conversations, pairs or texts as JSON lines.

External programs read neither Arrow nor our row types. Called in the parent or in a child; imports no torch. Token ids
with labels are made by `external/plan.py`.
"""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson

from trainyard.backends.job import TrainingJob
from trainyard.data import rows as shapes
from trainyard.data.quality.sets import first_rows, row_order
from trainyard.data.quarantine import REPORT_FILE
from trainyard.errors import InvalidInput
from trainyard.json_types import JsonObject
from trainyard.spec.axes.data import Port
from trainyard.spec.training import TrainerConfig
from trainyard.stores.whole import new_file
from trainyard.train.rows.shuffled_control import shuffle_answers, shuffle_preferences

CHAT_FILE, TOKENS_FILE = "rows.jsonl", "tokens.jsonl"


def find_port(job: TrainingJob) -> Port:
    """Return the port that this job's rows come from. Raises `InvalidInput` (`E-DATA-EMPTY`)."""
    stage = job.config.stage
    for port in (*stage.facts.ports, *stage.facts.instead):
        if port in job.data:
            return port
    raise InvalidInput(
        f"Stage {stage} needs {' or '.join(stage.facts.ports)} rows, and none arrived.",
        why=f"The trainer was given: {', '.join(port.value for port in job.data) or 'nothing'}.",
        do="Connect a data_source, generator or validator that produces them.",
        code="E-DATA-EMPTY",
    )


def read_rows(job: TrainingJob) -> Iterable[Any]:
    """Return every row of the job; see `split_rows`."""
    port = find_port(job)
    return split_rows(job.config, Path(job.data[port]), port)


def split_rows(config: TrainerConfig, folder: Path, port: Port) -> Iterable[Any]:
    """Return every row of a set, in the shape of a trainer's stage, the control applied. Read as they are requested.

    The split of those that are held out for evaluation is `evaluation`. Raises `InvalidInput` (`E-DATA-EMPTY`) where a
    share leaves none, or answers are too much alike for the control.
    """
    evaluation, seed = config.eval, config.hyperparameters.seed
    if evaluation is None or not evaluation.held_out_share:
        return stage_rows(config, folder, port)
    training = (row for row in map(plain_text, stage_rows(config, folder, port)) if row.split == shapes.TRAIN)
    held_out = first_rows((row_order(row, seed) for row in training), evaluation.held_out_share, evaluation.max_rows)
    if not held_out:
        raise InvalidInput(
            "No row can be held out for evaluation.",
            why="The data set has fewer than two different rows for training.",
            do="Give the trainer more rows, name a held-out set in eval.set, or remove eval.",
            code="E-DATA-EMPTY",
        )

    def mark_row(row: Any) -> Any:
        if row.split == shapes.TRAIN and row_order(row, seed) in held_out:
            row.split = shapes.EVALUATION
        return row

    return map(mark_row, map(plain_text, stage_rows(config, folder, port)))


def evaluation_rows(job: TrainingJob) -> list[Any]:
    """Return the rows that the job is evaluated on while it trains, at most `eval.max_rows`; empty without `eval`.

    Raises `InvalidInput` (`E-DATA-EMPTY`) for a set that the data set does not have.
    """
    evaluation, seed = job.config.eval, job.config.hyperparameters.seed
    if evaluation is None:
        return []
    rows = (
        read_held_out_rows(job, evaluation.set)
        if evaluation.set
        else (row for row in read_rows(job) if row.split == shapes.EVALUATION)
    )
    held_out = heapq.nsmallest(evaluation.max_rows, rows, key=lambda row: row_order(row, seed))
    for row in held_out:
        row.split = shapes.TRAIN  # what is encoded
    return held_out


def read_held_out_rows(job: TrainingJob, name: str) -> Iterable[Any]:
    """Return the rows of a held-out set that came with the data set."""
    facts, port = job.config.stage.facts, find_port(job)
    path = Path(job.data[port]) / shapes.HELD_OUT_FOLDER / f"{name}.arrow"
    rows: list[Any] = list(shapes.read_rows(path, port)) if path.is_file() else []
    if not rows:
        raise InvalidInput(
            f"The data set has no rows in its held-out set {name}.",
            why="Held-out sets are made by the validator before the trainer, or read by its data source.",
            do="Write `eval: {share: 0.05}` in place of the set, or let the validator hold out more.",
            code="E-DATA-EMPTY",
        )
    return map(shapes.to_chosen_row, rows) if port in facts.instead else rows


def plain_text(row: Any) -> Any:
    """Return a document as the text that is learned from; any other row as it is."""
    return shapes.TextRow(row.text, row.doc_id, row.source) if isinstance(row, shapes.DocumentRow) else row


def list_mixed_sets(job: TrainingJob) -> list[str]:
    """The sets of the mixture that the job trains on, as the report next to its rows names them; none otherwise."""
    path = Path(job.data[find_port(job)]) / REPORT_FILE
    report = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return list(report.get("mixture") or ())


def stage_rows(config: TrainerConfig, folder: Path, port: Port) -> Iterable[Any]:
    """Return every row of a set, in the shape of a trainer's stage, the control applied."""
    facts = config.stage.facts
    rows: Iterable[Any] = shapes.read_rows(folder / shapes.ROWS_FILE, port)
    if port in facts.instead:
        rows = map(shapes.to_chosen_row, rows)
    if config.control == "shuffled_answers":
        shuffle: Any = shuffle_preferences if Port.PREFERENCE in facts.ports else shuffle_answers
        rows = shuffle(list(rows), config.hyperparameters.seed)
    return rows


def write_chat_rows(job: TrainingJob, folder: Path) -> dict[str, int]:
    """Write `rows.jsonl` and return {read, written, held_out}.

    A line is {"messages", "tools"?} for sft, {"prompt", "chosen", "rejected"} for dpo and reward, {"prompt",
    "completion", "label"} for kto, {"text"} for cpt; messages are {"role", "content", "tool_calls"?} as OpenAI has
    them, with `name`, `tool_call_id` and `reasoning_content` where there are such; a `weight` of 0 marks a turn without
    loss. Raises `InvalidInput` (`E-DATA-EMPTY`) if no row is left.
    """
    counts: Counter[str] = Counter({"read": 0, "written": 0, "held_out": 0})
    folder.mkdir(parents=True, exist_ok=True)
    with new_file(folder / CHAT_FILE) as temporary:
        write_lines(temporary, chat_lines(read_rows(job), counts))
        if not counts["written"]:
            raise InvalidInput(
                "No row of the data set is for training.",
                why=f"Of {counts['read']} rows, {counts['held_out']} are held out.",
                do="Give the trainer more rows, or hold out fewer.",
                code="E-DATA-EMPTY",
            )
    return dict(counts)


def write_lines(path: Path, values: Iterable[object]) -> None:
    """Write JSON lines."""
    with path.open("wb") as stream:
        stream.writelines(orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE) for value in values)


def chat_lines(rows: Iterable[shapes.Row], counts: Counter[str]) -> Iterator[JsonObject]:
    for row in rows:
        counts["read"] += 1
        if getattr(row, "split", shapes.TRAIN) != shapes.TRAIN:
            counts["held_out"] += 1
            continue
        counts["written"] += 1
        yield to_chat_json(row)


def to_chat_json(row: shapes.Row) -> JsonObject:
    """Return a row as the JSON that chat trainers read."""
    match row:
        case shapes.SftRow():
            return {"messages": turns(row.messages), **parse("tools", row.tools)}
        case shapes.PreferenceRow():
            sides = {name: turns(getattr(row, name)) for name in ("prompt", "chosen", "rejected")}
            return {**sides, **parse("tools", row.tools)}
        case shapes.LabelledRow():
            fields = {"prompt": turns(row.prompt), "completion": turns(row.completion), "label": row.label}
            return {**fields, **parse("tools", row.tools)}
        case shapes.PromptRow():
            answer = {"answer": row.answer} if row.answer else {}
            return {"prompt": turns(row.prompt), **answer, **parse("tools", row.tools)}
        case shapes.TextRow() | shapes.DocumentRow():
            return {"text": row.text}


def turns(messages: list[shapes.Message]) -> list[JsonObject]:
    return [
        {"role": message.role, "content": message.content, **parse("tool_calls", message.tool_calls), **message.extras}
        for message in messages
    ]


def parse(name: str, text: str | None) -> dict[str, object]:
    """Return a column of JSON under its name; nothing where it is empty."""
    return {name: json.loads(text)} if text else {}
