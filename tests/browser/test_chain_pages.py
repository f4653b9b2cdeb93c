"""Chains in the dashboard: built by dragging, refused, fixed, stored, run, and shown while they run."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import httpx
import pytest
import yaml
from playwright.sync_api import Locator, Page, Route, expect

from tests.browser.canvas import centre, node, status, wide_chain
from tests.browser.dashboard import SPOILED, TRAINED, DashboardService, PageWatch, open_page
from tests.browser.records import documents_of
from tests.flows.real_stack import until

pytestmark = [pytest.mark.browser]

TYPES = ("data_source", "ai_generator", "validator", "trainer", "evaluator", "deployer")
LINKS = (
    ("data-source", "documents", "ai-generator"), ("ai-generator", "sft", "validator"),
    ("validator", "sft", "trainer"), ("trainer", "adapter", "evaluator"), ("evaluator", "report", "deployer"),
)  # fmt: skip
"""The links of qa-pipeline."""
REFUSAL = "A deployer publishes an adapter or a model, and it is offered documents."
PAIR = '{"prompt": "Which track?", "chosen": "Track one.", "rejected": "None."}\n'
FROM_HANDLE = """(path, handle) => {
  const matrix = path.getScreenCTM(), end = path.getPointAtLength(path.getTotalLength()).matrixTransform(matrix);
  const box = document.querySelector(handle).getBoundingClientRect();
  return Math.hypot(end.x - box.x - box.width / 2, end.y - box.y - box.height / 2);
}"""
"""How far from a handle a drawn link ends on the screen (px). In one call: the view may move between two."""
CHECKED_MS, RUN_MS = 60_000, 240_000
CHECKED_AGAIN_MS = 400
"""After which a change would have been sent."""
STEPS = 40
EVAL = {"share": "0.2", "samples": "2", "sample tokens": "8"}
NAMES = (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{7*7}}", "javascript:alert(1)", "\u202etxt.exe",
)  # fmt: skip


@pytest.fixture(scope="session")
def service(serving_stack: DashboardService) -> DashboardService:
    """The editor needs no worker; who runs a chain waits for it by `id_of`."""
    return serving_stack


@pytest.fixture
def documents(service: DashboardService) -> Path:
    """A folder of documents in the data root of the tenant, which nobody changes: runs reuse what they read there."""
    return documents_of(service.stack.settings.home)


def drag_link(page: Page, source: str, port: str, target: str) -> None:
    """Drag from a port to a node; the button stays down."""
    handle = node(page, source).locator(f'.react-flow__handle.source[data-handleid="{port}"]')
    handle.wait_for()
    with page.expect_response("**/chains/links"):
        page.mouse.move(*centre(handle))
        page.mouse.down()
        page.mouse.move(*centre(node(page, target)), steps=6)


@pytest.fixture
def stored(service: DashboardService, documents: Path) -> dict[str, Any]:
    """The chain of the template, stored."""
    spec = service.post("chains/expand", {"target": "qa-pipeline", "parameters": {"documents": "depot"}})["spec"]
    return service.post("chains", spec)


def overlapping(page: Page) -> list[tuple[str, str]]:
    """The pairs of nodes that cover each other on the canvas."""
    boxes = page.locator(".react-flow__node").evaluate_all(
        "(all) => all.map((one) => [one.dataset.id, one.getBoundingClientRect().toJSON()])"
    )
    return [
        (first, second)
        for (first, a), (second, b) in itertools.combinations(boxes, 2)
        if a["left"] < b["right"] and b["left"] < a["right"] and a["top"] < b["bottom"] and b["top"] < a["bottom"]
    ]


def build_and_run(page: Page, service: DashboardService) -> str:
    """Build the chain, see a refusal, fix it, store two revisions and run the second; returns the id of the run."""
    open_page(page, "/chains/new", "New chain")
    canvas = page.get_by_role("region", name="Canvas of the chain")
    for at, kind in enumerate(TYPES):
        position = {"x": 110 + (at % 3) * 260, "y": 110 + (at // 3) * 220}
        page.get_by_role("button", name=f"+ {kind}").drag_to(canvas, target_position=position)  # type: ignore[arg-type]
        expect(page.locator(".react-flow__node")).to_have_count(at + 1)

    drag_link(page, "data-source", "documents", "deployer")
    expect(page.locator(".link-hint")).to_contain_text(REFUSAL)  # while the button is down
    page.mouse.up()
    expect(page.get_by_text("The link is refused.")).to_be_visible()
    expect(page.locator(".react-flow__edge")).to_have_count(0)

    for link in LINKS:
        drag_link(page, *link)
        page.mouse.up()
        expect(page.locator(f'.react-flow__edge[data-id="{link[0]}:{link[1]}->{link[2]}"]')).to_be_attached()

    expect(status(page)).to_contain_text("1 problem", timeout=CHECKED_MS)
    node(page, "data-source").click()
    expect(page.get_by_label("Selected node")).to_contain_text("There is no file or folder 'documents'")
    page.get_by_role("combobox", name="path", exact=False).first.fill("depot")
    expect(status(page)).to_contain_text("would run here", timeout=CHECKED_MS)
    node(page, "ai-generator").click()
    page.get_by_role("textbox", name="count").fill("48")
    node(page, "evaluator").click()
    page.get_by_role("textbox", name="least rows").fill("8")
    page.get_by_role("textbox", name="quotes").fill("0")
    node(page, "trainer").click()
    page.get_by_role("textbox", name="max steps").fill(str(STEPS))
    page.locator("summary").get_by_text("Eval", exact=True).click()
    for name, value in EVAL.items():
        page.get_by_label("Selected node").get_by_role("textbox", name=name).fill(value)
    page.get_by_role("button", name="Save", exact=True).click()
    expect(status(page)).to_contain_text("revision 1", timeout=CHECKED_MS)
    page.get_by_label("Description").fill("with evaluations while it trains")

    service.id_of(SPOILED)  # when there is a worker
    page.get_by_role("button", name="Save and run").click()
    expect(page).to_have_url(re.compile(r"\?run=."), timeout=CHECKED_MS)
    run = page.url.partition("?run=")[2]
    service.share(**{"chain": page.url.split("/")[-2], TRAINED: run})
    return run


@pytest.mark.timeout(600)  # it starts the stack, trains and evaluates
def test_qa_pipeline_is_built_by_dragging_and_run(page: Page, serving_stack: DashboardService, documents: Path) -> None:
    service = serving_stack
    with service.starting(TRAINED):
        run = build_and_run(page, service)
    expect(node(page, "data-source").locator(".node-completed")).to_be_visible(timeout=RUN_MS)
    expect(status(page).locator(".state")).to_have_text(re.compile("completed|failed"), timeout=RUN_MS)
    states = {row["id"]: (row["state"], row["message"]) for row in service.get(f"jobs/{run}/nodes")["nodes"]}
    for name, (state, message) in states.items():
        assert state == "completed", f"{name}: {message}"
        expect(node(page, name).locator(".node-completed")).to_be_visible()
    node(page, "evaluator").click()
    report = page.get_by_role("region", name="evaluator in this run").get_by_role("link", name="report")
    expect(report).to_have_attribute("href", f"/dashboard/evaluations/{run}/evaluator")
    node(page, "validator").click()
    region = page.get_by_role("region", name="validator in this run")
    outputs = service.get(f"jobs/{run}/nodes/validator")["outputs"]
    expect(region).to_contain_text(f"sft: {outputs['sft']['rows']} rows")
    expect(region).to_contain_text(outputs["sft"]["sha256"][:12])
    page.reload()
    expect(node(page, "trainer").locator(".node-completed")).to_be_visible()
    expect(status(page)).to_contain_text("revision 2")
    url = service.get(f"jobs/{run}")["url"]
    expect(status(page).get_by_role("link", name="Prefect")).to_have_attribute("href", url)
    page.get_by_role("link", name=run).click()
    for name in states:
        expect(node(page, name).locator(".node-completed")).to_be_visible()
    loss = page.get_by_role("figure", name="Loss", exact=True)
    steps = service.get(f"jobs/{run}/metrics")["trainings"][0]["points"]
    expect(loss).to_have_attribute("data-points", str(len(steps)))
    assert len(steps) == STEPS
    page.go_back()
    run_again_from(page, service, "deployer")
    open_page(page, "/adapters", "Adapters")
    facts = service.get(f"jobs/{run}/nodes/deployer")["facts"]
    assert facts["deployed"], facts
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name=facts["version"], exact=True))
    expect(row).to_contain_text("live")


def run_again_from(page: Page, service: DashboardService, name: str) -> None:
    """Make the result of the last node again: the others are reused, and the canvas shows it."""
    first = page.url
    node(page, name).click()
    page.get_by_role("button", name="Run again from here").click()
    page.wait_for_url(lambda url: "?run=" in url and url != first)
    expect(status(page).locator(".state")).to_have_text(re.compile("completed|failed"), timeout=RUN_MS)
    run = page.url.partition("?run=")[2]
    states = {row["id"]: row["state"] for row in service.get(f"jobs/{run}/nodes")["nodes"]}
    assert {state for other, state in states.items() if other != name} == {"reused"}
    assert states[name] == "completed"
    expect(node(page, "trainer").locator(".node-reused")).to_be_visible()
    expect(node(page, name).locator(".node-completed")).to_be_visible()


def test_an_unsaved_draft_survives_a_reload_and_undo_takes_it_back(page: Page, stored: dict[str, Any]) -> None:
    open_page(page, f"/chains/{stored['id']}/edit", stored["name"])
    expect(status(page)).to_contain_text("would run here", timeout=CHECKED_MS)
    node(page, "evaluator").click()
    page.keyboard.press("Delete")
    expect(node(page, "evaluator")).to_have_count(0)
    page.reload()
    expect(status(page)).to_contain_text("Unsaved changes of an earlier visit are shown")
    expect(page.locator(".react-flow__node")).to_have_count(5)
    page.get_by_role("button", name="Discard them").click()
    expect(page.locator(".react-flow__node")).to_have_count(6)
    page.locator('.react-flow__edge[data-id="trainer:adapter->evaluator"]').focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Delete")
    expect(page.locator('.react-flow__edge[data-id="trainer:adapter->evaluator"]')).to_have_count(0)
    expect(status(page)).to_contain_text("problem", timeout=CHECKED_MS)
    page.get_by_role("button", name="Undo").click()
    expect(page.locator('.react-flow__edge[data-id="trainer:adapter->evaluator"]')).to_be_attached()
    node(page, "trainer").click()
    page.keyboard.press("Control+c")
    page.keyboard.press("Control+v")
    expect(node(page, "trainer-2")).to_be_attached()
    page.keyboard.press("Control+z")
    expect(node(page, "trainer-2")).to_have_count(0)
    page.keyboard.press("Control+y")
    expect(node(page, "trainer-2")).to_be_attached()
    page.locator(".react-flow__pane").click(position={"x": 20, "y": 20})
    page.keyboard.press("Control+c")  # without a node: what was copied before stays
    page.keyboard.press("Control+v")
    expect(node(page, "trainer-3")).to_be_attached()
    page.evaluate("document.addEventListener('copy', () => { window.copied = getSelection().toString(); })")
    status(page).evaluate("(line) => getSelection().selectAllChildren(line)")
    page.keyboard.press("Control+c")
    assert "would run here" in page.evaluate("window.copied ?? ''") or "revision" in page.evaluate(
        "window.copied ?? ''"
    )
    page.get_by_role("button", name="Arrange").click()
    until(lambda: not overlapping(page), 10, "places that do not overlap")


def test_a_chain_that_is_arranged_before_its_check_has_room_for_its_ports(page: Page, stored: dict[str, Any]) -> None:
    """The service says which ports a node has, and with them it is taller."""
    open_page(page, f"/chains/{stored['id']}/edit", stored["name"])
    expect(status(page)).to_contain_text("would run here", timeout=CHECKED_MS)
    pending: list[Route] = []
    is_held = True

    def hold(route: Route) -> None:
        if is_held:
            pending.append(route)
        else:
            route.continue_()

    page.route("**/chains/expand", hold)
    node(page, "trainer").click()
    page.keyboard.press("Control+c")
    for number in (2, 3, 4):
        page.keyboard.press("Control+v")
        expect(node(page, f"trainer-{number}")).to_be_attached()
    page.get_by_role("button", name="Arrange").click()
    until_held(page, pending)
    is_held = False
    for route in pending:
        route.continue_()
    expect(node(page, "trainer-4").locator(".port-adapter.source")).to_be_attached(timeout=CHECKED_MS)
    until(lambda: not overlapping(page), 10, "places that do not overlap")


def test_what_is_written_while_a_save_is_pending_is_still_to_be_saved(page: Page, service: DashboardService) -> None:
    """Of a new chain, whose page is another one afterwards, and of a stored one."""
    pending: list[Route] = []
    new = f"{service.url}/api/v1/chains"

    def hold(route: Route) -> None:
        if route.request.method == "PUT" or (route.request.method, route.request.url) == ("POST", new):
            pending.append(route)
        else:
            route.continue_()

    page.route(re.compile("/api/v1/chains(/[^/]+)?$"), hold)
    open_page(page, "/chains/new", "New chain")
    page.get_by_role("button", name="+ data_source").click()
    save, name = page.get_by_role("button", name="Save", exact=True), page.get_by_label("Description")
    for text in ("of a new chain", "of a stored chain"):
        # Not at the left: before the view is fitted, the node appears there, and would be what is clicked.
        page.locator(".react-flow__pane").click(position={"x": 700, "y": 20})
        save.click()
        until_held(page, pending)
        name.fill(text)
        pending.pop().continue_()
        page.wait_for_url("**/edit")
        expect(save).to_be_enabled()
        expect(status(page)).to_contain_text("changed")
        expect(name).to_have_value(text)
    save.click()
    until_held(page, pending)
    pending.pop().continue_()
    expect(save).to_be_disabled()
    stored = service.get(f"chains/{page.url.split('/')[-2]}")
    assert (stored["revision"], stored["body"]["description"]) == (3, "of a stored chain")


def until_held(page: Page, pending: list[Route]) -> None:
    for _ in range(100):
        if pending:
            return
        page.wait_for_timeout(100)  # handlers of routes run while the page is waited for
    raise AssertionError("The page has sent nothing.")


def test_a_reward_model_has_a_handle_of_its_own(page: Page, service: DashboardService, documents: Path) -> None:
    """PPO takes an adapter to begin with and a reward model to be scored by, which is an adapter, too."""
    (service.stack.work / "pairs.jsonl").write_text(PAIR * 12)
    parameters = json.dumps({"sft": "data.jsonl", "preference": "pairs.jsonl"})
    open_page(page, f"/chains/new?template=rlhf&parameters={quote(parameters)}", "New chain")
    handle = '.react-flow__node[data-id="trainer-3"] .react-flow__handle.target[data-handleid="{}"]'
    colours = {
        page.locator(handle.format(port)).evaluate("(handle) => getComputedStyle(handle).backgroundColor")
        for port in ("reward", "adapter")
    }
    assert len(colours) == 1
    links = {"reward": "trainer-2:adapter->trainer-3:reward", "adapter": "trainer:adapter->trainer-3"}
    for port, link in links.items():
        path = page.locator(f'.react-flow__edge[data-id="{link}"] .react-flow__edge-path')
        distances = {end: path.evaluate(FROM_HANDLE, handle.format(end)) for end in links}
        assert min(distances, key=lambda end: distances[end]) == port
        assert distances[port] <= 12


def test_older_runs_of_a_chain_are_on_further_pages(page: Page, service: DashboardService, stored: Any) -> None:
    """More runs than a page shows: those of the answer are repeated."""
    facts = {"revision": 1, "state": "completed", "detail": "", "created": 1.0, "seconds": 1.0}
    runs = [{"run_id": f"{at:08}", "id": f"job-{at}", "name": f"run-{at}", **facts} for at in range(60)]

    def give(route: Route) -> None:
        query = {name: int(values[0]) for name, values in parse_qs(urlsplit(route.request.url).query).items()}
        part = runs[query["offset"] :][: query["limit"]]
        answer = {"id": stored["id"], "name": stored["name"], "runs": part}
        route.fulfill(body=json.dumps(answer), content_type="application/json")

    page.route("**/runs?*", give)
    open_page(page, f"/chains/{stored['id']}", f"Chain {stored['name']}")
    rows = page.get_by_role("table", name="Runs of the chain").locator("tbody tr")
    expect(rows).to_have_count(50)
    page.get_by_role("button", name="Next").click()
    expect(rows).to_have_count(10)
    expect(rows.last).to_contain_text("run-59")
    expect(page.get_by_role("button", name="Next")).to_be_disabled()
    page.get_by_role("button", name="Previous").click()
    expect(rows).to_have_count(50)


def test_a_chain_is_built_with_the_keyboard_alone(page: Page, service: DashboardService, documents: Path) -> None:
    open_page(page, "/chains/new", "New chain")
    expect(page.get_by_role("heading", name="Build a chain")).to_be_visible()  # the next step, and no problem
    expect(status(page)).not_to_contain_text("problem")
    expect(page.get_by_role("button", name="Save", exact=True)).to_be_disabled()
    for kind in ("data_source", "ai_generator"):
        press_to(page, page.get_by_role("button", name=f"+ {kind}"))
        page.keyboard.press("Enter")
    press_to(page, node(page, "data-source"))
    page.keyboard.press("Enter")
    press_to(page, page.get_by_role("combobox", name="path", exact=False).first)
    page.keyboard.press("Control+a")
    page.keyboard.type("depot")
    links = page.get_by_role("region", name="Links of data-source")
    expect(links.get_by_label("Link to").get_by_role("option")).to_have_count(2, timeout=CHECKED_MS)
    press_to(page, links.get_by_label("Link to"))
    page.keyboard.press("ArrowDown")
    expect(links).to_contain_text("to ai-generator")
    expect(page.locator(".react-flow__edge.link-documents")).to_have_count(1)
    press_to(page, node(page, "ai-generator"), "Shift+Tab")
    page.keyboard.press("Enter")
    before = centre(node(page, "ai-generator"))
    page.keyboard.press("ArrowDown")
    until(lambda: centre(node(page, "ai-generator"))[1] > before[1], 10, "the node further down")
    press_to(page, page.get_by_role("button", name="Save", exact=True), "Shift+Tab")
    page.keyboard.press("Enter")
    expect(status(page)).to_contain_text("revision 1")
    source, generator = service.get(f"chains/{page.url.split('/')[-2]}")["body"]["nodes"]
    assert (source["config"]["path"], generator["needs"]) == ("depot", ["data-source"])


def press_to(page: Page, locator: Locator, key: str = "Tab", most: int = 80) -> None:
    """Press a key until something has the focus."""
    expect(locator).to_be_visible()
    for _ in range(most):
        page.keyboard.press(key)
        if locator.evaluate("(one) => one === document.activeElement"):
            return
    raise AssertionError(f"{most} times {key} do not lead to {locator}.")


def test_the_yaml_is_what_the_command_line_takes(
    page: Page, service: DashboardService, stored: dict[str, Any], watch: PageWatch
) -> None:
    watch.expect("status of 422")
    requests: list[str] = []

    def note(route: Route) -> None:
        requests.append(route.request.url)
        route.continue_()

    page.route("**/chains/expand", note)
    open_page(page, f"/chains/{stored['id']}/edit", stored["name"])
    expect(status(page)).to_contain_text("would run here", timeout=CHECKED_MS)
    page.wait_for_timeout(CHECKED_AGAIN_MS)
    assert len(requests) == 1  # the answer that the editor opens with is its check
    page.get_by_role("button", name="YAML").click()
    box = page.get_by_label("A chain, a job or the call of a template")
    text = box.input_value()
    assert yaml.safe_load(text) == stored["body"]
    with page.expect_download() as download:
        page.get_by_role("button", name="Download qa-pipeline.yaml").click()
    file = service.stack.work / "downloaded.yaml"
    download.value.save_as(file)
    assert file.read_text() == text
    (checked,) = service.stack.json("check", str(file))["files"]
    assert (checked["ok"], checked["digest"]) == (True, stored["digest"])
    box.fill("nodes: [{type: data_source, config: {path: depot}}")
    page.get_by_role("button", name="Put it on the canvas").click()
    expect(page.get_by_role("alert")).to_contain_text("E-SPEC-SYNTAX")
    box.fill("nodes: [{type: data_source, config: {path: depot}}]")
    page.get_by_role("button", name="Put it on the canvas").click()
    expect(page.locator(".react-flow__node")).to_have_count(1)


def test_another_writer_is_not_overwritten(
    page: Page, service: DashboardService, stored: dict[str, Any], watch: PageWatch
) -> None:
    watch.expect("status of 409")
    open_page(page, f"/chains/{stored['id']}/edit", stored["name"])
    expect(status(page)).to_contain_text("would run here", timeout=CHECKED_MS)
    page.get_by_label("Description").fill("of mine")
    other_body = {**stored["body"], "description": "of another"}
    headers = {"authorization": f"Bearer {service.token}", "if-match": f'"{stored["etag"]}"'}
    answer = httpx.put(f"{service.url}/api/v1/chains/{stored['id']}", json=other_body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    page.reload()  # a draft of an earlier visit was made from the earlier revision
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("description: None -> 'of another'")
    page.get_by_role("button", name="Store mine as revision 3").click()
    expect(status(page)).to_contain_text("revision 3")
    open_page(page, f"/chains/{stored['id']}", f"Chain {stored['name']}")
    difference = page.get_by_role("table", name="Settings that differ between revision 2 and 3")
    expect(difference).to_contain_text("of another")
    expect(difference).to_contain_text("of mine")


def test_a_template_is_filled_in_and_opened_in_the_editor(page: Page, documents: Path) -> None:
    open_page(page, "/chains", "Chains")
    page.get_by_role("link", name="Use qa-pipeline").click()
    expect(page.get_by_role("heading", level=1, name="Template qa-pipeline")).to_be_visible()
    expect(page.get_by_role("button", name="Run qa-pipeline")).to_be_disabled()
    expect(page.get_by_text("The chain is drawn here when its parameters are given: Documents.")).to_be_visible()
    expect(page.locator(".invalid, [aria-invalid=true]")).to_have_count(0)
    page.get_by_role("combobox", name="documents").fill("no-such-folder")
    reason = page.get_by_text("There is no file or folder 'no-such-folder'")
    expect(reason.first).to_be_visible(timeout=CHECKED_MS)
    page.get_by_role("combobox", name="documents").fill("depot")
    expect(page.get_by_text("would run here")).to_be_visible(timeout=CHECKED_MS)
    page.get_by_label("Run anyway").check()  # so few rows that a run asks first
    expect(page.get_by_role("button", name="Run qa-pipeline")).to_be_enabled()
    page.get_by_role("button", name="Open in the editor").click()
    expect(page.locator(".react-flow__node")).to_have_count(6)
    expect(status(page)).to_contain_text("would run here", timeout=CHECKED_MS)


def test_the_numbers_of_the_chains_are_those_of_the_api(page: Page, service: DashboardService, stored: Any) -> None:
    open_page(page, "/chains", "Chains")
    for chain in service.get("chains", limit=50)["chains"]:
        row = page.get_by_role("row").filter(has=page.locator(f'a[href="/dashboard/chains/{chain["id"]}"]'))
        cells = row.get_by_role("cell").all_inner_texts()
        assert cells[:6] == [chain["name"], chain["description"], str(chain["nodes"]), str(chain["revision"]),
                             chain["tenant"], chain["author"]]  # fmt: skip


@pytest.mark.parametrize("text", NAMES)
def test_texts_of_a_chain_are_texts(kept_page: Page, service: DashboardService, documents: Path, text: str) -> None:
    kept_page.add_init_script("window.executed = 0; window.alert = () => { window.executed += 1; };")
    spec = wide_chain(1)
    spec["nodes"][3]["config"] = {"base_model": text}
    chain = service.post("chains", {**spec, "description": text})
    open_page(kept_page, "/chains", "Chains")
    expect(kept_page.get_by_role("cell", name=text, exact=True).first).to_be_visible()
    open_page(kept_page, f"/chains/{chain['id']}/edit", "wide")
    expect(kept_page.get_by_label("Description")).to_have_value(text)
    expect(kept_page.get_by_role("region", name="Problems")).to_be_visible(timeout=CHECKED_MS)
    assert kept_page.evaluate("window.executed") == 0


def test_a_selected_trainer_makes_the_page_no_longer_than_its_content(page: Page, stored: dict[str, Any]) -> None:
    open_page(page, f"/chains/{stored['id']}/edit", stored["name"])
    expect(status(page)).to_contain_text("would run here", timeout=CHECKED_MS)
    node(page, "trainer").click()
    expect(page.get_by_role("region", name="Settings of trainer")).to_be_visible()
    page.evaluate("document.querySelectorAll('.editor-inspector details').forEach((one) => { one.open = true; })")
    end = "Math.ceil(document.querySelector('main').getBoundingClientRect().bottom + window.scrollY)"
    assert page.evaluate("document.documentElement.scrollHeight") <= max(
        page.evaluate(end), page.evaluate("innerHeight")
    )


def test_the_text_of_a_chain_is_inside_its_dialog(page: Page, stored: dict[str, Any]) -> None:
    open_page(page, f"/chains/{stored['id']}/edit", stored["name"])
    expect(status(page)).to_contain_text("would run here", timeout=CHECKED_MS)
    page.get_by_role("button", name="YAML").click()
    dialog = page.get_by_role("dialog", name="The chain as YAML")
    text = page.get_by_label("A chain, a job or the call of a template")
    for size in ({"width": 1280, "height": 900}, {"width": 390, "height": 800}):
        page.set_viewport_size(size)  # type: ignore[arg-type]
        outer, inner = dialog.bounding_box(), text.bounding_box()
        assert outer is not None
        assert inner is not None
        assert outer["x"] < inner["x"]
        assert inner["x"] + inner["width"] < outer["x"] + outer["width"]


def test_a_node_that_was_deleted_by_its_key_comes_back_by_undo(page: Page, stored: dict[str, Any]) -> None:
    """The focus was on the node, and is nowhere afterwards."""
    open_page(page, f"/chains/{stored['id']}/edit", stored["name"])
    expect(status(page)).to_contain_text("would run here", timeout=CHECKED_MS)
    node(page, "evaluator").click()
    page.keyboard.press("Delete")
    expect(node(page, "evaluator")).to_have_count(0)
    page.keyboard.press("Control+z")
    expect(node(page, "evaluator")).to_have_count(1)
    page.keyboard.press("Control+y")
    expect(node(page, "evaluator")).to_have_count(0)


def test_a_wrong_name_of_a_chain_is_marked_at_its_field(page: Page, stored: dict[str, Any]) -> None:
    open_page(page, f"/chains/{stored['id']}/edit", stored["name"])
    name = page.get_by_role("textbox", name="Name", exact=True)
    name.fill("bike desk")
    expect(status(page)).to_contain_text("1 problem", timeout=CHECKED_MS)
    expect(name).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#chain-name-help")).to_contain_text("E-SPEC")
    name.fill("bike-desk")
    expect(status(page)).to_contain_text("would run here", timeout=CHECKED_MS)
    expect(name).not_to_have_attribute("aria-invalid", "true")
