"""The parent's half of a backend: whether it is here, what it does not support, how its child is started.

A backend's `backend.py` makes one of these and overrides what is different there. Imports neither torch nor a tool.

How the processes of a training are started: argv of a launcher and environment variables. Imports no torch.

One process is started directly. More are started by torchrun or `accelerate launch`, under the program that reports
events for all of them (`compute/launcher_supervisor.py`). They find each other by files: neither the
launchers' own rendezvous nor the process group needs a port. Adding a launcher: a function, a row in `LAUNCHERS`.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trainyard.backends import environments
from trainyard.backends.base import Probe
from trainyard.backends.hosts import Place, find_place, prepare_hosts
from trainyard.backends.job import TrainingJob, mirror_address
from trainyard.compute.gpus import HIDING_VARIABLE, visible_devices
from trainyard.compute.rank_process import RANKS_FOLDER
from trainyard.errors import Reason
from trainyard.inherited import cloud_variables
from trainyard.settings import Settings, settings
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.strategies import DilocoEngine, Strategy
from trainyard.spec.compat.backends import backend_reasons
from trainyard.spec.training import LaunchSettings

RANK_PROGRAM = "trainyard.compute.rank_process"
RENDEZVOUS = "launcher"
LOOPBACK = "127.0.0.1"


def command(job: TrainingJob, target: str, folder: Path) -> list[str]:
    """argv that runs `target` (`package.module:function`) on a job in as many processes as it asks for.

    The function gets `(folder, events)`; in a distributed run, each process finds its number in `RANK`.
    """
    launch = job.config.launch
    if launch.strategy is Strategy.SINGLE:
        return [sys.executable, "-P", "-m", "trainyard.compute.launch", target, str(folder)]
    program = [RANK_PROGRAM, target, str(folder)]
    supervisor = [sys.executable, "-P", "-m", "trainyard.compute.launcher_supervisor"]
    if launch.node_count > 1:
        place = find_place(launch)
        first = place.node_rank * launch.local_processes
        argv = torchrun_hosts(sys.executable, launch, place, program)
        return [*supervisor, str(folder), f"{launch.processes}:{first}", "--", *argv]
    launcher = LAUNCHERS["torchrun" if launch.launcher == "auto" else launch.launcher]
    argv = launcher(sys.executable, launch.processes, program, folder / RANKS_FOLDER)
    return [*supervisor, str(folder), str(launch.processes), "--", *argv]


def torchrun(python: str, processes: int, program: list[str], folder: Path) -> list[str]:
    """torchrun, with its rendezvous in a file of `folder`, a folder that is new for each start."""
    return [
        python, "-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={processes}",
        "--max-restarts=0", "--rdzv-backend=c10d", f"--rdzv-endpoint={folder / RENDEZVOUS}",
        "--rdzv-conf=store_type=file", f"--local-addr={LOOPBACK}", "-m", *program,
    ]  # fmt: skip


def torchrun_hosts(python: str, launch: LaunchSettings, place: Place, program: list[str]) -> list[str]:
    """torchrun on one of several hosts, which meet at a port of the first one."""
    return [
        python, "-m", "torch.distributed.run", f"--nnodes={launch.node_count}", f"--node-rank={place.node_rank}",
        f"--nproc-per-node={launch.local_processes}", "--max-restarts=0", "--rdzv-backend=static",
        f"--master-addr={place.host}", f"--master-port={place.port}", "-m", *program,
    ]  # fmt: skip


def accelerate(python: str, processes: int, program: list[str], _folder: Path) -> list[str]:
    """`accelerate launch`, which is torchrun with settings in the environment.

    `--multi_gpu` means more than one process on this machine; the program decides whether they compute on GPUs.
    """
    return [
        python, "-m", "accelerate.commands.launch", "--num_machines", "1",
        "--num_processes", str(processes), "--mixed_precision", "no", "--dynamo_backend", "no",
        "--multi_gpu", "--main_process_port", "0", "--rdzv_backend", "c10d", "--rdzv_conf", "store_type=file",
        "-m", *program,
    ]  # fmt: skip


LAUNCHERS: dict[str, Callable[[str, int, list[str], Path], list[str]]] = {
    "torchrun": torchrun,
    "accelerate": accelerate,
}
"""Name -> its argv: interpreter, number of processes, the module that each runs with its arguments, a new folder.

DeepSpeed's own launcher belongs to the backend `deepspeed`, which brings its environment."""


