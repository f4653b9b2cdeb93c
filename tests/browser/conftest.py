"""The dashboard in a real browser, over a real stack: fixtures for `make test-browser`.

`service` is a home whose Prefect server, worker, REST service and model server are running, on a tiny model; `page` is
logged in, and its test fails if the page logged an error, broke the content security policy or asked another server.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, expect, sync_playwright
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from benchmarks.job_index import fill
from tests.api_process import serving
from tests.browser.dashboard import (
    BY_HAND,
    SPOILED,
    SPOILED_FILE,
    TRAINED,
    Audit,
    DashboardService,
    KeptPage,
    PageWatch,
    audit,
    log_in,
    write_readable,
    write_spoiled,
)
from tests.browser.records import (
    NIGHT,
    RUN,
    SWEEP,
    seed_adapters,
    seed_documents,
    seed_graph,
    seed_night,
    seed_run,
    seed_sweep,
)
from tests.browser.shared_stack import Beginning, shared_service, wait_for_others
from tests.chromium import MISSING, find_chromium
from tests.flows.real_stack import Stack
from trainyard.settings import load_settings

UNUSED_FEATURES = (
    "WebUIOmniboxPopup", "WebUIOmniboxAimPopup", "WebUIOmniboxFullPopup", "AimEnabled",
    "AvoidUnnecessaryBeforeUnloadCheckSync", "DestroyProfileOnBrowserClose", "HttpsUpgrades", "LensOverlay",
    "HttpsFirstBalancedModeAutoEnable", "MediaRouter", "PaintHolding", "ThirdPartyStoragePartitioning",
    "AvoidCorsURLLoaderRestartOnRedirect", "OptimizationHints", "NetworkTimeServiceQuerying", "PreconnectToSearch",
)  # fmt: skip
"""Chromium draws an address bar for each page, also where nobody sees it: two renderers and 0.7 s of CPU for a page of
1.1 s. The second line and those below are Playwright's own, which this option takes the place of."""
PAGE_MS = 45_000
SIZE: ViewportSize = {"width": 1280, "height": 900}
expect.set_options(timeout=PAGE_MS)

GROUPS = (
    ("chains", ("test_chain_pages.py",)),
    ("lone", ("test_sweep_and_script_pages.py",)),
    ("jobs", ("test_jobs_pages.py",)),
    ("records", ("test_records_pages.py",)),
    ("machine", ("test_machine_pages.py", "test_started_pages.py")),
    ("pages", ("test_pages.py",)),
    ("texts", ("test_untrusted_text.py",)),
    ("real texts", ()),
    ("refusals", ()),
    ("one job", ()),
    ("outages", ("test_outages.py",)),
    ("timed", ("test_large_files.py", "test_speed.py")),
)
"""Which files one process runs. `-n 2` gives each process the next group when it has two tests left.

The second group needs no stack. Whatever starts a job, or compares a list of jobs with the API's, is in one group,
which waits more than it works and takes the longest: it begins first, with a chain that is built while the stack
starts. Who only looks at one job is in another one, for the process that is free at the end. What kills services is
late: a stack that was started again is slow. What measures a time is last: it gets ready next to the last tests of the
other process, and begins when these have ended (`alone`).
"""
BUILDS = "test_qa_pipeline_is_built_by_dragging_and_run"
"""The test whose chain and run the other tests look at; without it the session runs `CHAIN`."""
OTHERS = (len(GROUPS), "others", 0)
OTHER_GROUPS = {
    BUILDS: ("jobs", -2),
    "test_a_job_is_started_from_the_form_paused_and_resumed": ("jobs", -1),
    "test_a_retry_is_a_new_job_with_the_same_parameters": ("jobs", 2),
    "test_the_numbers_of_the_overview_are_rests": ("jobs", 2),
    "test_every_number_of_a_job_is_that_of_rest": ("one job", 0),
    "test_curves_are_zoomed_smoothed_and_logarithmic": ("one job", 0),
    "test_a_log_that_could_not_be_read_is_asked_for_again": ("one job", 0),
    "test_an_answer_that_takes_long_is_not_waited_for": ("one job", 0),
    "test_real_text_of_others_is_text": ("real texts", 0),
    "test_texts_of_refusals_are_texts": ("refusals", 0),
}
"""Test -> its group and its place there, where that is not the one of its file.

The last two tests of a group should be short: meanwhile the group that is next already waits for this process.
"""
CHAIN = [
    {"type": "data_source", "config": {"path": "data.jsonl"}}, {"type": "validator"},
    {"type": "trainer", "config": {
        "hyperparameters": {"max_steps": 12, "gradient_accumulation": 1},
        "eval": {"share": 0.2, "steps": 4, "samples": 2, "sample_tokens": 8},
    }},
]  # fmt: skip


