"""Records of jobs, and what is read back from a training's events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.compute.events import read_events
from trainyard.errors import InvalidInput, NotFound
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.methods import Method
from trainyard.spec.axes.stages import Stage
from trainyard.spec.states import JobState
from trainyard.stores.jobs import JobRecord, JobStore, new_job_id
from trainyard.stores.metrics import StageMeasures, TrainingPace, format_duration, metrics, read_curve, read_progress


def make_record(job_id: str, **fields: Any) -> JobRecord:
    return JobRecord(id=job_id, stage=Stage.SFT, method=Method.LORA, backend=BackendName.NATIVE, **fields)


def write_records(path: Path, *events: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return path


def test_records_are_kept_listed_and_removed(tmp_path: Path) -> None:
    store = JobStore(tmp_path / "jobs")
    assert store.list() == []
    first = store.put(make_record("one", created=1.0))
    store.put(make_record("two", created=2.0, state=JobState.RUNNING))
    assert [job.id for job in store.list()] == ["two", "one"]
    assert [job.id for job in store.list(JobState.RUNNING)] == ["two"]
    assert store.get("one") == first
    assert first.updated >= first.created
    store.delete("one")
    store.delete("one")
    with pytest.raises(NotFound, match="E-JOB-NOT-FOUND"):
        store.get("one")


def test_a_damaged_record_is_left_out(tmp_path: Path) -> None:
    store = JobStore(tmp_path)
    store.put(make_record("one"))
    (tmp_path / "two.json").write_text('{"id": ')
    assert [job.id for job in store.list()] == ["one"]


@pytest.mark.parametrize("job_id", ["../one", "", "a/b", ".hidden", "x" * 200])
def test_an_id_is_no_path(job_id: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="E-NAME"):
        JobStore(tmp_path).get(job_id)


def test_ids_differ() -> None:
    assert len({new_job_id() for _ in range(100)}) == 100


def test_the_curve_of_a_restarted_training_is_that_of_its_last_word(tmp_path: Path) -> None:
    steps = [{"event": "progress", "step": n, "loss": float(n)} for n in (1, 2, 3, 4)]
    again = [{"event": "progress", "step": n, "loss": 10.0 * n, "eval_loss": 1.0} for n in (3,)]
    path = write_records(
        tmp_path / "events.jsonl",
        {"event": "begin", "restarted_from": None, "total_steps": 5},
        *steps,
        {"event": "begin", "restarted_from": {"step": 2}, "total_steps": 5},
        *again,
    )
    assert [(point.step, point.loss) for point in read_curve(read_events(path))] == [(1, 1.0), (2, 2.0), (3, 30.0)]
    assert (read_progress(read_events(path)).step, read_progress(read_events(path)).total_steps) == (3, 5)
    assert (metrics(read_events(path)).train_loss, metrics(read_events(path)).eval_loss) == (30.0, 1.0)
    write_records(path, *steps, {"event": "begin", "restarted_from": "zero"})
    assert read_curve(read_events(path)) == []


def test_pauses_and_a_clock_that_jumps_back_are_no_working_time(tmp_path: Path) -> None:
    times = [("started", 100), ("progress", 110), ("stopped", 112), ("started", 500), ("progress", 505), ("done", 90)]
    path = write_records(tmp_path / "events.jsonl", *({"event": name, "time": time, "step": 1} for name, time in times))
    assert metrics(read_events(path)).duration_s == 17.0


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (90, "2 min"), (7500, "2 h 5 min")])
def test_a_time_is_put_into_words(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_the_time_that_is_left_is_that_of_the_mean_pace() -> None:
    pace = TrainingPace()
    event = {"event": "progress", "step": 10, "total_steps": 40, "loss": 4.31234, "time": 100.0}
    assert pace.line(event) == "step 10/40, loss 4.3123"
    assert pace.line({**event, "step": 20, "time": 120.0}).endswith("about 40 s left")
    assert pace.line({**event, "step": 40, "time": 150.0}) == "step 40/40, loss 4.3123"
    assert pace.line({"event": "progress"}) == "step 0"


def test_half_a_line_and_garbage_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"event":"progress","step":1,"loss":2.0}\n\xff\xfe\n[1]\n{"event":3}\n{"event":"progress","st')
    assert [event["event"] for event in read_events(path)] == ["progress"]
    assert read_progress(read_events(path)).loss == 2.0
    assert list(read_events(tmp_path / "absent")) == []


@given(
    st.lists(
        st.fixed_dictionaries(
            {"event": st.sampled_from(["started", "begin", "progress", "metrics", "done"])},
            optional={
                "time": st.one_of(st.floats(0, 1e9), st.none(), st.text()),
                "step": st.one_of(st.integers(0, 50), st.none(), st.text()),
                "loss": st.one_of(st.floats(0, 9), st.none(), st.text()),
                "restarted_from": st.one_of(
                    st.none(), st.just("zero"), st.fixed_dictionaries({"step": st.integers(0, 50)})
                ),
            },
        ),
        max_size=30,
    )
)
def test_whatever_a_trainer_writes_can_be_read(tmp_path_factory: pytest.TempPathFactory, events: list[Any]) -> None:
    path = write_records(tmp_path_factory.mktemp("events") / "events.jsonl", *events)
    assert metrics(read_events(path)).duration_s >= 0
    steps = [point.step for point in read_curve(read_events(path))]
    assert steps == sorted(set(steps))
    read_progress(read_events(path))
    pace = TrainingPace()
    assert all(pace.line(event).startswith("step ") for event in read_events(path))


def test_a_curve_has_what_a_stage_measured_of_its_steps() -> None:
    measures = dict.fromkeys(StageMeasures.model_fields, 0.25)
    (point,) = read_curve([{"event": "progress", "step": 1, "loss": 0.0, "time": 1.0, **measures}])
    assert {name: getattr(point, name) for name in measures} == measures
    assert {"kl", "clipped", "value_loss", "thought_gain", "memory_bytes"} <= measures.keys()
