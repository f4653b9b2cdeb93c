"""`kill -9` of the API and of Prefect while a page is open: it says so, marks what is old, and reads again."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.dashboard import DashboardService, PageWatch, open_page
from tests.flows.real_stack import kill_tree
from trainyard.api.stack import running

pytestmark = [pytest.mark.browser]

NOTICE_MS, BACK_MS = 20_000, 120_000
"""A page looks every three seconds; the watchdog looks every ten, and a server takes up to half a minute to start."""
LOST = ("Failed to load resource", "ERR_CONNECTION", "ERR_INCOMPLETE", "ERR_EMPTY_RESPONSE", "ERR_NETWORK")
"""What a browser logs for a request without an answer, or with 503."""


def kill(service: DashboardService, name: str) -> None:
    found = running(service.stack.settings, name)
    assert found is not None
    kill_tree(found.pid)


@pytest.mark.parametrize("path", ["", "/settings"])
def test_the_api_is_killed(page: Page, service: DashboardService, watch: PageWatch, path: str) -> None:
    watch.expect(*LOST)
    open_page(page, path, "Settings" if path else "Overview")
    before = page.locator("main").inner_text()
    kill(service, "api")
    banner = page.locator(".banner").first
    expect(banner).to_contain_text("The service does not answer. What you see is from", timeout=NOTICE_MS)
    assert page.locator("html").get_attribute("data-disconnected") is not None
    assert float(page.locator("main").evaluate("(main) => getComputedStyle(main).opacity")) < 1
    assert page.locator("h1").inner_text() in before, "what was there can still be read"
    expect(banner).to_be_hidden(timeout=BACK_MS)
    assert page.locator("html").get_attribute("data-disconnected") is None
    expect(page.locator(".stale")).to_have_count(0, timeout=NOTICE_MS)


def test_what_changed_meanwhile_is_shown_afterwards(page: Page, service: DashboardService, watch: PageWatch) -> None:
    watch.expect(*LOST)
    open_page(page, "/settings", "Settings")
    kill(service, "api")
    expect(page.locator(".banner").first).to_be_visible(timeout=NOTICE_MS)
    service.stack.json("tokens", "create", "--name", "meanwhile", "--scope", "read")
    expect(page.get_by_role("cell", name="meanwhile", exact=True)).to_be_visible(timeout=BACK_MS)


def test_prefect_is_killed(
    page: Page, service: DashboardService, watch: PageWatch, finished_job: dict[str, Any]
) -> None:
    watch.expect(*LOST)
    open_page(page, "", "Overview")
    kill(service, "server")
    banner = page.locator(".banner").first
    expect(banner).to_contain_text("Prefect server", timeout=NOTICE_MS)
    expect(banner).to_contain_text("What you see is from")
    assert page.locator("html").get_attribute("data-disconnected") is not None
    job = service.get(f"jobs/{finished_job['id']}")
    assert job["as_of"] is not None
    expect(page.get_by_role("link", name=finished_job["name"]).first).to_be_visible()
    expect(banner).to_be_hidden(timeout=BACK_MS)
    assert service.get("jobs", limit=1)["as_of"] is None
