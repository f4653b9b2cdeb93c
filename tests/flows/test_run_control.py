"""Pause, resume, cancel and preemption on a server without a worker: the rules, and how the walker ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import chain_shapes as shapes
import pytest
from chain_shapes import build_chain, walk_shape
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowFilter, FlowRunFilter
from prefect.client.schemas.objects import State, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import Pause
from prefect.states import Cancelled, Cancelling, Completed, Crashed, Failed, Pending, Running, Suspended

from flows.training_job import training_job
from trainyard.app.context import Context
from trainyard.app.jobs import logs
from trainyard.app.run_records import RunRecord, RunResult, read_events
from trainyard.app.services import worker_name
from trainyard.app.training_logs import FRUITLESS, has_no_progress
from trainyard.backends.results import TrainingStopped
from trainyard.compute.supervise import DesiredState
from trainyard.errors import Conflict, NotFound
from trainyard.prefect_api import listing, operating, server, slots, states, watching
from trainyard.prefect_api.server import NO_HEARTBEAT
from trainyard.prefect_api.watchdog import Watchdog
from trainyard.settings import Settings, settings
from trainyard.spec.states import JobState
from trainyard.stores.live.job_ids import derive_job_id
from trainyard.stores.live.job_index import JobQuery

pytestmark = pytest.mark.usefixtures("prefect", "fresh")

JOB = {"job": {"dataset": {"path": "data.jsonl"}}}
GONE = 2**22 + 17
"""A process that is not there: above the largest number that the kernel gives."""
NOBODY = "00000000-0000-0000-0000-000000000000"


@pytest.fixture
def fresh(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TRAINYARD_WORKING_FOLDER", str(home.parent))
    settings.cache_clear()
    shapes.reset()
    yield
    shapes.reset()


@pytest.fixture
def deployed(home: Path, fresh: None) -> Settings:
    """A server that knows `training-job/test`, without a worker that would run it."""
    server.bootstrap(settings())
    deployment = training_job.to_deployment(name="test", work_pool_name=settings().work_pool, tags=["job"])
    deployment.entrypoint = "flows/training_job.py:training_job"
    deployment.apply(work_pool_name=settings().work_pool)
    return settings()


def start_run(here: Settings, state: State[Any] | None = None) -> str:
    """A run in that state. It has had a process: without one the server cancels instead of waiting for a worker."""
    run_id = watching.start_run("training-job/test", JOB, settings=here).run_id
    if state is not None:
        with get_client(sync_client=True) as client:
            client.update_flow_run(run_id, infrastructure_pid=str(GONE))  # type: ignore[arg-type]
        put(run_id, Running())
        put(run_id, state)
    return run_id


def put(run_id: str, state: State[Any]) -> None:
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(run_id, state, force=True)  # type: ignore[arg-type]


def read_state(run_id: str) -> State[Any]:
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(run_id).state  # type: ignore[arg-type]
    assert state is not None
    return state


def belongs_to(run_id: str, here: Settings, pid: int) -> None:
    """Let the run look as if this host's worker had started it as that process."""
    with get_client(sync_client=True) as client:
        client.update_flow_run_labels(run_id, {"prefect.worker.name": worker_name(here)})  # type: ignore[arg-type]
        client.update_flow_run(run_id, infrastructure_pid=str(pid))  # type: ignore[arg-type]


# The verbs


@pytest.mark.slow
def test_a_running_run_is_paused_without_a_time_limit_and_resumed(deployed: Settings) -> None:
    run_id = start_run(deployed, Running())
    operating.pause_run(run_id)
    state = read_state(run_id)
    assert (state.type, state.name) == (StateType.PAUSED, "Suspended")
    assert state.state_details.pause_timeout is None
    operating.resume_run(run_id)
    assert states.run_state(read_state(run_id)) == (JobState.PENDING, "resuming")


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (None, r"it is pending\. Do: Wait until it runs, or cancel it"),
        (Pending(), r"it is pending \(starting\)"),
        (Suspended(), r"it is paused\. Do: `trainyard jobs resume"),
        (Cancelling(), r"it is running \(cancelling\)"),
        (Completed(), "it is completed"),
        (Crashed(), r"it is failed \(crashed\)"),
    ],
)
def test_what_does_not_run_cannot_be_paused(deployed: Settings, state: State[Any] | None, reason: str) -> None:
    with pytest.raises(Conflict, match=f"E-JOB-STATE: The run .* cannot be paused: {reason}"):
        operating.pause_run(start_run(deployed, state))


