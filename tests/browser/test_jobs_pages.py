"""Jobs in the browser: started from the form, followed live, paused and resumed, compared; each number is REST's."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.browser.dashboard import (
    BY_HAND,
    SPOILED,
    DashboardService,
    PageWatch,
    describe_gpu,
    open_page,
    write_readable,
    write_spoiled,
)
from tests.flows.real_stack import wait_until

pytestmark = [pytest.mark.browser]

LONG = 20_000
"""Steps of a training that a test ends."""


def figure(page: Page, name: str) -> Locator:
    return page.get_by_role("figure", name=name, exact=True)


def num_points(page: Page, name: str = "Loss") -> int:
    return int(figure(page, name).get_attribute("data-points") or 0)


def last_row(page: Page, name: str) -> list[str]:
    """Name, step, value and number of points, as a screen reader says them."""
    return figure(page, name).locator(".visually-hidden tbody tr").first.locator("th, td").all_inner_texts()


def as_shown(value: float) -> str:
    """A metric as the pages write it."""
    return re.sub(r"\.?0+$", "", f"{value:.4g}") if "." in f"{value:.4g}" else f"{value:.4g}"


def test_every_number_of_a_job_is_that_of_rest(
    page: Page, service: DashboardService, trained_job: dict[str, Any]
) -> None:
    job = trained_job["id"]
    curve = service.get(f"jobs/{job}/metrics")["trainings"][0]["points"]
    open_page(page, f"/jobs/{job}", trained_job["name"])
    for title, metric in (
        ("Loss", "loss"),
        ("Learning rate", "learning_rate"),
        ("Gradient norm", "grad_norm"),
        ("Tokens per second", "tokens_per_second"),
    ):
        measured_points = [(point["step"], point[metric]) for point in curve if point[metric] is not None]
        expect(figure(page, title)).to_be_visible()
        name, step, value, points = last_row(page, title)
        assert (name, int(step), int(points)) == (title, measured_points[-1][0], len(measured_points))
        assert float(value.replace(",", "")) == pytest.approx(measured_points[-1][1], rel=1e-3)
    evaluated = [(point["step"], point["eval_loss"]) for point in curve if point["eval_loss"] is not None]
    row = figure(page, "Loss").locator(".visually-hidden tbody tr").nth(1).locator("th, td").all_inner_texts()
    assert (row[0], int(row[1]), int(row[3])) == ("Evaluation loss", evaluated[-1][0], len(evaluated))
    step, best = min(evaluated, key=lambda point: point[1])
    expect(figure(page, "Loss")).to_contain_text(f"best held-out loss {as_shown(best)} at step {step}")
    facts = dict(
        zip(page.locator(".facts dt").all_inner_texts(), page.locator(".facts dd").all_inner_texts(), strict=True)
    )
    ids = facts["Job id, for commands and REST"], facts["Run id, for Prefect and its folder"].split()[0]
    assert ids == (job, trained_job["run_id"])
    assert (facts["Stage"], facts["Attempts"]) == ("sft", str(trained_job["attempts"]))
    assert facts["Loss"] == as_shown(trained_job["loss"])
    samples = service.get(f"jobs/{job}/samples", limit=1)["rounds"][0]
    answers = page.get_by_role("region", name=f"Answers of trainer at step {samples['step']}")
    expect(answers.locator("tbody tr")).to_have_count(len(samples["samples"]))
    assert (
        answers.locator("tbody tr").first.locator("td").first.inner_text().strip()
        == samples["samples"][0]["prompt"].strip()
    )


def test_curves_are_zoomed_smoothed_and_logarithmic(
    page: Page, service: DashboardService, trained_job: dict[str, Any]
) -> None:
    job = trained_job["id"]
    open_page(page, f"/jobs/{job}", trained_job["name"])
    loss = figure(page, "Loss")
    expect(loss).to_be_visible()
    script = "(figure) => figure.querySelector('canvas').toDataURL()"

    def redraws(change: Callable[[], object]) -> None:
        before = loss.evaluate(script)
        change()
        wait_until(lambda: loss.evaluate(script) != before, 10, "another picture")

    redraws(page.get_by_label("Log scale").check)
    redraws(lambda: page.get_by_label("Smoothing").fill("0.9"))
    loss.get_by_role("group").focus()
    redraws(lambda: page.keyboard.press("+"))
    redraws(loss.get_by_role("button", name="Whole curve").click)
    page.reload()
    expect(page.get_by_label("Log scale")).to_be_checked()
    lines = service.get(f"jobs/{job}/logs", source="trainer", tail=500)["lines"]
    expect(page.get_by_role("status").filter(has_text=f"{len(lines)} lines, ended")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    text = Path(download.value.path()).read_bytes().decode()
    assert text == "".join(f"{line['text']}\n" for line in lines)
    expect(page.get_by_role("link", name="in Prefect")).to_have_attribute("href", trained_job["url"])
    page.get_by_role("link", name="adapter", exact=True).first.click()
    expect(page.get_by_role("heading", level=1, name="trainer: adapter")).to_be_visible()


def test_curves_are_drawn_by_step_epoch_tokens_and_time(
    page: Page, service: DashboardService, trained_job: dict[str, Any]
) -> None:
    """The chain's length is in steps: it has no axis of epochs, if its events do not say the epoch."""
    job = trained_job["id"]
    open_page(page, f"/jobs/{job}", trained_job["name"])
    loss = figure(page, "Loss")
    expect(loss).to_be_visible()
    axis = page.get_by_label("Axis of the curves")
    labels = {"tokens": "Tokens", "time": "Minutes", "step": "Step"}
    for name, label in labels.items():
        axis.select_option(name)
        expect(loss.get_by_role("columnheader", name=label, exact=True, include_hidden=True)).to_have_count(1)
    page.get_by_text("Metrics", exact=True).click()
    page.get_by_label("Gradient norm", exact=True).first.uncheck()
    expect(figure(page, "Gradient norm")).to_have_count(0)
    page.reload()
    expect(figure(page, "Learning rate")).to_be_visible()
    expect(figure(page, "Gradient norm")).to_have_count(0)


