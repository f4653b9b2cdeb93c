from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chain_shapes as shapes
import pytest
from chain_shapes import build_chain, walk_shape
from prefect import tags
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun, State

from tests.flows.chain_runs import read_run_result
from trainyard.app.run_records import read_events
from trainyard.compute.services import Service, record_path, write_record
from trainyard.prefect_api.states import run_state
from trainyard.settings import settings
from trainyard.spec.states import JobState
from trainyard.stores.processes import process_start

DIAMOND = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}
TEN = {
    "a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"], "e": ["d"], "f": ["d"], "g": ["e", "f"], "h": [], "i": ["h"],
    "j": ["g", "i"],
}  # fmt: skip

pytestmark = pytest.mark.usefixtures("prefect", "fresh")


@pytest.fixture
def fresh(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TRAINYARD_WORKING_FOLDER", str(home.parent))
    settings.cache_clear()
    shapes.reset()
    yield home
    shapes.reset()


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "one.md").write_text("# One\n\nText.")
    return folder


def list_states(state: State[Any]) -> dict[str, str]:
    return {node.id: node.state.value for node in read_run_result(state).nodes}


def read_run(state: State[Any]) -> FlowRun:
    async def read() -> FlowRun:
        async with get_client() as client:
            return await client.read_flow_run(state.state_details.flow_run_id)

    return asyncio.run(read())


def read_artifacts(state: State[Any]) -> dict[str, Any]:
    async def read() -> list[Any]:
        async with get_client() as client:
            run_filter = ArtifactFilterFlowRunId(any_=[state.state_details.flow_run_id])
            return list(await client.read_artifacts(artifact_filter=ArtifactFilter(flow_run_id=run_filter)))

    return {artifact.key: artifact for artifact in asyncio.run(read()) if artifact.key}


def test_a_diamond_finishes_in_order(documents: Path) -> None:
    state = walk_shape(build_chain(DIAMOND, documents))
    assert state.is_completed()
    assert shapes.MADE[0] == "a"
    assert shapes.MADE[-1] == "d"
    assert read_run_result(state).message == "4 nodes finished."


def test_independent_branches_run_at_once(documents: Path) -> None:
    shapes.SLOW.update(b=0.6, c=0.6)
    walk_shape(build_chain(DIAMOND, documents))
    (b_start, b_end), (c_start, c_end) = shapes.SPANS["b"], shapes.SPANS["c"]
    assert max(b_start, c_start) < min(b_end, c_end)


def test_a_failed_node_costs_only_its_descendants(documents: Path) -> None:
    shapes.FAILING.add("d")
    state = walk_shape(build_chain(TEN, documents))
    assert state.is_failed()
    assert list_states(state) == {
        "a": "completed", "b": "completed", "c": "completed", "d": "failed", "e": "skipped", "f": "skipped",
        "g": "skipped", "h": "completed", "i": "completed", "j": "skipped",
    }  # fmt: skip


def test_the_failure_says_what_why_and_what_to_do_next(documents: Path) -> None:
    shapes.FAILING.add("b")
    state = walk_shape(build_chain(DIAMOND, documents))
    assert state.message is not None
    assert state.message.splitlines() == [
        "1 of 4 nodes failed: b.",
        "Skipped because of that: d.",
        "b: E-TEST: Line 3 is not JSON. Why: A brace is missing. Do: Correct it.",
        f"Next: correct the cause, then `trainyard jobs resume {state.state_details.flow_run_id} --watch`; "
        "finished nodes are reused.",
    ]


def test_a_gate_that_says_no_completes_the_run_and_lists_why(documents: Path) -> None:
    shapes.CLOSED.add("b")
    state = walk_shape(build_chain(DIAMOND, documents))
    assert (state.is_completed(), state.name) == (True, "NotDeployed")
    assert run_state(state) == (JobState.COMPLETED, "not deployed")
    result = read_run_result(state)
    assert (result.state, result.detail, result.exit_code) == ("completed", "not deployed", 9)
    assert result.gate is not None
    assert (result.gate.node, result.gate.passed) == ("b", ("em/c: fine",))
    assert result.message.splitlines() == [
        "Not deployed: not better than its baseline: 2 of 3 checks.",
        "- loss/a: worse.",
        "- f1/b: worse.",
        "Skipped because of that: d.",
        "Train.",
    ]
    assert list_states(state) == {"a": "completed", "b": "completed", "c": "completed", "d": "skipped"}


def test_a_gate_that_says_no_does_not_hide_a_failure(documents: Path) -> None:
    shapes.CLOSED.add("b")
    shapes.FAILING.add("c")
    state = walk_shape(build_chain(DIAMOND, documents))
    result = read_run_result(state)
    assert (state.is_failed(), result.detail, result.exit_code) == (True, "", 1)
    assert "1 of 4 nodes failed: c." in result.message
    assert result.gate is not None


def test_a_gate_decides_again_in_the_next_run(documents: Path) -> None:
    shapes.CLOSED.add("a")
    chain = build_chain({"a": []}, documents)
    assert walk_shape(chain).name == "NotDeployed"
    assert walk_shape(chain).name == "NotDeployed"
    shapes.CLOSED.clear()
    assert walk_shape(chain).name == "Completed"


