"""Sweeps as a study has them, and scripts where they may be written: a service without other processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.api_process import serving
from tests.browser.dashboard import SLOW_MS, Audit, PageWatch, open_page
from tests.browser.records import seed_sweep
from trainyard.app.sweeps import SweepReport, read_report
from trainyard.settings import Settings, load_settings
from trainyard.stores.secret_files import TokenFile

pytestmark = [pytest.mark.browser]

WITHOUT_PREFECT = ("503", "Failed to load resource")
LOOKS = 2
"""How often a page looks again for Prefect, every three seconds."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lone") / "home"


@pytest.fixture(scope="module")
def settings(home: Path) -> Settings:
    return load_settings(home=home, working_folder=home.parent, min_free_mb=0)


@pytest.fixture(scope="module")
def sweep(settings: Settings) -> SweepReport:
    return read_report(seed_sweep(settings), settings)


@pytest.fixture(scope="module")
def address(home: Path, sweep: SweepReport) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("TRAINYARD_", "PREFECT_"))]:
            patch.delenv(name)
        patch.setenv("TRAINYARD_HOME", str(home))
        patch.setenv("TRAINYARD_ALLOW_SCRIPTS", "true")
        patch.setenv("TRAINYARD_API_EDIT_SCRIPTS", "true")
        with serving() as port:
            yield f"http://127.0.0.1:{port}"


@pytest.fixture
def lone_page(browser: Browser, address: str, home: Path) -> Iterator[Page]:
    """A page of an admin at this service."""
    watch, tokens = PageWatch(address, expected=[*WITHOUT_PREFECT]), TokenFile(home)
    name = f"visitor-{len(tokens.list())}"
    context = browser.new_context(base_url=address, viewport={"width": 1280, "height": 900})
    assert context.request.post("/api/v1/login", data={"token": tokens.create(name, "admin", "", 1)}).ok
    page = context.new_page()
    watch.watch(page)
    yield page
    page.unroute_all(behavior="ignoreErrors")
    context.close()
    assert watch.problems == []


def test_a_sweep_is_rests(lone_page: Page, sweep: SweepReport, axe: Audit) -> None:
    open_page(lone_page, "/sweeps", "Sweeps")
    row = lone_page.get_by_role("row").filter(has=lone_page.get_by_role("link", name="guide"))
    expect(row).to_contain_text(f"3 of {sweep.num_trials}")
    row.get_by_role("link").click()
    expect(lone_page.get_by_role("heading", level=1, name="Sweep guide")).to_be_visible()
    rows = lone_page.get_by_role("table", name="Trials, the best first").locator("tbody tr")
    expect(rows).to_have_count(len(sweep.trials))
    cells = [row.locator("td").all_inner_texts() for row in rows.all()]
    assert sweep.best is not None
    assert cells[0][0] == f"{sweep.best.number}, best"
    assert float(cells[0][-2]) == pytest.approx(sweep.best.value)
    by_number = {int(row[0].partition(",")[0]): row for row in cells}
    for trial in sweep.trials:
        trial_cells = by_number[trial.number]
        assert trial.state.value in trial_cells[1]
        assert float(trial_cells[2]) == pytest.approx(float(trial.params["trainer.learning_rate"]), rel=1e-3)
        assert trial_cells[3] == str(trial.steps)
        assert trial_cells[4] == ", ".join(f"{step}: {value:g}" for step, value in trial.found.items())
    axe(lone_page)
    lone_page.get_by_role("button", name="Show").click()
    expect(lone_page.locator("pre")).to_contain_text("Best of 3 trials")
    expect(lone_page.get_by_role("button", name="Continue")).to_be_visible()
    lone_page.route("**/api/v1/sweeps/guide", end_trials)
    expect(lone_page.get_by_role("button", name="Continue")).to_have_count(0)


def end_trials(route: Route) -> None:
    """Answer with the sweep as it is when no trial is left."""
    answer = route.fetch(timeout=SLOW_MS)
    body = answer.json()
    for trial in body["trials"]:
        trial["state"] = "stopped" if trial["state"] == "paused" else trial["state"]
    route.fulfill(response=answer, json={**body, "num_trials": len(body["trials"])})


def test_a_script_is_written_under_a_name(lone_page: Page, home: Path, axe: Audit) -> None:
    open_page(lone_page, "/scripts", "Scripts")
    text = lone_page.get_by_label("Text of the script")
    save = lone_page.get_by_role("button", name="Save", exact=True)
    text.fill("def :\n")
    lone_page.get_by_label("Save as").fill("mine")
    save.click()
    expect(lone_page.get_by_role("alert")).to_contain_text("not valid Python")
    text.fill("print('one')\n")
    save.click()
    expect(lone_page.get_by_role("button", name="mine")).to_be_visible()
    assert (home / "script_templates" / "mine.py").read_text() == "print('one')\n"
    axe(lone_page)


def test_the_script_of_a_chain_is_edited_as_a_new_one(lone_page: Page, address: str, home: Path) -> None:
    nodes = [{"type": "data_source", "config": {"path": "swept.jsonl"}}, {"type": "trainer"}]
    headers = {"authorization": f"Bearer {TokenFile(home).create('builder', 'run', '', 1)}"}
    stored = httpx.post(f"{address}/api/v1/chains", json={"name": "drafted", "nodes": nodes}, headers=headers).json()
    open_page(lone_page, "/scripts", "Scripts")
    lone_page.get_by_label("Chain", exact=True).select_option(stored["id"])
    lone_page.get_by_role("button", name="Show", exact=True).click()
    lone_page.get_by_role("button", name="Edit as a new script").click()
    expect(lone_page.get_by_role("heading", name="New script drafted-trainer")).to_be_visible()
    text = lone_page.get_by_label("Text of the script")
    drafted = text.input_value()
    assert drafted == lone_page.get_by_label("Drafted script", exact=True).text_content()
    text.fill(f"# mine\n{drafted}")
    lone_page.get_by_role("button", name="Save", exact=True).click()
    expect(lone_page.get_by_role("heading", name="drafted-trainer", exact=True)).to_be_visible()
    assert (home / "script_templates" / "drafted-trainer.py").read_text() == f"# mine\n{drafted}"


def test_a_script_that_somebody_else_wrote_is_kept(lone_page: Page, home: Path) -> None:
    path = home / "script_templates" / "theirs.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text("print('before')\n")
    open_page(lone_page, "/scripts", "Scripts")
    lone_page.get_by_role("button", name="theirs").click()
    text = lone_page.get_by_label("Text of the script")
    expect(text).to_have_value("print('before')\n")
    path.write_text("print('theirs')\n")
    text.fill("print('mine')\n")
    lone_page.get_by_role("button", name="Save", exact=True).click()
    expect(lone_page.get_by_role("alert")).to_contain_text("was written meanwhile")
    assert path.read_text() == "print('theirs')\n"
    expect(text).to_have_value("print('mine')\n")


def test_a_page_does_not_read_everything_again_while_prefect_is_away(lone_page: Page) -> None:
    """A service that never knew a job answers each question after them with 503; the page asks only that again."""
    requests: list[str] = []
    lone_page.on("request", lambda request: requests.append(request.url.partition("/api/v1/")[2]))
    open_page(lone_page, "/scripts", "Scripts")
    banner = lone_page.locator(".banner", has_text="What you see is from")
    since = banner.inner_text()
    for _ in range(LOOKS):
        with lone_page.expect_response("**/jobs?limit=1"):
            pass
        expect(banner).to_have_text(since)
    assert requests.count("jobs?limit=1") > LOOKS
    assert requests.count("scripts") == 1
