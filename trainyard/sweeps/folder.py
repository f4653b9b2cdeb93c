"""Files of a sweep on disk.

    sweeps/<name>/
        sweep.json      the sweep as it was requested, and the run that carries it out
        study.db        its trials: an Optuna study in SQLite
        lock            one process at a time carries it out

The trainings themselves are where those of every run are: checkpoints in `runs/training`, results in the artifact
store. Losing the folder of a sweep loses no result.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from trainyard.compute.lease import Holder, device_lock
from trainyard.errors import Conflict, NotFound
from trainyard.settings import Settings
from trainyard.stores.live.job_ids import is_named
from trainyard.stores.schema import add_version, read_versioned
from trainyard.stores.whole import write_json_durably
from trainyard.sweeps.spec import SweepSpec

SWEEP_FILE = "sweep.json"
LOCK_WAIT_S = 30.0
"""A process that was asked to end saves its trainings first."""


class SweepRecord(BaseModel):
    """A sweep as it is stored."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    spec: SweepSpec
    run_id: str = ""
    """The run that carries it out; a run that is continued keeps its id."""
    created: float


def dump_spec(spec: SweepSpec) -> dict[str, object]:
    """The sweep as JSON: of its chain only what was written, so that the best spec reads like the chain's file."""
    return {
        **spec.model_dump(mode="json"),
        "chain": spec.chain.model_dump(mode="json", exclude_unset=True),
    }


def sweep_folder(settings: Settings, name: str) -> Path:
    return settings.sweeps / name


def write_record(settings: Settings, record: SweepRecord) -> None:
    folder = sweep_folder(settings, record.spec.name)
    folder.mkdir(parents=True, exist_ok=True)
    value = {"spec": dump_spec(record.spec), "run_id": record.run_id, "created": record.created}
    write_json_durably(folder / SWEEP_FILE, add_version("sweep", value))


def find_record(settings: Settings, name: str) -> SweepRecord | None:
    path = sweep_folder(settings, name) / SWEEP_FILE
    return SweepRecord.model_validate(read_versioned("sweep", path.read_bytes(), path)) if path.is_file() else None


def read_record(settings: Settings, name: str) -> SweepRecord:
    """Return the sweep of that name, or of the chain of that name where it has only one sweep.

    Raises `NotFound` (`E-NOT-FOUND`).
    """
    record = find_record(settings, name)
    if record is None:
        records = list(list_records(settings))
        named = [entry for entry in records if is_named(name, entry.spec.name)]
        if len(named) == 1:
            return named[0]
        names = ", ".join(entry.spec.name for entry in records)
        why = f"There are: {names}." if names else "There is none yet."
        raise NotFound(f"There is no sweep {name!r}.", why=why, do="List them by `trainyard sweep list`.")
    return record


def list_records(settings: Settings) -> Iterator[SweepRecord]:
    """Yield every sweep, by name."""
    for path in sorted(settings.sweeps.glob(f"*/{SWEEP_FILE}")):
        record = find_record(settings, path.parent.name)
        if record is not None:
            yield record


def sweep_lock(settings: Settings, name: str, run_id: str) -> AbstractContextManager[Holder]:
    """Return the sweep for one process at a time. Raises `Conflict` (`E-DEVICE-BUSY`)."""
    return device_lock(sweep_folder(settings, name) / "lock", run=run_id, wait_s=LOCK_WAIT_S)


def require_same(record: SweepRecord, spec: SweepSpec) -> None:
    """Raise `Conflict` (`E-PARAMETER`) if the name belongs to another sweep."""
    if dump_spec(record.spec) != dump_spec(spec):
        raise Conflict(
            f"There is another sweep {spec.name!r}.",
            why="Its chain, ranges or options are not these, and trials of two sweeps cannot be compared.",
            do=f"Continue it by `trainyard sweep --continue {spec.name}`, or give this one a name by --name.",
            code="E-PARAMETER",
        )
