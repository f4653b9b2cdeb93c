"""The dashboard of a running service, and what a browser finds wrong in its pages."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal

import httpx
import psutil
import pytest
from playwright.sync_api import BrowserContext, ConsoleMessage, Dialog, Page, Request, Response, expect
from playwright.sync_api import Error as PlaywrightError

from tests.flows.real_stack import Stack, until
from trainyard.stores.secret_files import TokenFile

AXE = Path(__file__).parent / "resources" / "axe" / "axe.min.js"
BLOCKING = ("serious", "critical")
"""Impacts that axe gives to what keeps somebody from using the page."""
Audit = Callable[[Page], None]
MARK = "executed"
CORPUS = (
    f"<script>document.{MARK} = 1</script>",
    f"<img src=x onerror='document.{MARK} = 2'>",
    f'"><svg/onload=document.{MARK}=3>',
    f"'-(document.{MARK}=4)-'",
    f"</title><iframe srcdoc='<script>parent.document.{MARK}=5</script>'>",
    f"</textarea><details open ontoggle=document.{MARK}=6>",
    f"{{{{constructor.constructor('document.{MARK}=7')()}}}}",
    f"javascript:document.{MARK}=8",
    "\u202e\u0000\ud83d\ude00<b>bold</b>\x1b[31mred",
)
"""Texts of others that would run if they were not text."""
PAGES = {
    "": "Overview", "/jobs": "Jobs", "/jobs/new": "New job", "/chains": "Chains", "/chains/new": "New chain",
    "/data": "Data", "/evaluations": "Evaluations", "/adapters": "Adapters", "/nights": "Nights",
    "/nights/graph": "Knowledge graph", "/backends": "Backends", "/gpus": "GPUs", "/sweeps": "Sweeps",
    "/sweeps/new": "New sweep", "/scripts": "Scripts", "/settings": "Settings", "/nothing/here": "No such page",
}  # fmt: skip
"""Path below /dashboard -> its title: every page that needs nothing stored."""

DETAILS = (
    "/jobs/{trained}", "/jobs/compare?job={spoiled}&job={trained}", "/chains/{chain}",
    "/chains/{chain}/edit?run={trained}",
    "/chains/templates/qa-pipeline", "/data/{run}/validator/sft", "/evaluations/{run}/evaluator",
    "/adapters/default/crane/v1", "/adapters/default/crane/v1/chat", "/nights/default/{night}",
    "/nights/graph?key={entity}", "/sweeps/{sweep}",
)  # fmt: skip
"""The pages about one thing that is stored (`path_values`)."""


@dataclass
class DashboardService:
    """A running service, and requests to it as its owner."""

    stack: Stack
    url: str
    """Where it answers, such as http://127.0.0.1:8898; the pages are below /dashboard."""
    token: str
    read_started: Callable[[], dict[str, str]] = dict
    """What all processes have started by now, which is nothing before the whole stack is running."""
    publish: Callable[[dict[str, str], str], None] = lambda ids, failed: None
    """Let the other processes know what was started, or why something was not."""
    started: dict[str, str] = field(default_factory=dict)
    """Name -> id of what is known to be started: jobs, a chain and its run."""
    ended: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Name -> job, of those whose end was waited for."""
    client: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=60, verify=False))
    """One for all requests: `httpx.get` reads the machine's certificates each time, which takes longer than most."""

    def start_job(self, name: str, parameters: dict[str, Any]) -> None:
        self.started[name] = self.post("jobs", {"dataset": {"path": "data.jsonl"}, **parameters})["id"]

    def id_of(self, name: str) -> str:
        """The id of what the session starts under a name; waits for its start."""
        if name not in self.started:
            until(lambda: name in self.read_started(), BEGUN_S, f"the start of {name}", every_s=0.5)
            self.started |= self.read_started()
        return self.started[name]

    def share(self, **ids: str) -> None:
        self.started |= ids
        self.publish(ids, "")

    @contextmanager
    def starting(self, name: str) -> Iterator[None]:
        """Start what the other processes wait for; if that fails, so do they."""
        try:
            yield
        except BaseException as error:
            self.publish({}, f"{name} was not started: {error!r}")
            raise

    def finished(self, name: str, state: str = "completed") -> dict[str, Any]:
        """A job that the session has started, once it has ended so."""
        if name not in self.ended:
            job = self.wait_for_job(self.id_of(name), "completed", "failed")
            assert job["state"] == state, job["message"]
            self.ended[name] = job
        return self.ended[name]

    def make_token(self, name: str, scope: Literal["read", "run", "admin"]) -> str:
        return TokenFile(self.stack.settings.home).create(name, scope, "", 1)

    def get(self, path: str, **query: Any) -> Any:
        """The JSON of an answer; `path` is below /api/v1."""
        return self.ask("GET", path, params=query)

    def post(self, path: str, body: Any = None) -> Any:
        return self.ask("POST", path, json=body if body is not None else {})

    def ask(self, method: str, path: str, **options: Any) -> Any:
        headers = {"authorization": f"Bearer {self.token}"}
        answer = self.client.request(method, f"{self.url}/api/v1/{path}", headers=headers, **options)
        assert answer.is_success, answer.text
        return answer.json()

    def wait_for_job(self, job: str, *states: str, seconds: float = 240) -> dict[str, Any]:
        """The job, once it is in one of these states; a paused one has also written its last checkpoint."""
        detail: dict[str, Any] = {}

        def has_arrived() -> bool:
            detail.update(self.get(f"jobs/{job}"))
            return detail["state"] in states and detail["detail"] != "pausing"

        until(has_arrived, seconds, f"becoming {' or '.join(states)}", every_s=0.5)
        return detail


