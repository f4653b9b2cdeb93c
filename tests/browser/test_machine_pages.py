"""Backends, GPUs, scripts, sweeps and settings: they show what REST answers, and change what they say."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect

from tests.browser.dashboard import DashboardService, KeptPage, PageWatch, describe_gpu, open_page

pytestmark = [pytest.mark.browser]

INSTALL_MS = 90_000


@pytest.fixture
def page(kept_page: Page) -> Page:
    return kept_page


@pytest.fixture
def watch(page_holder: KeptPage) -> PageWatch:
    return page_holder.watch


def section(page: Page, title: str) -> Locator:
    return page.locator("section.panel").filter(has=page.get_by_role("heading", name=title, exact=True))


def read_rows(table: Locator) -> list[list[str]]:
    """The cells of the rows of a table, as they are shown."""
    return [[cell.strip() for cell in row.locator("td").all_inner_texts()] for row in table.locator("tbody tr").all()]


def number(text: str) -> float:
    """The first number of a text, as a reader sees it."""
    return float(text.split(maxsplit=1)[0].replace(",", ""))


# numbers


def test_the_numbers_of_the_overview_are_rests(
    page: Page, service: DashboardService, all_jobs: list[dict[str, Any]]
) -> None:
    open_page(page, "", "Overview")
    table = {row[0]: row for row in read_rows(section(page, "Newest jobs").get_by_role("table"))}
    jobs = service.get("jobs", limit=8)["jobs"]
    assert set(table) == {job["name"] for job in jobs}
    names = Counter(job["name"] for job in jobs)
    trained = [job for job in jobs if job["state"] == "completed" and job["loss"] and names[job["name"]] == 1]
    assert {job["id"] for job in all_jobs} & {job["id"] for job in trained}
    for job in trained:
        row = table[job["name"]]
        assert "completed" in row[1]
        assert [int(word) for word in row[2].split() if word.isdigit()] == [job["step"], job["total_steps"]]
        assert number(row[3]) == pytest.approx(job["loss"], rel=1e-3)
    ready = [
        backend["name"]
        for backend in service.get("backends", imports=False)["rows"]
        if backend["available"] and backend["fits"]
    ]
    expect(section(page, "This machine")).to_contain_text(f"that are ready: {', '.join(ready)}")


def test_gpus_are_rests(page: Page, service: DashboardService) -> None:
    answer = service.get("gpus")
    open_page(page, "/gpus", "GPUs")
    if not answer["gpus"]:
        expect(page.get_by_text("This machine has no GPU")).to_be_visible()
    for gpu in answer["gpus"]:
        expect(page.get_by_role("heading", name=f"GPU {gpu['index']}: {gpu['name']}")).to_be_visible()


def test_a_gpu_is_shown_with_its_jobs(page: Page, service: DashboardService) -> None:
    """This machine may have none, so that the answer of the API is given here."""
    alert = "GPU 0 (Card) uses 79,000 of 81,920 MiB."
    page.route("**/api/v1/gpus", lambda route: route.fulfill(json=describe_gpu("job-0123456789ab", alert)))
    open_page(page, "/gpus", "GPUs")
    expect(page.get_by_role("alert")).to_have_text(alert)
    facts = page.locator("main").inner_text()
    for text in ("97 %", "61 °C", "402.5 W", "1,980 MHz", "not known"):
        assert text in facts
    assert read_rows(page.get_by_role("table")) == [
        ["job-0123456789ab", "76.2 GiB", "4, 5"],
        ["outside of jobs", "not known", "9"],
    ]


# backends


def test_the_backends_page_names_the_devices_and_python(page: Page, service: DashboardService) -> None:
    page.route("**/api/v1/gpus", lambda route: route.fulfill(json=describe_gpu("job-0123456789ab")))
    open_page(page, "/backends", "Backends")
    (python,) = [check["detail"] for check in service.get("doctor")["checks"] if check["name"] == "python"]
    expect(page.get_by_text(f"This machine: GPU 0, Card, 80.0 GiB; Python {python}")).to_be_visible()


def test_backends_are_rests(page: Page, service: DashboardService) -> None:
    open_page(page, "/backends", "Backends")
    for row in service.get("backends", imports=False)["rows"]:
        panel = section(page, row["name"])
        state = "ready" if row["available"] and row["fits"] else "no device" if row["available"] else "not available"
        expect(panel).to_contain_text(state)
        expect(panel).to_contain_text(row["version"])
        expect(panel).to_contain_text(row["why"].replace("`", ""))
        expect(panel).to_contain_text(row["fix"].replace("`", ""))
        panel.locator("summary", has_text="Options").click()
        for name in ("stages", "methods", "optimizers", "schedules", "strategies"):
            expect(panel.locator(".facts").last).to_contain_text(", ".join(row["options"][name]))


def test_an_installation_has_progress_and_can_be_stopped(page: Page, service: DashboardService) -> None:
    open_page(page, "/backends", "Backends")
    panel = section(page, "mlx")
    panel.get_by_role("button", name="Install", exact=True).click()
    expect(panel.get_by_role("progressbar")).to_be_visible()
    expect(panel).to_contain_text("making", timeout=INSTALL_MS)
    page.reload()
    panel.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    expect(panel.get_by_role("button", name="Install", exact=True)).to_be_visible(timeout=INSTALL_MS)
    rows = {row["name"]: row for row in service.get("backends", imports=False)["rows"]}
    assert rows["mlx"]["installation"] is None
    assert not [*(service.stack.settings.home / "envs").glob(".mlx-*")]


@pytest.mark.slow
def test_a_smoke_test_is_a_job(page: Page, service: DashboardService) -> None:
    open_page(page, "/backends", "Backends")
    panel = section(page, "native")
    panel.get_by_role("button", name="Smoke test").click()
    job = panel.get_by_role("link").inner_text()
    detail = service.wait_for_job(job, "completed", "failed")
    assert (detail["state"], detail["step"], detail["backend"]) == ("completed", 2, "native"), detail["message"]


# scripts


def test_scripts_are_read_and_the_operator_is_named(page: Page, service: DashboardService) -> None:
    open_page(page, "/scripts", "Scripts")
    text = page.get_by_label("Text of the script")
    assert text.input_value() == service.get("scripts/built-in")["text"]
    expect(text).to_have_attribute("readonly", "")
    expect(page.get_by_text("api_edit_scripts = true")).to_be_visible()


# settings


def test_settings_and_doctor_are_rests(page: Page, service: DashboardService) -> None:
    open_page(page, "/settings", "Settings")
    table = {row[0]: row for row in read_rows(page.get_by_role("table", name="Settings of this machine"))}
    for setting in service.get("settings")["settings"]:
        value = setting["value"]
        text = "" if value is None else value if isinstance(value, str) else None
        row = table[setting["name"]]
        assert json.loads(row[1]) == value if text is None else row[1] == text, setting
        assert row[2] == setting["source"]
    checks = service.get("doctor")["checks"]
    expect(page.locator(".checks").first.get_by_role("listitem")).to_have_count(len(checks))


def test_a_token_is_revoked(page: Page, service: DashboardService, watch: PageWatch) -> None:
    token = service.make_token("visitor", "read")
    open_page(page, "/settings", "Settings")
    row = page.get_by_role("row").filter(has=page.get_by_role("cell", name="visitor", exact=True))
    row.get_by_role("button", name="Revoke").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="No").click()
    assert {token["name"]: token["valid"] for token in service.get("tokens")["tokens"]}["visitor"]
    row.get_by_role("button", name="Revoke").click()
    dialog.get_by_role("button", name="Revoke").click()
    expect(row).to_have_count(0)
    visitor = replace(service, token=token)
    with pytest.raises(AssertionError, match="E-AUTH"):
        visitor.get("jobs")
    expect(page.get_by_role("table", name="Audit log, the newest first")).to_be_visible()


def test_a_reader_is_offered_nothing_that_is_refused(
    service: DashboardService, context: BrowserContext, watch: PageWatch
) -> None:
    page = context.new_page()
    watch.watch(page)
    token = service.make_token(f"reader-{int(time.time())}", "read")
    assert context.request.post(f"{service.url}/api/v1/login", data={"token": token}).ok
    open_page(page, "/settings", "Settings")
    expect(page.get_by_text("need a login with the scope admin")).to_be_visible()
    open_page(page, "/backends", "Backends")
    expect(page.get_by_role("button", name="Install", exact=True)).to_have_count(0)
    expect(page.get_by_role("button", name="Smoke test")).to_have_count(0)
    assert watch.problems == []
