"""The dashboard in a real browser, over a real stack: fixtures for `make test-browser`.

`service` is a home whose Prefect server, worker, REST service and model server are running, on a tiny model; `page` is
logged in, and its test fails if the page logged an error, broke the content security policy or asked another server.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.browser.dashboard import Audit, DashboardService, PageWatch, audit, log_in, processes_of, write_spoiled
from tests.browser.records import NIGHT, RUN, SWEEP, seed_adapters, seed_graph, seed_night, seed_run, seed_sweep
from tests.flows.real_stack import standing, until
from trainyard.api.stack import running
from trainyard.stores.auth_string import read_auth

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PAGE_MS = 20_000
JOB_STEPS = 12
expect.set_options(timeout=PAGE_MS)


ORDER = {"test_records_pages.py": -2, "test_sweep_and_script_pages.py": -1, "test_outages.py": 1}
"""First what needs no job, while the jobs of the session are trained; last what kills services: a stack that was
started again is slow."""
PAGES_GROUP = {"test_sweep_and_script_pages.py", "test_pages.py", "test_untrusted_text.py"}
"""They only look at pages: a second process runs them over a stack of its own, next to the others (`-n 2`)."""
OTHER = {
    "name": "other", "hyperparameters": {"max_steps": JOB_STEPS, "gradient_accumulation": 1, "learning_rate": 0.003},
    "eval": {"share": 0.2, "steps": 4, "samples": 2, "sample_tokens": 8},
}  # fmt: skip
SPOILED = {"hyperparameters": {"max_steps": 2}, "eval": {"share": 0.2, "steps": 1, "samples": 2, "sample_tokens": 8}}
CHAIN = [
    {"type": "data_source", "config": {"path": "data.jsonl"}}, {"type": "validator"},
    {"type": "trainer", "config": {"hyperparameters": {"max_steps": 2}}},
]  # fmt: skip


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the marks in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: ORDER.get(item.path.name, 0))
    for item in items:
        item.add_marker(pytest.mark.xdist_group("pages" if item.path.name in PAGES_GROUP else "actions"))


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Two stacks that start at the same time would take the same free ports."""
    with (folder / "stack.lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[DashboardService]:
    """A running stack with some rows in `data.jsonl`, for all tests of the session; its jobs are started at once."""
    folder = tmp_path_factory.mktemp("dashboard")
    (folder / "home").mkdir()
    (folder / "home" / "trainyard.toml").write_text("allow_scripts = true\n")
    with ExitStack() as kept:
        with one_at_a_time(tmp_path_factory.getbasetemp().parent):
            stack = kept.enter_context(standing(folder, tiny_model))
        api = running(stack.settings, "api")
        assert api is not None
        service = DashboardService(stack, api.url, read_auth(stack.settings) or "")
        first = {"max_steps": JOB_STEPS, "save_steps": JOB_STEPS // 2, "gradient_accumulation": 1}
        service.start_job("first", {"hyperparameters": first})
        service.start_job("other", OTHER)
        service.start_job("spoiled", {"dataset": {"path": write_spoiled(stack)}, **SPOILED})
        yield service
    until(lambda: not processes_of(stack.settings.home), 30, "the end of all processes")


@pytest.fixture(scope="session")
def finished_job(service: DashboardService) -> dict[str, Any]:
    """A training job that has completed, for every test that only looks at one."""
    return service.wait_for_job(service.jobs["first"], "completed", "failed")


@pytest.fixture(scope="session")
def other_job(service: DashboardService, finished_job: dict[str, Any]) -> dict[str, Any]:
    """A second job, with another learning rate, evaluations and samples."""
    return service.wait_for_job(service.jobs["other"], "completed", "failed")


@pytest.fixture(scope="session")
def spoiled_job(service: DashboardService) -> dict[str, Any]:
    """A job on rows of the corpus, from a file with a name of it."""
    return service.wait_for_job(service.jobs["spoiled"], "completed", "failed")


@pytest.fixture(scope="session")
def seeded(service: DashboardService, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> DashboardService:
    """The service, with records of a run, a night, a graph, a sweep and two versions of an adapter."""
    here, scratch = service.stack.settings, tmp_path_factory.mktemp("records")
    here = here.model_copy(update={"working_folder": service.stack.work})
    seed_run(here, scratch)
    seed_night(here)
    seed_graph(here)
    seed_sweep(here)
    seed_adapters(here, scratch, tiny_model)
    return service


@pytest.fixture(scope="session")
def stored_chain(service: DashboardService, other_job: dict[str, Any]) -> dict[str, str]:
    """A stored chain with two revisions, and a run of the second: its id and that of the run."""
    spec = service.post("chains/expand", {"target": {"name": "depot", "nodes": CHAIN}})["spec"]
    stored = service.post("chains", spec)
    headers = {"authorization": f"Bearer {service.token}", "if-match": f'"{stored["etag"]}"'}
    place = f"{service.url}/api/v1/chains/{stored['id']}"
    answer = httpx.put(place, json={**spec, "description": "the second"}, headers=headers, timeout=60)
    assert answer.is_success, answer.text
    run = service.post(f"chains/{stored['id']}/run")["id"]
    service.wait_for_job(run, "completed", "failed")
    return {"chain": stored["id"], "chain_run": run}


@pytest.fixture(scope="session")
def places(
    seeded: DashboardService, stored_chain: dict[str, str], finished_job: dict[str, Any], other_job: dict[str, Any]
) -> dict[str, str]:
    """What the paths of `DETAILS` name, and a data set."""
    (entity,) = seeded.get("graph/entities", text="jane")["entities"]
    return {
        "job": finished_job["id"], "other": other_job["id"], **stored_chain, "run": RUN, "night": NIGHT,
        "sweep": SWEEP, "entity": quote(entity["key"]), "data": "data.jsonl",
    }  # fmt: skip


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
def page(context: BrowserContext, watch: PageWatch, service: DashboardService) -> Iterator[Page]:
    """A page of the owner, who is logged in; `page.goto("/dashboard/jobs")` opens one."""
    log_in(context, service)
    page = context.new_page()
    watch.watch(page)
    yield page
    page.unroute_all(behavior="ignoreErrors")  # a page asks every few seconds, also at the end of its test


@pytest.fixture(scope="session")
def axe() -> Audit:
    """`axe(page)`: no serious or critical violation, in light and in dark, and no sideways scroll at 360 px."""
    return audit