def test_of_two_operators_who_pause_at_once_one_is_told(deployed: Settings) -> None:
    run_id = start_run(deployed, Running())
    outcomes: list[str] = []

    def pause(_: int) -> None:
        try:
            operating.pause_run(run_id)
            outcomes.append("paused")
        except Conflict as conflict:
            outcomes.append(conflict.code)

    with ThreadPoolExecutor() as pool:
        list(pool.map(pause, range(4)))
    assert sorted(outcomes) == ["E-JOB-STATE", "E-JOB-STATE", "E-JOB-STATE", "paused"]


@pytest.mark.parametrize("state", [Failed(), Crashed(), Failed(name="BudgetExceeded")])
def test_a_run_that_ended_without_its_result_is_resumed(deployed: Settings, state: State[Any]) -> None:
    run_id = start_run(deployed, state)
    operating.resume_run(run_id)
    assert states.run_state(read_state(run_id)) == (JobState.PENDING, "resuming")


@pytest.mark.parametrize("state", [None, Running(), Completed(), Cancelling()])
def test_what_works_or_is_finished_cannot_be_resumed(deployed: Settings, state: State[Any] | None) -> None:
    with pytest.raises(Conflict, match=r"E-JOB-STATE: The run .* cannot be resumed"):
        operating.resume_run(start_run(deployed, state))


@pytest.mark.parametrize(("state", "was"), [(None, "nothing of it ran"), (Suspended(), "it was paused")])
def test_a_run_without_a_process_is_cancelled_at_once(deployed: Settings, state: State[Any] | None, was: str) -> None:
    run_id = start_run(deployed, state)
    operating.cancel_run(run_id)
    assert read_state(run_id).type is StateType.CANCELLED
    assert read_state(run_id).message == f"cancelled while {was}"
    with pytest.raises(Conflict, match=r"E-JOB-STATE: The run .* cannot be cancelled: it is canceled"):
        operating.cancel_run(run_id)


def test_a_running_run_is_cancelled_by_its_worker(deployed: Settings) -> None:
    run_id = start_run(deployed, Running())
    operating.cancel_run(run_id)
    assert read_state(run_id).type is StateType.CANCELLING
    with pytest.raises(Conflict, match=r"cannot be cancelled: it is running \(cancelling\)"):
        operating.cancel_run(run_id)


def test_a_cancelled_run_is_resumed_after_its_worker_has_spoken(deployed: Settings) -> None:
    """The worker writes `Cancelled` seconds after the run itself did, whatever the state is by then."""
    run_id = start_run(deployed, Running())
    operating.cancel_run(run_id)
    put(run_id, Cancelled(message="trainer: its checkpoint is kept."))
    with ThreadPoolExecutor() as pool:
        resumed = pool.submit(operating.resume_run, run_id)
        time.sleep(1.0)
        assert not resumed.done()
        put(run_id, Cancelled(message="Flow run was cancelled successfully."))
        resumed.result(timeout=60)
    assert states.run_state(read_state(run_id)) == (JobState.PENDING, "resuming")


def test_an_unknown_run_is_told() -> None:
    for verb in (operating.pause_run, operating.resume_run, operating.cancel_run):
        with pytest.raises(NotFound, match="E-JOB-NOT-FOUND"):
            verb(NOBODY)


def jobs_in(state: JobState) -> list[dict[str, Any]]:
    return listing.select_jobs(JobQuery(state=state), settings().runs).rows


def test_a_job_is_found_by_id_beginning_and_name(deployed: Settings) -> None:
    run_id = start_run(deployed)
    row = listing.find_job(run_id)
    assert row == listing.find_job(run_id[:12]) == listing.find_job(row["name"])
    assert run_id in [job["run_id"] for job in jobs_in(JobState.PENDING)]
    assert run_id not in [job["run_id"] for job in jobs_in(JobState.COMPLETED)]
    with pytest.raises(NotFound, match="E-JOB-NOT-FOUND: There is no job 'nothing'"):
        listing.find_job("nothing")


def test_the_seconds_of_a_running_job_count(deployed: Settings) -> None:
    run_id = start_run(deployed, Running())
    before = listing.find_job(run_id)["seconds"]
    time.sleep(1.1)
    assert listing.find_job(run_id)["seconds"] >= before + 1.0