NUMBERS = {group: number for number, (group, _) in enumerate(GROUPS)}
PLACES = {file: (at, group, files.index(file)) for at, (group, files) in enumerate(GROUPS) for file in files}


def place_of(nodeid: str) -> tuple[int, str, int]:
    """The number of a test's group, the group, and the place in it."""
    path, _, name = nodeid.partition("::")
    if (other := OTHER_GROUPS.get(name.partition("[")[0])) is not None:
        return NUMBERS[other[0]], *other
    return PLACES.get(path.rpartition("/")[2], OTHERS)


class WholeGroups(LoadScopeScheduling):
    """`--dist loadgroup` by `GROUPS`. With pytest 9 the marks of pytest-xdist have no effect."""

    def _split_scope(self, nodeid: str) -> str:
        return place_of(nodeid)[1]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    return WholeGroups(config, log) if config.getoption("dist") == "loadgroup" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests of this folder, in their places among the others."""
    browser_items = [item for item in items if item.path.parent == Path(__file__).parent]
    ordered = iter(sorted(browser_items, key=lambda item: place_of(item.nodeid)))
    items[:] = [next(ordered) if item in browser_items else item for item in items]


def start_jobs(service: DashboardService, *, with_chain: bool) -> None:
    """Start what the tests look at.

    One text of the spoiled file contains the character 0, which no data source reads: its job fails, and its message
    names the file. `check` would refuse it, so the file gets that text once the job is accepted.
    """
    path = write_readable(service.stack)
    service.start_job(SPOILED, {"dataset": {"path": path}, "hyperparameters": {"max_steps": 2}})
    write_spoiled(service.stack)
    if with_chain:
        start_chain(service)


def start_chain(service: DashboardService) -> None:
    """Store a chain with two revisions, and start a run of the second."""
    spec = service.post("chains/expand", {"target": {"name": TRAINED, "nodes": CHAIN}})["spec"]
    stored = service.post("chains", spec)
    headers = {"authorization": f"Bearer {service.token}", "if-match": f'"{stored["etag"]}"'}
    chain_url = f"{service.url}/api/v1/chains/{stored['id']}"
    answer = httpx.put(chain_url, json={**spec, "description": "the second"}, headers=headers, timeout=60)
    assert answer.is_success, answer.text
    run = service.post(f"chains/{stored['id']}/run")["id"]
    service.started |= {"chain": stored["id"], TRAINED: run}


def seed(stack: Stack, model: Path) -> None:
    """Store documents, and records of a run, a night, a graph, a sweep and two versions of an adapter."""
    seed_documents(stack.settings.home)
    here = stack.settings.model_copy(update={"working_folder": stack.work})
    scratch = stack.work.parent / "records"
    scratch.mkdir()
    seed_run(here, scratch)
    seed_night(here)
    seed_graph(here)
    seed_sweep(here)
    seed_adapters(here, scratch, model)


@pytest.fixture(scope="session")
def serving_stack(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DashboardService]:
    """A service with records and rows in `data.jsonl`, for all tests of the session. Its deployments, its worker and
    the first jobs are being made."""
    with_chain = all(item.name != BUILDS for item in request.session.items)
    starting = partial(start_jobs, with_chain=with_chain)
    beginning = Beginning(lambda: request.getfixturevalue("tiny_model"), seed, starting)
    with shared_service(common_folder(tmp_path_factory), beginning) as service:
        yield service


def common_folder(factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of `-n 2` have."""
    base_folder = factory.getbasetemp()
    return base_folder.parent if "PYTEST_XDIST_WORKER" in os.environ else base_folder


