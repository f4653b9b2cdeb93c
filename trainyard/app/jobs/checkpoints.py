"""The checkpoints of a job's trainers, and whether their bytes are those that were written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from trainyard.app.context import Context
from trainyard.app.live.trainings import find_trainings
from trainyard.app.names import find_job
from trainyard.app.responses import Response
from trainyard.backends.job import TrainingJob, mirror_folder
from trainyard.backends.results import BEST_FOLDER, CHECKPOINT_FOLDER
from trainyard.compute.child import SPEC_FILE
from trainyard.errors import Corrupt, NotFound
from trainyard.json_types import JsonObject
from trainyard.operations import jobs as requests
from trainyard.stores.live.job_index import Row
from trainyard.stores.whole import MANIFEST, file_sha256
from trainyard.train.checkpoint.checkpoints import checkpoints, find_damage, read_metric


class Checkpoint(Response):
    """A checkpoint, as its manifest describes it; its files are not read."""

    node: str
    name: str
    step: int
    created: float | None
    """When it was complete (seconds of the epoch)."""
    files: int
    bytes: int
    metric: float | None
    """Metric by which the best ones are kept."""
    sha256: str
    """Of its manifest, which has the SHA-256 of each file; empty where it cannot be read."""


class CheckpointList(Response):
    id: str
    checkpoints: tuple[Checkpoint, ...]
    """Of each trainer the newest first. Of a training that has finished, those in its `checkpoint_dir`
    (`engine.mirror`), and its best ones where `eval.keep_best` is above 1."""


class VerifiedCheckpoint(Response):
    node: str
    name: str
    step: int
    damage: str
    """The damage; empty if every file has the bytes that were written."""


class VerifiedCheckpoints(Response):
    id: str
    checkpoints: tuple[VerifiedCheckpoint, ...]

    @property
    def exit_code(self) -> int:
        return Corrupt.exit_code if any(checkpoint.damage for checkpoint in self.checkpoints) else 0


def list_checkpoints(request: requests.CheckpointsInput, context: Context) -> CheckpointList:
    """Return the checkpoints that are there now."""
    row, _ = find_job(request.job, context)
    described = (
        describe_checkpoint(node, path, step) for node, path, step in find_checkpoint_folders(row, request.node)
    )
    return CheckpointList(
        id=row["id"], checkpoints=tuple(checkpoint for checkpoint in described if checkpoint is not None)
    )


def verify_checkpoints(request: requests.VerifyInput, context: Context) -> VerifiedCheckpoints:
    """Read every file of one checkpoint, or of all, and compare it with its manifest.

    Raises `NotFound` (`E-NOT-FOUND`) for a checkpoint that is not there. One that a running training replaces meanwhile
    is left out.
    """
    row, _ = find_job(request.job, context)
    entries = [
        entry for entry in find_checkpoint_folders(row, request.node) if request.checkpoint in (None, entry[1].name)
    ]
    verified = [
        VerifiedCheckpoint(node=node, name=path.name, step=step, damage=damage)
        for node, path, step in entries
        if (damage := find_damage(path) or "") == "" or path.is_dir()
    ]
    if request.checkpoint is not None and not verified:
        raise NotFound(
            f"The job {row['name']} has no checkpoint {request.checkpoint!r}.",
            why="It never had, a newer one has replaced it, or the training has finished.",
            do="Take one of `trainyard jobs checkpoints`.",
            code="E-NOT-FOUND",
        )
    return VerifiedCheckpoints(id=row["id"], checkpoints=tuple(verified))


def find_checkpoint_folders(row: Row, node: str | None) -> Iterator[tuple[str, Path, int]]:
    """(trainer, folder, step) of each checkpoint of a job, or of one trainer of it."""
    for work in find_trainings(row):
        if node in (None, work.node):
            yield from ((work.node, path, step) for path, step in find_checkpoints(work.folder))


def find_checkpoints(work: Path) -> list[tuple[Path, int]]:
    """Return the checkpoints of a training, the newest first: in its work folder, and those of its mirror that it has
    not.
    """
    paths = {step: path for root in checkpoint_roots(work) for path, step in checkpoints(root)}
    return [(paths[step], step) for step in sorted(paths, reverse=True)]


def checkpoint_roots(work: Path) -> Iterator[Path]:
    """Yield the folders that may contain checkpoints of a training; the last one with a step is the one that counts."""
    with suppress(OSError, ValueError):  # no job was written, or one of another release
        job = TrainingJob.model_validate_json((work / SPEC_FILE).read_bytes())
        if (mirror := mirror_folder(job)) is not None:
            yield mirror
    yield work / BEST_FOLDER
    yield work / CHECKPOINT_FOLDER


def describe_checkpoint(node: str, path: Path, step: int) -> Checkpoint | None:
    """Return what a manifest says about its checkpoint; None if the checkpoint was removed meanwhile."""
    files: dict[str, JsonObject] = {}
    created, sha256 = None, ""
    try:
        created, sha256 = (path / MANIFEST).stat().st_mtime, file_sha256(path / MANIFEST)
        files = dict(json.loads((path / MANIFEST).read_bytes())["files"])
        num_bytes = sum(int(file["bytes"]) for file in files.values())
    except OSError:
        if not path.is_dir():
            return None
        num_bytes = 0
    except (ValueError, KeyError, TypeError, AttributeError):
        files, num_bytes, sha256 = {}, 0, ""  # damaged: verifying it says so
    return Checkpoint(
        node=node, name=path.name, step=step, created=created, files=len(files), bytes=num_bytes,
        metric=read_metric(path), sha256=sha256,
    )  # fmt: skip
