"""How soon a page is there, with ten thousand jobs stored: the first paint within half a second."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, expect

from benchmarks.job_index import fill
from tests.api_process import serving
from tests.browser.dashboard import PAGES
from tests.flows.real_stack import until
from trainyard.settings import load_settings
from trainyard.stores.access.tokens import TokenFile

pytestmark = [pytest.mark.browser]

JOBS, BAR_MS, LOADS = 10_000, 500.0, 4
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"


@pytest.fixture(scope="module")
def visitor(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrowserContext]:
    """A browser that is logged in at a service with many jobs, and without a Prefect server."""
    home: Path = tmp_path_factory.mktemp("many") / "home"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINYARD_HOME", str(home))
        patch.delenv("PREFECT_API_URL", raising=False)
        fill(load_settings(home=home), JOBS)
        token = TokenFile(home).create("visitor", "admin", "", 1)
        with serving() as port:
            context = browser.new_context(base_url=f"http://127.0.0.1:{port}")
            assert context.request.post("/api/v1/login", data={"token": token}).ok
            yield context
            context.close()


@pytest.mark.parametrize("path", PAGES)
def test_the_first_paint_is_soon(visitor: BrowserContext, path: str) -> None:
    """The fastest of a few loads: what else this machine does is not the page's."""
    paints = []
    for _ in range(LOADS):
        page = visitor.new_page()
        page.goto(f"/dashboard{path}")
        expect(page.locator("h1")).to_be_visible()
        until(lambda page=page: page.evaluate(PAINT) is not None, 10, "the first paint")
        paints.append(page.evaluate(PAINT))
        page.close()
        if paints[-1] <= BAR_MS:
            break
    assert min(paints) <= BAR_MS, paints
