"""What a program in a tool's own interpreter needs of us: its plan, the event file, whole checkpoints, an honest end.

Imports nothing but the standard library, `orjson` and our contract, so that it runs in any environment.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import orjson

from trainyard.backends.foreign import names
from trainyard.compute.child import EVENTS_FILE, PR_SET_PDEATHSIG, SPEC_FILE, crash_error, prctl
from trainyard.compute.rank import LOST
from trainyard.errors import TrainyardError

CHECKPOINT_FOLDER, MANIFEST, KEPT = "checkpoints", "manifest.json", 2
CHECKPOINT_NAME = re.compile(r"step-(\d{10})")
TOKENS_FILE = "tokens.jsonl"
LOST_CODE = "E-RANK-LOST"


class StopFlag:
    """Set by SIGTERM or SIGINT; looked at between two steps."""

    def __init__(self) -> None:
        self.raised = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def _note(self, _signal: int, _frame: FrameType | None) -> None:
        self.raised = True


def tie_to_parent() -> None:
    """End with the process that started this one: nobody else would free the device."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Desk:
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
        """Append one event as one write, beside the conductor that appends to the same file."""
        line = orjson.dumps(
            {"event": event, "time": time.time(), **fields}, default=str, option=orjson.OPT_APPEND_NEWLINE
        )
        descriptor = os.open(self.folder / EVENTS_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(descriptor, line)
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

    def halt(self, step: int) -> None:
        """Say that the work stopped at a step, everything saved."""
        write_whole(self.folder / names.HALT_FILE, {"step": step})

    def made(self) -> Path:
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


def guarded(folder: Path, work: Callable[[], None]) -> None:
    """Run the work of a tool's process; an error is left in `failure.json` for the conductor, once."""
    try:
        work()
    except Exception as error:
        traceback.print_exc()
        fail(folder, in_words(error))


def load(engine: str) -> Callable[[Path, StopFlag], None]:
    """The `train` of an engine, whose imports take up to ten seconds."""
    train: Callable[[Path, StopFlag], None] = import_module(engine).train
    return train


def train_with(engine: str, folder: Path) -> None:
    """Train the job of a folder. A SIGTERM during the slow imports is a stop request like any other."""
    tie_to_parent()
    stop = StopFlag()
    guarded(folder, lambda: load(engine)(folder, stop))


def in_words(error: Exception) -> TrainyardError:
    """An error of a tool as one of ours: its own, a full memory, or that another process is gone."""
    text = str(error)
    if isinstance(error, TrainyardError):
        return error
    if "out of memory" in text.lower():
        return TrainyardError(
            "The device ran out of memory.",
            why=text.splitlines()[0],
            do="Lower batch_size or max_length, or set gradient_checkpointing: true.",
            code="E-DEVICE-MEMORY",
        )
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and any(word in text for word in LOST):
        return TrainyardError(
            f"One of the {os.environ['WORLD_SIZE']} processes of the training is gone.",
            why="It was ended from outside, perhaps because the memory did not suffice for all of them.",
            do="Look into the log; with less memory, use fewer processes or a smaller batch_size.",
            code=LOST_CODE,
        )
    return crash_error(error)


def fail(folder: Path, error: TrainyardError) -> None:
    """Leave the error for the conductor and end.

    The first process that fails tells the cause; that another one is gone is only told where nobody knows more.
    """
    path = folder / names.FAILURE_FILE
    if not path.exists() or orjson.loads(path.read_bytes())["code"] == LOST_CODE:
        write_whole(path, {"kind": type(error).__name__, **error.as_dict()})
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)  # other ranks may wait in a collective operation; an orderly exit would wait for them


def require_finite(step: int, loss: float) -> None:
    """Raise `TrainyardError` (`E-LOSS-NONFINITE`)."""
    if not math.isfinite(loss):
        raise TrainyardError(
            f"The loss of step {step} is {loss}.",
            why="The weights left the range of numbers: usually the learning rate is too high for this data.",
            do="Lower hyperparameters.learning_rate, or use precision: fp32.",
            code="E-LOSS-NONFINITE",
        )
