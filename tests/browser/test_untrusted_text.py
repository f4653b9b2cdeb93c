"""Text of others on every page: names, rows, logs, errors. None of it is executed, none of it is markup.

The corpus is in the rows, the data set's file name and the scripts of a real home; and because not every page gets
such a text from it, each text of each answer of the API is then replaced by one, in a browser that is really asked.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route

from tests.browser.dashboard import DETAILS, PAGES, DashboardService, PageWatch, show_page

pytestmark = [pytest.mark.browser]

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
KEPT = {"state", "name", "id", "run_id", "scope", "node", "type", "csrf", "caller", "tenant", "source"}
"""Fields whose texts the pages compare with words of their own; the corpus is put behind these."""

WITH_REAL_TEXT = ("", "/jobs", "/jobs/{job}", "/data", "/data/{run}/validator/sft",
                  "/evaluations/{run}/evaluator", "/nights/default/{night}", "/scripts")  # fmt: skip
"""The pages that get such a text from the home of these tests."""


def spoil(value: Any, key: str = "", seed: int = 0) -> Any:
    """An answer with a text of the corpus in place of each of its texts."""
    if isinstance(value, dict):
        known = {"id": value["id"]} if key == "nodes" and "id" in value else {}  # of a pattern that no draft may break
        return {name: spoil(one, name, seed + place) for place, (name, one) in enumerate(value.items())} | known
    if isinstance(value, list):
        return [spoil(one, key, seed + place) for place, one in enumerate(value)]
    if not isinstance(value, str):
        return value
    text = CORPUS[seed % len(CORPUS)]
    if key == "url":
        return f"javascript:document.{MARK}=9"
    return value if key in ("state", "csrf", "scope", "tenant") else f"{value} {text}" if key in KEPT else text


def answer_spoiled(route: Route) -> None:
    if "event-stream" in route.request.headers.get("accept", ""):
        return route.continue_()  # it ends with the page; what it sends is on the page already
    answer = route.fetch()
    if "application/json" not in (answer.headers.get("content-type") or "") or "/login" in route.request.url:
        return route.fulfill(response=answer)
    return route.fulfill(response=answer, body=json.dumps(spoil(answer.json())))


def assert_nothing_was_executed(page: Page) -> None:
    assert page.evaluate(f"document.{MARK}") is None
    assert page.locator("main img[src='x'], main svg[onload], main iframe, main script, main b").count() == 0


@pytest.fixture(scope="module")
def spoiled(service: DashboardService, places: dict[str, str]) -> dict[str, str]:
    """`places` with a job on rows of the corpus, from a file with a name of it."""
    folder: Path = service.stack.work
    name = "<img src=x onerror=document.executed=2>.jsonl"
    rows = [{"instruction": text, "output": text} for text in CORPUS for _ in range(4)]
    (folder / name).write_text("\n".join(json.dumps(row) for row in rows))
    scripts = service.stack.settings.home / "script_templates"
    scripts.mkdir(exist_ok=True)
    (scripts / "mine.py").write_text(f"'''{CORPUS[0]} {CORPUS[1]}'''")
    run_id = service.stack.start_job(data=name, max_steps=2, save_steps=2, gradient_accumulation=1)
    return {**places, "job": service.wait_for_job(run_id, "completed", "failed")["id"]}


@pytest.mark.parametrize("path", WITH_REAL_TEXT)
def test_real_text_of_others_is_text(page: Page, spoiled: dict[str, str], path: str) -> None:
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    show_page(page, path.format(**spoiled))
    assert_nothing_was_executed(page)


@pytest.mark.parametrize("path", [*PAGES, *DETAILS])
def test_any_text_of_an_answer_is_text(page: Page, watch: PageWatch, spoiled: dict[str, str], path: str) -> None:
    # An address that is code is clicked below: the policy refuses it, and the browser says so.
    watch.expect(
        "Running the JavaScript URL violates", "content security policy: script-src", "Failed to load resource"
    )
    page.route("**/api/v1/**", answer_spoiled)
    show_page(page, path.format(**spoiled))
    assert_nothing_was_executed(page)
    for link in page.locator("main a[href^='javascript:']").all():
        link.click(force=True)
    assert_nothing_was_executed(page)
