"""Work folders that an earlier version named, so that a training which it paused continues.

A work folder is named by the digest of its job, and a version that adds a setting computes another digest for the same
training. The folder contains the job (`spec.json`), so the name that this version gives it can be computed. Checkpoints
name the digest of their config: those of earlier versions are listed in `earlier.json`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson
from pydantic import ValidationError

from trainyard.backends.job import TrainingJob
from trainyard.compute.child import SPEC_FILE
from trainyard.compute.lease import device_lock
from trainyard.settings import Settings
from trainyard.spec.chain import digest
from trainyard.stores.artifacts import write_json_durably
from trainyard.stores.whole import fsync_path

EARLIER_FILE = "earlier.json"


def work_folders_of_earlier_versions(trainings: Path) -> Iterator[tuple[Path, Path]]:
    """(folder, folder as this version names it) for each work folder whose name would be another one today."""
    for spec in sorted(trainings.glob(f"*/{SPEC_FILE}")):
        try:
            job = TrainingJob.model_validate_json(spec.read_bytes())
        except ValidationError:  # of a training that this version cannot carry out
            continue
        today = trainings / job.digest[: len(spec.parent.name)]
        if today != spec.parent and not today.exists():
            yield spec.parent, today


def adopt_earlier_work(place: Path, settings: Settings) -> Path | None:
    """Give the work folder of an earlier version the name `place`, if there is one; returns what it was called.

    Raises `Conflict` while a process of that version works there.
    """
    if place.exists():
        return None
    for earlier, today in work_folders_of_earlier_versions(place.parent):
        if today == place:
            return rename_work_folder(earlier, today, settings)
    return None


def rename_work_folder(earlier: Path, today: Path, settings: Settings) -> Path:
    with device_lock(settings.services / "works" / f"{earlier.name}.lock", run="", wait_s=0):
        config = orjson.loads((earlier / SPEC_FILE).read_bytes())["config"]
        write_json_durably(earlier / EARLIER_FILE, {"configs": [*earlier_configs(earlier), digest(config)]})
        earlier.rename(today)
        fsync_path(today.parent)
    return earlier


def earlier_configs(work: Path) -> list[str]:
    """Digests that earlier versions gave to the config of this work folder's job."""
    path = work / EARLIER_FILE
    return list(orjson.loads(path.read_bytes())["configs"]) if path.is_file() else []
