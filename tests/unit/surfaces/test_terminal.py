from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from trainyard.app.jobs.jobs import JobMetrics, TrainingCurve
from trainyard.app.run_records import NodeResult, NodeState, RunResult
from trainyard.errors import NotFound, Reason, Refused
from trainyard.operations.jobs import metrics_text
from trainyard.operations.tables import format_table, print_error
from trainyard.spec.states import JobState
from trainyard.stores.metrics import Point
from trainyard.surfaces.cli.command import render
from trainyard.surfaces.cli.progress import Progress


def print_lines(events: list[dict[str, object]], terminal: bool = False) -> list[str]:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=100, highlight=False, soft_wrap=True)
    progress = Progress(console)
    for event in events:
        progress.event(event)
    progress.close()
    return stream.getvalue().splitlines()


def progress(fraction: float) -> dict[str, object]:
    return {"node": "trainer", "event": "progress", "fraction": fraction, "text": f"step {fraction}"}


def test_a_pipe_gets_plain_lines_where_colours_are_forced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a notebook, whose kernel sets FORCE_COLOR."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert Console(stderr=True).is_terminal
    progress = Progress()
    progress.event({"node": "trainer", "event": "started"})
    progress.close()
    assert capsys.readouterr().err == "trainer: started\n"


def test_a_file_gets_plain_lines() -> None:
    lines = print_lines(
        [
            {"node": "", "event": "state", "text": "running", "name": "qa-1"},
            {"node": "trainer", "event": "started"},
            progress(0.5),
            {"node": "trainer", "event": "warning", "text": "3 rows are long"},
            {"node": "trainer", "event": "finished", "rows": {"sft": 1234}},
            {"node": "deployer", "event": "skipped", "message": "a node before it did not finish"},
        ]
    )
    assert lines == [
        "run qa-1: running",
        "trainer: started",
        "trainer: 3 rows are long",
        "trainer: done (1,234 sft)",
        "deployer: skipped (a node before it did not finish)",
    ]


def test_a_log_is_not_flooded_with_progress() -> None:
    lines = print_lines([{"node": "trainer", "event": "started"}, *(progress(step / 1000) for step in range(1000))])
    assert lines == ["trainer: started"]


def test_a_terminal_gets_a_bar() -> None:
    printed = "\n".join(print_lines([progress(0.25), progress(0.5)], terminal=True))
    assert "50 %" in printed
    assert "━" in printed


def test_answers_are_shown_while_they_are_written_and_only_on_a_terminal() -> None:
    events: list[dict[str, object]] = [
        {"node": "base", "event": "answer", "text": "A node"},
        {"node": "base", "event": "answer", "text": "A node [reads]."},
        {"node": "adapter", "event": "answer", "text": "It trains."},
        {"node": "adapter", "event": "answered", "text": ""},
    ]
    printed = "\n".join(print_lines(events, terminal=True))
    assert "base: A node [reads]." in printed
    assert "adapter: It trains." in printed
    assert print_lines(events) == []


def test_no_color_means_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[3" not in "\n".join(print_lines([progress(0.5)], terminal=True))


def test_brackets_in_a_message_are_text() -> None:
    assert print_lines([{"node": "a", "event": "note", "text": "[endpoints] is empty"}]) == ["a: [endpoints] is empty"]


def test_columns_line_up() -> None:
    assert format_table([("a", "1"), ("long", "22")], ("name", "n")) == "name  n\na     1\nlong  22"


def test_a_run_is_a_table_and_a_verdict() -> None:
    node = NodeResult(id="a", type="trainer", state=NodeState.FAILED, seconds=2.0, message="E-X: broken\nmore")
    result = RunResult(
        run_id="1", name="c-1", chain="c", digest="d", state=JobState.FAILED, message="1 of 1 nodes failed: a.",
        nodes=(node,), url="http://ui",
    )  # fmt: skip
    assert render("run", result).splitlines() == [
        "node  state   seconds  result",
        "a     failed  2.0      E-X",
        "c-1: failed. 1 of 1 nodes failed: a.",
        "http://ui",
    ]


def test_an_error_that_ends_a_run_is_shown_once() -> None:
    error = "E-DATA-BAD-ROWS: 30 of 90 rows are bad. Why: At most 5.0% may be. Do: Correct the rows."
    nodes = (
        NodeResult(id="data", type="data_source", state=NodeState.FAILED, seconds=2.0, message=error),
        NodeResult(id="trainer", type="trainer", state=NodeState.SKIPPED, message="a node before it did not finish"),
    )
    message = f"1 of 2 nodes failed: data.\ndata: {error}\nNext: correct the cause."
    result = RunResult(run_id="1", name="c-1", state=JobState.FAILED, message=message, nodes=nodes, url="http://ui")
    progress = print_lines(
        [{"node": "data", "event": "failed", "message": error, "error": {"code": "E-DATA-BAD-ROWS"}}]
    )
    lines = [*progress, *render("run", result).splitlines()]
    assert lines == [
        "data: failed (E-DATA-BAD-ROWS)",
        "node     state    seconds  result",
        "data     failed   2.0      E-DATA-BAD-ROWS",
        "trainer  skipped  0.0      a node before it did not finish",
        "c-1: failed. 1 of 2 nodes failed: data.",
        "data: E-DATA-BAD-ROWS: 30 of 90 rows are bad.",
        "  At most 5.0% may be.",
        "  Do: Correct the rows.",
        "Next: correct the cause.",
        "http://ui",
    ]
    assert "\n".join(lines).count("At most 5.0% may be") == 1


def test_an_error_goes_to_stderr_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(NotFound("No such thing.", why="It is gone.", do="Look elsewhere.", code="E-X"), as_json=False)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "E-X: No such thing.\n  It is gone.\n  Do: Look elsewhere.\n"


def test_a_refusal_s_remedy_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(Refused([Reason("R-X", "trainer", "config", "It cannot.", "Do it so.")]), as_json=False)
    assert capsys.readouterr().err.count("Do it so.") == 1


def test_an_error_is_a_document_too(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(NotFound("No such thing.", code="E-X"), as_json=True)
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "E-X"


def test_a_curve_shows_rewards_where_there_are_any() -> None:
    plain = (Point(step=1, loss=2.5, learning_rate=1e-4), Point(step=2, loss=None))
    rewarded = (Point(step=1, loss=0.0, learning_rate=1e-4, reward=0.25),)
    curves = (TrainingCurve(node="first", points=plain), TrainingCurve(node="second", points=rewarded))
    lines = metrics_text(JobMetrics(id="a", trainings=curves)).splitlines()
    assert [line.split() for line in lines] == [
        ["first"],
        ["step", "loss", "learning_rate"],
        ["1", "2.5", "0.0001"],
        ["2", "-", "-"],
        ["second"],
        ["step", "loss", "learning_rate", "reward"],
        ["1", "0", "0.0001", "0.25"],
    ]
