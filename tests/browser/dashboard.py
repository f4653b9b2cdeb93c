"""The dashboard of a running service, and what a browser finds wrong in its pages."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
from playwright.sync_api import BrowserContext, ConsoleMessage, Page, Request, expect

from tests.flows.real_stack import Stack, until

AXE = Path(__file__).parent / "resources" / "axe" / "axe.min.js"
BLOCKING = ("serious", "critical")
"""Impacts that axe gives to what keeps somebody from using the page."""
Audit = Callable[[Page], None]
PAGES = {
    "": "Overview", "/jobs": "Jobs", "/jobs/new": "New job", "/chains": "Chains", "/chains/new": "New chain",
    "/data": "Data", "/evaluations": "Evaluations", "/adapters": "Adapters", "/nights": "Nights",
    "/nights/graph": "Knowledge graph", "/backends": "Backends", "/gpus": "GPUs", "/sweeps": "Sweeps",
    "/scripts": "Scripts", "/settings": "Settings", "/nothing/here": "No such page",
}  # fmt: skip
"""Path below /dashboard -> its title: every page that needs nothing stored."""

DETAILS = (
    "/jobs/{job}", "/jobs/compare?job={job}", "/chains/{chain}", "/chains/{chain}/edit",
    "/chains/templates/qa-pipeline", "/data/{run}/validator/sft", "/evaluations/{run}/evaluator",
    "/adapters/default/assistant/v1", "/adapters/default/assistant/v1/chat", "/nights/default/{night}",
    "/sweeps/{sweep}",
)  # fmt: skip
"""The pages about one thing that is stored (`places`)."""


@dataclass
class DashboardService:
    """A running service, and requests to it as its owner."""

    stack: Stack
    url: str
    """Where it answers, such as http://127.0.0.1:8898; the pages are below /dashboard."""
    token: str

    def get(self, path: str, **query: Any) -> Any:
        """The JSON of an answer; `path` is below /api/v1."""
        return self.ask("GET", path, params=query)

    def post(self, path: str, body: Any = None) -> Any:
        return self.ask("POST", path, json=body if body is not None else {})

    def ask(self, method: str, path: str, **given: Any) -> Any:
        headers = {"authorization": f"Bearer {self.token}"}
        answer = httpx.request(method, f"{self.url}/api/v1/{path}", headers=headers, timeout=60, **given)
        assert answer.is_success, answer.text
        return answer.json()

    def wait_for_job(self, job: str, *states: str, seconds: float = 240) -> dict[str, Any]:
        """The job, once it is in one of these states."""
        until(lambda: self.get(f"jobs/{job}")["state"] in states, seconds, f"becoming {' or '.join(states)}")
        found: dict[str, Any] = self.get(f"jobs/{job}")
        return found


@dataclass
class PageWatch:
    """What went wrong in a page, but for what its test expects."""

    url: str
    problems: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    def expect(self, *texts: str) -> None:
        """Let through what contains one of these texts, such as `status of 404` for an answer that a test provokes."""
        self.expected += texts

    def note(self, problem: str) -> None:
        if not any(text in problem for text in self.expected):
            self.problems.append(problem)

    def watch(self, page: Page) -> None:
        page.on("console", self.look_at_message)
        page.on("pageerror", lambda error: self.note(f"error: {error}"))
        page.on("request", self.look_at_request)

    def look_at_message(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.note(f"console: {message.text} ({message.location.get('url', '')})")

    def look_at_request(self, request: Request) -> None:
        if not request.url.startswith((f"{self.url}/", "data:", "blob:")):
            self.note(f"request to another origin: {request.url}")


def processes_of(home: Path) -> list[psutil.Process]:
    """The processes of a home that have not ended."""
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get("TRAINYARD_HOME") == str(home) and process.pid != os.getpid()
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def log_in(context: BrowserContext, service: DashboardService) -> None:
    answer = context.request.post(f"{service.url}/api/v1/login", data={"token": service.token})
    assert answer.ok, answer.text()


SETTLED_S = 3.0
"""Within which a page that was made narrower has its final width."""


def audit(page: Page) -> None:
    """No serious or critical violation, in light and in dark, and no sideways scroll at 360 px."""
    source = AXE.read_text(encoding="utf-8")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        found = list_violations(page, source)
        assert not found, "\n".join([f"{page.url} in {scheme}:", *found])
    page.emulate_media(color_scheme="light")
    assert_narrow(page)


def list_violations(page: Page, source: str) -> list[str]:
    """What axe finds that keeps somebody from using the page. CDP evaluates it, which no policy of a page forbids."""
    session = page.context.new_cdp_session(page)
    script = (
        f"{source};axe.run(document, {{resultTypes: ['violations']}}).then((found) => JSON.stringify(found.violations))"
    )
    try:
        answer = session.send("Runtime.evaluate", {"expression": script, "awaitPromise": True, "returnByValue": True})
    finally:
        session.detach()
    assert "exceptionDetails" not in answer, answer
    violations = json.loads(answer["result"]["value"])
    return [
        f"{one['impact']} {one['id']}: {one['help']}: {node['html'][:200]}"
        for one in violations
        if one["impact"] in BLOCKING
        for node in one["nodes"]
    ]


def assert_narrow(page: Page) -> None:
    """The page is no wider than a telephone."""
    before = page.viewport_size
    page.set_viewport_size({"width": 360, "height": 800})
    wide = "document.documentElement.scrollWidth - window.innerWidth"
    until(lambda: page.evaluate(wide) <= 0, SETTLED_S, f"{page.url} at {page.viewport_size}")  # curves follow
    if before is not None:
        page.set_viewport_size(before)


SLOW_MS = 90_000
"""Until everything is shown: some of it is read in child processes."""


def show_page(page: Page, path: str) -> None:
    """Open a path below /dashboard, and wait until nothing is loading."""
    page.goto(f"/dashboard{path}")
    expect(page.locator("h1")).to_be_visible()
    expect(page.locator(".loading")).to_have_count(0, timeout=SLOW_MS)


def open_page(page: Page, path: str, title: str) -> None:
    """Open a path below /dashboard, and wait for its title and its first content."""
    page.goto(f"/dashboard{path}")
    expect(page.get_by_role("heading", level=1, name=title)).to_be_visible()
    expect(page.locator(".loading")).to_have_count(0)
