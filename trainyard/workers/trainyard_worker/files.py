"""Files of a worker in the folder of a job: its plan, the event file, whole checkpoints, its result."""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import orjson

from . import names
from .contract import EVENTS_FILE, SPEC_FILE, EventWriter
from .failures import WorkerError, nonfinite_loss

Fields = dict[str, Any]
"""A JSON object, such as a part of the plan or a record."""

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
        self.spec: Fields = orjson.loads((folder / SPEC_FILE).read_bytes())
        self.plan_folder = folder / names.PLAN_FOLDER
        self.plan: Fields = orjson.loads((self.plan_folder / names.PLAN_FILE).read_bytes())
        self.resume: Fields = orjson.loads((self.plan_folder / names.RESUME_FILE).read_bytes())
        self.config: Fields = self.spec["config"]
        self.hyper: Fields = self.config["hyperparameters"]
        self.started = time.monotonic()
        self.emit = EventWriter(folder / EVENTS_FILE).emit
        """Appends one event to the file to which the runner appends, too."""

    def examples(self) -> list[dict[str, list[int]]]:
        """Token ids and labels of every row."""
        with (self.folder / TOKENS_FILE).open("rb") as stream:
            return [orjson.loads(line) for line in stream]

    def steps(self, first: int) -> Iterator[Fields]:
        """{rate, rows} of the optimizer steps from number `first` (counted from 0) on."""
        with (self.plan_folder / names.STEPS_FILE).open("rb") as stream:
            for number, line in enumerate(stream):
                if number >= first:
                    yield orjson.loads(line)

    def precision(self, is_bf16_supported: Callable[..., bool]) -> dict[str, str]:
        """{precision, precision_why}: what was asked for; on a GPU bf16, or fp16 where bf16 is emulated; else fp32.

        `is_bf16_supported` is torch's, which counts emulation as support by default.
        """
        requested, device = str(self.hyper["precision"]), self.plan["device"]
        if requested != "auto":
            return {"precision": requested, "precision_why": "asked for"}
        if device != "cuda":
            return {"precision": "fp32", "precision_why": f"the default on {device}"}
        if is_bf16_supported(including_emulation=False):
            return {"precision": "bf16", "precision_why": "native on this device"}
        return {"precision": "fp16", "precision_why": "this device has no native bf16; fp16 with a loss scale instead"}

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
        """Report how the run starts; `restarted_from` is None, {step} or "zero"."""
        total = self.plan["total_steps"]
        restarted = self.resume["restarted_from"]
        epochs = round(total / self.plan["steps_per_epoch"], 4)
        self.emit("begin", restarted_from=restarted, total_steps=total, total_epochs=epochs, **facts)

    def report_stopped(self, step: int) -> None:
        """Say that the work stopped at a step, everything saved."""
        write_whole(self.folder / names.HALT_FILE, {"step": step})

    def output_dir(self) -> Path:
        """An empty folder for the weights."""
        output = self.folder / names.MADE_FOLDER
        shutil.rmtree(output, ignore_errors=True)
        (output / "weights").mkdir(parents=True)
        return output / "weights"

    def report(self, **facts: Any) -> None:
        """Written last: the weights are whole then."""
        write_whole(self.folder / names.MADE_FOLDER / names.REPORT_FILE, facts)


def flush(path: Path) -> None:
    """Flush the bytes of a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, value: Any) -> None:
    """Replace a JSON file durably: a reader sees the old text or the new one, never a half."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(orjson.dumps(value, default=str))
    flush(temporary)
    temporary.rename(path)
    flush(path.parent)


# Checkpoints. This is `stores.whole.write_folder` for the one case of a worker, in another interpreter: it has neither
# the error classes of the package nor its `Files`. A shared module would have to live here, where `stores` may not
# import it. `tests/unit/backends/test_worker_checkpoints.py` compares the two: manifest, flushes and exchange.


def checkpoint_places(folder: Path, step: int) -> tuple[Path, Path]:
    """(temporary, final) folder of the checkpoint of a step."""
    root = folder / CHECKPOINT_FOLDER
    final = root / f"step-{step:010d}"
    return root / f".{final.name}.tmp", final


def empty_checkpoint(folder: Path, step: int) -> Path:
    """The temporary folder of a step, empty."""
    temporary, _ = checkpoint_places(folder, step)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    return temporary


def commit(folder: Path, step: int, facts: Fields) -> Fields:
    """Seal the temporary folder of a step, make it the checkpoint and keep the newest two. Returns its facts."""
    temporary, final = checkpoint_places(folder, step)
    replaced = final.with_name(f".{final.name}.replaced")
    files = {}
    for path in sorted(temporary.rglob("*"), reverse=True):  # the deepest first
        if path.is_file():
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            files[path.relative_to(temporary).as_posix()] = {"sha256": digest, "bytes": path.stat().st_size}
        flush(path)
    write_whole(temporary / MANIFEST, {**facts, "files": files})
    if final.exists():
        final.rename(replaced)
    temporary.rename(final)
    flush(final.parent)
    shutil.rmtree(replaced, ignore_errors=True)
    present = sorted((path for path in final.parent.iterdir() if CHECKPOINT_NAME.fullmatch(path.name)), reverse=True)
    for path in present[KEPT:]:
        shutil.rmtree(path)
    return {"step": step, "path": str(final), "bytes": sum(entry["bytes"] for entry in files.values())}


def require_finite(step: int, loss: float) -> None:
    """Raise `WorkerError` (`E-NON-FINITE`)."""
    if not math.isfinite(loss):
        raise WorkerError(**nonfinite_loss(step, loss))
