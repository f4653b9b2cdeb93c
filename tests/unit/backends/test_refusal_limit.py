"""Rows that the chat template refuses: every trainer has the limit of the data source, and says what was lost."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nodes.summaries import training
from tests.small_jobs import Jobs, conversation, train_as_child, train_here
from trainyard import settings as settings_module
from trainyard.backends.job import TrainingJob
from trainyard.backends.script import files
from trainyard.data.rows import write_rows
from trainyard.errors import InvalidInput, TrainyardError
from trainyard.spec.axes.data import Port
from trainyard.spec.graph import resolve
from trainyard.spec.job import JobSpec, chain_of_job
from trainyard.spec.night import night_trainer, read_night
from trainyard.stores.artifacts import NodeOutput, Reference

pytestmark = pytest.mark.integration

REFUSES = (
    "{% for m in messages %}{% if 'secret' in m.content %}{{ raise_exception('no secrets') }}{% endif %}{% endfor %}"
)
ROWS, REFUSED = 10, 2
DOCUMENTS: dict[str, Any] = {
    "type": "data_source",
    "config": {"path": "pages/", "format": "documents", "max_bad_fraction": 0.3},
}
FILE = {"type": "data_source", "config": {"path": "rows.jsonl", "max_bad_fraction": 0.3}}
SETS = {"sets": {"a": {"path": "a.jsonl"}, "b": {"path": "b.jsonl"}}, "port": "sft"}
MIX = {"type": "data_source", "config": {"mix": SETS, "max_bad_fraction": 0.3}}
OTHER = {**DOCUMENTS, "id": "other", "needs": [], "config": {**DOCUMENTS["config"], "max_bad_fraction": 0.1}}
ROUTES: dict[str, list[dict[str, Any]]] = {
    "file": [FILE, {"type": "trainer"}],
    "validated": [FILE, {"type": "validator"}, {"type": "trainer"}],
    "generated": [DOCUMENTS, {"type": "ai_generator"}, {"type": "trainer"}],
    "generated and validated": [DOCUMENTS, {"type": "ai_generator"}, {"type": "validator"}, {"type": "trainer"}],
    "mixture": [MIX, {"type": "validator"}, {"type": "trainer"}],
    "second trainer": [FILE, {"type": "trainer", "config": {"stage": "sft"}},
                       {"type": "trainer", "id": "again", "needs": ["data-source", "trainer"]}],
}  # fmt: skip


@pytest.mark.parametrize("route", ROUTES)
def test_the_limit_of_the_source_reaches_the_trainer(route: str) -> None:
    resolved = resolve({"name": "routes", "nodes": ROUTES[route]})
    limits = {node.config.refusal_limit for node in resolved.nodes if node.type == "trainer"}
    assert limits == {0.3}


def test_the_smallest_limit_of_several_sources_counts() -> None:
    validator = {"type": "validator", "needs": ["data-source", "other"], "config": {"grounding": 0.5}}
    nodes = [FILE, OTHER, validator, {"type": "trainer"}]
    assert resolve({"name": "two", "nodes": nodes}).nodes[-1].config.refusal_limit == 0.1


def test_a_limit_of_the_trainer_is_its_own() -> None:
    nodes = [FILE, {"type": "trainer", "config": {"max_bad_fraction": 0.5}}]
    assert resolve({"name": "own", "nodes": nodes}).nodes[-1].config.refusal_limit == 0.5


def test_jobs_and_nights_have_the_limit() -> None:
    job = JobSpec.model_validate({"dataset": {"path": "rows.jsonl", "max_bad_fraction": 0.3}})
    assert resolve(chain_of_job(job)).nodes[-1].config.refusal_limit == 0.3
    night = read_night({"phase2": {"training": {"method": "lora", "max_bad_fraction": 0.3}}})
    assert {night_trainer(night, method).refusal_limit for method in ("sft", "dpo")} == {0.3}


@pytest.fixture
def refusing(jobs: Jobs, tmp_path: Path) -> Jobs:
    """Jobs on ten rows, two of which the template of the base refuses."""
    model = tmp_path / "model"
    shutil.copytree(jobs.model, model)
    template = model / "chat_template.jinja"
    template.write_text(REFUSES + template.read_text())
    topics = ["a secret" if number < REFUSED else f"node {number}" for number in range(ROWS)]
    rows = [conversation(f"What is {word}, {number}?", f"It is {number}.") for number, word in enumerate(topics)]
    write_rows(tmp_path / "rows" / "rows.arrow", Port.SFT, rows)
    return Jobs(model, {Port.SFT: tmp_path / "rows"}, tmp_path / "locks")


@pytest.mark.parametrize("backend", ["native", "trl"])
def test_trainers_refuse_more_than_the_limit_and_count_what_is_below(
    refusing: Jobs, tmp_path: Path, backend: str
) -> None:
    with pytest.raises(InvalidInput, match=r"E-DATA-BAD-ROWS: .*refuses 2 of 10 rows \(20\.0%\).*5\.0%.*no secrets"):
        train_here(refusing(backend=backend), tmp_path / "default")
    ran = train_here(refusing(backend=backend, max_bad_fraction=0.3), tmp_path / "raised")
    assert ran.record["data"]["rows"]["dropped_template"] == REFUSED
    text = training(NodeOutput(key="k" * 64, outputs={Port.ADAPTER: reference()}, facts=ran.record))
    assert "2 of 10 rows left out: 2 refused by the chat template (no secrets)" in text


def reference() -> Reference:
    return Reference(uri="file:///x", sha256="0" * 64, kind=Port.ADAPTER, bytes=0)


@pytest.fixture
def scripts_allowed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_ALLOW_SCRIPTS", "true")
    settings_module.settings.cache_clear()


@pytest.mark.usefixtures("scripts_allowed")
def test_a_script_refuses_more_than_the_limit(refusing: Jobs, tmp_path: Path) -> None:
    with pytest.raises(TrainyardError, match=r"refuses 2 of 10 rows: no secrets\. At most 5\.0% may be lost"):
        train_as_child(refusing(backend="script"), tmp_path / "default")
    ran = train_as_child(refusing(backend="script", max_bad_fraction=0.3), tmp_path / "raised")
    assert ran.record["data"]["rows"] == {"read": ROWS, "dropped_template": REFUSED, "trained": ROWS - REFUSED}
    assert [event["text"] for event in ran.of("warning")] == ["The chat template refuses 2 of 10 rows: no secrets"]


@pytest.mark.slow
@pytest.mark.usefixtures("scripts_allowed")
def test_an_ejected_script_refuses_more_than_the_limit(refusing: Jobs, tmp_path: Path) -> None:
    ended = run_ejected(refusing(backend="script"), tmp_path / "default")
    assert ended.returncode == 1
    assert "The chat template refuses 2 of 10 rows: no secrets. At most 5.0% may be lost" in ended.stderr
    ended = run_ejected(refusing(backend="script", max_bad_fraction=0.3), tmp_path / "raised")
    assert ended.returncode == 0, ended.stderr
    report = json.loads((tmp_path / "raised" / files.OUTPUT / files.REPORT_FILE).read_text())
    assert report["data"]["rows"]["dropped_template"] == REFUSED


def run_ejected(job: TrainingJob, path: Path) -> subprocess.CompletedProcess[str]:
    """Run the script of a job by hand."""
    files.write(job, path, keep_work=False)
    argv = [sys.executable, files.SCRIPT_FILE, files.SPEC_NAME]
    return subprocess.run(argv, cwd=path, capture_output=True, text=True, check=False)