def test_a_log_that_could_not_be_read_is_asked_for_again(
    page: Page, watch: PageWatch, trained_job: dict[str, Any]
) -> None:
    """As while the service is started again; nobody presses *Try again*."""
    watch.expect("status of 503")
    refused = iter(range(3))  # a request and its two repetitions

    def give(route: Route) -> None:
        if next(refused, None) is None:
            route.continue_()
        else:
            problem = {"code": "E-PREFECT-DOWN", "detail": "The Prefect server does not answer."}
            route.fulfill(status=503, json=problem, content_type="application/problem+json")

    page.route("**/logs?*tail=*", give)
    open_page(page, f"/jobs/{trained_job['id']}", trained_job["name"])
    expect(page.get_by_role("alert")).to_be_visible()
    expect(page.get_by_role("status").filter(has_text=re.compile(r"^[1-9]\d* lines, ended"))).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_an_answer_that_takes_long_is_not_waited_for(page: Page, watch: PageWatch) -> None:
    watch.expect("ERR_FAILED")
    page.route("**/api/v1/plan", lambda _: None)
    open_page(page, "/jobs/new", "New job")
    page.get_by_label(re.compile("^Path")).fill("data.jsonl")
    estimate = page.get_by_role("button", name="Estimate")
    estimate.click()
    expect(estimate).to_be_disabled()
    page.get_by_role("button", name="Cancel").click()
    expect(estimate).to_be_enabled()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_the_list_filters_and_keeps_its_filters_over_a_reload(
    page: Page, service: DashboardService, trained_job: dict[str, Any]
) -> None:
    open_page(page, "/jobs", "Jobs")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(len(service.get("jobs")["jobs"]))
    page.get_by_label("Text").fill(trained_job["id"])
    expect(rows).to_have_count(1)
    expect(rows.first).to_contain_text(trained_job["id"])
    expect(rows.first).to_contain_text(f"{trained_job['step']} of {trained_job['total_steps']}")
    page.reload()
    expect(page.get_by_label("Text")).to_have_value(trained_job["id"])
    expect(rows).to_have_count(1)
    page.get_by_label("State", exact=True).select_option("failed")
    page.get_by_role("button", name="Show all jobs").click()
    expect(rows).to_have_count(len(service.get("jobs")["jobs"]))


