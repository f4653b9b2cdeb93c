"""The supervised child of an external trainer: it speaks our contract, the tool below it need not.

Imports no torch. It takes the device, has the plan made, starts the tool with its output in the child's log, hands a
stop request on to the tool's processes, and turns what the tool left into a result. As a sub-reaper it inherits
whatever the tool leaves running, and ends it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import psutil

from trainyard.backends import frame
from trainyard.backends.job import TrainingJob
from trainyard.backends.results import CHECKPOINT_FOLDER, log_restart
from trainyard.compute.child import ERROR_FILE, LOG_FILE, Events, Stopped, alive, crash_error, write_error
from trainyard.compute.gpus import devices_here
from trainyard.compute.shim import POLL_S, die_with_parent, follow, how_ended, start
from trainyard.compute.supervise import ended, last_log_line
from trainyard.errors import InvalidInput, TrainyardError, from_fields
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.devices import Device
from trainyard.stores.whole import write_json_durably
from trainyard.train.checkpoints import FoundCheckpoint, newest_valid
from trainyard.workers.trainyard_worker import names

BEGUN_FILE = "begun"
"""Says that a tool was started in this folder before."""


@dataclass(frozen=True)
class ExternalRun:
    """One execution of an external trainer."""

    job: TrainingJob
    folder: Path
    events: Events
    device: str
    found: FoundCheckpoint
    """The checkpoint that it resumes from, if there is one."""
    plan: dict[str, Any]
    restarted_from: dict[str, int] | str | None
    started: float = field(default_factory=time.monotonic)

    @property
    def place(self) -> Path:
        """Folder of the plan."""
        return self.folder / names.PLAN_FOLDER


@dataclass(frozen=True)
class ExternalTool:
    """How a tool is driven."""

    argv: Callable[[ExternalRun], list[str]]
    environment: Callable[[ExternalRun], Mapping[str, str]]
    stop: Callable[[ExternalRun, psutil.Process], bool]
    """Asks the tool (the process that was started) to save and end. Called again until it says True."""
    plan_options: tuple[str, ...] = ()
    check: Callable[[ExternalRun], None] | None = None
    """Called before the tool is started; raises what speaks against it."""
    watch: Callable[[ExternalRun], None] | None = None
    """Called at every poll; reads the progress of a tool that does not write Trainyard's events."""


def run_external(folder: Path, events: Events, tool: ExternalTool, finish: Callable[[ExternalRun, int], None]) -> None:
    """Lead a tool through the job of `folder`; `finish(run, log offset)` makes the result of what it left.

    Raises `Stopped` when it stopped as asked, and the tool's error when it failed.
    """
    job = frame.read_job(folder)
    device = pick_device(job.config.device, job.config.backend)
    with frame.lock_devices(job, folder, events, device):
        run = start_run(job, folder, events, device, partial(make_plan, folder, device, events, tool.plan_options))
        found = run.found
        at = {"path": str(found.path) if found.path else None, "step": found.step, "restarted_from": run.restarted_from}
        write_json_durably(run.place / names.RESUME_FILE, at)
        run_tool(run, tool, finish)


def start_run(
    job: TrainingJob, folder: Path, events: Events, device: str, plan: Callable[[], dict[str, Any]]
) -> ExternalRun:
    """Find where the job continues, have the plan made, and report both."""
    found = newest_valid(folder / CHECKPOINT_FOLDER)
    restarted_from = log_restart(folder / BEGUN_FILE, found, events)
    planned = plan()
    ledger = planned["ledger"]
    events.emit("ledger", **ledger["tokens"], rows=ledger["rows"], text=ledger["line"])
    return ExternalRun(job, folder, events, device, found, planned, restarted_from)


def run_tool(run: ExternalRun, tool: ExternalTool, finish: Callable[[ExternalRun, int], None]) -> None:
    """Run the tool on a planned job. Raises as `run_external` does."""
    if tool.check is not None:
        tool.check(run)
    for name in (names.FAILURE_FILE, names.HALT_FILE):
        (run.folder / name).unlink(missing_ok=True)
    (run.folder / BEGUN_FILE).touch()
    log_at = size_of(run.folder / LOG_FILE)
    raise_for_exit(run, carry_out(run, tool))
    finish(run, log_at)


def pick_device(asked: Device, backend: BackendName) -> str:
    """Where a backend computes on this machine. Raises `InvalidInput` (`E-DEVICE`)."""
    return device_for(asked, backend.facts.devices, devices_here())


