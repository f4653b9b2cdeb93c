"""The manual's site in a real browser that reaches no other server: diagrams are drawn, the search finds a page."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.architecture.test_budgets import REPOSITORY
from tools.docs.offline import loads_from_elsewhere

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.network, pytest.mark.timeout(600)]
SITE = REPOSITORY / "build" / "site"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing for each request."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Where the built site answers."""
    for argv in (["tools.docs.mermaid"], ["zensical", "build", "--strict"]):
        subprocess.run([sys.executable, "-m", *argv], cwd=REPOSITORY, check=True, capture_output=True)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def requests(page: Page, address: str) -> list[str]:
    """Every address on another server that the browser asks for; none is answered."""
    outside: list[str] = []

    def answer(route: Route) -> None:
        if route.request.url.startswith((address, "data:", "blob:")):
            return route.continue_()
        outside.append(route.request.url)
        return route.abort()

    page.route("**/*", answer)
    return outside


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with browser.new_context() as context:
        yield context.new_page()


def test_every_page_is_whole_without_another_server(page: Page, address: str, requests: list[str]) -> None:
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    for path in sorted(SITE.rglob("*.html")):
        text = path.read_text(encoding="utf-8")
        page.goto(f"{address}/{path.relative_to(SITE)}")
        expect(page.locator("div.mermaid")).to_have_count(text.count('<pre class="mermaid">'))
        expect(page.locator("pre.mermaid")).to_have_count(0)
    assert (requests, errors, [*loads_from_elsewhere(SITE)]) == ([], [], [])


def test_the_search_finds_a_page(page: Page, address: str, requests: list[str]) -> None:
    page.goto(f"{address}/index.html")
    page.keyboard.press("/")
    page.keyboard.type("near duplicates", delay=50)
    expect(page.get_by_text("Duplicates, grounding, decontamination").first).to_be_visible()
    assert requests == []
