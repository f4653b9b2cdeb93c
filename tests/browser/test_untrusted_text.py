"""Text of others on every page: names, rows, logs, errors. None of it is executed, none of it is markup.

The corpus is in the rows, the data set's file name and the scripts of a real home; and because not every page gets
such a text from it, each text of each answer of the API is then replaced by one, in a browser that is really asked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.browser.conftest import open_context
from tests.browser.dashboard import (
    CORPUS,
    DETAILS,
    MARK,
    PAGES,
    SLOW_MS,
    DashboardService,
    KeptPage,
    PageWatch,
    log_in,
    show_page,
    show_whole_page,
)  # fmt: skip
from tests.browser.records import RUN

pytestmark = [pytest.mark.browser]

KEPT = {"state", "name", "id", "run_id", "scope", "node", "type", "csrf", "caller", "tenant", "source"}
"""Fields whose texts the pages compare with words of their own; the corpus is put behind these."""

WITH_REAL_TEXT = ("", "/jobs", "/jobs/new", "/jobs/{trained}", "/data", "/data/{run}/validator/sft",
                  "/evaluations/{run}/evaluator", "/nights/default/{night}", "/scripts")  # fmt: skip
"""The pages that get such a text from the home of these tests."""

GIVEN = quote(CORPUS[1], safe="")
REFUSED = (f"/jobs/{GIVEN}", f"/jobs/compare?job={GIVEN}&job=nobody", f"/chains/{GIVEN}", f"/chains/{GIVEN}/edit",
           f"/chains/templates/{GIVEN}", f"/data/{RUN}/{GIVEN}/sft", f"/evaluations/{RUN}/{GIVEN}",
           f"/adapters/default/{GIVEN}/v1", f"/nights/default/{GIVEN}", f"/sweeps/{GIVEN}",
           f"/nights/graph?key={GIVEN}")  # fmt: skip
"""Pages about what is not there: a refusal names what was given."""


def spoil(value: Any, key: str = "", seed: int = 0) -> Any:
    """An answer with a text of the corpus in place of each of its texts."""
    if isinstance(value, dict):
        # of a pattern that no draft may break
        id_fields = {"id": value["id"]} if key == "nodes" and "id" in value else {}
        return {name: spoil(item, name, seed + index) for index, (name, item) in enumerate(value.items())} | id_fields
    if isinstance(value, list):
        return [spoil(item, key, seed + index) for index, item in enumerate(value)]
    if not isinstance(value, str):
        return value
    text = CORPUS[seed % len(CORPUS)]
    if key == "url":
        return f"javascript:document.{MARK}=9"
    return value if key in ("state", "csrf", "scope", "tenant") else f"{value} {text}" if key in KEPT else text


def answer_spoiled(route: Route) -> None:
    if "event-stream" in route.request.headers.get("accept", ""):
        return route.continue_()  # it ends with the page; what it sends is on the page already
    answer = route.fetch(timeout=SLOW_MS)
    if "json" not in (answer.headers.get("content-type") or "") or "/login" in route.request.url:
        return route.fulfill(response=answer)
    return route.fulfill(response=answer, body=json.dumps(spoil(answer.json())))


def assert_nothing_was_executed(page: Page) -> None:
    assert page.evaluate(f"document.{MARK}") is None
    assert page.locator("main img[src='x'], main svg[onload], main iframe, main script, main b").count() == 0


@pytest.mark.parametrize("path", WITH_REAL_TEXT)
def test_real_text_of_others_is_text(kept_page: Page, spoiled: dict[str, str], path: str) -> None:
    show_whole_page(kept_page, path, spoiled, within=True)
    assert_nothing_was_executed(kept_page)


@pytest.fixture(scope="module")
def spoiled_page(browser: Browser, service: DashboardService) -> Iterator[KeptPage]:
    """A page that gets no other answers from its first one on: what it keeps of one page, the next one shows, too."""
    with open_context(browser, service) as context:
        log_in(context, service)
        context.route("**/api/v1/**", answer_spoiled)
        yield KeptPage(context.new_page(), PageWatch(service.url))
        context.unroute_all(behavior="ignoreErrors")


@pytest.mark.parametrize("path", [*PAGES, *DETAILS])
def test_any_text_of_an_answer_is_text(spoiled_page: KeptPage, spoiled: dict[str, str], path: str) -> None:
    page, watch = spoiled_page.page, spoiled_page.watch
    watch.forget()
    # An address that is code is clicked below: the policy refuses it, and the browser says so.
    watch.expect(
        "Running the JavaScript URL violates", "content security policy: script-src", "Failed to load resource"
    )
    show_whole_page(page, path, spoiled, within=True)
    assert_nothing_was_executed(page)
    for link in page.locator("main a[href^='javascript:']").all():
        link.click(force=True)
    assert_nothing_was_executed(page)
    assert watch.problems == []


@pytest.mark.parametrize("answer", ["as it is", "spoiled"])
def test_texts_of_refusals_are_texts(page: Page, watch: PageWatch, service: DashboardService, answer: str) -> None:
    """Of 404 for what the address names, and of 422 for a job that cannot start."""
    watch.expect("Failed to load resource")
    if answer == "spoiled":
        page.route("**/api/v1/**", answer_spoiled)
    for path in REFUSED:
        show_page(page, path, within=True)
        expect(page.locator("main .problem").first).to_be_visible()
        assert_nothing_was_executed(page)
    show_page(page, "/jobs/new", within=True)
    expect(page.get_by_text("Left out:").first).to_be_visible()  # until the settings are there, the form loses a click
    page.get_by_role("button", name="Start the job").click()
    expect(page.locator("main .problem").first).to_be_visible()
    assert_nothing_was_executed(page)
