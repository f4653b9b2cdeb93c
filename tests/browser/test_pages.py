"""What holds for every page of the dashboard: it opens, it is accessible, it breaks no policy."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from tests.browser.dashboard import Audit, open_page

pytestmark = [pytest.mark.browser]

PAGES = {"": "Overview"}
"""Path below /dashboard -> its title."""


@pytest.mark.parametrize("path", PAGES)
def test_every_page_opens_and_is_accessible(page: Page, axe: Audit, path: str) -> None:
    open_page(page, path, PAGES[path])
    axe(page)


def test_axe_finds_what_keeps_somebody_out(page: Page, axe: Audit) -> None:
    open_page(page, "", "Overview")
    page.locator("main").evaluate("(main) => main.append(document.createElement('button'))")
    with pytest.raises(AssertionError, match="button-name"):
        axe(page)
