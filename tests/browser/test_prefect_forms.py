"""A run that a person starts from its form in Prefect's pages, and the pages that it leaves, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.flows.real_stack import Stack

pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
PAGE_MS, RUN_MS = 60_000, 300_000
PROPERTY = "//div[contains(concat(' ', @class, ' '), ' schema-form-property ')]"
LABEL = "div[contains(@class, 'p-label__header')]//span[contains(@class, 'schema-form-property__label')]"


class Form:
    """The form of a deployment, addressed by what a person reads: labels, nested as they are shown."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def field(self, *labels: str) -> Locator:
        """The box of one field, such as `field("training", "Epochs")`."""
        steps = (f"{PROPERTY}[{LABEL}[. = '{label}' or . = '{label} (Optional)']]" for label in labels)
        return self.page.locator("xpath=" + "".join(steps))

    def write(self, *labels: str, value: object) -> None:
        box = self.field(*labels).locator("textarea, input").first
        box.fill(str(value))

    def write_optional(self, *labels: str, kind: str, value: object) -> None:
        """Fill a field that is empty by default: its type is chosen first."""
        self.field(*labels).get_by_role("button", name=kind, exact=True).click()
        self.write(*labels, value=value)

    def switch(self, *labels: str) -> None:
        self.field(*labels).get_by_role("switch").click()

    def submit(self) -> str:
        """Start the run and open its page. Returns its id.

        The notice with the link to the run disappears after some seconds, so the run's page is opened by its id.
        """
        with self.page.expect_response("**/create_flow_run") as answered:
            self.page.get_by_role("button", name="Submit", exact=True).click()
        assert answered.value.ok, answered.value.text()
        run_id = str(answered.value.json()["id"])
        self.page.goto(f"{self.page.url.partition('/deployments/')[0]}/runs/flow-run/{run_id}")
        return run_id


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    with browser.new_context(viewport={"width": 1300, "height": 1000}) as context:
        context.set_default_timeout(PAGE_MS)
        yield context.new_page()


@pytest.fixture(scope="module")
def stack(page: Page, tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("browser"), tiny_model)
    up = stack.command("up")
    assert up.returncode == 0, up.stderr
    yield stack
    stack.command("down")


@pytest.fixture(scope="module")
def address(page: Page, stack: Stack) -> str:
    """Where the pages are, once the browser is logged in with what `up` named."""
    status = stack.json("up")
    page.goto(f"{status['ui_url']}/dashboard")
    page.get_by_placeholder("admin:pass").fill(Path(status["auth_file"]).read_text().strip())
    page.get_by_role("button", name="Login", exact=True).click()
    page.wait_for_url("**/dashboard*")
    return str(status["ui_url"])


def open_form(page: Page, address: str, flow: str) -> Form:
    """As a person does: Deployments, the row of the flow, Run, Custom run."""
    page.goto(f"{address}/deployments")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name=flow, exact=True))
    row.get_by_role("link", name="local").click()
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_text("Custom run").click()
    return Form(page)


def test_a_pipeline_is_started_from_its_form_and_completes(page: Page, address: str, stack: Stack) -> None:
    form = open_form(page, address, "qa-pipeline")
    form.write("documents", value="docs/glossary.md")
    form.write("count", value=12)
    form.write("training", "Epochs", value=1)
    form.write("training", "Rank", value=2)
    form.switch("steps", "Evaluate")
    form.switch("steps", "Deploy")
    run_id = form.submit()
    expect(page.get_by_text("Completed", exact=True).first).to_be_visible(timeout=RUN_MS)
    assert stack.state_of(run_id)["message"].startswith("4 nodes finished")
