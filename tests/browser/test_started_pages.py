"""What else is started in the browser: a sweep, the training of a script, a question that is cancelled."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.browser.dashboard import Audit, DashboardService, PageWatch, open_page
from tests.flows.real_stack import wait_until
from trainyard.serve import embedded

pytestmark = [pytest.mark.browser]

SLOW_MS = 240_000
"""For a model server or a trial that is started first, behind the jobs that are waiting for the device."""
SWEPT = "swept-here"
ANSWER_TOKENS = 2000


@pytest.fixture
def chain(service: DashboardService) -> Iterator[str]:
    """The id of a stored chain of a data source and a trainer."""
    hyper = {"max_steps": 2000, "gradient_accumulation": 1, "warmup_ratio": 0.0}
    nodes = [
        {"type": "data_source", "config": {"path": "data.jsonl"}},
        {"type": "trainer", "config": {"hyperparameters": hyper, "eval": {"share": 0.2, "steps": 2}}},
    ]
    stored = service.post("chains", {"name": SWEPT, "nodes": nodes})
    yield str(stored["id"])
    service.ask("DELETE", f"chains/{stored['id']}")


@pytest.mark.slow
def test_a_sweep_is_started_followed_and_stopped(
    page: Page, service: DashboardService, watch: PageWatch, chain: str, axe: Audit
) -> None:
    watch.expect("status of 4")  # the first start, which the server refuses
    open_page(page, "/sweeps", "Sweeps")
    page.get_by_role("link", name="New sweep").first.click()
    expect(page.get_by_role("heading", level=1, name="New sweep")).to_be_visible()
    page.get_by_label("Chain", exact=True).select_option(chain)
    page.get_by_label("Range A").fill("loguniform(1e-3)")
    page.get_by_label("Trials", exact=True).fill("2")
    page.locator("summary", has_text="More settings").click()
    page.get_by_label("First rung", exact=True).fill("2")
    page.get_by_label("Name", exact=True).fill(SWEPT)
    page.get_by_role("button", name="Start the sweep").click()
    expect(page.get_by_role("alert")).to_contain_text("E-PARAMETER")
    page.get_by_label("Range A").fill("loguniform(1e-4, 1e-3)")
    axe(page)
    page.get_by_role("button", name="Start the sweep").click()
    expect(page.get_by_role("heading", level=1, name=f"Sweep {SWEPT}")).to_be_visible(timeout=SLOW_MS)
    rows = page.get_by_role("table", name="Trials, the best first").locator("tbody tr")
    expect(rows.first).to_be_visible(timeout=SLOW_MS)
    path = "trainer.hyperparameters.learning_rate"
    values = [trial["params"][path] for trial in service.get(f"sweeps/{SWEPT}")["trials"]]
    displayed = float(rows.first.locator("td").nth(2).inner_text())
    assert any(displayed == pytest.approx(value, rel=1e-3) for value in values)
    assert all(1e-4 <= value <= 1e-3 for value in values)
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Continue")).to_be_visible(timeout=SLOW_MS)
    assert not service.get(f"sweeps/{SWEPT}")["is_running"]


@pytest.mark.slow
def test_a_run_is_paused_and_cancelled_on_the_canvas(page: Page, service: DashboardService, chain: str) -> None:
    open_page(page, f"/chains/{chain}/edit", SWEPT)
    page.get_by_role("button", name="Run", exact=True).click()
    draft = page.get_by_role("status", name="State of the draft")
    trainer = page.locator('.react-flow__node[data-id="trainer"]')
    expect(trainer.locator(".node-running")).to_contain_text("%", timeout=SLOW_MS)
    draft.get_by_role("button", name="Pause").click()
    expect(draft.locator(".state-paused")).to_be_visible(timeout=SLOW_MS)
    job = page.url.partition("?run=")[2]
    assert service.get(f"jobs/{job}")["state"] == "paused"
    expect(draft.get_by_role("button", name="Resume")).to_be_visible()
    draft.get_by_role("button", name="Cancel").click()
    draft.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(draft.locator(".state-canceled")).to_be_visible(timeout=SLOW_MS)


@pytest.mark.slow
def test_a_script_trains(page: Page, service: DashboardService) -> None:
    open_page(page, "/scripts", "Scripts")
    page.get_by_label("Script", exact=True).select_option(label="built-in")
    page.get_by_label("Data set").fill("data.jsonl")
    page.get_by_label("Steps", exact=True).fill("2")
    page.get_by_role("button", name="Train", exact=True).click()
    link = page.get_by_role("status").get_by_role("link", name=re.compile("^job-"))
    expect(link).to_be_visible()
    detail = service.wait_for_job(link.inner_text(), "completed", "failed")
    assert (detail["state"], detail["backend"], detail["step"]) == ("completed", "script", 2), detail["message"]


@pytest.mark.slow
def test_a_chain_trains_with_the_script_of_its_trainer(page: Page, service: DashboardService) -> None:
    # Not the two steps of the test before: their result would be taken over.
    nodes = [
        {"type": "data_source", "config": {"path": "data.jsonl"}},
        {"type": "trainer", "config": {"hyperparameters": {"max_steps": 3, "gradient_accumulation": 1}}},
    ]
    stored = service.post("chains", {"name": "drafted", "nodes": nodes})
    open_page(page, "/scripts", "Scripts")
    page.get_by_label("Chain", exact=True).select_option(stored["id"])
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.get_by_text("trainer would run the script built-in")).to_be_visible()
    page.get_by_role("button", name="Train this chain with it").click()
    link = page.get_by_role("status").get_by_role("link", name=re.compile("^job-"))
    expect(link).to_be_visible()
    detail = service.wait_for_job(link.inner_text(), "completed", "failed")
    assert (detail["state"], detail["backend"], detail["step"]) == ("completed", "script", 3), detail["message"]


def num_cancelled(address: str) -> float:
    text = httpx.get(f"{address}/metrics", timeout=20).text
    return float(re.findall(r"^trainyard_server_cancelled_total (\S+)", text, re.M)[0])


def test_a_question_that_is_cancelled_ends_at_the_model_server(page: Page, service: DashboardService) -> None:
    open_page(page, "/adapters/default/crane/v1/chat", "Chat with default/crane/v1")
    page.get_by_label("Most tokens").fill(str(ANSWER_TOKENS))
    page.get_by_label("Temperature").fill("2")
    page.get_by_label("Question").fill("Tell me everything about depots.")
    page.keyboard.press("Enter")
    written = page.locator(".side-by-side p").first
    expect(written).to_be_visible(timeout=SLOW_MS)
    before = written.inner_text()
    wait_until(lambda: written.inner_text() != before, 20, "more of the answer")
    server = embedded.instance(service.stack.settings)
    assert server is not None
    cancelled = num_cancelled(server.url)
    page.get_by_role("button", name="Cancel").click()
    expect(written).to_have_count(0)
    expect(page.get_by_role("button", name="Ask both")).to_be_visible()
    wait_until(lambda: num_cancelled(server.url) == cancelled + 1, 20, "the end of the answer")
