"""What a worker reads and leaves in the folder of a job: its plan, the event file, whole checkpoints, its result."""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import orjson

from . import names
from .contract import EVENTS_FILE, SPEC_FILE, event_line, open_events
from .failures import WorkerError, nonfinite_loss

CHECKPOINT_FOLDER, MANIFEST, KEPT = "checkpoints", "manifest.json", 2
CHECKPOINT_NAME = re.compile(r"step-(\d{10})")
TOKENS_FILE = "tokens.jsonl"


class StopFlag:
    """Set by SIGTERM or SIGINT; looked at between two steps."""

    def __init__(self) -> None:
        self.raised = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def _note(self, _signal: int, _frame: FrameType | None) -> None:
        self.raised = True


class WorkerFiles:
    """The files of one job, as its program sees them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spec: dict[str, Any] = orjson.loads((folder / SPEC_FILE).read_bytes())
        self.place = folder / names.PLAN_FOLDER
        self.plan: dict[str, Any] = orjson.loads((self.place / names.PLAN_FILE).read_bytes())
        self.resume: dict[str, Any] = orjson.loads((self.place / names.RESUME_FILE).read_bytes())
        self.config: dict[str, Any] = self.spec["config"]
        self.hyper: dict[str, Any] = self.config["hyperparameters"]
        self.started = time.monotonic()

    def emit(self, event: str, **fields: Any) -> None:
        """Append one event as one write, next to the runner that appends to the same file."""
        descriptor = open_events(self.folder / EVENTS_FILE)
        try:
            os.write(descriptor, event_line(event, fields))
        finally:
            os.close(descriptor)

    def examples(self) -> list[dict[str, list[int]]]:
        """Token ids and labels of every row."""
        with (self.folder / TOKENS_FILE).open("rb") as stream:
            return [orjson.loads(line) for line in stream]

    def steps(self, first: int) -> Iterator[dict[str, Any]]:
        """{rate, rows} of the optimizer steps from number `first` (counted from 0) on."""
        with (self.place / names.STEPS_FILE).open("rb") as stream:
            for number, line in enumerate(stream):
                if number >= first:
                    yield orjson.loads(line)

    def progress(self, step: int, loss: float, rate: float, **more: Any) -> None:
        total, per_epoch = self.plan["total_steps"], self.plan["steps_per_epoch"]
        self.emit(
            "progress",
            step=step,
            total_steps=total,
            epoch=round(step / per_epoch, 4),
            total_epochs=round(total / per_epoch, 4),
            loss=loss,
            learning_rate=rate,
            seconds=round(time.monotonic() - self.started, 3),
            **more,
        )

    def begin(self, **facts: Any) -> None:
        """Tell how the run starts; `restarted_from` is None, {step} or "zero"."""
        total = self.plan["total_steps"]
        restarted = self.resume["restarted_from"]
        epochs = round(total / self.plan["steps_per_epoch"], 4)
        self.emit("begin", restarted_from=restarted, total_steps=total, total_epochs=epochs, **facts)

    def report_stopped(self, step: int) -> None:
        """Say that the work stopped at a step, everything saved."""
        write_whole(self.folder / names.HALT_FILE, {"step": step})

    def output_dir(self) -> Path:
        """An empty folder for the weights."""
        place = self.folder / names.MADE_FOLDER
        shutil.rmtree(place, ignore_errors=True)
        (place / "weights").mkdir(parents=True)
        return place / "weights"

    def report(self, **facts: Any) -> None:
        """Written last: the weights are whole then."""
        write_whole(self.folder / names.MADE_FOLDER / names.REPORT_FILE, facts)


def write_whole(path: Path, value: Any) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as stream:
        stream.write(orjson.dumps(value, default=str))
        stream.flush()
        os.fsync(stream.fileno())
    temporary.rename(path)


# Checkpoints, in the form that `train.checkpoints` verifies: a manifest with the digest of every file, then a rename


def checkpoint_places(folder: Path, step: int) -> tuple[Path, Path]:
    """(temporary, final) folder of the checkpoint of a step."""
    root = folder / CHECKPOINT_FOLDER
    final = root / f"step-{step:010d}"
    return root / f".{final.name}.tmp", final


def commit(folder: Path, step: int, facts: dict[str, Any]) -> dict[str, Any]:
    """Seal the temporary folder of a step, make it the checkpoint and keep the newest two. Returns its facts."""
    temporary, final = checkpoint_places(folder, step)
    files = {}
    for path in sorted(one for one in temporary.rglob("*") if one.is_file()):
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            os.fsync(stream.fileno())
        files[path.relative_to(temporary).as_posix()] = {"sha256": digest, "bytes": path.stat().st_size}
    write_whole(temporary / MANIFEST, {**facts, "files": files})
    shutil.rmtree(final, ignore_errors=True)
    temporary.rename(final)
    descriptor = os.open(final.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    present = sorted((path for path in final.parent.iterdir() if CHECKPOINT_NAME.fullmatch(path.name)), reverse=True)
    for path in present[KEPT:]:
        shutil.rmtree(path)
    return {"step": step, "path": str(final), "bytes": sum(entry["bytes"] for entry in files.values())}


def require_finite(step: int, loss: float) -> None:
    """Raise `WorkerError` (`E-NON-FINITE`)."""
    if not math.isfinite(loss):
        raise WorkerError(**nonfinite_loss(step, loss))
