from __future__ import annotations

import threading
from pathlib import Path

import pytest

from trainyard.app.run_records import (
    NodeResult,
    NodeState,
    RunRecord,
    RunResult,
    data_sources,
    read_events,
    read_result,
)
from trainyard.spec.states import JobState


def make_result(state: JobState) -> RunResult:
    node = NodeResult(id="a", type="trainer", state=NodeState.COMPLETED)
    return RunResult(run_id="1", name="n", chain="c", digest="d", state=state, message="m", nodes=(node,))


def test_a_result_is_read_back_as_it_was(tmp_path: Path) -> None:
    RunRecord(tmp_path).finish(make_result(JobState.COMPLETED))
    assert read_result(tmp_path) == make_result(JobState.COMPLETED)


def test_no_result_is_none(tmp_path: Path) -> None:
    assert read_result(tmp_path) is None
    assert list(read_events(tmp_path)) == []


@pytest.mark.parametrize(
    ("state", "code"), [(JobState.COMPLETED, 0), (JobState.PENDING, 0), (JobState.FAILED, 1), (JobState.CANCELED, 1)]
)
def test_a_run_s_state_is_the_exit_code_of_a_watcher(state: JobState, code: int) -> None:
    assert make_result(state).exit_code == code


def test_a_node_is_found_by_its_id() -> None:
    assert make_result(JobState.COMPLETED).node("a").type == "trainer"
    with pytest.raises(KeyError, match="b"):
        make_result(JobState.COMPLETED).node("b")


def test_progress_is_thinned_and_ends_are_not(tmp_path: Path) -> None:
    record = RunRecord(tmp_path)
    record.begin({})
    for step in range(100):
        record.emit("a", "progress", fraction=step / 100, text=str(step))
    record.emit("a", "finished")
    assert [event["event"] for event in read_events(tmp_path)] == ["progress", "finished"]


def test_a_half_written_line_waits_for_its_rest(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"node": "a", "event": "started"}\n{"node": "a", "ev')
    reader = RunRecord(tmp_path).follow()
    assert [event["event"] for event in reader.read()] == ["started"]
    with path.open("a") as stream:
        stream.write('ent": "finished"}\n')
    assert [event["event"] for event in reader.read()] == ["finished"]
    assert reader.read() == []


def test_a_line_that_is_no_event_is_passed_over(tmp_path: Path) -> None:
    record = RunRecord(tmp_path)
    record.emit("a", "started")
    with record.events.open("a") as stream:
        stream.write("garbage\n")
    record.emit("a", "finished", facts={1: float("nan")})
    events = list(read_events(tmp_path))
    assert [(event["node"], event["event"]) for event in events] == [("a", "started"), ("a", "finished")]
    assert events[1]["facts"] == {"1": None}


def test_many_writers_leave_whole_lines(tmp_path: Path) -> None:
    RunRecord(tmp_path).begin({})
    records = [RunRecord(tmp_path) for _ in range(8)]

    def write(record: RunRecord, name: str) -> None:
        for _ in range(200):
            record.emit(name, "note", text="x" * 500)

    threads = [threading.Thread(target=write, args=(record, str(n))) for n, record in enumerate(records)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(1 for _ in read_events(tmp_path)) == 1600


def test_sources_of_a_run_are_named_without_the_folders_of_this_machine(tmp_path: Path) -> None:
    record = RunRecord(tmp_path)
    sets = {"sft": {"path": "/data/someone/chats.jsonl", "repository": None, "url": None}}
    address = {"path": None, "repository": None, "url": "https://user:secret@data.example/pairs.jsonl?token=secret"}
    nodes = [
        {"id": "own", "type": "data_source", "config": {"path": None, "sets": sets}},
        {"id": "theirs", "type": "data_source", "config": {**address, "sets": {}}},
        {"id": "never-read", "type": "data_source", "config": {**address, "sets": {}}},
        {"id": "trainer", "type": "trainer", "config": {}},
    ]
    record.begin({"nodes": nodes})
    record.emit("own", "finished", key="ab" * 32, facts={"sft": {"format": "openai"}}, rows={"sft": 80})
    record.emit("theirs", "finished", key="cd" * 32, facts={"preference": {"format": "preference"}}, rows={})
    record.emit("trainer", "finished", key="ef" * 32, facts={"stage": "sft"}, rows={})
    assert data_sources(tmp_path, tmp_path / "artifacts") == [
        {"source": "chats.jsonl", "format": "openai", "rows": 80, "sha256": "", "license": None},
        {
            "source": "https://data.example/pairs.jsonl",
            "format": "preference",
            "rows": None,
            "sha256": "",
            "license": None,
        },
    ]
    assert data_sources(tmp_path / "nothing", tmp_path / "artifacts") == []
