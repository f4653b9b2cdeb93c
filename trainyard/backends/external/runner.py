"""The supervised child of an external trainer: it speaks our contract, the tool below it need not.

Imports no torch. It takes the device, has the plan made, starts the tool with its output in the child's log, hands a
stop request on to the tool's processes, and turns what the tool left into a result. As a sub-reaper it inherits
whatever the tool leaves running, and ends it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import psutil

from trainyard.backends import environments, frame
from trainyard.backends.job import TrainingJob
from trainyard.backends.results import CHECKPOINT_FOLDER, log_head, log_restart
from trainyard.backends.rows import TOKENS_FILE
from trainyard.callbacks import ignore
from trainyard.compute.child import ERROR_FILE, LOG_FILE, Events, Stopped, alive, crash_error, write_error
from trainyard.compute.gpus import list_devices
from trainyard.compute.shim import POLL_S, describe_end, die_with_parent, follow, start
from trainyard.compute.supervise import last_log_line, wait_for_end
from trainyard.errors import InvalidInput, TrainyardError, from_fields
from trainyard.json_types import JsonObject
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.data import Port
from trainyard.spec.axes.devices import Device
from trainyard.stores.whole import write_json_durably
from trainyard.train.checkpoint.checkpoints import FoundCheckpoint, newest_valid
from trainyard.workers.trainyard_worker import names

RELOADED_FILE = "reloaded.json"
BEGUN_FILE = "begun"
"""Says that a tool was started in this folder before."""


@dataclass(frozen=True)
class ExternalRun:
    """An execution of an external trainer."""

    job: TrainingJob
    folder: Path
    events: Events
    device: str
    checkpoint: FoundCheckpoint
    """The checkpoint that it resumes from, if there is one."""
    plan: JsonObject
    started: float = field(default_factory=time.monotonic)

    @property
    def plan_folder(self) -> Path:
        """Folder of the plan."""
        return self.folder / names.PLAN_FOLDER

    @property
    def python(self) -> str:
        """Return the interpreter of the tool."""
        return str(environments.find_python(self.job.config.backend))

    def variables(self, more: Mapping[str, str]) -> dict[str, str]:
        """The environment variables of the tool in addition to Trainyard's own: those of every tool, and `more`."""
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if self.device == "cpu" else {}
        return {**environments.variables(), **hidden, **more}


def worker_argv(run: ExternalRun) -> list[str]:
    """Return the command line of an engine of `trainyard_worker` that has the name of its backend."""
    return [run.python, *environments.WORKER, run.job.config.backend.value, str(run.folder)]


def end_process(_run: ExternalRun, process: psutil.Process) -> bool:
    """A stop request goes to the one process that trains: it saves after its step and ends."""
    return terminate([process])


def finish_result(run: ExternalRun, log_at: int) -> None:
    """Move what the tool made to `result/`, complete, sealed, with a `training.json` like every backend's.

    Raises `TrainyardError` (`E-PROGRAM`) when the tool ended well and left no weights.
    """
    output, weights = run.folder / names.MADE_FOLDER, run.folder / names.MADE_FOLDER / "weights"
    report: dict[str, object] = orjson.loads((output / names.REPORT_FILE).read_bytes())
    record = training_record(run, report, log_head(run.folder / LOG_FILE, log_at))
    if missing := frame.missing_weights(run.job, weights):
        raise TrainyardError(
            f"{run.job.config.backend.value} ended without {missing[0]}.",
            do="Read child.log; the tool says there what it did.",
            code="E-PROGRAM",
        )

    record["adapter_run"] = run_written_adapter(run)

    def write(target: Path) -> None:
        shutil.copytree(weights, target, ignore=shutil.ignore_patterns("README.md"))
        frame.name_base(run.job, target)
        tokenizer_folder = target / "tokenizer" if run.job.output is Port.ADAPTER else target
        shutil.copytree(run.plan_folder / names.TOKENIZER_FOLDER, tokenizer_folder, dirs_exist_ok=True)

    frame.save_result(run.job, run.folder, record, write)
    for leftover in (output, run.plan_folder):
        shutil.rmtree(leftover, ignore_errors=True)
    for name in (TOKENS_FILE, BEGUN_FILE):
        (run.folder / name).unlink(missing_ok=True)
    frame.report_metrics(run.events, record)