def test_the_log_of_a_job_shows_its_steps(deployed: Settings, tmp_path: Path) -> None:
    run_id = start_run(deployed, Running())
    record = RunRecord(deployed.runs / run_id)
    record.folder.mkdir(parents=True)
    work = tmp_path / "work"
    work.mkdir()
    (work / "child.log").write_text("tokens: read 10\n")
    record.emit("trainer", "job", digest="d", folder=str(work))
    now = time.time() + 1
    lines = [
        {"event": "begin", "time": now, "total_steps": 9},
        {"event": "progress", "time": now, "step": 1, "total_steps": 9, "loss": 4.5, "tokens_per_second": 1234.4},
        {"event": "progress", "time": now + 1, "step": 2, "total_steps": 9, "loss": 4.4},
        {"event": "progress", "time": now + 6, "step": 3, "total_steps": 9, "loss": 4.25},
        {"event": "begin", "time": now + 60, "total_steps": 9, "restarted_from": {"step": 3}},
        {"event": "progress", "time": now + 61, "step": 4, "total_steps": 9, "loss": 4.0},
        {"event": "progress", "time": now + 62, "step": 9, "total_steps": 9, "loss": 3.5},
    ]
    (work / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    log = logs.read_logs(listing, logs.LogsInput(job=run_id), Context(deployed))
    assert [line.text for line in log.lines if line.source == "trainer"] == [
        "tokens: read 10",
        "step 1/9, loss 4.5000, 1,234 tokens/s",
        "step 3/9, loss 4.2500, about 18 s left",
        "step 4/9, loss 4.0000",
        "step 9/9, loss 3.5000",
    ]


def test_a_name_of_two_jobs_asks_for_an_id(deployed: Settings) -> None:
    ids = [start_run(deployed), start_run(deployed)]
    with get_client(sync_client=True) as client:
        for run_id in ids:
            client.update_flow_run(run_id, name="twins")  # type: ignore[arg-type]
    with pytest.raises(Conflict, match="E-JOB-NOT-FOUND: 'twins' means several jobs"):
        listing.find_job("twins")


# What a training is told


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (Running(), DesiredState.RUN),
        (Suspended(), DesiredState.PAUSE),
        (Cancelling(), DesiredState.CANCEL),
        (Crashed(), DesiredState.RUN),
    ],
)
def test_a_training_is_told_by_the_state_of_its_run(
    deployed: Settings, state: State[Any], expected: DesiredState
) -> None:
    assert states.make_state_reader(start_run(deployed, state))() is expected


def test_a_process_that_has_to_go_asks_once_whether_it_is_a_cancellation(deployed: Settings) -> None:
    preempted, cancelled = start_run(deployed, Running()), start_run(deployed, Cancelling())
    readers = [states.make_state_reader(run_id, first_after_s=60) for run_id in (preempted, cancelled)]
    assert [reader() for reader in readers] == [DesiredState.RUN, DesiredState.RUN]
    states.INTERRUPTED.set()
    try:
        assert [reader() for reader in readers] == [DesiredState.PREEMPT, DesiredState.CANCEL]
    finally:
        states.INTERRUPTED.clear()


def test_waiting_for_the_device_ends_with_a_pause(deployed: Settings) -> None:
    run_id = start_run(deployed, Suspended())
    waited = pytest.raises(TrainingStopped, match="while it waited for the device")
    with slots.device_slots(settings(), among=(0,)), waited as error:
        slots.device_slots(settings(), among=(0,), read_state=states.make_state_reader(run_id)).__enter__()
    assert error.value.reason == "pause"


# How the walker ends


def meanwhile(action: Callable[[str], None]) -> threading.Thread:
    """Do something with the run once its node `a` is at work."""

    def wait_and_do() -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            run_id = newest_run()
            if run_id and ("a", "started") in [(e["node"], e["event"]) for e in read_events(settings().runs / run_id)]:
                action(run_id)
                return
            time.sleep(0.1)

    thread = threading.Thread(target=wait_and_do)
    thread.start()
    return thread


def newest_run() -> str:
    """The run of a shape that works now."""
    run_filter = FlowRunFilter.model_validate({"state": {"type": {"any_": [StateType.RUNNING]}}})
    shape = FlowFilter.model_validate({"name": {"any_": ["shape"]}})
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(
            flow_filter=shape, flow_run_filter=run_filter, sort=FlowRunSort.START_TIME_DESC, limit=1
        )
    return str(runs[0].id) if runs else ""


def test_a_pause_between_two_nodes_lets_the_first_finish_and_starts_no_other(tmp_path: Path) -> None:
    shapes.SLOW.update(a=3.0)
    chain = build_chain({"a": [], "b": ["a"]}, tmp_path / "texts")
    paused: list[str] = []

    def pause(run_id: str) -> None:
        paused.append(run_id)
        put(run_id, Suspended())

    thread = meanwhile(pause)
    with pytest.raises(Pause):
        walk_shape(chain)
    thread.join()
    assert read_state(paused[0]).type is StateType.PAUSED, "it is left as the operator set it"
    assert shapes.MADE == ["a"]


