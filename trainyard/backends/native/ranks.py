"""Processes of a distributed native training: rank 0 runs the program, the other ranks follow it.

The first prepares the data, decides and loops, exactly as one process does. The others load the same model, open their
side of the session, and carry out its commands; they never see the data.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from trainyard.backends.frame import read_job
from trainyard.backends.job import TrainingJob
from trainyard.backends.native import assembly, program
from trainyard.backends.native.assembly import RunPlan
from trainyard.backends.results import RESULT_FOLDER
from trainyard.backends.trl.distributed import join_ranks
from trainyard.backends.trl.loading import pick_device
from trainyard.compute.child import Events, Stopped
from trainyard.compute.rank_process import RANKS_FOLDER
from trainyard.errors import TrainyardError, from_fields
from trainyard.json_types import JsonObject
from trainyard.spec.axes.devices import Precision
from trainyard.stores.whole import write_folder
from trainyard.train.contracts import Head
from trainyard.train.parallel.islands import divide_team
from trainyard.train.parallel.session import END, SharedSession, serve
from trainyard.train.parallel.team import LEADER, Team


def train(folder: Path, events: Events) -> None:
    """This process's part of the job of `folder/spec.json`."""
    job = read_job(folder)
    device = pick_device(job.config.device)
    with join_ranks(folder, device) as team:
        launch = job.config.launch
        crew = divide_team(team, launch.islands)
        others = range(launch.local_processes, launch.processes, launch.local_processes)
        if crew.leading:
            with sending_outcome(crew, folder, others), leading(crew):
                program.train(folder, events, crew)
        else:
            follow(read_job(folder), folder, events, crew, device)
            if crew.rank in others:
                receive_outcome(crew, folder)


@contextmanager
def leading(team: Team) -> Iterator[None]:
    """Let the other ranks go when the block ends in a way that they can know of."""
    try:
        yield
    except (Stopped, TrainyardError):
        if not team.broken:
            team.broadcast_command(END)
            team.close()
        raise
    team.broadcast_command(END)
    team.close()


def follow(own: TrainingJob, folder: Path, events: Events, team: Team, device: str) -> None:
    """Load what rank 0 has loaded, and carry out its commands until the last one. `own` is the job of this host."""
    word, arguments = team.receive_command()
    if word == END:
        return
    job = TrainingJob.model_validate({**arguments[0], "base": own.base, "adapter": own.adapter})
    assembly.set_determinism(job)
    tokenizer = assembly.load_tokenizer(job, events)
    policy = assembly.make_policy(job, device, events, tokenizer)
    word, arguments = team.receive_command()
    if word == END:
        return
    sent = arguments[0]
    plan = RunPlan(sent["total_steps"], Precision(sent["precision"]), Head(sent["head"]), sent["ends"])
    location = (device, folder / RANKS_FOLDER / str(team.rank))
    session = assembly.open_session(job, policy, tokenizer, plan, location=location, team=team)
    policy.reference = None  # the session has it, and drops it on command
    assert isinstance(session, SharedSession)
    serve(session)


# Several hosts


@contextmanager
def sending_outcome(team: Team, folder: Path, ranks: range) -> Iterator[None]:
    """Send what a training came to, to the first rank of every other host: its result, or why there is none."""
    outcome: JsonObject | None = None
    try:
        yield
        outcome = {"status": "done"}
    except Stopped as stopped:
        outcome = {"status": "stopped", "reason": stopped.reason}
        raise
    except TrainyardError as error:
        outcome = {"status": "failed", "error": {"kind": type(error).__name__, **error.as_dict()}}
        raise
    finally:
        if outcome is not None and not team.broken:
            files = read_files(folder / RESULT_FOLDER) if ranks and outcome["status"] == "done" else {}
            for rank in ranks:
                team.send({**outcome, "files": files}, rank)


def read_files(folder: Path) -> dict[str, torch.Tensor]:
    """Return the bytes of every file by its path in a folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
        for path in paths
    }


def receive_outcome(team: Team, folder: Path) -> None:
    """Write the result of the first host here, too. Raises what ended the training there."""
    outcome = team.receive(LEADER)
    if outcome["status"] == "stopped":
        raise Stopped(outcome["reason"])
    if outcome["status"] == "failed":
        raise from_fields(outcome["error"])

    def fill(target: Path) -> None:
        for name, data_N in outcome["files"].items():
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data_N.numpy().tobytes())

    write_folder(folder / RESULT_FOLDER, fill)
