"""Jobs that are paused, resumed, cancelled, preempted and queued, on a real server and worker."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import psutil
import pytest

from tests.flows.real_stack import STEPS, Stack, wait_until
from trainyard.app.training_logs import find_training_logs
from trainyard.compute.events import read_events as trainer_events

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(900)]

LONG = {"max_steps": 20_000, "save_steps": 5000}
"""A training that is still at work whenever a test looks; tests end it."""


@pytest.fixture(scope="module")
def whole(stack: Stack) -> str:
    """The weights of a run that nobody has disturbed."""
    return stack.finish(stack.start_job())


def test_a_paused_job_frees_everything_and_ends_in_the_same_bits(stack: Stack, whole: str) -> None:
    run_id = stack.start_job()
    stack.wait_for_step(run_id, 30)
    process = stack.flow_process(run_id)
    with ThreadPoolExecutor() as pool:
        command = pool.submit(stack.json, "jobs", "pause", run_id)
        stack.wait_for_state(run_id, "PAUSED")
        started = time.monotonic()
        wait_until(lambda: not process.is_running(), 15, "the process's end")
        wait_until(stack.slot_is_free, 15, "a free slot")
        assert time.monotonic() - started <= 15
        paused = command.result()
    assert (paused["state"], paused["detail"]) == ("paused", "")
    assert 30 <= paused["step"] < STEPS
    assert not stack.children()
    assert stack.state_of(run_id)["name"] == "Suspended"
    (stopped,) = stack.events(run_id, "stopped")
    assert stopped["message"] == f"The training stopped at step {paused['step']}; its checkpoint is kept."
    again = stack.command("jobs", "pause", run_id)
    assert again.returncode == 4
    assert "E-JOB-STATE" in again.stderr
    job_id = stack.json("jobs", "show", run_id[:8])["id"]
    assert f"trainyard jobs resume {job_id}" in again.stderr
    assert stack.json("jobs", "resume", job_id[:10])["state"] == "pending"
    assert stack.finish(run_id) == whole
    (warning,) = [event for event in stack.events(run_id, "warning") if "continues" in event["text"]]
    assert warning["text"].endswith(f"continues from the checkpoint of step {paused['step']}.")
    assert len(stack.events(run_id, "finished")) == 2, "each node once"


def test_a_corrupt_newest_checkpoint_is_passed_over(stack: Stack, whole: str) -> None:
    run_id = stack.start_job()
    stack.wait_for_step(run_id, 120)
    stack.pause(run_id)
    (work,) = find_training_logs(stack.settings.runs / run_id)
    *_, before, newest = work.checkpoints()
    victim = max((work.folder / "checkpoints" / newest).rglob("*.safetensors"), key=lambda path: path.stat().st_size)
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(bytes(content))
    stack.json("jobs", "resume", run_id)
    assert stack.finish(run_id) == whole
    warnings = [event["text"] for event in stack.events(run_id, "warning")]
    damaged = f"The checkpoint of step {int(newest.removeprefix('step-'))} is damaged"
    assert any(text.startswith(damaged) and text.endswith("was quarantined.") for text in warnings), warnings
    assert any(text.endswith(f"checkpoint of step {int(before.removeprefix('step-'))}.") for text in warnings), warnings


def test_data_that_changed_meanwhile_is_refused_by_name(stack: Stack) -> None:
    stack.write_data("changing.jsonl", 60)
    run_id = stack.start_job(data="changing.jsonl", **LONG)
    stack.wait_for_step(run_id, 20)
    stack.json("jobs", "pause", run_id)
    stack.write_data("changing.jsonl", 61)
    stack.json("jobs", "resume", run_id)
    stack.wait_for_state(run_id, "FAILED", "COMPLETED", "CRASHED")
    message = stack.state_of(run_id)["message"]
    assert "E-CHECKPOINT-MISMATCH: The training of this run cannot continue with other settings: data_sha256" in message
    refused = stack.command("jobs", "resume", run_id, "-p", "hyperparameters.max_steps=7")
    assert refused.returncode == 5
    assert "hyperparameters.max_steps: 20000 before, 7 now" in refused.stderr


def test_paused_before_the_first_step(stack: Stack) -> None:
    run_id = stack.start_job(**LONG)
    stack.wait_for_state(run_id, "RUNNING")
    paused = stack.json("jobs", "pause", run_id)
    assert (paused["state"], paused["detail"]) == ("paused", "")
    assert not stack.children()
    stack.json("jobs", "resume", run_id)
    stack.wait_for_step(run_id)
    assert stack.json("jobs", "cancel", run_id)["state"] == "canceled"


def test_two_operators_pause_at_once(stack: Stack) -> None:
    run_id = stack.start_job(**LONG)
    stack.wait_for_step(run_id, 10)
    with ThreadPoolExecutor() as pool:
        both = list(pool.map(lambda _: stack.command("jobs", "pause", run_id), range(2)))
    assert sorted(process.returncode for process in both) == [0, 4], [process.stderr for process in both]
    assert stack.json("jobs", "cancel", run_id)["state"] == "canceled", "also while it is paused"
    assert stack.command("jobs", "cancel", run_id).returncode == 4


def test_a_cancelled_job_has_saved_and_can_go_on(stack: Stack, whole: str) -> None:
    run_id = stack.start_job()
    stack.wait_for_step(run_id, 20)
    answer = stack.json("jobs", "cancel", run_id, "--no-wait")
    assert answer["detail"] in ("cancelling", "")
    pausing = stack.command("jobs", "pause", run_id)
    assert pausing.returncode == 4
    assert "cancel" in pausing.stderr
    assert stack.wait_for_state(run_id, "CANCELLED", seconds=30) < 30
    wait_until(lambda: not stack.children(), 10, "the child's end")
    detail = stack.json("jobs", "show", run_id)
    assert detail["trainings"][0]["checkpoints"]
    stack.json("jobs", "resume", run_id)
    assert stack.finish(run_id) == whole


def test_sigterm_from_outside_is_a_preemption_that_continues_by_itself(stack: Stack, whole: str) -> None:
    run_id = stack.start_job()
    stack.wait_for_step(run_id, 30)
    process = stack.flow_process(run_id)
    process.terminate()
    assert wait_until(lambda: not process.is_running(), 30, "the process's end") < 30
    state = stack.state_of(run_id)
    assert (state["type"], state["name"]) == ("SCHEDULED", "Preempted")
    assert stack.finish(run_id) == whole
    assert [event["reason"] for event in stack.events(run_id, "stopped")] == ["preempt"]


def test_down_and_up_continue_what_was_at_work(stack: Stack, whole: str) -> None:
    run_id = stack.start_job()
    stack.wait_for_step(run_id, 30)
    started = time.monotonic()
    stack.command("down")
    assert time.monotonic() - started < 45
    assert not stack.children()
    assert stack.command("up").returncode == 0
    assert stack.finish(run_id) == whole


def test_a_budget_is_a_deadline_and_resuming_gives_another(stack: Stack) -> None:
    run_id = stack.start_job(budget_s=25, **LONG)
    stack.wait_for_state(run_id, "FAILED", "COMPLETED", "CRASHED")
    detail = stack.json("jobs", "show", run_id)
    assert (detail["state"], detail["detail"]) == ("failed", "budget exceeded")
    assert "Its budget of wall time is used up." in detail["message"]
    first = detail["step"]
    stack.json("jobs", "resume", run_id)
    stack.wait_for_state(run_id, "RUNNING")
    stack.wait_for_state(run_id, "FAILED", "COMPLETED", "CRASHED")
    assert stack.json("jobs", "show", run_id)["step"] > first


def test_jobs_that_want_one_device_take_turns(stack: Stack) -> None:
    ids = [stack.start_job(max_steps=30, save_steps=30, gradient_accumulation=1, seed=seed) for seed in range(6)]
    turns = []
    for run_id in ids:
        stack.finish(run_id)
        (work,) = find_training_logs(stack.settings.runs / run_id)
        events = list(trainer_events(work.folder / "events.jsonl"))
        (released,) = [event["time"] for event in stack.events(run_id, "finished") if event["node"] == "trainer"]
        turns.append((events[0]["time"], events[-1]["time"], released))
    turns.sort()
    for (_, ended, released), (starts, _, _) in pairwise(turns):
        assert ended <= starts, "two trained at once"
        assert starts - released <= 10
    print("seconds between release and start:", [round(b[0] - a[2], 1) for a, b in pairwise(turns)])


TRIES, FIRST_LINE_CPU_S = 4, 1.0
"""Of processor time until a log begins: to import Prefect's client alone takes more."""


