"""Files of the reader's own machine in forms, notes and groups of jobs, and pages whose service is busy.

A service without other processes, which a test can stop; its index has six jobs, two of them in a group.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import quote

import httpx
import psutil
import pytest
from playwright.sync_api import Browser, FilePayload, Locator, Page, Response, Route, expect

from benchmarks.job_index import fill
from tests.api_process import keep_in_step, serving
from tests.browser.dashboard import SLOW_MS, Audit, PageWatch, open_page
from tests.flows.real_stack import until
from trainyard.app.live.jobs import open_index
from trainyard.settings import load_settings
from trainyard.stores.adapters import AdapterRegistry
from trainyard.stores.secret_files import TokenFile

pytestmark = [pytest.mark.browser]

WITHOUT_PREFECT = ("503", "Failed to load resource")
REQUESTS_PER_S = 40.0
"""Of one caller: more than a page sends, and less than a loop does."""
JOBS, GROUP = 6, "rates"
TOO_MANY = httpx.codes.TOO_MANY_REQUESTS


@dataclass
class LoneService:
    url: str
    home: Path
    jobs: list[dict[str, Any]]

    @property
    def uploads(self) -> Path:
        return self.home / "tenants" / "default" / "uploads"

    def make_token(self) -> str:
        """A token of a caller of its own."""
        tokens = TokenFile(self.home)
        return tokens.create(f"visitor-{len(tokens.list())}", "admin", "", 1)

    @contextmanager
    def client(self) -> Iterator[httpx.Client]:
        headers = {"authorization": f"Bearer {self.make_token()}"}
        with httpx.Client(base_url=f"{self.url}/api/v1", headers=headers, timeout=60) as client:
            yield client

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Its process answers nobody meanwhile."""
        port = self.url.rpartition(":")[2]
        (process,) = [child for child in psutil.Process().children() if port in child.cmdline()]
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    @contextmanager
    def busy(self, token: str) -> Iterator[None]:
        """The caller of this token sends more requests than are allowed."""
        ended, is_full = Event(), Event()

        def ask() -> None:
            with httpx.Client(base_url=self.url, headers={"authorization": f"Bearer {token}"}, timeout=60) as client:
                while not ended.is_set():
                    if client.get("/api/v1/chains/templates").status_code == TOO_MANY:
                        is_full.set()

        threads = [Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            assert is_full.wait(60)
            yield
        finally:
            ended.set()
            for thread in threads:
                thread.join()


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneService]:
    home = tmp_path_factory.mktemp("own") / "home"
    settings = load_settings(home=home, working_folder=home.parent)
    rows = [{**row, "tenant": "default"} for row in fill(settings, JOBS)]
    for row in rows[-2:]:
        row["tags"] = (*row["tags"], f"group:{GROUP}")
    register_careful(home)
    index = open_index(settings)
    index.put(rows, 2.0)
    with pytest.MonkeyPatch.context() as patch, ExitStack() as running:
        for name in [name for name in os.environ if name.startswith(("TRAINYARD_", "PREFECT_"))]:
            patch.delenv(name)
        patch.setenv("TRAINYARD_HOME", str(home))
        patch.setenv("TRAINYARD_API_REQUESTS_PER_S", str(REQUESTS_PER_S))
        patch.chdir(home.parent)
        running.enter_context(keep_in_step(index))
        yield LoneService(f"http://127.0.0.1:{running.enter_context(serving())}", home, rows)


def register_careful(home: Path) -> None:
    """Register a version whose evaluator said that it is better, and why somebody should be careful with that."""
    folder = home.parent / "weights"
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    gate = {"better": True, "reasons": [], "cautions": ["12 rows are few."]}
    facts = {"gate": gate, "report": {"baseline": "base", "benchmarks": {}}, "base_model": "starter"}
    AdapterRegistry(home / "adapters").register("default", "desk", folder, facts=facts)


@pytest.fixture
def token(lone: LoneService) -> str:
    return lone.make_token()


@pytest.fixture
def own_page(browser: Browser, lone: LoneService, token: str) -> Iterator[Page]:
    """A page of the caller of `token`."""
    watch = PageWatch(lone.url, expected=[*WITHOUT_PREFECT])
    context = browser.new_context(base_url=lone.url, viewport={"width": 1280, "height": 900})
    assert context.request.post("/api/v1/login", data={"token": token}).ok
    page = context.new_page()
    watch.watch(page)
    yield page
    context.close()
    assert watch.problems == []


def facts_of(part: Locator) -> dict[str, str]:
    return dict(zip(part.locator("dt").all_inner_texts(), part.locator("dd").all_inner_texts(), strict=True))


