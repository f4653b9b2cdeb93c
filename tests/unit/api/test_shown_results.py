"""What a notebook shows of plans, checks, runs and metrics."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.unit.api.test_compare import run as make_run
from trainyard import Chain, DataSource, Trainer
from trainyard.api.records import RunResult, read_result
from trainyard.api.verbs.jobs import Job, JobMetrics, TrainingCurve
from trainyard.settings import settings
from trainyard.spec.states import JobState
from trainyard.stores.metrics import Point

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
    check = chain.on.check(files=(chain.given, {"nodes": [{"type": "trainr"}]}))
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
    found = re.search(r"data:image/svg\+xml;base64,([^)]*)", text)
    assert found
    assert "trainer: from 4.900 to 4.700 in 3 steps" in base64.b64decode(found[1]).decode()
    assert "heldout_loss" in text


def test_a_job_shows_its_loss_so_far() -> None:
    make_run(settings(), "aaaa1111", "tuned")
    words = {"name": "x", "state": JobState.RUNNING, "detail": "", "message": ""}
    picture = Job(id="job-1", run_id="aaaa1111", **words)._repr_svg_()
    assert picture is not None
    assert ElementTree.fromstring(picture).tag.endswith("svg")
    assert Job(id="job-2", run_id="elsewhere", **words)._repr_svg_() is None
    text = RunResult(run_id="elsewhere", name="x", state=JobState.PENDING, message="started")._repr_markdown_()
    assert text == "**x**: pending. started"


def test_metrics_are_drawn_anywhere() -> None:
    points = tuple(Point(step=step, loss=5.0 - step) for step in range(1, 4))
    picture = JobMetrics(id="job-1", trainings=(TrainingCurve(node="trainer", points=points),))._repr_svg_()
    assert "trainer: from 4.000 to 2.000 in 3 steps" in picture