TYPED_PATH = "/api/v1/data/columns?path="
"""A form asks for the columns of a path while it is typed: one that is not there (yet) is answered by 404."""


def describe_response(response: Response) -> str:
    """Return the address, status and body of a response; a page that has gone on has no body any more."""
    try:
        body = response.text()
    except PlaywrightError as error:
        body = error.message
    return f"{response.request.method} {response.url}: {response.status} {body[:2000]}"


@dataclass
class PageWatch:
    """What went wrong in a page, but for what its test expects."""

    url: str
    problems: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    refusals: list[Response] = field(default_factory=list)

    def expect(self, *texts: str) -> None:
        """Let through what contains one of these texts, such as `status of 404` for an answer that a test provokes."""
        self.expected += texts

    def note(self, problem: str) -> None:
        if not any(text in problem for text in (TYPED_PATH, *self.expected)):
            self.problems.append(problem)

    def forget(self) -> None:
        """What has gone wrong, and what was expected, was another test's."""
        self.problems.clear()
        self.expected.clear()
        self.refusals.clear()

    def watch(self, page: Page) -> None:
        page.on("console", self.look_at_message)
        page.on("pageerror", lambda error: self.note(f"error: {error}"))
        page.on("request", self.look_at_request)
        page.on("response", self.look_at_response)

    def look_at_message(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.note(f"console: {message.text} ({message.location.get('url', '')})")

    def look_at_response(self, response: Response) -> None:
        if response.status >= HTTPStatus.BAD_REQUEST:
            self.refusals.append(response)

    def verify(self) -> None:
        """Fail with everything that went wrong, and with the bodies of refused requests."""
        if self.problems:
            pytest.fail("\n".join([*self.problems, *map(describe_response, self.refusals)]))

    def look_at_request(self, request: Request) -> None:
        if not request.url.startswith((f"{self.url}/", "data:", "blob:")):
            self.note(f"request to another origin: {request.url}")


@dataclass
class KeptPage:
    """A page that several tests look at, one after the other, and what goes wrong in it."""

    page: Page
    watch: PageWatch

    def __post_init__(self) -> None:
        self.watch.watch(self.page)
        self.page.on("dialog", self.refuse_dialog)

    def refuse_dialog(self, dialog: Dialog) -> None:
        self.watch.note(f"dialog: {dialog.message}")
        dialog.dismiss()


def one_gpu(job: str, *alerts: str) -> dict[str, Any]:
    """What `GET /gpus` answers on a machine with one card, which a job and another program use."""
    gpu = {
        "index": 0, "name": "Card", "memory_total_mb": 81_920, "memory_used_mb": 79_000, "memory_free_mb": 2_920,
        "utilization_gpu": 97, "utilization_memory": None, "temperature_c": 61, "power_draw_w": 402.5,
        "clock_graphics_mhz": 1980, "clock_memory_mhz": None,
        "processes": [
            {"job": job, "memory_mb": 78_000, "pids": [4, 5]},
            {"job": None, "memory_mb": None, "pids": [9]},
        ],
    }  # fmt: skip
    return {"state": "ok", "gpus": [gpu], "driver_version": "1", "cuda_version": "2", "alerts": [*alerts]}


BEGUN_S = 300.0
SPOILED, TRAINED, BY_HAND = "spoiled", "trained", "by-hand"
"""Names in `started`: a job that is refused its data; the run of a chain (`chain`) of two revisions, which trains and
evaluates while it does; a training that was started from the form and cancelled."""
SPOILED_FILE = "<img src=x onerror=document.executed=2>.jsonl"


def write_readable(stack: Stack) -> str:
    """Write the rows of the corpus that can be read, which `check` accepts; returns the name of the file."""
    rows = [{"instruction": text, "output": text} for text in CORPUS if "\0" not in text for _ in range(4)]
    (stack.work / SPOILED_FILE).write_text("\n".join(json.dumps(row) for row in rows))
    return SPOILED_FILE


def write_spoiled(stack: Stack) -> str:
    """Write the rows of the corpus to a file with a name of it, and a script; returns the name."""
    rows = [{"instruction": text, "output": text} for text in CORPUS for _ in range(4)]
    (stack.work / SPOILED_FILE).write_text("\n".join(json.dumps(row) for row in rows))
    scripts = stack.settings.home / "script_templates"
    scripts.mkdir(exist_ok=True)
    (scripts / "mine.py").write_text(f"'''{CORPUS[0]} {CORPUS[1]}'''")
    return SPOILED_FILE


def processes_of(home: Path) -> list[psutil.Process]:
    """The processes of a home that have not ended."""
    processes = []
    for process in psutil.process_iter():
        try:
            is_ours = process.environ().get("TRAINYARD_HOME") == str(home) and process.pid != os.getpid()
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
        except (psutil.Error, OSError):
            continue
    return processes


def log_in(context: BrowserContext, service: DashboardService) -> None:
    answer = context.request.post(f"{service.url}/api/v1/login", data={"token": service.token})
    assert answer.ok, answer.text()


SETTLED_S = 3.0
"""Within which a page that was made narrower has its final width."""


EVERY_RULE: dict[str, Any] = {"resultTypes": ["violations"]}
OF_COLOURS = {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}
RULES = {"light": EVERY_RULE, "dark": {**EVERY_RULE, "runOnly": OF_COLOURS}}
"""Of axe: the scheme makes a difference to the rules about colours alone."""


def audit(page: Page) -> None:
    """No serious or critical violation, in light and in dark, and no sideways scroll at 360 px."""
    source = AXE.read_text(encoding="utf-8")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        violations = list_violations(page, source, RULES[scheme])
        assert not violations, "\n".join([f"{page.url} in {scheme}:", *violations])
    page.emulate_media(color_scheme="light")
    assert_narrow(page)


def list_violations(page: Page, source: str, rules: dict[str, Any]) -> list[str]:
    """What axe finds that keeps somebody from using the page. CDP evaluates it, which no policy of a page forbids."""
    session = page.context.new_cdp_session(page)
    run = f"axe.run(document, {json.dumps(rules)}).then((found) => JSON.stringify(found.violations))"
    script = f"window.axe === undefined && (() => {{ {source} }})();{run}"
    try:
        answer = session.send("Runtime.evaluate", {"expression": script, "awaitPromise": True, "returnByValue": True})
    finally:
        session.detach()
    assert "exceptionDetails" not in answer, answer
    violations = json.loads(answer["result"]["value"])
    return [
        f"{violation['impact']} {violation['id']}: {violation['help']}: {node['html'][:200]}"
        for violation in violations
        if violation["impact"] in BLOCKING
        for node in violation["nodes"]
    ]


def assert_narrow(page: Page) -> None:
    """The page is no wider than a telephone."""
    before = page.viewport_size
    page.set_viewport_size({"width": 360, "height": 800})
    wide = "document.documentElement.scrollWidth - window.innerWidth"
    until(lambda: page.evaluate(wide) <= 0, SETTLED_S, f"{page.url} at {page.viewport_size}")  # curves follow
    if before is not None:
        page.set_viewport_size(before)


BLANK = "about:blank"
"""Where a page is that was not used yet."""
SLOW_MS = 90_000
"""Until everything is shown: some of it is read in child processes."""


def show_page(page: Page, path: str, *, within: bool = False) -> None:
    """Open a path below /dashboard, and wait until nothing is loading.

    With `within`, a page that is open goes there as a link leads there: a quarter of the time of loading all of it.
    """
    if within and page.url != BLANK:
        page.evaluate("(path) => history.pushState({}, '', path)", f"/dashboard{path}")
    else:
        page.goto(f"/dashboard{path}")
    expect(page.locator("h1")).to_be_visible()
    expect(page.locator(".loading")).to_have_count(0, timeout=SLOW_MS)


ASKED = {
    "/jobs/new": ("Preview the data", "Estimate"), "/chains/{chain}/edit?run={trained}": ("Estimate",),
    "/sweeps/{sweep}": ("Show",), "/settings": ("Verify",),
}  # fmt: skip
"""Page -> the buttons whose answers it shows, too."""


def show_whole_page(page: Page, path: str, path_values: dict[str, str], *, within: bool = False) -> None:
    """Open a page of `PAGES` or `DETAILS` with what it shows on request: a draft's preview, a node, what is folded."""
    if path == "/jobs/new":
        draft = json.dumps({"dataset": {"path": path_values["data"]}})
        keep = f"sessionStorage.setItem('trainyard.new-job', {json.dumps(draft)})"
        page.add_init_script(keep)
        if page.url != BLANK:
            page.evaluate(keep)
    show_page(page, path.format_map(path_values), within=within)
    if "?run=" in path:
        page.locator('.react-flow__node[data-id="trainer"]').press("Enter")
        expect(page.get_by_label("Selected node").get_by_role("heading", level=3).first).to_be_visible()
    for name in ASKED.get(path, ()):
        page.get_by_role("button", name=name, exact=True).click()
        expect(page.get_by_role("button", name=name, exact=True)).to_be_enabled(timeout=SLOW_MS)
    page.evaluate("document.querySelectorAll('main details').forEach((one) => { one.open = true; })")
    expect(page.locator(".loading")).to_have_count(0, timeout=SLOW_MS)


def open_page(page: Page, path: str, title: str) -> None:
    """Open a path below /dashboard, and wait for its title and its first content."""
    page.goto(f"/dashboard{path}")
    expect(page.get_by_role("heading", level=1, name=title)).to_be_visible()
    expect(page.locator(".loading")).to_have_count(0)
