"""What a notebook shows of plans, checks, runs and metrics."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.unit.app.jobs.test_compare import run as make_run
from trainyard import Chain, DataSource, Trainer
from trainyard.app.jobs.jobs import Job, JobMetrics, TrainingCurve
from trainyard.app.run_records import RunResult, read_events, read_result
from trainyard.settings import settings
from trainyard.spec.states import JobState
from trainyard.stores.metrics import Point
from trainyard.surfaces.sdk.live_output import open_live
from trainyard.surfaces.sdk.live_runs import LiveRun

ROWS = '{"messages": [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}]}\n'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.jsonl").write_text(ROWS * 8)
    monkeypatch.chdir(tmp_path)


def test_a_plan_and_a_check_are_markdown() -> None:
    chain = Chain([DataSource(path="rows.jsonl"), Trainer(hyperparameters={"max_steps": 3})], name="guide")
    plan = chain.plan()
    text = plan._repr_markdown_()
    assert text.startswith(f"**guide** `{plan.digest[:12]}`\n\n| node | type | result |")
    assert "| trainer | trainer | to make |" in text
    check = chain.on.check(files=(chain.definition, {"nodes": [{"type": "trainr"}]}))
    lines = check._repr_markdown_().splitlines()
    assert lines[0] == f"- **guide**: ok, 2 nodes, `{plan.digest[:12]}`"
    assert lines[1] == "- **chain**: refused"
    assert "E-SPEC-TYPE" in lines[2]


def test_a_run_shows_its_nodes_its_loss_and_its_report() -> None:
    make_run(settings(), "aaaa1111", "tuned")
    result = read_result(settings().runs / "aaaa1111")
    assert result is not None
    text = result._repr_markdown_()
    assert text.startswith("**tuned**: completed.")
    assert "| trainer | completed |" in text
    match = re.search(r"data:image/svg\+xml;base64,([^)]*)", text)
    assert match
    assert "trainer: from 4.900 to 4.700 in 3 steps" in base64.b64decode(match[1]).decode()
    assert "heldout_loss" in text


def test_a_job_shows_its_loss_so_far() -> None:
    make_run(settings(), "aaaa1111", "tuned")
    job_fields = {"name": "x", "state": JobState.RUNNING, "detail": "", "message": ""}
    picture = Job(id="job-1", run_id="aaaa1111", **job_fields)._repr_svg_()
    assert picture is not None
    assert ElementTree.fromstring(picture).tag.endswith("svg")
    assert Job(id="job-2", run_id="elsewhere", **job_fields)._repr_svg_() is None
    text = RunResult(run_id="elsewhere", name="x", state=JobState.PENDING, message="started")._repr_markdown_()
    assert text == "**x**: pending. started"


def test_metrics_are_drawn_anywhere() -> None:
    points = tuple(Point(step=step, loss=5.0 - step) for step in range(1, 4))
    picture = JobMetrics(id="job-1", trainings=(TrainingCurve(node="trainer", points=points),))._repr_svg_()
    assert "trainer: from 4.000 to 2.000 in 3 steps" in picture


class Output:
    """An output of a cell, with everything that it has shown."""

    def __init__(self) -> None:
        self.updates: list[str] = []

    def update(self, value: Any) -> None:
        self.updates.append(value._repr_markdown_())


def describe_picture(text: str) -> str:
    """What the picture of some Markdown says."""
    match = re.search(r"data:image/svg\+xml;base64,([^)]*)", text)
    return base64.b64decode(match[1]).decode() if match else ""


def test_a_watched_run_is_drawn_again_as_its_events_come() -> None:
    make_run(settings(), "aaaa1111", "tuned")
    clock, output = iter(range(1000)), Output()
    live = LiveRun(output, now=lambda: next(clock))
    live.note_event({"node": "", "event": "state", "time": 0.0, "text": "running", "name": "tuned-2"})
    live.note_event({"node": "trainer", "event": "started", "time": 0.0})
    assert output.updates[-1].startswith("**tuned-2**: running")
    assert "| trainer | running |" in output.updates[-1]
    assert describe_picture(output.updates[-1]) == ""
    for event in read_events(settings().runs / "aaaa1111"):
        live.note_event(event)
    live.note_event({"node": "trainer", "event": "progress", "time": 1.0, "fraction": 0.5, "text": "step 2 | 3"})
    assert "| trainer | running | step 2 \\| 3 |" in output.updates[-1]
    assert "trainer: from 4.900 to 4.700 in 3 steps" in describe_picture(output.updates[-1])
    result = read_result(settings().runs / "aaaa1111")
    live.end(result)
    assert output.updates[-1].startswith("**tuned**: completed.")


def test_many_events_are_few_pictures() -> None:
    output, clock = Output(), iter([number / 100 for number in range(301)])
    live = LiveRun(output, now=lambda: next(clock))
    for number in range(300):
        live.note_event({"node": "a", "event": "progress", "time": 0.0, "text": f"step {number}"})
    assert len(output.updates) == 3


def test_a_watched_run_of_a_service_is_drawn_from_its_stream() -> None:
    clock, output = iter(range(1000)), Output()
    live = LiveRun(output, now=lambda: next(clock))
    job_fields = {"id": "job-1", "run_id": "r", "name": "far", "message": "", "detail": ""}
    live.note_job(Job(**job_fields, state=JobState.PENDING))
    assert output.updates[-1] == "**far**: pending"
    for node, step in zip(["trainer"] * 4 + ["trainer-2"] * 2, (1, 2, 2, 3, 1, 2), strict=True):
        progress = {"node": node, "step": step, "total_steps": 3, "loss": 5.0 - step}
        live.note_job(Job(**job_fields, **progress, state=JobState.RUNNING))
    assert output.updates[-1].startswith("**far**: running")
    assert "| trainer | running | step 3 of 3 |" in output.updates[-1]
    assert "| trainer-2 | running | step 2 of 3 |" in output.updates[-1]
    assert "trainer: from 4.000 to 2.000 in 3 steps" in describe_picture(output.updates[-1])
    assert "trainer-2: from 4.000 to 3.000 in 2 steps" in describe_picture(output.updates[-1])


def test_nothing_is_shown_outside_of_a_notebook() -> None:
    assert open_live("run", {"watch": True}) is None