def device_for(asked: Device, taken: Sequence[Device], here: Sequence[Device]) -> str:
    """The device asked for, or the first one here that the backend takes. Raises `InvalidInput` (`E-DEVICE`)."""
    usable = [device.value for device in here if device in taken]
    if not usable or (asked is not Device.AUTO and asked.value not in usable):
        raise InvalidInput(
            f"The device {asked.value!r} was asked for, and this backend has none here.",
            why=f"It computes on {', '.join(taken)}, and this machine has {', '.join(here)}.",
            do="Use device: auto, which takes what is here.",
            code="E-DEVICE",
        )
    return usable[0] if asked is Device.AUTO else asked.value


def make_plan(folder: Path, device: str, events: Events, options: tuple[str, ...]) -> dict[str, Any]:
    """Have the plan made by a process of its own, which a stop request ends."""
    place = folder / names.PLAN_FOLDER
    place.mkdir(exist_ok=True)
    (place / names.PLAN_FILE).unlink(missing_ok=True)
    module = "trainyard.backends.external.plan"
    run_helper(module, [str(folder), device, *options], folder, "The training could not be planned.", events)
    plan: dict[str, Any] = orjson.loads((place / names.PLAN_FILE).read_bytes())
    return plan


def run_helper(module: str, arguments: list[str], folder: Path, what: str, events: Events | None) -> None:
    """Run a module that imports torch in a process of its own, which a stop request in `events` ends.

    Raises the error that it left in `plan/error.json`, `what` if there is none, or `Stopped`.
    """
    error = folder / names.PLAN_FOLDER / ERROR_FILE
    error.unlink(missing_ok=True)
    argv = [sys.executable, "-m", module, *arguments]
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)  # noqa: PLW1509
    while not ended(process, POLL_S):
        if events is not None and events.stop_requested():
            process.kill()
            process.wait()
            frame.require_not_stopped(True)
    if process.returncode:
        raise left_error(error, what, folder)


@contextmanager
def errors_left_in_plan(folder: Path) -> Iterator[None]:
    """In such a process: leave what goes wrong as `plan/error.json`, and end with 1."""
    place = folder / names.PLAN_FOLDER
    place.mkdir(exist_ok=True)
    try:
        yield
    except TrainyardError as error:
        write_error(place, error)
        sys.exit(1)
    except Exception as error:
        write_error(place, crash_error(error))
        raise


def left_error(path: Path, what: str, folder: Path) -> TrainyardError:
    """Return the error that a process of Trainyard left, or a general one without it."""
    if not path.is_file():
        return TrainyardError(what, why=last_log_line(folder), do=f"Read {LOG_FILE}.", code="E-PROGRAM")
    return from_fields(orjson.loads(path.read_bytes()))


def carry_out(run: ExternalRun, tool: ExternalTool) -> int:
    """Run the tool to its end and return its exit code; a stop request is handed on once, to every process of it."""
    argv = tool.argv(run)
    process = start(argv, run.folder / LOG_FILE, cwd=run.folder, env={**os.environ, **tool.environment(run)})
    run.events.emit("program", argv=argv, program_pid=process.pid)
    watch = (lambda: tool.watch(run)) if tool.watch is not None else None  # type: ignore[misc]
    return follow(process, run.events, lambda: ask_to_stop(run, tool, process), watch)


def ask_to_stop(run: ExternalRun, tool: ExternalTool, process: subprocess.Popen[bytes]) -> bool:
    """Hand the request on; False when the tool is not ready to take it."""
    try:
        return tool.stop(run, psutil.Process(process.pid))
    except psutil.NoSuchProcess:
        return True  # it has just ended


def terminate(processes: list[psutil.Process]) -> bool:
    """SIGTERM to each that lives; False when there is none yet."""
    for process in processes:
        if alive(process):
            process.terminate()
    return bool(processes)


def raise_for_exit(run: ExternalRun, code: int) -> None:
    """Raise what the end of the tool means; return when its work is done."""
    failure, halt = run.folder / names.FAILURE_FILE, run.folder / names.HALT_FILE
    if halt.is_file():
        raise Stopped("asked to stop; a checkpoint is saved", **orjson.loads(halt.read_bytes()))
    if failure.is_file():
        raise from_fields(orjson.loads(failure.read_bytes()))
    if code == 0:
        return
    if run.events.stop_requested():
        raise Stopped("asked to stop; the tool ended without a new checkpoint", program_exit=code)
    raise TrainyardError(
        f"{run.job.config.backend.value} {how_ended(code)}.",
        why=last_log_line(run.folder),
        do=f"Read {LOG_FILE}.",
        code="E-PROGRAM",
    )


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