def test_the_form_shows_what_a_run_takes_for_what_is_left_out(page: Page) -> None:
    open_page(page, "/jobs/new?path=data.jsonl", "New job")
    expect(page.get_by_label("Path", exact=True)).to_have_value("data.jsonl")  # of who comes from the overview
    rate = page.get_by_label("Learning rate", exact=True)
    expect(rate).to_have_attribute("placeholder", "2e-4")
    expect(page.get_by_label("Rank", exact=True)).to_have_attribute("placeholder", "32")
    expect(page.get_by_label("Epochs", exact=True)).to_have_attribute("placeholder", "3")
    page.get_by_label("Method", exact=True).select_option("full")
    expect(rate).to_have_attribute("placeholder", "2e-5")
    expect(page.get_by_label("Rank", exact=True)).to_have_count(0)
    text = page.locator("main").inner_text()
    assert not [word for word in ("default: setting", "by stage", "as `type`", "None") if word in text]


def test_the_form_lists_data_and_models_of_this_machine(page: Page, service: DashboardService) -> None:
    open_page(page, "/jobs/new", "New job")
    path = page.get_by_label(re.compile("^Path"))
    offered = "(input) => [...(input.list?.options ?? [])].map((one) => one.value)"
    wait_until(lambda: "data.jsonl" in path.evaluate(offered), 20, "the files of the working folder")
    assert path.evaluate(offered) == [entry["path"] for entry in service.get("data")["entries"]]
    models = page.get_by_label("Base model", exact=True)
    wait_until(lambda: "starter" in models.evaluate(offered), 20, "the base models")
    expect(page.get_by_text(f"A relative path starts in {service.get('data')['start']}.")).to_be_visible()


def test_three_starts_lead_to_the_form_for_each_kind_of_data(page: Page) -> None:
    for start, path, title in (
        ("Documents", "depot", "Template qa-pipeline"),
        ("Chats", "data.jsonl", "New job"),
        ("Code", ".", "Template code-tuning"),
    ):
        open_page(page, "", "Overview")
        card = page.get_by_role("form", name=start)
        card.get_by_role("combobox").fill(path)
        card.get_by_role("button", name="Continue").click()
        expect(page.get_by_role("heading", level=1, name=title)).to_be_visible()
        field = page.get_by_role("combobox", name=re.compile("^(Documents|Path|Repository)"))
        expect(field).to_have_value(path)


def test_a_job_says_why_nothing_was_deployed_and_what_comes_next(page: Page, trained_job: dict[str, Any]) -> None:
    """The answer of a gate that said no, given by the test: to train for it takes minutes."""
    gate = {
        "node": "deployer", "evaluator": "evaluator", "verdict": "not better than its baseline",
        "reasons": ["heldout_loss/unseen_wording: worse", "forgetting/general: worse"], "passed": [], "do": "",
    }  # fmt: skip
    commands = ["trainyard chat mine", "trainyard serve mine"]

    def give(route: Route) -> None:
        answer = route.fetch()
        if "event-stream" in (answer.headers.get("content-type") or ""):
            route.fulfill(response=answer)
        else:
            route.fulfill(response=answer, json={**answer.json(), "gate": gate, "next": commands})

    page.route(f"**/api/v1/jobs/{trained_job['id']}", give)
    open_page(page, f"/jobs/{trained_job['id']}", trained_job["name"])
    for reason in gate["reasons"]:
        expect(page.get_by_role("listitem").filter(has_text=reason)).to_be_visible()
    link = page.get_by_role("link", name="The evaluation, row by row")
    expect(link).to_have_attribute("href", f"/dashboard/evaluations/{trained_job['run_id']}/evaluator")
    for command in commands:
        expect(page.get_by_role("button", name=f"Copy {command}")).to_be_visible()