def distributed_variables(job: TrainingJob) -> dict[str, str]:
    """Return the environment variables that only a distributed run needs."""
    count = job.config.launch.local_processes
    threads = str(max(1, job.threads // count))
    return {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # torchrun would listen on every interface for its processes
    }


# Environment variables


def environment(job: TrainingJob) -> dict[str, str]:
    """Threads fixed before torch is imported; no telemetry; no network where the base is a local folder."""
    threads = str(job.threads)
    variables = {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OMP_WAIT_POLICY": "passive",  # spinning threads starve the server and the worker on a small machine
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONSAFEPATH": "1",  # launchers start ranks by `python -m`, in a folder of the user's
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "FLASH_ATTENTION_DETERMINISTIC": "1",
    }
    if Path(job.base).is_dir():
        variables["HF_HUB_OFFLINE"] = "1"
    if settings().may_mirror(job.config.engine.mirror or ""):
        variables |= cloud_variables()
    if (mirror_address(job) or "").startswith("data-worker:") and settings().data_worker_key_env in os.environ:
        variables[settings().data_worker_key_env] = os.environ[settings().data_worker_key_env]
    servers = [server for server in (job.teacher_server, job.service, *job.judges.values()) if server is not None]
    variables |= {name: os.environ[name] for server in servers if (name := server.api_key_env) and name in os.environ}
    if job.config.launch.processes > 1:
        variables |= distributed_variables(job)
    # The visible devices of the job, in the notation of the variable that is set; any other choice is kept.
    count = job.config.launch.local_processes
    numbers = job.devices if len(job.devices) >= count else range(count)
    if HIDING_VARIABLE not in os.environ:
        variables[HIDING_VARIABLE] = ",".join(map(str, numbers))
    elif set(numbers) <= set(named := visible_devices()):
        variables[HIDING_VARIABLE] = ",".join(named[number] for number in numbers)
    return variables


@dataclass(frozen=True)
class ExternalProgram:
    """A trainer below a supervised child of Trainyard, in its own environment."""

    name: BackendName

    @property
    def target(self) -> str:
        """`package.module:function` of the supervised child."""
        return f"trainyard.backends.{self.name.value}.program:train"

    def probe(self, settings: Settings | None = None) -> Probe:
        """Look whether it can run here, without importing anything heavy."""
        return environments.probe(self.name, settings)

    def reasons(self, job: TrainingJob) -> list[Reason]:
        """Return every reason why the backend of a job cannot carry it out, but for what only its program can know."""
        reasons = backend_reasons(job.config, job.node or None)
        if job.adapter is not None and job.config.adapter == "continue" and not job.config.method.facts.adapter:
            because = f"Method {job.config.method} trains whole weights and cannot continue an adapter."
            instead = "Use the method of the earlier trainer."
            reasons.append(Reason("R-ADAPTER", job.node or None, "config.method", because, instead))
        return reasons

    def command(self, _job: TrainingJob, folder: Path) -> list[str]:
        """The supervised child runs in our interpreter, and starts the tool's own below it."""
        return [sys.executable, "-P", "-m", "trainyard.compute.launch", self.target, str(folder)]

    def prepare(self, job: TrainingJob, folder: Path) -> None:
        """Leave what this host says to the others, where several train together.

        Refuse a host that does not resolve, before anything is started.
        """
        if job.config.launch.node_count > 1:
            prepare_hosts(job, folder, self.environment_folder)

    @property
    def environment_folder(self) -> Path | None:
        """The environment with the packages of the trainer; None for Trainyard's own."""
        return environments.find_python(self.name).parent.parent

    def environment(self, job: TrainingJob) -> dict[str, str]:
        """Return the variables that the program needs in addition to ours."""
        return environment(job)


@dataclass(frozen=True)
class OwnProgram(ExternalProgram):
    """A trainer in Trainyard's interpreter, whose packages are dependencies of Trainyard; in one or more processes."""

    distribution: str
    """The package whose version is the trainer's version."""
    packages: tuple[str, ...]
    shared: str = ""
    """The child of a distributed training, where it is another."""
    islands: str = ""
    """The child that starts islands which may be lost."""

    def probe(self, settings: Settings | None = None) -> Probe:
        """A broken installation is reported, too."""
        missing = [name for name in self.packages if importlib.util.find_spec(name) is None]
        if missing:
            fix = "Run `make setup`, or install trainyard again."
            return Probe(False, why=f"Not installed: {', '.join(missing)}.", fix=fix)
        return Probe(True, version=importlib.metadata.version(self.distribution))

    @property
    def environment_folder(self) -> Path | None:
        return None

    def command(self, job: TrainingJob, folder: Path) -> list[str]:
        """The launcher enters the contract first, so a stop during the slow imports is already understood."""
        launch = job.config.launch
        if launch.diloco is not None and launch.diloco.type is DilocoEngine.TORCHFT:
            return [sys.executable, "-P", "-m", "trainyard.compute.launch", self.islands, str(folder)]
        is_single = launch.strategy is Strategy.SINGLE
        return command(job, self.target if is_single else self.shared or self.target, folder)
