"""Processes of a distributed native training: rank 0 runs the program, the other ranks follow it.

The first prepares the data, decides and loops, exactly as one process does. The others load the same model, open their
side of the session, and carry out its commands; they never see the data.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainyard.backends.frame import read_job
from trainyard.backends.job import TrainingJob
from trainyard.backends.native import assembly, program
from trainyard.backends.native.assembly import RunPlan
from trainyard.backends.trl.distributed import join_ranks
from trainyard.backends.trl.loading import pick_device
from trainyard.compute.child import Events, Stopped
from trainyard.compute.rank_process import RANKS_FOLDER
from trainyard.errors import TrainyardError
from trainyard.spec.axes.devices import Precision
from trainyard.train.contracts import Head
from trainyard.train.parallel.islands import divide_team
from trainyard.train.parallel.session import END, SharedSession, serve
from trainyard.train.parallel.team import Team


def train(folder: Path, events: Events) -> None:
    """This process's part of the job of `folder/spec.json`."""
    job = read_job(folder)
    device = pick_device(job.config.device)
    with join_ranks(folder, device) as team:
        crew = divide_team(team, job.config.launch.islands)
        if crew.leading:
            with leading(crew):
                program.train(folder, events, crew)
        else:
            follow(folder, events, crew, device)


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


def follow(folder: Path, events: Events, team: Team, device: str) -> None:
    """Load what rank 0 has loaded, and carry out its commands until the last one."""
    word, arguments = team.receive_command()
    if word == END:
        return
    job = TrainingJob.model_validate(arguments[0])
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