def cpu_of_first_line(stack: Stack, run_id: str) -> float:
    """The processor time of `jobs logs RUN --follow` until it writes its first line."""
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "trainyard", "jobs", "logs", run_id, "--follow"],
        cwd=stack.work, env=stack.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        first = process.stdout.read(1)
        times = psutil.Process(process.pid).cpu_times()
        process.kill()
    assert first
    return times.user + times.system


def test_a_log_begins_within_a_second_of_processor_time(stack: Stack) -> None:
    run_id = stack.start_job(max_steps=5)
    stack.finish(run_id)
    assert min(cpu_of_first_line(stack, run_id) for _ in range(TRIES)) <= FIRST_LINE_CPU_S


def test_logs_metrics_and_lists(stack: Stack) -> None:
    run_id = stack.start_job(max_steps=30, save_steps=10)
    following = subprocess.Popen(
        [sys.executable, "-m", "trainyard", "jobs", "logs", run_id, "-f", "--json"],
        cwd=stack.work, env=stack.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    stack.finish(run_id)
    out, err = following.communicate(timeout=60)
    lines = [json.loads(line) for line in out.splitlines()]
    assert {line["source"] for line in lines} == {"run", "trainer"}, err
    assert any("Beginning flow run" in line["text"] for line in lines)
    points = stack.json("jobs", "metrics", run_id)["trainings"][0]["points"]
    assert [point["step"] for point in points] == list(range(1, 31))
    assert all(point["loss"] > 0 for point in points)
    listed = stack.json("jobs", "list", "--state", "completed")["jobs"]
    assert listed[0]["run_id"] == run_id
    assert (listed[0]["step"], listed[0]["total_steps"]) == (30, 30)
    assert "training-job-" in stack.command("jobs", "list").stdout
    assert len(stack.command("jobs", "logs", run_id, "--tail", "3").stdout.splitlines()) == 3
    assert stack.command("jobs", "show", "no-such-job").returncode == 3
