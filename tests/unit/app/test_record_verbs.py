"""What runs have left: results, their rows, evaluations; whose they are, and what is damaged or gone."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.unit.evals.test_evaluation_report import BASE, TUNED, job, make_scores, scores
from trainyard.app.artifacts import artifacts
from trainyard.app.artifacts.artifacts import Artifact, contents, list_artifacts, read_rows, show_artifact
from trainyard.app.artifacts.evaluations import list_evaluations, show_evaluation
from trainyard.app.context import Caller, Context
from trainyard.app.run_records import RunRecord
from trainyard.data.quarantine import QUARANTINE_FILE
from trainyard.data.rows import HELD_OUT_FOLDER, ROWS_FILE, Message, SftRow, write_rows
from trainyard.errors import Corrupt, InvalidInput, NotFound
from trainyard.evals.report import build_report, headline
from trainyard.evals.runner import write_report
from trainyard.operations.artifacts import (
    ArtifactInput,
    ArtifactRowsInput,
    ArtifactsInput,
    EvaluationInput,
    EvaluationsInput,
    artifacts_text,
    evaluation_text,
    evaluations_text,
    rows_text,
)
from trainyard.settings import settings
from trainyard.spec.axes.data import Port
from trainyard.stores.adapters import AdapterRegistry
from trainyard.stores.artifacts import ArtifactStore, Produced, ProducedSet

BLUE = "11111111-0000-4000-8000-000000000000"
RED = "22222222-0000-4000-8000-000000000000"
KEY, REPORT_KEY = "a" * 64, "b" * 64
DROPS = [
    {"line": 7, "source": "a.md", "reason": "too_long", "detail": "900 tokens", "row": "long"},
    {"line": 9, "source": "b.md", "reason": "near_duplicate", "detail": "like row 3", "row": "<b>Twice</b>"},
]


def question(number: int, text: str = "short") -> SftRow:
    return SftRow([Message("user", f"Question {number}?"), Message("assistant", text)], source=f"a.md:{number}")


def make_rows(folder: Path, rows: int = 5) -> Produced:
    """What a validator leaves."""
    out = folder / "sft"
    (out / HELD_OUT_FOLDER).mkdir(parents=True)
    write_rows(out / ROWS_FILE, Port.SFT, [question(number) for number in range(rows)])
    write_rows(out / HELD_OUT_FOLDER / "unseen_wording.arrow", Port.SFT, [question(99, "x" * 5_000)])
    (out / QUARANTINE_FILE).write_bytes(b"".join(orjson.dumps(drop) + b"\n" for drop in DROPS))
    facts = {"read": rows + 3, "kept": rows, "dropped": {"too_long": 1, "near_duplicate": 1}}
    return Produced(outputs={Port.SFT: ProducedSet(folder="sft", rows=rows, facts=facts)})


def make_report(folder: Path, scratch: Path) -> Produced:
    """What an evaluator leaves."""
    line = make_scores("heldout_loss", "unseen_wording", {"baseline": BASE, "candidate": TUNED})
    sample = [{"prompt": "Why?", "gold": "Because.", "baseline": "No.", "candidate": "Because."}]
    scratch.mkdir(parents=True)
    report = {**build_report(job(scratch, control=False), scores(line, samples=sample)), "adapter_sha256": "9" * 64}
    write_report(report, folder / "report")
    return Produced(outputs={Port.REPORT: ProducedSet(folder="report", facts=headline(report))})


def begin_run(home: Path, run_id: str, tenant: str, began: float) -> RunRecord:
    record = RunRecord(home / "runs" / run_id)
    nodes = [
        {"id": "validator", "type": "validator", "produces": ["sft"]},
        {"id": "evaluator", "type": "evaluator", "produces": ["report"]},
    ]
    record.begin({"name": f"{tenant}-chain", "tenant": tenant, "nodes": nodes})
    os.utime(record.folder / "chain.json", (began, began))
    return record


@pytest.fixture
def context(home: Path, tmp_path: Path) -> Context:
    """Two runs, of two tenants; the second reused what the first made."""
    store = ArtifactStore(settings().artifacts)
    store.produce(KEY, make_rows)
    store.produce(REPORT_KEY, lambda folder: make_report(folder, tmp_path / "scratch"))
    for run_id, tenant, began in ((BLUE, "blue", 1000.0), (RED, "red", 2000.0)):
        record = begin_run(home, run_id, tenant, began)
        record.emit("validator", "finished" if tenant == "blue" else "reused", key=KEY, rows={"sft": 5}, facts={})
        record.emit("evaluator", "finished", key=REPORT_KEY, rows={}, facts={})
    return Context(settings(), say=lambda _text: None)


def make_tenant_context(context: Context, tenant: str) -> Context:
    return replace(context, caller=Caller(tenant, tenant=tenant, remote=True))


def sft(run: str = BLUE, **fields: Any) -> dict[str, Any]:
    return {"run": run, "node": "validator", "port": Port.SFT, **fields}


def test_results_are_listed_by_run_the_newest_first_page_by_page(context: Context) -> None:
    whole = list_artifacts(ArtifactsInput(), context)
    assert [
        (artifact.run_id, artifact.node, artifact.port, artifact.rows, artifact.reused) for artifact in whole.artifacts
    ] == [
        (RED, "validator", "sft", 5, True),
        (RED, "evaluator", "report", None, False),
        (BLUE, "validator", "sft", 5, False),
        (BLUE, "evaluator", "report", None, False),
    ]
    assert {artifact.run_name for artifact in whole.artifacts} == {"red-chain", "blue-chain"}
    pages: list[Artifact] = []
    cursor = None
    for _ in range(3):
        page = list_artifacts(ArtifactsInput(limit=3, cursor=cursor), context)
        pages += page.artifacts
        cursor = page.next
        if cursor is None:
            break
    assert pages == list(whole.artifacts)
    assert "removed" not in artifacts_text(whole)


def test_a_page_looks_at_a_bounded_number_of_runs(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "SCANNED_RUNS", 1)
    first = list_artifacts(ArtifactsInput(tenant="blue"), context)
    assert first.artifacts == ()
    second = list_artifacts(ArtifactsInput(tenant="blue", cursor=first.next), context)
    assert [artifact.run_id for artifact in second.artifacts] == [BLUE, BLUE]
    assert second.next is None


def test_results_are_chosen_by_run_and_kind(context: Context) -> None:
    listing = list_artifacts(ArtifactsInput(run=BLUE[:8], port=Port.REPORT), context)
    assert [(artifact.run_id, artifact.port) for artifact in listing.artifacts] == [(BLUE, "report")]
    assert [evaluation.run_id for evaluation in list_evaluations(EvaluationsInput(), context).evaluations] == [
        RED,
        BLUE,
    ]


def test_evaluations_are_listed_by_their_end(context: Context) -> None:
    RunRecord(context.settings.runs / BLUE).emit("evaluator", "finished", key=REPORT_KEY, rows={}, facts={})
    listed = list_evaluations(EvaluationsInput(), context).evaluations
    assert [evaluation.run_id for evaluation in listed] == [BLUE, RED], "the older run has ended later"
    assert listed[0].ended >= listed[1].ended


def test_the_runs_of_a_result_are_found_by_its_digest(context: Context) -> None:
    artifact = show_artifact(ArtifactInput(**sft()), context)
    listing = list_artifacts(ArtifactsInput(sha256=artifact.sha256), context)
    assert [(each.run_id, each.port) for each in listing.artifacts] == [(RED, "sft"), (BLUE, "sft")]
    assert list_artifacts(ArtifactsInput(sha256="0" * 64), context).artifacts == ()


def test_a_tenant_sees_its_own_runs_only(context: Context) -> None:
    blue = make_tenant_context(context, "blue")
    assert {artifact.run_id for artifact in list_artifacts(ArtifactsInput(), blue).artifacts} == {BLUE}
    assert list_artifacts(ArtifactsInput(tenant="red"), blue).artifacts == ()
    assert [evaluation.tenant for evaluation in list_evaluations(EvaluationsInput(), blue).evaluations] == ["blue"]
    assert show_artifact(ArtifactInput(**sft()), blue).rows == 5
    for call in (
        lambda: show_artifact(ArtifactInput(**sft(RED)), blue),
        lambda: read_rows(ArtifactRowsInput(**sft(RED)), blue),
        lambda: show_evaluation(EvaluationInput(run=RED), blue),
        lambda: list_artifacts(ArtifactsInput(run=RED), blue),
    ):
        with pytest.raises(NotFound, match="E-JOB-NOT-FOUND"):
            call()


def test_a_result_is_shown_with_its_parts_and_files(context: Context) -> None:
    artifact = show_artifact(ArtifactInput(**sft()), context)
    assert {part.name: part.rows for part in artifact.parts} == {"rows": 5, "unseen_wording": 1, "dropped": 2}
    assert "rows.arrow" in {file.name for file in artifact.files}
    assert artifact.facts["dropped"] == {"too_long": 1, "near_duplicate": 1}
    assert artifact.bytes == sum(file.bytes for file in artifact.files)


def test_rows_come_in_pages(context: Context) -> None:
    first = read_rows(ArtifactRowsInput(**sft(limit=2)), context)
    assert (first.total, first.next_offset) == (5, 2)
    assert first.rows[0].values["messages"][0]["content"] == "Question 0?"
    last = read_rows(ArtifactRowsInput(**sft(limit=2, offset=4)), context)
    assert ([row.index for row in last.rows], last.next_offset) == ([4], None)
    beyond = read_rows(ArtifactRowsInput(**sft(offset=2**53)), context)
    assert (beyond.rows, beyond.next_offset) == ((), None)
    assert rows_text(first).endswith("more: --offset 2")


def test_rows_are_the_same_however_they_lie_in_batches(tmp_path: Path) -> None:
    path = tmp_path / "rows.arrow"
    write_rows(path, Port.SFT, (question(number) for number in range(25_000)))
    page = contents.read_page(path, offset=9_999, limit=3, text_chars=100)
    assert [row.values["source"] for row in page.rows] == ["a.md:9999", "a.md:10000", "a.md:10001"]
    assert contents.count_rows(path) == 25_000


def test_dropped_rows_have_reasons_that_can_be_chosen(context: Context) -> None:
    page = read_rows(ArtifactRowsInput(**sft(part="dropped")), context)
    assert [row.values["reason"] for row in page.rows] == ["too_long", "near_duplicate"]
    assert page.reasons == {"too_long": 1, "near_duplicate": 1}
    page = read_rows(ArtifactRowsInput(**sft(part="dropped", reason="near_duplicate")), context)
    assert [(row.index, row.values["row"]) for row in page.rows] == [(1, "<b>Twice</b>")]
    assert page.total == 2


def test_rows_are_searched_by_text_in_bounded_steps(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    page = read_rows(ArtifactRowsInput(**sft(text="QUESTION 3")), context)
    assert [row.index for row in page.rows] == [3]
    monkeypatch.setattr(contents, "SCANNED", 2)
    page = read_rows(ArtifactRowsInput(**sft(text="question 3")), context)
    assert (page.rows, page.next_offset) == ((), 2)


def test_long_texts_are_cut_named_and_given_whole_on_request(context: Context) -> None:
    page = read_rows(ArtifactRowsInput(**sft(part="unseen_wording")), context)
    assert page.rows[0].cut == ("messages.1.content",)
    assert len(page.rows[0].values["messages"][1]["content"]) == 2_000
    page = read_rows(ArtifactRowsInput(**sft(part="unseen_wording", text_chars=5_000)), context)
    assert (page.rows[0].cut, len(page.rows[0].values["messages"][1]["content"])) == ((), 5_000)


def test_a_page_ends_when_it_is_large(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "PAGE_CHARS", 100)
    page = read_rows(ArtifactRowsInput(**sft()), context)
    assert 0 < len(page.rows) < 5
    assert page.next_offset == len(page.rows)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"node": "nobody"}, r"E-NODE.*validator, evaluator"),
        ({"port": Port.ADAPTER}, "E-NOT-FOUND.*It left sft"),
        ({"part": "../../../../etc"}, "E-NOT-FOUND.*rows, unseen_wording, dropped"),
        ({"part": "x\0"}, "E-NOT-FOUND"),
    ],
)
def test_what_is_not_there_is_named(context: Context, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(NotFound, match=f"(?s){message}"):
        read_rows(ArtifactRowsInput(**(sft() | fields)), context)


@pytest.mark.parametrize("cursor", ["bm90IG9uZQ", "WzEuMCwieCJd", "WzEuMCwieC8tMSJd", "\0", "é"])
def test_a_cursor_that_is_none_is_refused(context: Context, cursor: str) -> None:
    with pytest.raises(InvalidInput, match="E-PARAMETER"):
        list_artifacts(ArtifactsInput(cursor=cursor), context)


def test_a_result_that_was_removed_or_damaged_stays_in_the_list(context: Context) -> None:
    folder = ArtifactStore(context.settings.artifacts).folder(KEY)
    (folder / "sft" / ROWS_FILE).write_bytes(b"ARROW1 not really")
    with pytest.raises(Corrupt, match="E-CORRUPT"):
        read_rows(ArtifactRowsInput(**sft()), context)
    (folder / "sft" / QUARANTINE_FILE).write_text("{half")
    with pytest.raises(Corrupt, match=r"E-CORRUPT.*Line 1"):
        read_rows(ArtifactRowsInput(**sft(part="dropped")), context)
    (folder / "manifest.json").write_text('{"output": 3, "schema_version": 2}')
    listed = list_artifacts(ArtifactsInput(run=BLUE, port=Port.SFT), context).artifacts[0]
    assert (listed.available, listed.rows) == (False, 5)
    assert "E-CORRUPT" in listed.problem
    with pytest.raises(Corrupt, match="E-CORRUPT"):
        show_artifact(ArtifactInput(**sft()), context)
    (folder / "manifest.json").unlink()
    with pytest.raises(NotFound, match=r"E-NOT-FOUND.*no longer stored"):
        show_artifact(ArtifactInput(**sft()), context)
    assert "removed" in artifacts_text(list_artifacts(ArtifactsInput(), context))


def test_a_manifest_that_names_another_folder_does_not_lead_there(context: Context, tmp_path: Path) -> None:
    path = ArtifactStore(context.settings.artifacts).folder(KEY) / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["output"]["outputs"]["sft"]["uri"] = f"file://{tmp_path}/.."
    path.write_text(json.dumps(manifest))
    with pytest.raises(InvalidInput, match="R-PATH-ROOT"):
        show_artifact(ArtifactInput(**sft()), context)


def test_a_home_without_runs_has_empty_lists(home: Path) -> None:
    context = Context(settings())
    assert list_artifacts(ArtifactsInput(), context).artifacts == ()
    assert artifacts_text(list_artifacts(ArtifactsInput(), context)) == "no results yet"
    assert evaluations_text(list_evaluations(EvaluationsInput(), context)) == "no evaluations yet"


def test_an_evaluation_has_intervals_flips_and_samples(context: Context, tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    version = AdapterRegistry(context.settings.adapters).register("blue", "assistant", folder)
    path = ArtifactStore(context.settings.artifacts).folder(REPORT_KEY) / "report" / "report.json"
    report = json.loads(path.read_text())
    path.write_text(json.dumps({**report, "adapter_sha256": version.sha256}))
    evaluation = show_evaluation(EvaluationInput(run=BLUE), context)
    (line,) = evaluation.benchmarks
    benchmark = report["benchmarks"][0]
    assert line.improvement.model_dump() == benchmark["improvement"]
    assert line.flips.model_dump() == benchmark["flips"]
    assert (evaluation.samples[0].baseline, evaluation.samples[0].candidate) == ("No.", "Because.")
    assert evaluation.gate.better is evaluation.better is report["gate"]["better"]
    assert evaluation.adapters == ("blue/assistant/v1",)
    assert show_evaluation(EvaluationInput(run=RED), make_tenant_context(context, "red")).adapters == ()
    assert "heldout_loss/unseen_wording" in evaluation_text(evaluation)
    listed = list_evaluations(EvaluationsInput(run=BLUE), context)
    assert listed.evaluations[0].improvement == line.improvement
    assert "heldout_loss/unseen_wording" in evaluations_text(listed)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"gate": 3, "benchmarks": [4]}', '{"gate": {}, "benchmarks": 7}'])
def test_a_report_that_cannot_be_read_is_an_error_with_a_code(context: Context, text: str) -> None:
    path = ArtifactStore(context.settings.artifacts).folder(REPORT_KEY) / "report" / "report.json"
    path.write_text(text)
    with pytest.raises(Corrupt, match="E-CORRUPT"):
        show_evaluation(EvaluationInput(run=BLUE), context)