def test_sigterm_schedules_the_run_again(tmp_path: Path) -> None:
    shapes.REPORTING.add("a")
    chain = build_chain({"a": [], "b": ["a"]}, tmp_path / "texts")
    runs_seen: list[str] = []

    def end(run_id: str) -> None:
        runs_seen.append(run_id)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    thread = meanwhile(end)
    with pytest.raises(Pause):
        walk_shape(chain)
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is before
    assert not states.INTERRUPTED.is_set()
    state = read_state(runs_seen[0])
    assert (state.type, state.name) == (StateType.SCHEDULED, "Preempted")
    assert states.run_state(state) == (JobState.PENDING, "preempted")
    (event,) = [e for e in read_events(settings().runs / runs_seen[0]) if e["event"] == "stopped"]
    assert (event["node"], event["reason"]) == ("a", "preempt")
    assert shapes.MADE == []


def test_preemptions_without_progress_come_to_an_end(tmp_path: Path) -> None:
    record = RunRecord(tmp_path)
    for _ in range(FRUITLESS):
        assert not has_no_progress(tmp_path)
        record.emit("trainer", "stopped", reason="preempt", message="The training stopped at step 7.")
    assert has_no_progress(tmp_path)
    record.emit("trainer", "stopped", reason="preempt", message="The training stopped at step 8.")
    assert not has_no_progress(tmp_path)


# The watchdog


def test_a_run_whose_process_is_gone_is_settled_at_the_second_look(deployed: Settings) -> None:
    running, cancelling = start_run(deployed, Running()), start_run(deployed, Cancelling())
    for run_id in (running, cancelling):
        belongs_to(run_id, deployed, GONE)
    watchdog = Watchdog(deployed)
    assert watchdog.look() == []
    assert len(watchdog.look()) == 2
    assert read_state(running).type is StateType.CRASHED
    assert f"trainyard jobs resume {derive_job_id(running)}" in (read_state(running).message or "")
    assert read_state(cancelling).type is StateType.CANCELLED


def test_the_watchdog_leaves_others_alone(deployed: Settings) -> None:
    elsewhere, starting = start_run(deployed, Running()), start_run(deployed, Pending())
    belongs_to(starting, deployed, GONE)
    watchdog = Watchdog(deployed)
    assert [watchdog.look(), watchdog.look()] == [[], []]
    assert read_state(elsewhere).type is StateType.RUNNING
    assert read_state(starting).type is StateType.PENDING


def test_a_run_that_was_taken_and_never_started_is_scheduled_again(
    deployed: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker writes Pending before its name: killed in between, it leaves a run that no worker takes."""
    unsigned, signed, elsewhere = (start_run(deployed, Pending()) for _ in range(3))
    belongs_to(signed, deployed, GONE)
    with get_client(sync_client=True) as client:
        client.update_flow_run_labels(elsewhere, {operating.WORKER_LABEL: "other-host-1"})  # type: ignore[arg-type]
    watchdog = Watchdog(deployed)
    assert watchdog.look() == []
    monkeypatch.setattr(operating, "STARTING", timedelta(0))
    done = "\n".join(watchdog.look())
    assert [done.count(run_id) for run_id in (unsigned, signed, elsewhere)] == [1, 1, 0]
    kinds = [read_state(run_id).type for run_id in (unsigned, signed, elsewhere)]
    assert kinds == [StateType.SCHEDULED, StateType.SCHEDULED, StateType.PENDING]
    assert watchdog.look() == []


def test_a_working_run_that_missed_its_beats_in_an_outage_runs_again(deployed: Settings) -> None:
    run_id = start_run(deployed, Running())
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "prefect.engine"])
    try:
        belongs_to(run_id, deployed, process.pid)
        put(run_id, Crashed(message=f"{NO_HEARTBEAT} for 90 s"))
        assert len(Watchdog(deployed).look()) == 1
        assert read_state(run_id).type is StateType.RUNNING
        put(run_id, Crashed(message="a crash that its own process told"))
        assert Watchdog(deployed).look() == []
    finally:
        process.kill()
        process.wait()


def test_a_run_that_finished_while_the_server_was_away_has_completed(deployed: Settings) -> None:
    """Its process had its result and could not tell; the automation may have marked it before anybody looked."""
    silent, marked = start_run(deployed, Running()), start_run(deployed, Running())
    for run_id in (silent, marked):
        belongs_to(run_id, deployed, GONE)
        result = RunResult(
            run_id=run_id, name="r", chain="c", digest="d", state=JobState.COMPLETED, message="2 nodes finished."
        )
        folder = deployed.runs / run_id
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "result.json").write_text(result.model_dump_json())
    put(marked, Crashed(message=f"{NO_HEARTBEAT} for 90 s"))
    watchdog = Watchdog(deployed)
    assert len(watchdog.look()) == 1
    assert len(watchdog.look()) == 1
    for run_id in (silent, marked):
        assert (read_state(run_id).type, read_state(run_id).message) == (StateType.COMPLETED, "2 nodes finished.")