def run_written_adapter(run: ExternalRun) -> str:
    """Have the adapter that the tool has written loaded and run once, as its next reader does.

    Returns `yes`, or why that was not possible here; empty without an adapter. Raises `E-ADAPTER-INVALID`.
    """
    if not run.job.config.method.facts.adapter or run.job.is_probe:
        return ""
    module = ["trainyard.backends.external.reload", str(run.folder)]
    run_helper(module, run.folder, "The adapter that the tool has written could not be run.", None)
    reason = str(orjson.loads((run.plan_folder / RELOADED_FILE).read_bytes())["reason"])
    if reason:
        run.events.emit("warning", text=f"The adapter was compared with its base, and not run: {reason}.")
    return reason or "yes"


def training_record(run: ExternalRun, report: JsonObject, head: str) -> JsonObject:
    """`training.json`: what was done, to the token, and which tool did it."""
    common = {
        **frame.job_facts(run.job, report["losses"]),
        "chat_template_sha256": run.plan["ledger"]["chat_template_sha256"],
        "lora": run.plan["lora"],
        **run.plan["account"],
        "data": {
            name: run.plan["ledger"][name] for name in ("tokens", "rows", "refused") if name in run.plan["ledger"]
        },
        "steps": run.plan["total_steps"],
        "epochs": run.plan["total_steps"] / run.plan["steps_per_epoch"],
        "device": run.device,
        "threads": run.job.threads,
        "seconds": round(time.monotonic() - run.started, 3),
    }
    # What is not asked of the tool is known better here; what it reports of itself is its own word.
    return {**common, **report, "tool": {**report["tool"], "log_head": head}}


@dataclass(frozen=True)
class ExternalTool:
    """Driver of a tool: by default as an engine of `trainyard_worker`."""

    argv: Callable[[ExternalRun], list[str]] = worker_argv
    environment: Callable[[ExternalRun], Mapping[str, str]] = lambda _: {}
    """Variables in addition to those of every tool."""
    stop: Callable[[ExternalRun, psutil.Process], bool] = end_process
    """Asks the tool (the process that was started) to save and end. Called again until it says True."""
    plan_options: tuple[str, ...] = ()
    check: Callable[[ExternalRun], None] = ignore
    """Called before the tool is started; raises what speaks against it."""
    watch: Callable[[ExternalRun], None] = ignore
    """Called at every poll; reads the progress of a tool that does not write Trainyard's events."""
    finish: Callable[[ExternalRun, int], None] = finish_result
    """Makes the result of what the tool left; gets the size that the log had when the tool was started."""


def run_external(folder: Path, events: Events, tool: ExternalTool) -> None:
    """Lead a tool through the job of `folder`.

    Raises `Stopped` when it stopped as asked, and the tool's error when it failed.
    """
    job = frame.read_job(folder)
    device = pick_device(job.config.device, job.config.backend, list_devices())
    with frame.lock_devices(job, folder, events, device):
        plan = ["trainyard.backends.external.plan", str(folder), device, *tool.plan_options]
        failure = "The training could not be planned."
        run_tool(start_run(job, folder, events, device, plan=plan, failure=failure), tool)


def start_run(
    job: TrainingJob, folder: Path, events: Events, device: str, *, plan: list[str], failure: str
) -> ExternalRun:
    """Find where the job continues, have the plan made by the module and arguments `plan`, and report both."""
    checkpoint = newest_valid(folder / CHECKPOINT_FOLDER)
    restarted_from = log_restart(folder / BEGUN_FILE, checkpoint, events)
    plan_folder = folder / names.PLAN_FOLDER
    plan_folder.mkdir(exist_ok=True)
    (plan_folder / names.PLAN_FILE).unlink(missing_ok=True)
    run_helper(plan, folder, failure, events)
    at = {
        "path": str(checkpoint.path) if checkpoint.path else None,
        "step": checkpoint.step,
        "restarted_from": restarted_from,
    }
    write_json_durably(plan_folder / names.RESUME_FILE, at)
    run = ExternalRun(
        job, folder, events, device, checkpoint, orjson.loads((plan_folder / names.PLAN_FILE).read_bytes())
    )
    ledger = run.plan["ledger"]
    events.emit("ledger", **ledger["tokens"], rows=ledger["rows"], text=ledger["line"])
    return run


