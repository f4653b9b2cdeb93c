"""Processes of a session that several share: rank 0 answers the calls, the others follow its verbs."""

from __future__ import annotations

from pathlib import Path

from trainyard.backends.native.ranks import follow, leading
from trainyard.backends.native.sessions.program import serve
from trainyard.backends.sessions.running import SessionJob
from trainyard.backends.trl.distributed import join_ranks
from trainyard.backends.trl.loading import pick_device
from trainyard.compute.child import SPEC_FILE, Events
from trainyard.train.parallel.islands import divide_team


def train(folder: Path, events: Events) -> None:
    """This process's part of the session of `folder/spec.json`."""
    job = SessionJob.model_validate_json((folder / SPEC_FILE).read_bytes()).job
    device = pick_device(job.config.device)
    with join_ranks(folder, device) as everyone:
        team = divide_team(everyone, job.config.launch.islands)
        if team.leading:
            with leading(team):
                serve(folder, events, team)
        else:
            follow(job, folder, events, team, device)
