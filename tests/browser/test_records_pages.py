"""What runs and nights left, in a browser: rows with their drops, intervals, versions, chat, nights, the graph.

Every text that a page shows contains markup that would run if it were not text.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
from playwright.sync_api import Dialog, Page, expect

from tests.browser.dashboard import Audit, DashboardService, open_page
from tests.unit.api.test_record_verbs import make_report, make_rows
from tests.unit.api.test_serving_commands import register
from trainyard.api.records import RunRecord
from trainyard.data.quarantine import QUARANTINE_FILE
from trainyard.night.report import BucketReport, NightReport, Phase1Report, Phase2Report, Quarantined, write_report
from trainyard.night.training import tenant_root
from trainyard.settings import Settings
from trainyard.stores.artifacts import ArtifactStore, Produced
from trainyard.stores.files import DISK
from trainyard.stores.graph.addresses import graph_file
from trainyard.stores.graph.facts import Entity, Mutation, Named, Relation
from trainyard.stores.graph.local import LadybugGraph

pytestmark = [pytest.mark.browser]

RUN = "33333333-0000-4000-8000-000000000000"
EVIL = "<img src=x onerror=alert(1)>"
NIGHT = "2026-10-03"
SLOW_MS = 90_000
"""For an answer whose model server is started first, and for what is read in child processes."""


@dataclass
class Records:
    """A home with a run of a validator and an evaluator, two versions of an adapter, a night and a graph."""

    service: DashboardService
    dialogs: list[str]


def seed_run(here: Settings, scratch: Path) -> None:
    def rows(folder: Path) -> Produced:
        made = make_rows(folder)
        with (folder / "sft" / QUARANTINE_FILE).open("ab") as stream:
            line = {"line": 11, "source": EVIL, "reason": "too_long", "detail": EVIL, "row": EVIL + "x" * 3_000}
            stream.write(orjson.dumps(line) + b"\n")
        return made

    def report(folder: Path) -> Produced:
        made = make_report(folder, scratch / "job")
        path = folder / "report" / "report.json"
        value = json.loads(path.read_text())
        value["samples"] = [{"prompt": EVIL, "gold": EVIL, "baseline": EVIL, "candidate": "Because."}]
        path.write_text(json.dumps(value))
        return made

    store, record = ArtifactStore(here.artifacts), RunRecord(here.runs / RUN)
    store.produce("c" * 64, rows)
    store.produce("d" * 64, report)
    nodes = [
        {"id": "validator", "type": "validator", "produces": ["sft"]},
        {"id": "evaluator", "type": "evaluator", "produces": ["report"]},
    ]
    record.begin({"name": f"chain {EVIL}", "tenant": "default", "nodes": nodes})
    os.utime(record.folder / "chain.json", (time.time() + 60,) * 2)
    record.emit("validator", "finished", key="c" * 64, rows={"sft": 5}, facts={})
    record.emit("evaluator", "finished", key="d" * 64, rows={}, facts={})


def seed_night(here: Settings) -> None:
    folder = tenant_root(here, "default") / "nights" / NIGHT
    folder.mkdir(parents=True)
    first = Phase1Report(waiting=3, done=2, extract_s=90.0, budget_s=120.0, quarantined=(
        Quarantined(stream="mail", name=EVIL, reason="too_long"),))  # fmt: skip
    bucket = BucketReport(bucket="engineering", method="sft", valid=250, new=250, threshold=200, note=EVIL)
    report = NightReport(
        run=NIGHT, tenant="default", state="completed", started=100.0, seconds=95.0, window_s=7200.0, phase1=first,
        phase2=Phase2Report(buckets=(bucket,)),
    )  # fmt: skip
    write_report(report, folder, DISK)


def seed_graph(here: Settings) -> None:
    jane, acme = Named("person", "Jane Doe"), Named("company", f"Acme {EVIL}")
    one = Mutation(
        "default", "mail", "a.md", "0" * 64, "v1", (Entity("person", "Jane Doe", {"note": EVIL}),),
        (Relation("works_at", jane, acme),),
    )  # fmt: skip
    graph_file(here).parent.mkdir(parents=True)
    with LadybugGraph(graph_file(here)) as graph:
        graph.mutate([one])


@pytest.fixture(scope="session")
def seeded(service: DashboardService, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> DashboardService:
    here, scratch = service.stack.settings, tmp_path_factory.mktemp("records")
    seed_run(here, scratch)
    seed_night(here)
    seed_graph(here)
    for number in (1, 2):
        facts = {"deployment": {"targets": [{"type": "registry"}]}, "base_model": str(tiny_model)}
        register(here, scratch / f"weights-{number}", "assistant", str(tiny_model), facts)
    return service


@pytest.fixture
def records(seeded: DashboardService, page: Page) -> Iterator[Records]:
    found = Records(seeded, [])

    def refuse(dialog: Dialog) -> None:
        found.dialogs.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", refuse)
    yield found
    assert found.dialogs == []


def test_the_rows_of_a_result_with_what_was_dropped_and_why(page: Page, axe: Audit, records: Records) -> None:
    open_page(page, f"/data?run={RUN}", "Data")
    axe(page)
    page.get_by_role("link", name="validator: sft").click()
    expect(page.get_by_role("heading", level=1, name="validator: sft")).to_be_visible()
    shown = records.service.get(f"artifacts/{RUN}/validator/sft")
    account = page.get_by_role("region", name="Where every row is")
    for name, count in (("read", shown["facts"]["read"]), ("kept", shown["facts"]["kept"]), ("dropped: too long", 1)):
        expect(account.get_by_role("row", name=name).get_by_role("cell").nth(1)).to_have_text(str(count))
    for part in shown["parts"]:
        expect(page.get_by_role("button", name=f"({part['rows']})").first).to_be_visible()
    expect(page.get_by_role("region", name="Rows")).to_contain_text("Question 0?")
    page.get_by_role("button", name="Held out: unseen wording").click()
    page.get_by_role("button", name="Whole row").click()
    expect(page.get_by_role("dialog")).to_contain_text("x" * 5_000)
    page.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Dropped").click()
    page.get_by_label("Reason").select_option("near_duplicate")
    rows = page.get_by_role("region", name="Rows").get_by_role("row")
    expect(rows).to_have_count(2)
    expect(rows.nth(1)).to_contain_text("like row 3")
    page.get_by_label("Reason").select_option("")
    page.get_by_label("Text in a row").fill("onerror")
    page.keyboard.press("Enter")
    expect(rows).to_have_count(2)
    expect(rows.nth(1)).to_contain_text(EVIL)
    axe(page)


def test_an_evaluation_with_intervals_flips_and_answers(page: Page, axe: Audit, records: Records) -> None:
    open_page(page, f"/evaluations?run={RUN}", "Evaluations")
    axe(page)
    page.get_by_role("region", name="Evaluations").get_by_role("link").click()
    expect(page.get_by_role("heading", level=1, name="Evaluation")).to_be_visible()
    (line,) = records.service.get(f"evaluations/{RUN}/evaluator")["benchmarks"]
    row = page.get_by_role("region", name="Benchmarks").get_by_role("row").nth(1)
    numbers = [line["improvement"][name] for name in ("mean", "low", "high")]
    shown = [float(text) for text in row.locator(".range-text").first.inner_text().replace(",", " ").replace(
        "[", " ").replace("]", " ").split()]  # fmt: skip
    assert shown == pytest.approx(numbers, rel=1e-3)
    expect(row).to_contain_text(f"{line['flips']['better']} better, {line['flips']['worse']} worse")
    expect(page.get_by_role("article")).to_contain_text(EVIL)
    axe(page)


def test_a_version_is_promoted_and_rolled_back(page: Page, axe: Audit, records: Records) -> None:
    open_page(page, "/adapters", "Adapters")
    axe(page)
    page.get_by_role("link", name="default/assistant/v2").click()
    page.get_by_role("button", name="Promote").click()
    page.get_by_role("dialog").get_by_role("button", name="Promote").click()
    expect(page.get_by_role("button", name="Roll back")).to_be_visible()
    assert records.service.get("adapters/show", name="default/assistant")["record"]["version"] == 2
    axe(page)
    page.get_by_role("button", name="Roll back").click()
    page.get_by_role("dialog").get_by_role("button", name="No").click()
    expect(page.get_by_role("button", name="Promote")).to_have_count(0)
    page.get_by_role("button", name="Roll back").click()
    page.get_by_role("dialog").get_by_role("button", name="Roll back").click()
    expect(page.get_by_role("button", name="Promote")).to_be_visible()
    assert records.service.get("adapters/show", name="default/assistant")["record"]["version"] == 1
    actions = page.get_by_role("region", name="Which version was live when").get_by_role("row")
    expect(actions.nth(1)).to_contain_text("rollback")


def test_base_and_adapter_answer_side_by_side(page: Page, axe: Audit, records: Records) -> None:
    open_page(page, "/adapters/default/assistant/v1/chat", "Chat with default/assistant/v1")
    page.get_by_label("Most tokens").fill("4")
    page.get_by_label("Question").fill(EVIL)
    page.keyboard.press("Enter")
    turn = page.get_by_role("listitem")
    expect(turn).to_have_count(1, timeout=SLOW_MS)
    expect(turn).to_contain_text(EVIL)
    expect(turn).to_contain_text("Adapter: default/assistant/v1")
    asked = {"adapter": "default/assistant/v1", "question": EVIL, "max_tokens": 4}
    answer: dict[str, Any] = records.service.post("adapters/ask", asked)
    texts = turn.locator(".side-by-side p").all_inner_texts()
    assert [" ".join(text.split()) for text in texts] == [
        " ".join((answer[side] or "(nothing)").split()) for side in ("base", "adapter")
    ]
    axe(page)


def test_a_night_and_the_graph_that_it_wrote(page: Page, axe: Audit, records: Records) -> None:
    page.goto("/dashboard/nights")
    expect(page.locator(".loading")).to_have_count(0, timeout=SLOW_MS)  # corpora and graph are read in child processes
    counts = records.service.get("graph/stats")
    graph = page.get_by_role("region", name="What is in the graph")
    expect(graph.get_by_role("row", name="entities:").first).to_contain_text("1")
    expect(graph.get_by_role("row").nth(2)).to_contain_text(str(counts["entities"]))
    axe(page)
    page.get_by_role("link", name=NIGHT).click()
    expect(page.get_by_role("heading", level=1, name=f"Night {NIGHT}")).to_be_visible()
    expect(page.get_by_role("region", name="Phases")).to_contain_text("1 min 30 s of 2 min 0 s")
    expect(page.get_by_role("region", name="Corpora")).to_contain_text("250 of 200")
    axe(page)
    open_page(page, "/nights/graph", "Knowledge graph")
    page.get_by_label("Part of a name").fill("jane")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Jane Doe").press("Enter")
    expect(page.get_by_role("heading", level=2, name="Jane Doe (person)")).to_be_visible()
    axe(page)
    page.get_by_role("region", name="Relations of Jane Doe").get_by_role("button").press("Enter")
    expect(page.get_by_role("heading", level=2, name=f"Acme {EVIL} (company)")).to_be_visible()


def test_what_is_not_there_says_so(page: Page, records: Records, watch: Any, axe: Audit) -> None:
    watch.expect("status of 404")
    open_page(page, "/data?kind=preference", "Data")
    expect(page.get_by_role("heading", name="No such result")).to_be_visible()
    open_page(page, f"/data/{RUN}/nobody/sft", "nobody: sft")
    expect(page.get_by_role("alert")).to_contain_text("E-NODE")
    open_page(page, "/adapters/default/nobody/v1", "default/nobody/v1")
    expect(page.get_by_role("alert").first).to_contain_text("E-ADAPTER-NOT-FOUND")
    axe(page)