def test_a_file_is_uploaded_in_a_form_and_its_columns_are_chosen(own_page: Page, lone: LoneService, axe: Audit) -> None:
    rows = "".join(f'{{"frage": "What is {n}?", "antwort": "It is {n}.", "quelle": "a{n}"}}\n' for n in range(12))
    open_page(own_page, "/jobs/new", "New job")
    with own_page.expect_file_chooser() as chooser:
        own_page.get_by_role("button", name="Upload a file").click()
    chooser.value.set_files(FilePayload(name="fragen.jsonl", mimeType="application/jsonl", buffer=rows.encode()))
    expect(own_page.get_by_text("uploaded as uploads/fragen.jsonl")).to_be_visible()
    path = own_page.get_by_label("Path", exact=True)
    expect(path).to_have_value("uploads/fragen.jsonl")
    assert (lone.uploads / "fragen.jsonl").read_text() == rows
    expect(own_page.get_by_text("The file has frage, antwort, quelle.")).to_be_visible()
    prompt = own_page.get_by_label("Prompt", exact=True)
    prompt.select_option("frage")
    own_page.get_by_label("Completion", exact=True).select_option("antwort")
    expect(own_page.get_by_text("Not read: quelle.")).to_be_visible()
    axe(own_page)
    own_page.get_by_role("button", name="Preview the data").click()
    row = own_page.get_by_role("group", name="Row 1", exact=True)
    expect(row).to_contain_text("What is 0?", timeout=SLOW_MS)
    expect(row.locator(".learned")).to_contain_text("It is 0.")
    own_page.reload()
    expect(prompt).to_have_value("frage")
    (lone.uploads / "andere.jsonl").write_text('{"frage": "Why?", "reply": "So."}\n' * 4)
    with lone.stopped():
        path.fill("uploads/andere.jsonl")
        expect(own_page.get_by_text("Reading the columns of the file …")).to_be_visible()
        expect(own_page.locator(".column-map [aria-invalid=true]")).to_have_count(0)
    expect(own_page.get_by_text("The file has frage, reply.")).to_be_visible()
    wrong = own_page.locator(".column-map [aria-invalid=true]")
    expect(wrong).to_have_count(1)
    expect(wrong.locator("option:checked")).to_have_text("antwort: not in the file")


def test_documents_are_uploaded_and_their_pairs_are_shown(own_page: Page, lone: LoneService, axe: Audit) -> None:
    texts = {
        f"fees-{n}.md": f"# Fees of zone {n}\n\n## Parking\n\n- A bicycle costs {n + 2} euros a day.\n"
        f"- A tandem costs {n + 4} euros a day.\n\n## Hours\n\nThe office of zone {n} opens at {n + 6} in the morning "
        f"and closes after {n + 8} hours.\n"
        for n in range(3)
    }
    open_page(own_page, "/chains/templates/qa-pipeline", "Template qa-pipeline")
    expect(own_page.get_by_role("button", name="Show pairs")).to_be_disabled()
    own_page.get_by_label("File to upload for documents").set_input_files(
        [FilePayload(name=name, mimeType="text/markdown", buffer=text.encode()) for name, text in texts.items()]
    )
    path = own_page.get_by_label("Documents", exact=True)
    expect(path).to_have_value(re.compile("^uploads/documents-"))
    folder = lone.home / "tenants" / "default" / path.input_value()
    assert {file.name: file.read_text() for file in folder.iterdir()} == texts
    own_page.get_by_role("button", name="Show pairs").click()
    pairs = own_page.get_by_role("region", name="Pairs of the documents", exact=True).last
    examples = pairs.get_by_role("table", name="Examples of pairs")
    expect(examples).to_be_visible(timeout=SLOW_MS)
    with lone.client() as client:
        query = {"path": path.input_value(), "generate": True, "rows": 10}
        answer = client.get("/data/preview", params=query).raise_for_status().json()["generation"]
    assert facts_of(pairs)["Documents with pairs"] == f"{answer['documents_with_pairs']} of 3"
    assert facts_of(pairs)["Pairs"].startswith(f"{answer['found_pairs']} of ")
    for pair in answer["examples"]:
        expect(examples.get_by_role("row").filter(has_text=pair["question"]).first).to_contain_text(pair["answer"])
    expect(own_page.get_by_text("The chain is drawn here when")).to_have_count(0)
    axe(own_page)


