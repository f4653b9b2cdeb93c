"""The pages of jobs in the browser: the list, the form, a job with its curves, and two jobs over each other."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.dashboard import Audit, DashboardService, open_page

pytestmark = [pytest.mark.browser]


@pytest.fixture(scope="module")
def other_job(service: DashboardService, finished_job: dict[str, Any]) -> dict[str, Any]:
    """A second job, with another learning rate, evaluations and samples."""
    given = {"max_steps": 12, "gradient_accumulation": 1, "learning_rate": 0.003}
    body = {
        "name": "other", "dataset": {"path": "data.jsonl"}, "hyperparameters": given,
        "eval": {"share": 0.2, "steps": 4, "samples": 2, "sample_tokens": 8},
    }  # fmt: skip
    return service.wait_for_job(service.post("jobs", body)["id"], "completed", "failed")


def figure(page: Page, name: str) -> Locator:
    return page.get_by_role("figure", name=name, exact=True)


def test_the_pages_of_jobs_are_accessible(
    page: Page, axe: Audit, finished_job: dict[str, Any], other_job: dict[str, Any]
) -> None:
    open_page(page, "/jobs", "Jobs")
    axe(page)
    open_page(page, "/jobs/new", "New job")
    page.get_by_text("More settings").click()
    axe(page)
    open_page(page, f"/jobs/{other_job['id']}", other_job["name"])
    expect(figure(page, "Evaluation loss")).to_be_visible()
    axe(page)
    open_page(page, f"/jobs/compare?job={finished_job['id']}&job={other_job['id']}", "Compare jobs")
    expect(figure(page, "Loss")).to_be_visible()
    axe(page)
