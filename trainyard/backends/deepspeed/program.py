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
from trainyard.backends.hosts import find_place, write_hostfile
from trainyard.backends.programs import distributed_variables, torchrun, torchrun_hosts
from trainyard.compute.child import Events
from trainyard.compute.launcher_supervisor import wait_for_hosts
from trainyard.compute.services import free_port
from trainyard.errors import Corrupt
from trainyard.spec.axes.backends import BackendName
from trainyard.stores.whole import MANIFEST

MEETING_FOLDER, HOSTFILE = "meeting", "hostfile"
"""Where torchrun's processes find each other, new at each start; and the hosts as DeepSpeed's launcher reads them."""
LOCAL_NAMES = ("127.0.0.1", "localhost", "::1")
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
    check_checkpoint(run)
    wait_for_hosts(run.folder, run.events)


def check_checkpoint(run: ExternalRun) -> None:
    """Raise `Corrupt` for a checkpoint of another number of processes, or without DeepSpeed's own state."""
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
    program = [*WORKER, str(run.folder)]
    if launch.launcher == "deepspeed":
        return [str(python), str(python.with_name("deepspeed")), *launcher_options(run), "--module", *program]
    if launch.node_count > 1:
        return torchrun_hosts(str(python), launch, find_place(launch), program)
    return torchrun(str(python), launch.processes, program, run.folder / MEETING_FOLDER)


def launcher_options(run: ExternalRun) -> list[str]:
    """Return the options of DeepSpeed's own launcher: it ignores the environment and takes the first devices by
    default.

    On several hosts each one starts its own processes (`--no_ssh`): Trainyard starts nothing on another machine.
    """
    launch, numbers = run.job.config.launch, ",".join(map(str, run.job.devices))
    has_devices = run.device == "cuda" and len(run.job.devices) == launch.local_processes
    if launch.node_count == 1:
        devices = ["--include", f"localhost:{numbers}"] if has_devices else ["--num_gpus", str(launch.processes)]
        # DeepSpeed's own choice of a port is the same for every run of a machine.
        return [*devices, "--master_port", str(free_port()), "--no_local_rank"]
    place = find_place(launch)
    names = write_hostfile(launch, run.folder / HOSTFILE)
    own = f"{names[place.node_rank]}:{numbers}"
    others = [name for number, name in enumerate(names) if number != place.node_rank]
    return [
        "--hostfile", str(run.folder / HOSTFILE), "--no_ssh", "--node_rank", str(place.node_rank),
        "--master_addr", place.host, "--master_port", str(place.port), "--no_local_rank",
        *(["--include", "@".join([own, *others])] if has_devices else []),
    ]  # fmt: skip


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
        values |= {"DS_ACCELERATOR": "cpu"}
        launch = run.job.config.launch
        if launch.node_count == 1 or find_place(launch).host in LOCAL_NAMES:
            # On a machine without a network its own name may not resolve; the processes are all here.
            values |= {"GLOO_SOCKET_IFNAME": "lo"}
    return values


def stop(run: ExternalRun, launcher: psutil.Process) -> bool:
    """Signal every training process, not their launcher, which would end them before they have saved."""
    ranks = [process for process in launcher.children(recursive=True) if is_rank(process)]
    return len(ranks) >= run.job.config.launch.local_processes and terminate(ranks)


def is_rank(process: psutil.Process) -> bool:
    """Whether it is one of the processes that train: its own module, not one that is named to a launcher."""
    try:
        command = process.cmdline()
    except psutil.NoSuchProcess:
        return False  # it has ended since it was listed
    return command[-4:-1] == ["-m", *WORKER] and LAUNCHING.isdisjoint(command)