def test_jobs_are_cards_on_a_telephone(page: Page, trained_job: dict[str, Any]) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    open_page(page, "/jobs", "Jobs")
    table = page.get_by_role("region", name="Jobs, the newest first")
    row = table.get_by_role("row").filter(has_text=trained_job["id"])
    for text in (trained_job["name"], "completed", as_shown(trained_job["loss"])):
        label = row.get_by_text(text, exact=False).first
        label.scroll_into_view_if_needed()
        expect(label).to_be_in_viewport(ratio=0.9)
    assert table.evaluate("(frame) => frame.scrollWidth <= frame.clientWidth")


def test_a_time_is_rounded_before_it_is_split(page: Page, service: DashboardService, trained_job: Any) -> None:
    (row,) = (job for job in service.get("jobs")["jobs"] if job["id"] == trained_job["id"])
    times = {59.7: "1 min", 119.7: "2 min", 61.2: "1 min 1 s", 3599.6: "1 h", 0.02: "< 0.1 s", 7.25: "7.3 s"}
    jobs = [{**row, "id": f"job-{at}", "name": f"of-{at}", "seconds": at} for at in times]
    page.route("**/api/v1/jobs?*", lambda route: route.fulfill(json={"jobs": jobs, "next": None, "as_of": None}))
    open_page(page, "/jobs", "Jobs")
    for at, text in times.items():
        table_row = page.get_by_role("row").filter(has=page.get_by_role("link", name=f"of-{at}", exact=True))
        expect(table_row.get_by_role("cell", name=text, exact=True)).to_be_visible()


def test_two_jobs_are_compared(
    page: Page, service: DashboardService, second_job: dict[str, Any], trained_job: dict[str, Any]
) -> None:
    open_page(page, "/jobs", "Jobs")
    for job in (second_job, trained_job):
        page.get_by_role("row").filter(has_text=job["id"]).get_by_role("checkbox").check()
    page.get_by_role("button", name="Compare 2").click()
    differing = page.get_by_role("region", name="Settings that differ")
    expect(differing).to_contain_text("trainer.hyperparameters.max_steps")
    expect(differing).to_contain_text(str(trained_job["total_steps"]))
    expect(differing).not_to_contain_text("batch_size")
    assert figure(page, "Loss").locator(".visually-hidden tbody tr").count() == 2
    trained = page.get_by_role("table", name=re.compile("^What .* trained on$"))
    expected = service.get("jobs/compare", job=[second_job["run_id"], trained_job["run_id"]])
    for row in expected["metrics"]:
        expect(trained.get_by_role("cell", name=row["name"].replace("_", " "), exact=True)).to_be_visible()
    precision = next(row for row in expected["metrics"] if row["name"] == "precision")
    for job in ("first", "second"):  # a job that was cancelled before its first step has none
        text = "not known" if precision[job] is None else str(precision[job])
        expect(trained.get_by_role("row").filter(has_text="precision")).to_contain_text(text)