@pytest.fixture(scope="session")
def service(serving_stack: DashboardService) -> DashboardService:
    """The same, when all of it is there and its jobs are started."""
    serving_stack.id_of(SPOILED)
    return serving_stack


@pytest.fixture(scope="session")
def all_jobs(service: DashboardService) -> list[dict[str, Any]]:
    """Every job that the session starts, once none of them changes any more."""
    return [service.finished(TRAINED), service.finished(SPOILED, "failed")]


@pytest.fixture(scope="session")
def trained_job(service: DashboardService) -> dict[str, Any]:
    """A run of a chain that has completed, with evaluations and samples."""
    return service.finished(TRAINED)


@pytest.fixture(scope="session")
def second_job(service: DashboardService) -> dict[str, Any]:
    """Another training that has ended: the one from the form, else one of its own."""
    if BY_HAND not in service.started:
        service.start_job(BY_HAND, {"hyperparameters": {"max_steps": 4}})
    return service.wait_for_job(service.started[BY_HAND], "completed", "canceled")


class Places(dict[str, str]):
    """What the paths of `DETAILS` name; what a path does not name is not waited for."""

    def __init__(self, service: DashboardService, **values: str) -> None:
        super().__init__({"run": RUN, "night": NIGHT, "sweep": SWEEP, "data": "data.jsonl", **values})
        self.service = service

    def __missing__(self, name: str) -> str:
        self[name] = self.find(name)
        return self[name]

    def find(self, name: str) -> str:
        if name == "entity":
            (entity,) = self.service.get("graph/entities", text="jane")["entities"]
            return quote(entity["key"])
        if name == "chain":
            return self.service.id_of("chain")
        state = "failed" if name == SPOILED else "completed"
        return str(self.service.finished(name, state)["id"])


@pytest.fixture(scope="session")
def path_values(service: DashboardService) -> Places:
    """What the paths of `DETAILS` name, and a data set."""
    return Places(service)


@pytest.fixture(scope="session")
def spoiled(service: DashboardService) -> Places:
    """`path_values` with a job that was refused rows of the corpus, and their file."""
    return Places(service, trained=service.finished(SPOILED, "failed")["id"], data=SPOILED_FILE)


class SharedBrowser:
    """The browser of a process, from the first test that asks for it to the last one of this folder.

    To start one with its driver takes 4 s of CPU time. Its driver's loop keeps others from running in this thread, so
    it ends before a test of another folder.
    """

    def __init__(self) -> None:
        self.browser: Browser | None = None
        self.open = ExitStack()

    def start(self) -> Browser:
        if self.browser is None:
            program = find_chromium()
            assert program, MISSING
            playwright = self.open.enter_context(sync_playwright())
            # A container has no user namespaces for the browser's sandbox, and only pages of our own server are opened.
            options = ["--no-sandbox", f"--disable-features={','.join(UNUSED_FEATURES)}"]
            self.browser = playwright.chromium.launch(executable_path=program, args=options)
            self.open.callback(self.browser.close)
        return self.browser

    def end(self) -> None:
        self.open.close()
        self.browser = None


SHARED = SharedBrowser()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """End the browser after the fixtures of the last test of this folder before one of another."""
    if nextitem is not None and nextitem.path.parent != Path(__file__).parent:
        SHARED.end()


@pytest.fixture(scope="session")
def end_of_browser() -> Iterator[None]:
    yield
    SHARED.end()


@pytest.fixture(scope="module")
def browser(end_of_browser: None) -> Browser:
    return SHARED.start()


@pytest.fixture
def watch(serving_stack: DashboardService) -> Iterator[PageWatch]:
    """Collects what goes wrong in a page; `watch.expect("status of 404")` for what a test provokes."""
    watch = PageWatch(serving_stack.url)
    yield watch
    watch.verify()


