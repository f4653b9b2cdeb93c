"""Rows as files for trainers outside our process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.small_jobs import Jobs
from trainyard.backends.job import TrainingJob
from trainyard.backends.rows import CHAT_FILE, read_rows, write_chat_rows
from trainyard.data.rows import LabelledRow, Message, PreferenceRow, Row, SftRow, TextRow, write_rows
from trainyard.errors import InvalidInput
from trainyard.spec.axes.data import Port

ASK, BETTER, WORSE = Message("user", "q"), Message("assistant", "better"), Message("assistant", "worse")
PAIR = PreferenceRow([ASK], [BETTER], [WORSE])
CALL = '[{"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}]'


def read_lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / CHAT_FILE).read_text().splitlines()]


def job_with(jobs: Jobs, folder: Path, port: Port, *rows: Row, **config: Any) -> TrainingJob:
    write_rows(folder / "rows.arrow", port, rows)
    return jobs(**config).model_copy(update={"data": {port: str(folder)}})


def make_turns(*messages: Message) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in messages]


@pytest.mark.parametrize(
    ("stage", "port", "row", "expected"),
    [
        ("sft", Port.SFT, SftRow([ASK, BETTER]), {"messages": make_turns(ASK, BETTER)}),
        ("sft", Port.PREFERENCE, PAIR, {"messages": make_turns(ASK, BETTER)}),
        (
            "dpo",
            Port.PREFERENCE,
            PAIR,
            {"prompt": make_turns(ASK), "chosen": make_turns(BETTER), "rejected": make_turns(WORSE)},
        ),
        (
            "reward",
            Port.PREFERENCE,
            PAIR,
            {"prompt": make_turns(ASK), "chosen": make_turns(BETTER), "rejected": make_turns(WORSE)},
        ),
        (
            "kto",
            Port.LABELLED,
            LabelledRow([ASK], [BETTER], True),
            {"prompt": make_turns(ASK), "completion": make_turns(BETTER), "label": True},
        ),
        ("cpt", Port.TEXT, TextRow("words"), {"text": "words"}),
    ],
)
def test_each_stage_has_its_line(
    stage: str, port: Port, *, row: Row, expected: dict[str, Any], jobs: Jobs, tmp_path: Path
) -> None:
    counts = write_chat_rows(job_with(jobs, tmp_path, port, row, stage=stage), tmp_path)
    assert read_lines(tmp_path) == [expected]
    assert counts == {"read": 1, "written": 1, "held_out": 0}


def test_tools_and_calls_are_written_as_openai_has_them(jobs: Jobs, tmp_path: Path) -> None:
    row = SftRow([ASK, Message("assistant", "", CALL)], tools='[{"type": "function"}]')
    write_chat_rows(job_with(jobs, tmp_path, Port.SFT, row), tmp_path)
    (line,) = read_lines(tmp_path)
    assert line["tools"] == [{"type": "function"}]
    assert line["messages"][1]["tool_calls"] == json.loads(CALL)


def test_held_out_rows_stay_out(jobs: Jobs, tmp_path: Path) -> None:
    held = SftRow([ASK, BETTER], split="unseen_documents")
    counts = write_chat_rows(job_with(jobs, tmp_path, Port.SFT, SftRow([ASK, BETTER]), held), tmp_path)
    assert counts == {"read": 2, "written": 1, "held_out": 1}
    with pytest.raises(InvalidInput, match=r"E-DATA-EMPTY: No row of the data set is for training\. .* 1 are held out"):
        write_chat_rows(job_with(jobs, tmp_path, Port.SFT, held), tmp_path)


def test_the_control_gets_other_answers(jobs: Jobs, tmp_path: Path) -> None:
    rows = [SftRow([Message("user", f"q{n}"), Message("assistant", f"a{n}")]) for n in range(6)]
    job = job_with(jobs, tmp_path, Port.SFT, *rows, control="shuffled_answers")
    shuffled = [row for row in read_rows(job) if isinstance(row, SftRow)]
    assert all(row.messages[0].content[1:] != row.messages[1].content[1:] for row in shuffled)


def test_rows_of_another_kind_are_told(jobs: Jobs, tmp_path: Path) -> None:
    job = job_with(jobs, tmp_path, Port.TEXT, TextRow("words"), stage="dpo")
    with pytest.raises(InvalidInput, match=r"E-DATA-EMPTY: Stage dpo needs preference rows, .* was given: text"):
        read_rows(job)
