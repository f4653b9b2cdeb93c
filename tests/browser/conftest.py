"""The dashboard in a real browser, over a real stack: fixtures for `make test-browser`.

`service` is a home whose Prefect server, worker, REST service and model server are running, on a tiny model; `page` is
logged in, and its test fails if the page logged an error, broke the content security policy or asked another server.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.browser.dashboard import Audit, DashboardService, PageWatch, audit, log_in, processes_of
from tests.browser.records import NIGHT, RUN, SWEEP, seed_adapters, seed_graph, seed_night, seed_run, seed_sweep
from tests.flows.real_stack import standing, until
from trainyard.stores.auth_string import read_auth

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PAGE_MS = 20_000
JOB_STEPS = 12
expect.set_options(timeout=PAGE_MS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What kills services runs last: a stack that has just been started again is slow."""
    items.sort(key=lambda item: item.path.name == "test_outages.py")


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[DashboardService]:
    """A running stack with some rows in `data.jsonl`, for all tests of the session."""
    with standing(tmp_path_factory.mktemp("dashboard"), tiny_model) as stack:
        told = stack.json("up")
        yield DashboardService(stack, told["service_url"], read_auth(stack.settings) or "")
    until(lambda: not processes_of(stack.settings.home), 30, "the end of all processes")


@pytest.fixture(scope="session")
def finished_job(service: DashboardService) -> dict[str, Any]:
    """A training job that has completed, for every test that only looks at one."""
    run_id = service.stack.start_job(max_steps=JOB_STEPS, save_steps=JOB_STEPS // 2, gradient_accumulation=1)
    return service.wait_for_job(run_id, "completed", "failed")


@pytest.fixture(scope="session")
def seeded(service: DashboardService, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> DashboardService:
    """The service, with records of a run, a night, a graph, a sweep and two versions of an adapter."""
    here, scratch = service.stack.settings, tmp_path_factory.mktemp("records")
    seed_run(here, scratch)
    seed_night(here)
    seed_graph(here)
    seed_sweep(here)
    seed_adapters(here, scratch, tiny_model)
    return service


@pytest.fixture(scope="session")
def stored_chain(service: DashboardService) -> str:
    """The id of a stored chain."""
    folder = service.stack.work / "manuals"
    folder.mkdir(exist_ok=True)
    (folder / "page.md").write_text("# Depot\n\nThe depot opens at seven.\n")
    given = {"target": "qa-pipeline", "parameters": {"documents": "manuals"}}
    stored: dict[str, Any] = service.post("chains", service.post("chains/expand", given)["spec"])
    return str(stored["id"])


@pytest.fixture(scope="session")
def places(seeded: DashboardService, stored_chain: str, finished_job: dict[str, Any]) -> dict[str, str]:
    """What the paths of `DETAILS` name."""
    return {"job": finished_job["id"], "chain": stored_chain, "run": RUN, "night": NIGHT, "sweep": SWEEP}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    assert program, (
        "Chromium is not installed: `apt-get install chromium`, or put a chromium or google-chrome on the PATH"
    )
    with sync_playwright() as playwright:
        # A container has no user namespaces for the browser's sandbox, and only pages of our own server are opened.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def watch(service: DashboardService) -> Iterator[PageWatch]:
    """Collects what goes wrong in a page; `watch.expect("status of 404")` for what a test provokes."""
    watch = PageWatch(service.url)
    yield watch
    assert watch.problems == []


@pytest.fixture
def context(browser: Browser, service: DashboardService) -> Iterator[BrowserContext]:
    """A browser that has not logged in."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, base_url=service.url)
    context.set_default_timeout(PAGE_MS)
    context.add_init_script(
        "document.addEventListener('securitypolicyviolation', (event) =>"
        " console.error('content security policy: ' + event.violatedDirective + ' ' + event.blockedURI))"
    )
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext, watch: PageWatch, service: DashboardService) -> Page:
    """A page of the owner, who is logged in; `page.goto("/dashboard/jobs")` opens one."""
    log_in(context, service)
    page = context.new_page()
    watch.watch(page)
    return page


@pytest.fixture(scope="session")
def axe() -> Audit:
    """`axe(page)`: no serious or critical violation, in light and in dark, and no sideways scroll at 360 px."""
    return audit