def test_a_note_is_written_changed_and_removed(own_page: Page, lone: LoneService, axe: Audit) -> None:
    job = lone.jobs[0]
    open_page(own_page, f"/jobs/{job['id']}", job["name"])
    note = own_page.get_by_label("Note about this job")
    save = own_page.get_by_role("button", name="Save the note")
    expect(save).to_have_count(0)
    note.fill("Too high a rate.\nTry 2e-4.")
    own_page.get_by_role("button", name="Discard").click()
    expect(note).to_have_value("")
    for text in ("Too high a rate.\nTry 2e-4.", "2e-4 it is."):
        note.fill(text)
        save.click()
        expect(save).to_have_count(0)
        own_page.reload()
        expect(note).to_have_value(text)
        with lone.client() as client:
            assert client.get(f"/jobs/{job['id']}").json()["note"] == text
    axe(own_page)
    own_page.get_by_role("link", name="Jobs", exact=True).first.click()
    row = own_page.get_by_role("row").filter(has_text=job["id"])
    expect(row).to_contain_text("2e-4 it is.")
    row.get_by_role("link").first.click()
    note.fill("")
    save.click()
    expect(save).to_have_count(0)
    own_page.reload()
    expect(own_page.get_by_role("heading", level=1, name=job["name"])).to_be_visible()
    expect(note).to_have_value("")


def test_jobs_of_a_group_are_together_and_compared(own_page: Page, lone: LoneService, axe: Audit) -> None:
    grouped, single = lone.jobs[-2:], lone.jobs[:-2]
    open_page(own_page, "/jobs", "Jobs")
    group = own_page.get_by_role("region", name=f"Group {GROUP}")
    expect(group.locator("tbody tr")).to_have_count(2)
    for job in grouped:
        expect(group.get_by_role("row").filter(has_text=job["id"])).to_be_visible()
    ungrouped = own_page.get_by_role("region", name="Jobs without a group")
    expect(ungrouped.locator("tbody tr")).to_have_count(len(single))
    axe(own_page)
    group.get_by_role("link", name=GROUP, exact=True).click()
    expect(own_page.get_by_label("Group", exact=True)).to_have_value(GROUP)
    expect(own_page.locator("tbody tr")).to_have_count(2)
    own_page.get_by_role("link", name=f"Compare {GROUP}").click()
    expect(own_page.get_by_role("heading", level=1, name=re.compile("^Compare"))).to_be_visible()
    for job in grouped:
        expect(own_page.get_by_role("link", name=job["name"], exact=True)).to_be_visible()
    open_page(own_page, f"/jobs/{grouped[0]['id']}", grouped[0]["name"])
    expect(own_page.get_by_role("link", name=GROUP, exact=True)).to_have_attribute(
        "href", f"/dashboard/jobs?group={GROUP}"
    )
    open_page(own_page, f"/jobs/new?group={GROUP}", "New job")
    field = own_page.get_by_label("Group", exact=True)
    expect(field).to_have_value(GROUP)
    offered = "(input) => [...(input.list?.options ?? [])].map((option) => option.value)"
    until(lambda: field.evaluate(offered) == [GROUP], 20, "the groups of the tenant")
    with own_page.expect_request(f"**/api/v1/jobs?group={GROUP}") as started:
        own_page.get_by_role("button", name="Start the job").click()
    assert started.value.method == "POST"
    field.fill("My Group")
    expect(own_page.get_by_text("Small letters, digits, dots, dashes and underscores")).to_be_visible()


def test_a_busy_service_is_asked_again(own_page: Page, lone: LoneService, token: str) -> None:
    """The service really refuses: another program of the same caller asks too often."""
    refused: list[str] = []

    def look(response: Response) -> None:
        if response.status == TOO_MANY:
            refused.append(response.url)

    open_page(own_page, "/jobs", "Jobs")
    own_page.on("response", look)
    with lone.busy(token):
        for _ in range(5):
            own_page.get_by_role("link", name="Chains", exact=True).first.click()
            own_page.wait_for_timeout(300)
            if any("/api/v1/chains" in url for url in refused):  # of the two that this page asks
                break
            own_page.get_by_role("link", name="Jobs", exact=True).first.click()
    assert any("/api/v1/chains" in url for url in refused), refused
    expect(own_page.locator(".loading")).to_have_count(0, timeout=SLOW_MS)
    expect(own_page.get_by_role("link", name="qa-pipeline").first).to_be_visible()
    expect(own_page.get_by_role("alert")).to_have_count(0)


