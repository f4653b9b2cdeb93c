"""Write a picture of every page of the dashboard: `python -m tools.docs.screenshots [ADDRESS]`.

It looks at the service of TRAINYARD_HOME (`trainyard demo` makes one with a run, a job and an adapter, `trainyard
nightly run --preset nightly-demo` a night and a graph, `trainyard sweep` a sweep) in a Chromium
of 1280 x 760, in light; at those of `DARK` in dark, at those of `NARROW` on a telephone, too. Look at them before a
commit.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import BrowserContext, Page, expect, sync_playwright

from tests.chromium import find_chromium
from trainyard.app.stack.api_service import NAME
from trainyard.compute.services import find_service, record_path
from trainyard.settings import load_settings
from trainyard.stores.auth_string import read_auth

FOLDER = Path(__file__).parents[2] / "docs" / "images"
SIZE, NARROW_SIZE = {"width": 1280, "height": 760}, {"width": 390, "height": 800}
DARK, NARROW = ("editor", "job"), ("overview", "job")
SETTLE_MS = 1500
"""After the last answer: curves are drawn, the view of a graph has been fitted."""

PAGES = {
    "overview": "", "jobs": "/jobs", "job": "/jobs/{job}", "new-job": "/jobs/new", "compare": "/jobs/compare?{pair}",
    "chains": "/chains", "chain": "/chains/{chain}", "new-chain": "/chains/new", "editor": "/chains/{canvas}",
    "data": "/data", "rows": "/data/{artifact}",
    "evaluations": "/evaluations", "evaluation": "/evaluations/{evaluation}",
    "adapters": "/adapters", "adapter": "/adapters/{adapter}", "chat": "/adapters/{adapter}/chat", "nights": "/nights",
    "night": "/nights/{night}", "graph": "/nights/graph", "backends": "/backends", "gpus": "/gpus",
    "sweeps": "/sweeps", "new-sweep": "/sweeps/new", "sweep": "/sweeps/{sweep}",
    "scripts": "/scripts", "settings": "/settings", "template": "/chains/templates/qa-pipeline",
}  # fmt: skip
"""Name of a picture -> its page; what is in braces is looked up, and a page without it is left out."""


def find_things(client: httpx.Client) -> dict[str, str]:
    """The longest of the newest jobs, two to compare, and the newest of everything else that has a page."""
    jobs = client.get("jobs", params={"state": "completed"}).json()["jobs"]
    jobs.sort(key=lambda job: -job["step"])
    things = {"job": [job["id"] for job in jobs], "adapter": [], "chain": [], "artifact": [], "evaluation": []}
    things["pair"] = ["&".join(f"job={job['id']}" for job in jobs[:2])] if len(jobs) > 1 else []
    things["chain"] = [chain["id"] for chain in client.get("chains").json()["chains"]]
    things["canvas"] = [f"{chain}/edit{newest_run(client, chain)}" for chain in things["chain"]]
    things["adapter"] = [row["name"] for row in client.get("adapters").json()["rows"]]
    artifacts = client.get("artifacts").json()["artifacts"]
    rows = [artifact for artifact in artifacts if artifact["node_type"] == "validator"] or artifacts
    things["artifact"] = [f"{row['run_id']}/{row['node']}/{row['port']}" for row in rows]
    things["evaluation"] = [
        f"{evaluation['run_id']}/{evaluation['node']}" for evaluation in client.get("evaluations").json()["evaluations"]
    ]
    things["night"] = [f"{night['tenant']}/{night['night']}" for night in client.get("nightly/nights").json()["nights"]]
    things["sweep"] = [sweep["name"] for sweep in client.get("sweeps").json()["sweeps"]]
    return {name: every[0] for name, every in things.items() if every}


def newest_run(client: httpx.Client, chain: str) -> str:
    """The query that shows the newest run of a chain on its canvas; empty without one."""
    runs = client.get(f"chains/{chain}/runs").json()["runs"]
    return f"?run={runs[0]['id']}" if runs else ""


def addresses(things: dict[str, str]) -> Iterator[tuple[str, str]]:
    for name, path in PAGES.items():
        try:
            yield name, path.format(**things)
        except KeyError as missing:
            print(f"{name}: there is no {missing}", file=sys.stderr)


def take(page: Page, name: str, path: str, **media: Any) -> None:
    """Take one picture, of the window rather than of the whole page."""
    page.emulate_media(reduced_motion="reduce", **media)
    page.goto(f"/dashboard{path}")
    page.locator("h1").wait_for()
    expect(page.locator(".loading")).to_have_count(0)
    page.wait_for_timeout(SETTLE_MS)
    page.screenshot(path=FOLDER / f"{name}.png")


def take_all(context: BrowserContext, things: dict[str, str]) -> None:
    page = context.new_page()
    for name, path in addresses(things):
        page.set_viewport_size(SIZE)  # type: ignore[arg-type]
        take(page, f"dashboard-{name}", path, color_scheme="light")
        if name in DARK:
            take(page, f"dashboard-{name}-dark", path, color_scheme="dark")
        if name in NARROW:
            page.set_viewport_size(NARROW_SIZE)  # type: ignore[arg-type]
            take(page, f"dashboard-{name}-narrow", path, color_scheme="light")


def main(address: str | None) -> int:
    settings = load_settings()
    service = find_service(record_path(settings, NAME))
    url, token = address or (service.url if service else ""), read_auth(settings) or ""
    if not url:
        print("no service of TRAINYARD_HOME is running: `trainyard up`, or `trainyard demo`", file=sys.stderr)
        return 1
    headers = {"authorization": f"Bearer {token}"}
    with httpx.Client(base_url=f"{url}/api/v1/", headers=headers, timeout=30) as client:
        things = find_things(client)
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        context = browser.new_context(base_url=url, viewport=SIZE)  # type: ignore[arg-type]
        take(context.new_page(), "dashboard-login", "", color_scheme="light")
        assert context.request.post("/api/v1/login", data={"token": token}).ok
        take_all(context, things)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(*(sys.argv[1:2] or [None])))