@contextmanager
def opened_context(browser: Browser, service: DashboardService) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport=SIZE, base_url=service.url)
    context.set_default_timeout(PAGE_MS)
    context.add_init_script(
        "document.addEventListener('securitypolicyviolation', (event) =>"
        " console.error('content security policy: ' + event.violatedDirective + ' ' + event.blockedURI))"
    )
    yield context
    context.close()


@pytest.fixture
def context(browser: Browser, serving_stack: DashboardService) -> Iterator[BrowserContext]:
    """A browser that has not logged in."""
    with opened_context(browser, serving_stack) as context:
        yield context


@pytest.fixture(scope="module")
def visited(browser: Browser, serving_stack: DashboardService) -> Iterator[BrowserContext]:
    """A browser that keeps the code of the pages: in a new one, a page takes half a second of CPU time more."""
    with opened_context(browser, serving_stack) as context:
        yield context


@pytest.fixture
def page(visited: BrowserContext, watch: PageWatch, serving_stack: DashboardService) -> Iterator[Page]:
    """A page of the owner, who is logged in; `page.goto("/dashboard/jobs")` opens one. It remembers no other test."""
    visited.clear_cookies()
    log_in(visited, serving_stack)
    page = visited.new_page()
    forget_stored(page, serving_stack.url)
    watch.watch(page)
    yield page
    page.unroute_all(behavior="ignoreErrors")  # a page asks every few seconds, also at the end of its test
    for visited_page in visited.pages:
        visited_page.close()


def forget_stored(page: Page, origin: str) -> None:
    """Remove what pages of an origin have stored in the browser: drafts, the theme, how curves are drawn."""
    session = page.context.new_cdp_session(page)
    session.send("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "local_storage"})
    session.detach()


@pytest.fixture(scope="module")
def page_holder(browser: Browser, serving_stack: DashboardService) -> Iterator[KeptPage]:
    """One page of the owner for the tests of a module that only look: to open one takes longer than most of them."""
    with opened_context(browser, serving_stack) as context:
        log_in(context, serving_stack)
        yield KeptPage(context.new_page(), PageWatch(serving_stack.url))


@pytest.fixture
def kept_page(page_holder: KeptPage) -> Iterator[Page]:
    """`page`, as the test before has left it; what that one has set for the whole page is not set any more."""
    page_holder.watch.forget()
    yield page_holder.page
    page_holder.page.unroute_all(behavior="ignoreErrors")
    page_holder.page.emulate_media(color_scheme="light")
    page_holder.page.set_viewport_size(SIZE)
    page_holder.watch.verify()


JOBS = 10_000


@pytest.fixture(scope="session")
def lone_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with `JOBS` jobs and a folder of documents."""
    home = tmp_path_factory.mktemp("many") / "home"
    fill(load_settings(home=home), JOBS)
    documents = home / "tenants" / "default" / "depot"
    documents.mkdir(parents=True)
    (documents / "depot.md").write_text("# Depot\n\nThe depot opens at seven.\n")
    return home


@pytest.fixture(scope="session")
def lone_address(lone_home: Path) -> Iterator[str]:
    """Where a service of `lone_home` answers, which has no other processes: for what is timed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINYARD_HOME", str(lone_home))
        patch.delenv("PREFECT_API_URL", raising=False)
        with serving() as port:
            yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nothing else of this session is running: neither tests of the other process nor the stack that both shared.

    To be asked for last: what a test needs is made ready while the other process ends.
    """
    wait_for_others(common_folder(tmp_path_factory))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the tests that measure a time have printed, also where they passed."""
    for report in terminalreporter.stats.get("passed", ()):
        if "timed" in report.keywords and report.capstdout:
            terminalreporter.write(report.capstdout)


@pytest.fixture(scope="session")
def axe() -> Audit:
    """`axe(page)`: no serious or critical violation, in light and in dark, and no sideways scroll at 360 px."""
    return audit