def test_a_job_is_started_from_the_form_paused_and_resumed(page: Page, service: DashboardService, watch: Any) -> None:
    watch.expect("status of 422")  # the first start, which the server refuses
    open_page(page, "/jobs/new", "New job")
    page.get_by_role("button", name="Start the job").click()
    expect(page.get_by_role("alert")).to_contain_text("E-SPEC-MISSING")
    page.get_by_label("Name", exact=True).fill(BY_HAND)
    page.get_by_label(re.compile("^Path")).fill("data.jsonl")
    page.locator("summary", has_text="Hyperparameters").click()
    page.get_by_label("Max steps", exact=True).fill("0")
    expect(page.locator(".invalid").first).to_be_visible()
    page.get_by_label("Max steps", exact=True).fill(str(LONG))
    page.get_by_label("Save steps", exact=True).fill("10")
    page.reload()
    expect(page.get_by_label("Max steps", exact=True)).to_have_value(str(LONG))
    page.get_by_role("button", name="Preview the data").click()
    preview = service.ask("GET", "data/preview", params={"path": "data.jsonl", "rows": 5})
    expect(page.get_by_text(f"{preview['rendered'][0]['tokens']} tokens").first).to_be_visible(timeout=60_000)
    page.get_by_role("button", name="Estimate").click()
    expect(page.get_by_text("This machine would accept it.")).to_be_visible(timeout=60_000)
    page.get_by_role("button", name="Start the job").click()
    page.wait_for_url(re.compile("/jobs/job-"))
    job = page.url.rpartition("/")[2]
    head = page.locator(".page-head")
    expect(figure(page, "Loss")).to_be_visible(timeout=60_000)
    before = num_points(page)
    wait_until(lambda: num_points(page) > before, 30, "a longer curve")
    page.get_by_role("link", name="Jobs", exact=True).first.click()
    expect(page.get_by_role("row").filter(has_text=job)).to_contain_text("left to train")
    page.go_back()
    head.get_by_role("button", name="Pause").click()
    service.wait_for_job(job, "paused")
    expect(page.locator("p .state-paused")).to_be_visible()
    expect(page.locator('.react-flow__node[data-id="trainer"] .state-paused')).to_be_visible()
    assert [row["state"] for row in service.get(f"jobs/{job}/nodes")["nodes"] if row["id"] == "trainer"] == ["paused"]
    row = page.get_by_role("region", name="Checkpoints").locator("tbody tr").first

    def shows_newest() -> bool:
        return service.get(f"jobs/{job}/checkpoints")["checkpoints"][0]["sha256"] in row.inner_text()

    wait_until(shows_newest, 30, "the newest checkpoint on the page")
    row.get_by_role("button", name="Verify").click()
    expect(row).to_contain_text("whole")
    page.route("**/api/v1/gpus", lambda route: route.fulfill(json=describe_gpu(job)))  # this machine may have none
    page.reload()
    expect(page.locator("p .state-paused")).to_be_visible()
    paused = num_points(page)
    head.get_by_role("button", name="Resume").click()
    service.wait_for_job(job, "running")
    wait_until(lambda: num_points(page) > paused, 60, "new steps after the resume")
    expect(page.locator(".facts").first).to_contain_text("76.2 GiB of 80.0 GiB on GPU 0")
    head.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(page.locator("p .state-canceled")).to_be_visible(timeout=60_000)
    assert service.get(f"jobs/{job}")["state"] == "canceled"
    service.started[BY_HAND] = job


def test_a_retry_is_a_new_job_with_the_same_parameters(page: Page, service: DashboardService) -> None:
    failed = service.finished(SPOILED, "failed")
    open_page(page, f"/jobs/{failed['id']}", failed["name"])
    write_readable(service.stack)  # a retry of rows that cannot be read is refused
    page.get_by_role("button", name="Retry").click()
    page.get_by_role("dialog").get_by_role("button", name="Retry").click()
    page.wait_for_url(lambda url: "/jobs/job-" in url and failed["id"] not in url)
    write_spoiled(service.stack)
    job = page.url.rpartition("/")[2]
    assert service.get(f"jobs/{job}")["parameters"] == failed["parameters"]
    assert "E-DATA-BAD-ROWS" in service.wait_for_job(job, "failed")["message"]
