"""What holds for every page of the dashboard: it opens, it is accessible, it breaks no policy."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.dashboard import (
    DETAILS,
    PAGES,
    Audit,
    DashboardService,
    PageWatch,
    open_page,
    show_page,
    show_whole_page,
)
from tests.browser.page_numbers import Answers, list_made_up

ROUTES = Path(__file__).parents[2] / "web" / "src" / "routes.tsx"

pytestmark = [pytest.mark.browser]


def test_every_route_is_opened_by_these_tests() -> None:
    patterns = re.findall(r'path: "([^"]+)"', ROUTES.read_text(encoding="utf-8"))
    opened = [path.partition("?")[0] or "/" for path in (*PAGES, *DETAILS)]
    assert patterns
    for pattern in patterns:
        parts = re.compile(re.sub(r":\w+", "[^/]+", pattern))
        assert any(parts.fullmatch(path) for path in opened), pattern


@pytest.mark.parametrize("path", [*PAGES, *DETAILS])
def test_every_page_is_accessible_and_shows_the_numbers_of_the_api(
    kept_page: Page, axe: Audit, path_values: dict[str, str], path: str
) -> None:
    answers = Answers()
    kept_page.route("**/api/v1/**", answers.give)
    show_whole_page(kept_page, path, path_values)
    if path in PAGES:
        expect(kept_page.get_by_role("heading", level=1, name=PAGES[path])).to_be_visible()
    assert list_made_up(kept_page, answers) == []
    axe(kept_page)


def test_a_number_that_no_answer_contains_is_found(page: Page) -> None:
    answers = Answers()
    page.route("**/api/v1/**", answers.give)
    show_page(page, "")
    page.locator("main").evaluate("(main) => main.append('77,777 of ', '8.125 MiB')")
    assert list_made_up(page, answers) == ["77,777", "8.125"]


def test_axe_finds_what_keeps_somebody_out(page: Page, axe: Audit) -> None:
    open_page(page, "", "Overview")
    page.locator("main").evaluate("(main) => main.append(document.createElement('button'))")
    with pytest.raises(AssertionError, match="button-name"):
        axe(page)


def test_axe_finds_a_colour_that_is_no_contrast_in_the_dark(page: Page, axe: Audit) -> None:
    open_page(page, "", "Overview")
    text = "Object.assign(document.createElement('p'), { innerText: 'dim', style: 'color: #333' })"
    page.locator("main").evaluate(f"(main) => main.append({text})")
    with pytest.raises(AssertionError, match=r"in dark:\n.*color-contrast"):
        axe(page)


def test_the_menu_leads_to_every_page_by_keyboard(page: Page) -> None:
    """Also on a telephone, where it is behind a button."""
    page.set_viewport_size({"width": 360, "height": 800})
    open_page(page, "", "Overview")
    menu = page.get_by_role("navigation", name="Pages")
    expect(menu).to_be_hidden()
    reached: set[str] = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        title = page.evaluate("document.activeElement.innerText ?? ''").strip()
        if title == "Menu" and "Menu" not in reached:
            page.keyboard.press("Enter")
            expect(menu).to_be_visible()
        reached.add(title)
    assert set(menu.get_by_role("link").all_inner_texts()) <= reached


def test_files_of_the_pages_are_asked_for_again_and_sent_once(page: Page, service: DashboardService) -> None:
    for path in ("/dashboard", "/dashboard/jobs", "/dashboard/icon.svg", "/dashboard/assets/main.js"):
        answer = service.client.get(f"{service.url}{path}")
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-cache"), path
        etag = answer.headers["etag"]
        assert etag.strip('"') == sha256(answer.content).hexdigest()
        again = service.client.get(f"{service.url}{path}", headers={"if-none-match": etag})
        assert (again.status_code, again.content, again.headers["cache-control"]) == (304, b"", "no-cache"), path
        other = {"if-none-match": '"another"', "if-modified-since": answer.headers["last-modified"]}
        assert service.client.get(f"{service.url}{path}", headers=other).status_code == 200, path
    with page.expect_response("**/dashboard/assets/main.js") as response:
        open_page(page, "", "Overview")
    assert response.value.ok


def test_who_is_not_logged_in_sees_the_login_alone(context: Any, watch: PageWatch, service: Any, axe: Audit) -> None:
    watch.expect("401")
    page = context.new_page()
    watch.watch(page)
    page.goto("/dashboard/settings")
    axe(page)
    page.get_by_label("Token").fill("wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("neither a token nor the string")
    page.get_by_label("Token").fill(service.token)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name="Settings")).to_be_visible()
    with page.expect_navigation():
        page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Token")).to_be_visible()


def test_a_login_link_that_is_pasted_into_the_open_form_logs_in(
    context: Any, watch: PageWatch, service: DashboardService
) -> None:
    watch.expect("401")
    page = context.new_page()
    watch.watch(page)
    page.goto("/dashboard")
    expect(page.get_by_label("Token")).to_be_visible()
    page.goto(service.stack.json("dashboard")["url"])  # the part after # alone changes: nothing is loaded
    expect(page.get_by_role("heading", level=1, name="Overview")).to_be_visible()
    assert "#" not in page.url


def test_the_theme_that_was_chosen_stays(page: Page) -> None:
    page.emulate_media(color_scheme="light")
    open_page(page, "", "Overview")
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    light = page.evaluate(ground)
    page.get_by_role("button", name="Dark theme").click()
    dark = page.evaluate(ground)
    page.reload()
    expect(page.get_by_role("button", name="Light theme")).to_be_visible()
    assert page.evaluate(ground) == dark != light


def test_a_page_whose_code_cannot_be_loaded_says_so(page: Page, watch: PageWatch) -> None:
    """As after an update of the service under an open page: it is loaded again, once."""
    watch.expect("Failed to load resource", "Failed to fetch dynamically imported module")
    open_page(page, "", "Overview")
    page.route("**/dashboard/assets/gpus.js", lambda route: route.fulfill(status=404, body=""))
    page.get_by_role("link", name="GPUs", exact=True).first.click()
    expect(page.get_by_role("heading", level=1, name="This page cannot be shown")).to_be_visible()
    page.get_by_role("link", name="Overview", exact=True).click()
    expect(page.get_by_role("heading", level=1, name="Overview")).to_be_visible()


def test_an_open_page_that_meets_a_newer_part_is_loaded_again(page: Page, watch: PageWatch) -> None:
    """The newer part needs what the loaded ones do not have, until all of them are read again."""
    watch.expect("does not provide an export named")
    open_page(page, "", "Overview")
    newer = "import {added} from './main.js'; export default added;"
    page.route(
        "**/dashboard/assets/gpus.js", lambda route: route.fulfill(body=newer, content_type="text/javascript"), times=1
    )
    with page.expect_navigation():
        page.get_by_role("link", name="GPUs", exact=True).first.click()
    expect(page.get_by_role("heading", level=1, name="GPUs")).to_be_visible()


def test_another_page_is_loaded_whole_after_an_update(page: Page) -> None:
    open_page(page, "/jobs/new", "New job")
    newer = {**page.request.get("/health").json(), "version": "99.0"}
    page.get_by_label("Name", exact=True).fill("half-filled-in")
    page.route("**/health", lambda route: route.fulfill(json=newer))
    with page.expect_response(lambda response: response.url.endswith("/health") and response.json() == newer):
        pass
    expect(page.get_by_label("Name", exact=True)).to_have_value("half-filled-in")
    with page.expect_request("**/dashboard/assets/main.js"):
        page.get_by_role("link", name="GPUs", exact=True).first.click()
    expect(page.get_by_role("heading", level=1, name="GPUs")).to_be_visible()
