"""The supervised child of the `script` backend: runs a person's script and believes nothing that it does not show.

Imports no torch. It takes the device, starts the script with its output in the child's log, hands a stop request on
once, passes the script's events on, and turns what it left into a result. As a sub-reaper it inherits whatever the
script leaves running, however it detached itself, and ends it. A script that ignores the request is killed with its
tree after the grace, by the supervisor.
"""

from __future__ import annotations

import hashlib
import shutil
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import orjson

from trainyard.backends import environments, frame
from trainyard.backends.external.runner import pick_device
from trainyard.backends.job import TrainingJob
from trainyard.backends.script import files
from trainyard.backends.script.templates import FOLDER
from trainyard.compute.child import LOG_FILE, STOPPED_EXIT, Events, Stopped
from trainyard.compute.events import Event, EventTail, read_events
from trainyard.compute.gpus import list_devices
from trainyard.compute.shim import describe_end, follow, start
from trainyard.compute.supervise import last_log_line
from trainyard.errors import TrainyardError
from trainyard.inherited import child_environment
from trainyard.json_types import JsonObject
from trainyard.settings import settings
from trainyard.spec.axes.backends import BackendName
from trainyard.stores.metrics import read_curve

PASSED_ON = frozenset({"begin", "progress", "metrics", "checkpoint", "warning", "ledger"})
"""Events of a script that are believed; the others are the runner's own."""
EVENTS_VARIABLE, OWN_EVENTS = "TRAINYARD_EVENTS", "events.jsonl"
MOST_LOG_BYTES = 64 << 20
"""A longer log keeps its head and its tail once the script has ended."""
NO_TOKENS = {"read": 0, "trained": 0, "masked": 0, "truncated": 0, "dropped": 0}


def train(folder: Path, events: Events) -> None:
    """Run the script of `folder/script` to its end."""
    job = frame.read_job(folder)
    device, started = pick_device(job.config.device, BackendName.SCRIPT, list_devices()), time.monotonic()
    with frame.lock_devices(job, folder, events, device):
        try:
            code = run_script(folder, events)
        finally:
            shorten(folder / LOG_FILE)
        judge(folder, code, events)
        finish(job, folder, events, {"device": device, "seconds": round(time.monotonic() - started, 3)})


def run_script(folder: Path, events: Events) -> int:
    """Return the script's exit code; its events are passed on while it runs."""
    work = folder / FOLDER
    tail = EventTail.at_end(work / OWN_EVENTS)
    python = str(environments.find_python(BackendName.SCRIPT))
    argv = [*settings().script_wrapper, python, files.SCRIPT_FILE, files.SPEC_NAME]
    variables = {**environments.clean_variables(child_environment()), EVENTS_VARIABLE: str(work / OWN_EVENTS)}
    process = start(argv, folder / LOG_FILE, cwd=work, env=variables)
    events.emit("program", argv=argv, program_pid=process.pid)

    def ask() -> bool:
        process.send_signal(signal.SIGTERM)
        return True

    code = follow(process, events, ask, lambda: pass_on(tail.read_all(), events.emit))
    pass_on(tail.read_rest(), events.emit)
    return code


def pass_on(news: Iterable[Event], emit: Callable[..., None]) -> None:
    for event in news:
        fields = {name: value for name, value in event.items() if name not in ("event", "time")}
        if event["event"] in PASSED_ON:
            emit(event["event"], **fields)


def judge(folder: Path, code: int, events: Events) -> None:
    """Raise what the end of the script means; return when its work is done."""
    stop_requested, report = events.stop_requested(), folder / FOLDER / files.OUTPUT / files.REPORT_FILE
    if code == 0 or (stop_requested and code == -signal.SIGTERM and report.is_file()):
        return  # the request met a script that had done everything but leave
    if code == STOPPED_EXIT or stop_requested:
        how = "saved its state" if code == STOPPED_EXIT else "ended without saying that it saved"
        saved = f"the script {how}"
        points = read_curve(read_events(folder / FOLDER / OWN_EVENTS))
        step = {"step": points[-1].step} if points else {}
        raise Stopped(f"asked to stop; {saved}" if stop_requested else saved, program_exit=code, **step)
    raise TrainyardError(
        f"The training script {describe_end(code)}.",
        why=last_log_line(folder),
        do=f"Read {LOG_FILE}; run the script by hand in {folder / FOLDER}: python train.py spec.json",
        code="E-SCRIPT",
    )


def shorten(path: Path) -> None:
    """Keep head and tail of a log that would fill the disk."""
    size = path.stat().st_size
    if size <= MOST_LOG_BYTES:
        return
    half = MOST_LOG_BYTES // 2
    with path.open("rb+") as stream:
        stream.seek(size - half)
        tail = stream.read()
        stream.seek(half)
        stream.write(f"\n… {size - 2 * half:,} bytes of output are left out here …\n".encode() + tail)
        stream.truncate()


def finish(job: TrainingJob, folder: Path, events: Events, facts: JsonObject) -> None:
    """Check what the script made, complete its record and hand it over. Raises `TrainyardError` (`E-SCRIPT`)."""
    output = folder / FOLDER / files.OUTPUT
    missing = frame.missing_weights(job, output)
    if missing or not list(output.glob("*.safetensors")):
        raise unusable(f"it left no {files.OUTPUT}/{missing[0] if missing else '*.safetensors'}")
    record = training_record(job, folder, facts)

    def write(target: Path) -> None:
        shutil.copytree(output, target, ignore=shutil.ignore_patterns(files.REPORT_FILE, "README.md", "*.bin", "*.pt"))
        frame.name_base(job, target)

    frame.save_result(job, folder, record, write)
    shutil.rmtree(folder / FOLDER)
    frame.report_metrics(events, record)


def training_record(job: TrainingJob, folder: Path, facts: JsonObject) -> JsonObject:
    """`training.json`, from what we know and what the script reported."""
    work = folder / FOLDER
    path = work / files.OUTPUT / files.REPORT_FILE
    try:
        report: dict[str, Any] = orjson.loads(path.read_bytes()) if path.is_file() else {}
    except orjson.JSONDecodeError as error:
        raise unusable(f"its {files.REPORT_FILE} is not valid JSON: {error}") from error
    points = [[point.step, point.loss, point.learning_rate] for point in read_curve(read_events(work / OWN_EVENTS))]
    losses = report.get("losses") or [point for point in points if point[1] is not None]
    if not losses:
        raise unusable(f"it reported no step, neither by an event nor in {files.REPORT_FILE}")
    config = job.config
    template = str(report.get("chat_template") or "")
    reported = {name: value for name, value in report.items() if name not in ("losses", "chat_template")}
    return {
        "rows": {},
        "tokens": NO_TOKENS,
        "counted": "nothing",
        "data": {},
        "steps": losses[-1][0],
        "precision": "unknown",
        "threads": job.threads,
        "versions": {},
        **facts,
        **reported,
        **frame.job_facts(job, losses),
        "chat_template_sha256": hashlib.sha256(template.encode()).hexdigest() if template else "",
        "lora": config.method.model_dump(mode="json", exclude={"type"}) if config.method.facts.adapter else None,
        "script": config.launch.script or "built-in",
        "script_sha256": hashlib.sha256((work / files.SCRIPT_FILE).read_bytes()).hexdigest(),
    }


def unusable(why: str) -> TrainyardError:
    return TrainyardError(
        "The training script ended with exit code 0, but what it left is not a valid result.",
        why=f"After exit code 0, {why}.",
        do="Let it write what docs/backends.md asks of a script; `trainyard eject` writes one that does.",
        code="E-SCRIPT",
    )