def test_a_fault_of_ours_is_a_failed_node_too(documents: Path) -> None:
    shapes.CRASHING.add("b")
    state = walk_shape(build_chain(DIAMOND, documents))
    assert list_states(state) == {"a": "completed", "b": "failed", "c": "completed", "d": "skipped"}
    assert "ZeroDivisionError" in read_run_result(state).node("b").message


def test_finished_nodes_are_reused_by_the_next_run(documents: Path) -> None:
    shapes.FAILING.add("d")
    walk_shape(build_chain(DIAMOND, documents))
    shapes.reset()
    state = walk_shape(build_chain(DIAMOND, documents))
    assert shapes.MADE == ["d"]
    assert list_states(state) == {"a": "reused", "b": "reused", "c": "reused", "d": "completed"}
    assert state.message == "4 nodes finished, 3 of them reused."


def test_a_changed_file_is_read_again(documents: Path) -> None:
    walk_shape(build_chain({"a": []}, documents))
    (documents / "one.md").write_text("# One\n\nOther text.")
    walk_shape(build_chain({"a": []}, documents))
    assert shapes.MADE == ["a", "a"]


def test_the_tag_refresh_makes_everything_anew(documents: Path) -> None:
    walk_shape(build_chain(DIAMOND, documents))
    with tags("refresh"):
        state = walk_shape(build_chain(DIAMOND, documents))
    assert state.message == "4 nodes finished."
    assert len(shapes.MADE) == 8


def test_a_run_from_a_node_makes_it_and_what_is_after_it_anew(documents: Path) -> None:
    walk_shape(build_chain(DIAMOND, documents))
    shapes.MADE.clear()
    with tags("refresh-from:b"):
        state = walk_shape(build_chain(DIAMOND, documents))
    assert sorted(shapes.MADE) == ["b", "d"]
    assert list_states(state) == {"a": "reused", "b": "completed", "c": "reused", "d": "completed"}


def test_changed_bytes_in_the_store_fail_the_node(documents: Path) -> None:
    state = walk_shape(build_chain({"a": []}, documents))
    output = next(iter(read_run_result(state).node("a").outputs.values()))
    (output.path / "text").write_text("changed")
    again = walk_shape(build_chain({"a": []}, documents))
    assert again.is_failed()
    assert "E-CORRUPT" in (again.message or "")


def test_a_run_keeps_its_name_and_is_tagged(documents: Path) -> None:
    chain = build_chain({"a": []}, documents)
    with tags("mine"):
        state = walk_shape(chain)
    run = read_run(state)
    assert run.name == read_run_result(state).name
    assert not run.name.startswith("shape-"), "the one that Prefect gave it, as nobody asked for another"
    assert {"mine", "chain:shape", "tenant:default"} <= set(run.tags)


def test_plan_progress_and_report_are_artifacts(documents: Path) -> None:
    shapes.FAILING.add("b")
    artifacts = read_artifacts(walk_shape(build_chain(DIAMOND, documents)))
    assert set(artifacts) == {"shape-plan", "shape-progress", "shape-report"}
    assert artifacts["shape-progress"].data == 100
    assert "| b | failed |" in artifacts["shape-report"].data
    assert "E-TEST" in artifacts["shape-report"].data


def test_the_page_of_the_run_in_the_dashboard_is_a_link(documents: Path) -> None:
    service = Service(os.getpid(), process_start(), url="http://127.0.0.1:8898", name="api")
    write_record(record_path(settings(), "api"), service)
    state = walk_shape(build_chain({"a": []}, documents))
    run_id = str(state.state_details.flow_run_id)
    assert f"(http://127.0.0.1:8898/dashboard/jobs/{run_id})" in read_artifacts(state)["shape-dashboard"].data


def test_events_tell_the_story(documents: Path) -> None:
    shapes.FAILING.add("b")
    state = walk_shape(build_chain(DIAMOND, documents))
    folder = settings().runs / str(state.state_details.flow_run_id)
    events = {(event["node"], event["event"]) for event in read_events(folder)}
    assert {("a", "finished"), ("b", "started"), ("b", "failed"), ("d", "skipped")} <= events


def test_skipped_tasks_are_not_ready_in_prefect(documents: Path) -> None:
    shapes.FAILING.add("a")
    state = walk_shape(build_chain({"a": [], "b": ["a"]}, documents))

    async def read() -> dict[str, str]:
        async with get_client() as client:
            run_filter = FlowRunFilter(id=FlowRunFilterId(any_=[state.state_details.flow_run_id]))
            for _ in range(40):  # task runs reach the server by events, a moment later
                runs = await client.read_task_runs(flow_run_filter=run_filter)
                states = {run.name.partition("-")[0]: run.state_name for run in runs}
                if states == {"a": "Failed", "b": "NotReady"}:
                    return states
                await asyncio.sleep(0.25)
            return states

    assert asyncio.run(read()) == {"a": "Failed", "b": "NotReady"}