def test_the_check_of_an_older_draft_is_aborted(own_page: Page, lone: LoneService) -> None:
    (lone.home.parent / "rows.jsonl").write_text('{"prompt": "Why?", "completion": "So."}\n' * 40)
    nodes = [{"type": "data_source", "config": {"path": "rows.jsonl"}}, {"type": "trainer"}]
    with lone.client() as client:
        chain = client.post("/chains", json={"name": "drafted", "nodes": nodes}).raise_for_status().json()["id"]
    open_page(own_page, f"/chains/{chain}/edit", "drafted")
    state = own_page.get_by_role("status", name="State of the draft")
    expect(state).to_contain_text("would run here", timeout=SLOW_MS)
    ended: dict[str, str] = {}
    own_page.on("requestfailed", lambda request: ended.setdefault(request.post_data or "", str(request.failure)))
    own_page.on("requestfinished", lambda request: ended.setdefault(request.post_data or "", "answered"))
    name = own_page.get_by_label("Name", exact=True)
    with lone.stopped():
        for text in ("older", "newest"):
            with own_page.expect_request("**/api/v1/chains/expand"):
                name.fill(text)
        until(lambda: own_page.wait_for_timeout(50) or len(ended) > 0, 10, "the end of the first check")
        expect(state).to_contain_text("checking …")
    expect(state).to_contain_text("would run here", timeout=SLOW_MS)
    outcomes = {text: end for body, end in ended.items() for text in ("older", "newest") if f'"{text}"' in body}
    assert outcomes == {"older": "net::ERR_ABORTED", "newest": "answered"}


def test_a_reason_against_a_form_is_said_once(own_page: Page) -> None:
    open_page(own_page, "/jobs/new", "New job")
    own_page.get_by_label(re.compile("^Path")).fill("nowhere.jsonl")
    for button in ("Estimate", "Start the job"):
        own_page.get_by_role("button", name=button, exact=True).click()
        expect(own_page.get_by_role("button", name=button, exact=True)).to_be_enabled(timeout=SLOW_MS)
    expect(own_page.get_by_role("alert")).to_contain_text("said at its field: dataset.path")
    expect(own_page.get_by_text("This machine would refuse it.")).to_be_visible()
    reason = own_page.get_by_text("There is no file or folder 'nowhere.jsonl'.")
    expect(reason).to_have_count(1)
    expect(own_page.locator(".field", has=own_page.get_by_label("Path", exact=True)).last).to_contain_text(
        "There is no file or folder 'nowhere.jsonl'."
    )
    expect(own_page.get_by_label("Path", exact=True)).to_have_attribute("aria-invalid", "true")


def test_a_careful_verdict_names_the_baseline_before_the_caution(own_page: Page) -> None:
    open_page(own_page, "/adapters/default/desk/v1", "default/desk/v1")
    expect(own_page.locator(".verdict")).to_have_text("▲ better than base, on few rows")


def test_a_run_on_few_rows_is_allowed_in_a_form_and_in_the_editor(own_page: Page, lone: LoneService) -> None:
    folder = lone.home.parent / "kettles"
    folder.mkdir()
    for number in range(6):
        text = f"# Kettle {number}\n\nThe kettle {number} is a vessel that boils {number + 2} litres of water.\n"
        (folder / f"{number}.md").write_text(text)
    parameters = quote(json.dumps({"documents": "kettles", "count": 3000}))
    sent: list[Any] = []
    refusal = {"code": "E-TEST", "detail": "Not started here.", "why": "", "do": "", "errors": [], "trace": ""}

    def refuse(route: Route) -> None:
        sent.append(route.request.post_data_json)
        route.fulfill(status=422, json=refusal)

    own_page.route("**/api/v1/runs", refuse)
    own_page.goto(f"/dashboard/chains/templates/qa-pipeline?parameters={parameters}")
    question = own_page.get_by_role("group", name="To be allowed")
    expect(question).to_contain_text("E-FEW-ROWS", timeout=SLOW_MS)
    expect(own_page.get_by_text("would run here, if you allow it")).to_be_visible()
    expect(own_page.get_by_text("The rules find")).to_have_count(1)
    start = own_page.get_by_role("button", name="Run qa-pipeline")
    expect(start).to_be_disabled()
    question.get_by_label("Run anyway").check()
    expect(own_page.get_by_text("✓ would run here")).to_be_visible()
    start.click()
    expect(own_page.get_by_role("alert")).to_contain_text("Not started here.")
    assert [body["yes"] for body in sent] == [True]
    own_page.get_by_role("button", name="Open in the editor").click()
    expect(question).to_contain_text("E-FEW-ROWS", timeout=SLOW_MS)
    start = own_page.get_by_role("button", name="Save and run")
    expect(start).to_be_disabled()
    question.get_by_label("Run anyway").check()
    expect(start).to_be_enabled()
