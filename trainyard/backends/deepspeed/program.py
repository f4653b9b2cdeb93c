"""The supervised child of the `deepspeed` backend: it leads torchrun, or DeepSpeed's own launcher, through a job."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import orjson
import psutil

from trainyard.backends import environments
from trainyard.backends.deepspeed.build import EXTENSIONS_FOLDER, clear_stale_locks
from trainyard.backends.external.runner import ExternalRun, ExternalTool, run_external, terminate
from trainyard.backends.programs import distributed_variables, torchrun
from trainyard.compute.child import Events
from trainyard.compute.services import free_port
from trainyard.errors import Corrupt
from trainyard.spec.axes.backends import BackendName
from trainyard.stores.whole import MANIFEST

MEETING_FOLDER = "meeting"
"""Where torchrun's processes find each other; new at each start."""
LAUNCHING = {"torch.distributed.run", "deepspeed.launcher.launch", "--module"}
WORKER = [environments.WORKER_MODULE, BackendName.DEEPSPEED.value]


def train(folder: Path, events: Events) -> None:
    """Run the job of `folder/spec.json` to its end."""
    run_external(folder, events, ExternalTool(argv, variables, stop, check=check))


def check(run: ExternalRun) -> None:
    """Free what a killed compiler left locked, and refuse a checkpoint of another number of processes."""
    for lock in clear_stale_locks(extensions()):
        run.events.emit("warning", text=f"A compiler that was killed left {lock}; it was removed.")
    shutil.rmtree(run.folder / MEETING_FOLDER, ignore_errors=True)
    (run.folder / MEETING_FOLDER).mkdir()
    if run.checkpoint.path is None:
        return
    pointer = run.checkpoint.path / "latest"
    tag = pointer.read_text(encoding="utf-8").strip() if pointer.is_file() else ""
    if not tag or not (run.checkpoint.path / tag).is_dir():  # DeepSpeed's own pointer
        raise Corrupt(
            f"The checkpoint in {run.checkpoint.path} names {tag or 'nothing'} as its latest state, "
            "which is not there.",
            do="Remove that folder: the training resumes from the checkpoint before it.",
            code="E-CHECKPOINT-CORRUPT",
        )
    made_by = orjson.loads((run.checkpoint.path / MANIFEST).read_bytes())
    launch = {"processes": run.job.config.launch.processes, "strategy": run.job.config.launch.strategy.value}
    for name, value in launch.items():
        if made_by.get(name) != value:
            before = made_by.get(name)
            raise Corrupt(
                f"The checkpoint of step {run.checkpoint.step} was made with {name} {before}, this run has {value}.",
                why="Each rank saves its own shard of the optimizer's state, and the shards cannot be redistributed.",
                do=f"Resume with {name} {before}, or start the training again.",
                code="E-CHECKPOINT-MISMATCH",
            )


def argv(run: ExternalRun) -> list[str]:
    """Return the launcher's command line, in the tool's interpreter."""
    launch = run.job.config.launch
    python = find_environment() / "bin" / "python"
    if launch.launcher == "deepspeed":
        # It ignores the environment and takes the first devices by default.
        numbers = ",".join(map(str, run.job.devices))
        include = run.device == "cuda" and len(run.job.devices) == launch.processes
        devices = ["--include", f"localhost:{numbers}"] if include else ["--num_gpus", str(launch.processes)]
        # DeepSpeed's own choice of a port is the same for every run of a machine.
        options = [*devices, "--master_port", str(free_port()), "--no_local_rank", "--module"]
        return [str(python), str(python.with_name("deepspeed")), *options, *WORKER, str(run.folder)]
    meeting = run.folder / MEETING_FOLDER
    return torchrun(str(python), launch.processes, [*WORKER, str(run.folder)], meeting)


def find_environment() -> Path:
    """The environment by its real path, under which its operators were compiled: under another they would be again."""
    return environments.find_python(BackendName.DEEPSPEED).parent.parent.resolve()


def extensions() -> Path:
    """Return the folder of compiled operators: inside an environment that Trainyard made, next to any other one."""
    folder = find_environment() / EXTENSIONS_FOLDER
    return folder if folder.is_dir() else environments.envs() / "extensions-deepspeed"


def variables(run: ExternalRun) -> Mapping[str, str]:
    """Return the environment variables of the tool's processes in addition to Trainyard's own."""
    values = {
        **distributed_variables(run.job),
        "TORCH_EXTENSIONS_DIR": str(extensions()),
        "DS_BUILD_OPS": "0",
        "PATH": f"{find_environment() / 'bin'}:{os.environ.get('PATH', '/usr/bin:/bin')}",
        "TRANSFORMERS_VERBOSITY": "error",
    }
    if run.device == "cpu":
        # On a machine without a network its own name may not resolve; the processes are all here.
        values |= {"DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo"}
    return values


def stop(run: ExternalRun, launcher: psutil.Process) -> bool:
    """Signal every training process, not their launcher, which would end them before they have saved."""
    ranks = [process for process in launcher.children(recursive=True) if is_rank(process)]
    return len(ranks) >= run.job.config.launch.processes and terminate(ranks)


def is_rank(process: psutil.Process) -> bool:
    """Whether it is one of the processes that train: its own module, not one that is named to a launcher."""
    try:
        command = process.cmdline()
    except psutil.NoSuchProcess:
        return False  # it has ended since it was listed
    return command[-4:-1] == ["-m", *WORKER] and LAUNCHING.isdisjoint(command)