def run_tool(run: ExternalRun, tool: ExternalTool) -> None:
    """Run the tool on a planned job. Raises as `run_external` does."""
    tool.check(run)
    for name in (names.FAILURE_FILE, names.HALT_FILE):
        (run.folder / name).unlink(missing_ok=True)
    (run.folder / BEGUN_FILE).touch()
    log_at = measure_size(run.folder / LOG_FILE)
    run_program(run, tool)
    tool.finish(run, log_at)


def pick_device(requested: Device, backend: BackendName, here: Sequence[Device]) -> str:
    """torch's name of the requested device, or of the first one `here` that the backend takes.

    Raises `InvalidInput` (`E-DEVICE`).
    """
    devices = backend.facts.devices
    usable = [device.value for device in here if device in devices]
    if not usable or (requested is not Device.AUTO and requested.value not in usable):
        raise InvalidInput(
            f"The device {requested.value!r} was requested, and this backend has none here.",
            why=f"It computes on {', '.join(devices)}, and this machine has {', '.join(here)}.",
            do="Use device: auto, which takes what is here.",
            code="E-DEVICE",
        )
    return Device(usable[0] if requested is Device.AUTO else requested).facts.torch_type


def run_helper(module: list[str], folder: Path, failure: str, events: Events | None) -> None:
    """Run a module that imports torch, with its arguments; a stop request in `events` ends it.

    Raises the error that it left in `plan/error.json`, `failure` if there is none, or `Stopped`.
    """
    error = folder / names.PLAN_FOLDER / ERROR_FILE
    error.unlink(missing_ok=True)
    argv = [sys.executable, "-P", "-m", *module]
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)  # noqa: PLW1509
    while not wait_for_end(process, POLL_S):
        if events is not None and events.stop_requested():
            process.kill()
            process.wait()
            frame.require_not_stopped(True)
    if process.returncode and not error.is_file():
        raise TrainyardError(failure, why=last_log_line(folder), do=f"Read {LOG_FILE}.", code="E-PROGRAM")
    if process.returncode:
        raise from_fields(orjson.loads(error.read_bytes()))


@contextmanager
def record_plan_errors(folder: Path) -> Iterator[None]:
    """In such a process: leave what goes wrong as `plan/error.json`, and end with 1."""
    plan_folder = folder / names.PLAN_FOLDER
    plan_folder.mkdir(exist_ok=True)
    try:
        yield
    except TrainyardError as error:
        write_error(plan_folder, error)
        sys.exit(1)
    except Exception as error:
        write_error(plan_folder, crash_error(error))
        raise


def run_program(run: ExternalRun, tool: ExternalTool) -> None:
    """Run the tool until its work is done; a stop request is handed on once, to every process of it.

    Raises what another end means.
    """
    argv, environment = tool.argv(run), {**os.environ, **run.variables(tool.environment(run))}
    process = start(argv, run.folder / LOG_FILE, cwd=run.folder, env=environment)
    run.events.emit("program", argv=argv, program_pid=process.pid)

    def ask() -> bool:
        """Hand the request on; False when the tool is not ready to take it."""
        try:
            return tool.stop(run, psutil.Process(process.pid))
        except psutil.NoSuchProcess:
            return True  # it has just ended

    raise_for_exit(run, follow(process, run.events, ask, lambda: tool.watch(run)))


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
        f"{run.job.config.backend.value} {describe_end(code)}.",
        why=last_log_line(run.folder),
        do=f"Read {LOG_FILE}.",
        code="E-PROGRAM",
    )


def measure_size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
