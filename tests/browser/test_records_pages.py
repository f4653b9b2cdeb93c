"""What runs and nights left, in a browser: rows with their drops, intervals, versions, chat, nights, the graph.

Every text that a page shows contains markup that would run if it were not text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.sync_api import Dialog, Page, expect

from tests.browser.dashboard import Audit, DashboardService, open_page
from tests.browser.records import EVIL, NIGHT, RUN

pytestmark = [pytest.mark.browser]

SLOW_MS = 90_000
"""For an answer whose model server is started first, and for what is read in child processes."""


@dataclass
class Records:
    """A home with a run of a validator and an evaluator, two versions of an adapter, a night and a graph."""

    service: DashboardService
    dialogs: list[str]


@pytest.fixture
def records(service: DashboardService, page: Page) -> Iterator[Records]:
    stored_records = Records(service, [])

    def refuse(dialog: Dialog) -> None:
        stored_records.dialogs.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", refuse)
    yield stored_records
    assert stored_records.dialogs == []


def test_the_rows_of_a_result_with_what_was_dropped_and_why(page: Page, axe: Audit, records: Records) -> None:
    open_page(page, f"/data?run={RUN}", "Data")
    page.get_by_role("link", name="validator: sft").click()
    expect(page.get_by_role("heading", level=1, name="validator: sft")).to_be_visible()
    result = records.service.get(f"artifacts/{RUN}/validator/sft")
    account = page.get_by_role("region", name="Where every row is")
    for name, count in (("read", result["facts"]["read"]), ("kept", result["facts"]["kept"]), ("dropped: too long", 1)):
        expect(account.get_by_role("row", name=name).get_by_role("cell").nth(1)).to_have_text(str(count))
    for part in result["parts"]:
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


def test_an_evaluation_with_intervals_flips_and_answers(page: Page, records: Records) -> None:
    open_page(page, f"/evaluations?run={RUN}", "Evaluations")
    page.get_by_role("region", name="Evaluations").get_by_role("link").click()
    expect(page.get_by_role("heading", level=1, name="Evaluation")).to_be_visible()
    (line,) = records.service.get(f"evaluations/{RUN}/evaluator")["benchmarks"]
    row = page.get_by_role("region", name="Benchmarks").get_by_role("row").nth(1)
    numbers = [line["improvement"][name] for name in ("mean", "low", "high")]
    displayed = [float(text) for text in row.locator(".range-text").first.inner_text().replace(",", " ").replace(
        "[", " ").replace("]", " ").split()]  # fmt: skip
    assert displayed == pytest.approx(numbers, rel=1e-3)
    expect(row).to_contain_text(f"{line['flips']['better']} better, {line['flips']['worse']} worse")
    expect(page.get_by_role("article")).to_contain_text(EVIL)


def test_a_version_is_promoted_and_rolled_back(page: Page, axe: Audit, records: Records) -> None:
    open_page(page, "/adapters", "Adapters")
    page.get_by_role("link", name="default/crane/v2").click()
    page.get_by_role("button", name="Promote").click()
    page.get_by_role("dialog").get_by_role("button", name="Promote").click()
    expect(page.get_by_role("button", name="Roll back")).to_be_visible()
    assert records.service.get("adapters/show", name="default/crane")["record"]["version"] == 2
    axe(page)
    page.get_by_role("button", name="Roll back").click()
    page.get_by_role("dialog").get_by_role("button", name="No").click()
    expect(page.get_by_role("button", name="Promote")).to_have_count(0)
    page.get_by_role("button", name="Roll back").click()
    page.get_by_role("dialog").get_by_role("button", name="Roll back").click()
    expect(page.get_by_role("button", name="Promote")).to_be_visible()
    assert records.service.get("adapters/show", name="default/crane")["record"]["version"] == 1
    actions = page.get_by_role("region", name="Which version was live when").get_by_role("row")
    expect(actions.nth(1)).to_contain_text("rollback")


def test_base_and_adapter_answer_side_by_side(page: Page, axe: Audit, records: Records) -> None:
    open_page(page, "/adapters/default/crane/v1/chat", "Chat with default/crane/v1")
    page.get_by_label("Most tokens").fill("4")
    page.get_by_label("Question").fill(EVIL)
    page.keyboard.press("Enter")
    turn = page.get_by_role("listitem")
    expect(turn).to_have_count(1, timeout=SLOW_MS)
    expect(turn).to_contain_text(EVIL)
    expect(turn).to_contain_text("Adapter: default/crane/v1")
    body = {"adapter": "default/crane/v1", "question": EVIL, "max_tokens": 4}
    answer: dict[str, Any] = records.service.post("adapters/ask", body)
    texts = turn.locator(".side-by-side p").all_inner_texts()
    assert [" ".join(text.split()) for text in texts] == [
        " ".join((answer[side] or "(nothing)").split()) for side in ("base", "adapter")
    ]
    axe(page)


def test_a_night_and_the_graph_that_it_wrote(page: Page, records: Records) -> None:
    page.goto("/dashboard/nights")
    expect(page.locator(".loading")).to_have_count(0, timeout=SLOW_MS)  # corpora and graph are read in child processes
    counts = records.service.get("graph/stats")
    graph = page.get_by_role("region", name="What is in the graph")
    expect(graph.get_by_role("row", name="entities:").first).to_contain_text("1")
    expect(graph.get_by_role("row").nth(2)).to_contain_text(str(counts["entities"]))
    page.get_by_role("link", name=NIGHT).click()
    expect(page.get_by_role("heading", level=1, name=f"Night {NIGHT}")).to_be_visible()
    expect(page.get_by_role("region", name="Phases")).to_contain_text("1 min 30 s of 2 min")
    expect(page.get_by_role("region", name="Corpora")).to_contain_text("250 of 200")
    open_page(page, "/nights/graph", "Knowledge graph")
    page.get_by_label("Part of a name").fill("jane")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Jane Doe").press("Enter")
    expect(page.get_by_role("heading", level=2, name="Jane Doe (person)")).to_be_visible()
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
