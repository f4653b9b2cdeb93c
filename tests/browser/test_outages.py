"""`kill -9` of the API and of Prefect while a page is open: it says so, marks what is old, and reads again.

A training is running meanwhile: its curves, its log and its node on the canvas grow again afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.canvas import node
from tests.browser.dashboard import TRAINED, Audit, DashboardService, PageWatch, open_page
from tests.flows.real_stack import kill_tree, wait_until
from trainyard.app.services import running

pytestmark = [pytest.mark.browser, pytest.mark.slow]

NOTICE_MS, BACK_MS, TRAINS_S = 20_000, 120_000, 240
"""A page looks every three seconds; the watchdog looks every ten, and a server takes up to half a minute to start."""
LEAST_CHARS = 100
STEPS = 100_000
"""Of a training that these tests end: some of its percents take longer than an outage."""
LOST = ("Failed to load resource", "ERR_CONNECTION", "ERR_INCOMPLETE", "ERR_EMPTY_RESPONSE", "ERR_NETWORK")
"""What a browser logs for a request without an answer, or with 503."""


@pytest.fixture(scope="module")
def training(service: DashboardService) -> Iterator[dict[str, str]]:
    """A chain that is training: its id, and that of its run; and a job that has ended, next to it in the list."""
    service.finished(TRAINED)
    ended = service.get("jobs", state="completed", limit=1)["jobs"][0]
    hyper = {"max_steps": STEPS, "gradient_accumulation": 1}
    nodes = [
        {"type": "data_source", "config": {"path": "data.jsonl"}},
        {"type": "trainer", "config": {"hyperparameters": hyper}},
    ]
    chain = service.post("chains", {"name": "long", "nodes": nodes})["id"]
    run = service.post(f"chains/{chain}/run")["id"]
    wait_until(lambda: service.get(f"jobs/{run}")["step"], TRAINS_S, "the first step")
    yield {"chain": chain, "run": run, "ended": ended["id"], "ended_name": ended["name"]}
    service.post(f"jobs/{run}/cancel", {"wait": False})
    service.wait_for_job(run, "canceled", "completed")


def last_step(page: Page) -> int:
    """Of the loss curve. Its points are thinned while it grows, so that their number says nothing."""
    row = page.get_by_role("figure", name="Loss", exact=True).locator(".visually-hidden tbody tr").first
    return int(row.locator("td").first.inner_text())


def num_lines(page: Page) -> int:
    text = page.get_by_role("status").filter(has_text=re.compile(r"^\d+ lines")).inner_text()
    return int(text.split()[0])


def newest_log(service: DashboardService) -> Path:
    """What the trainer prints that was started last."""
    return max(service.stack.settings.runs.glob("**/child.log"), key=lambda path: path.stat().st_ctime)


def percent(page: Page) -> int:
    """How far the trainer on the canvas is."""
    match = re.search(r"running, (\d+) %", node(page, "trainer").inner_text())
    assert match, node(page, "trainer").inner_text()
    return int(match[1])


def kill(service: DashboardService, name: str) -> None:
    process = running(service.stack.settings, name)
    assert process is not None
    kill_tree(process.pid)


def assert_marked_as_old(page: Page, text: str, axe: Audit) -> None:
    """The page says what is away, and since when what it shows is; that can still be read."""
    banner = page.locator(".banner").first
    expect(banner).to_contain_text(text, timeout=NOTICE_MS)
    expect(banner).to_contain_text("What you see is from")
    expect(page.locator("html[data-disconnected]")).to_have_count(1)
    assert page.locator("main").evaluate("(main) => getComputedStyle(main).outlineStyle") == "dashed"
    assert len(page.locator("main").inner_text()) > LEAST_CHARS
    axe(page)


def assert_read_again(page: Page) -> None:
    expect(page.locator(".banner")).to_have_count(0, timeout=BACK_MS)
    expect(page.locator("html[data-disconnected]")).to_have_count(0)
    expect(page.locator(".stale")).to_have_count(0, timeout=NOTICE_MS)


def test_the_api_is_killed(
    page: Page, service: DashboardService, watch: PageWatch, axe: Audit, training: dict[str, str]
) -> None:
    """Two pages are open; what changes meanwhile is shown afterwards."""
    watch.expect(*LOST)
    other = page.context.new_page()
    watch.watch(other)
    open_page(other, f"/jobs/{training['run']}", "long")
    before = last_step(other), num_lines(other)
    assert before[0] > 0
    open_page(page, "/settings", "Settings")
    kill(service, "api")
    assert_marked_as_old(page, "The service does not answer.", axe)
    expect(other.locator(".banner")).to_contain_text("The service does not answer.", timeout=NOTICE_MS)
    service.make_token("meanwhile", "read")
    service.stack.command("up")  # as the line at the top says; the watchdog does the same, ten seconds later
    assert_read_again(page)
    assert_read_again(other)
    expect(page.get_by_role("cell", name="meanwhile", exact=True)).to_be_visible()
    back = last_step(other), num_lines(other)
    assert back >= before
    wait_until(lambda: last_step(other) > back[0], NOTICE_MS / 1000, "later steps")
    with newest_log(service).open("a") as log:  # a trainer of this machine prints nothing while all is well
        log.write("printed after the outage\n")
    expect(other.get_by_role("log", name="Log")).to_contain_text("printed after the outage")
    assert num_lines(other) > back[1]
    service.post(f"jobs/{training['run']}/pause", {"wait": False})
    expect(other.locator("p .state-paused")).to_be_visible(timeout=BACK_MS)
    service.post(f"jobs/{training['run']}/resume")
    service.wait_for_job(training["run"], "running")


def test_prefect_is_killed(
    page: Page, service: DashboardService, watch: PageWatch, axe: Audit, training: dict[str, str]
) -> None:
    watch.expect(*LOST)
    canvas = page.context.new_page()
    watch.watch(canvas)
    open_page(canvas, f"/chains/{training['chain']}/edit?run={training['run']}", "long")
    expect(node(canvas, "trainer").locator(".node-running")).to_contain_text("%", timeout=NOTICE_MS)
    before = percent(canvas)
    open_page(page, "", "Overview")
    kill(service, "server")
    assert_marked_as_old(page, "Prefect server", axe)
    job = service.get(f"jobs/{training['ended']}")
    assert job["as_of"] is not None
    expect(page.get_by_role("link", name=training["ended_name"]).first).to_be_visible()
    expect(canvas.locator(".banner").first).to_contain_text("Prefect server", timeout=NOTICE_MS)
    service.stack.command("up")
    assert_read_again(page)
    assert_read_again(canvas)
    wait_until(lambda: percent(canvas) > before, BACK_MS / 1000, "a trainer that is further")
    assert service.get("jobs", limit=1)["as_of"] is None
