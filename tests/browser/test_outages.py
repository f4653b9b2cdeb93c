"""`kill -9` of the API and of Prefect while a page is open: it says so, marks what is old, and reads again."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.dashboard import Audit, DashboardService, PageWatch, open_page
from tests.flows.real_stack import kill_tree
from trainyard.api.stack import running

pytestmark = [pytest.mark.browser]

NOTICE_MS, BACK_MS = 20_000, 120_000
"""A page looks every three seconds; the watchdog looks every ten, and a server takes up to half a minute to start."""
LEAST_CHARS = 100
LOST = ("Failed to load resource", "ERR_CONNECTION", "ERR_INCOMPLETE", "ERR_EMPTY_RESPONSE", "ERR_NETWORK")
"""What a browser logs for a request without an answer, or with 503."""


def kill(service: DashboardService, name: str) -> None:
    found = running(service.stack.settings, name)
    assert found is not None
    kill_tree(found.pid)


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


def test_the_api_is_killed(page: Page, service: DashboardService, watch: PageWatch, axe: Audit) -> None:
    """Two pages are open; what changes meanwhile is shown afterwards."""
    watch.expect(*LOST)
    other = page.context.new_page()
    watch.watch(other)
    open_page(other, "", "Overview")
    open_page(page, "/settings", "Settings")
    kill(service, "api")
    assert_marked_as_old(page, "The service does not answer.", axe)
    expect(other.locator(".banner")).to_contain_text("The service does not answer.", timeout=NOTICE_MS)
    service.make_token("meanwhile", "read")
    service.stack.command("up")  # as the line at the top says; the watchdog does the same, ten seconds later
    assert_read_again(page)
    assert_read_again(other)
    expect(page.get_by_role("cell", name="meanwhile", exact=True)).to_be_visible()


def test_prefect_is_killed(
    page: Page, service: DashboardService, watch: PageWatch, axe: Audit, finished_job: dict[str, Any]
) -> None:
    watch.expect(*LOST)
    open_page(page, "", "Overview")
    kill(service, "server")
    assert_marked_as_old(page, "Prefect server", axe)
    job = service.get(f"jobs/{finished_job['id']}")
    assert job["as_of"] is not None
    expect(page.get_by_role("link", name=finished_job["name"]).first).to_be_visible()
    service.stack.command("up")
    assert_read_again(page)
    assert service.get("jobs", limit=1)["as_of"] is None
