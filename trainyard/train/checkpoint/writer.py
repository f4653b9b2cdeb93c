"""Checkpoints that training hardly waits for, and that exist whole and verified or not at all.

`save` copies the tensors into host memory, or on a GPU that has the room, and returns; a background thread checks
them, writes and hashes the file, syncs, renames, copies to the mirror and only then removes old checkpoints.
Training waits for that copy, and for an unfinished save if two are under way already.

    step-0000000120/
        state.safetensors   every tensor that decides the next number
        state.json          {"format": 1, "step": 120, "values": {...}}
        manifest.json       {"files": {name: {sha256, bytes}}, "step": 120, "metric": null}, written last
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import torch
from safetensors.torch import load, load_file

from trainyard.callbacks import ignore
from trainyard.errors import Corrupt
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.stores.whole import Described
from trainyard.train.checkpoint.checkpoints import (
    Best,
    checkpoints,
    commit,
    drop,
    find_damage,
    list_prunable,
    read_metric,
)
from trainyard.train.checkpoint.host_buffer import HostBuffer, fits_in_memory, require_finite, sum_bytes
from trainyard.train.checkpoint.mirror import Mirror, find_newest
from trainyard.train.checkpoint.streams import Sealer, is_sealed, read_bytes, write_bytes

__all__ = ["CheckpointWriter", "Staged", "find_newest", "load_checkpoint"]

TENSORS_FILE, STATE_FILE = "state.safetensors", "state.json"
FORMAT = 1
BUFFERS = 2
"""One is written while the next is filled."""


@dataclass(frozen=True)
class Staged:
    """Cost of a save to the training; the rest happens behind its back."""

    step: int
    bytes: int
    blocked_s: float
    """All the time that training waited, of which …"""
    waited_s: float
    """… for an earlier save that was not finished."""


class CheckpointWriter:
    """Writes the checkpoints of one run under `root`; keeps the newest `keep` and the `keep_best` best by their metric.

    `mirror` is the address of an object store that gets a copy of each: a folder for this run alone, since whatever is
    newest in it is what `find_newest` would continue from. `at` gets every point that is passed (`checkpoint.written`,
    `.synced`, `.manifest`, `.replaced`, `.renamed`, `.mirrored`), `report` gets one record {tier, step, path, bytes,
    seconds, …} per checkpoint and tier; both are called from background threads.

    An error in the thread that writes (`E-DISK-FULL`, `E-NON-FINITE`) is raised by the next `save`, `wait` or
    `close`. Tensors whose names begin with one of `may_overflow` pass the gate as they are: gradients that a scaler
    will skip.
    """

    def __init__(
        self,
        root: Path,
        *,
        keep: int = 2,
        mirror: str | None = None,
        at: Callable[[str], None] = ignore,
        report: Callable[[JsonObject], None] = ignore,
        best: Best = min,
        keep_best: int = 1,
        may_overflow: tuple[str, ...] = (),
    ) -> None:
        self.sealer: Sealer | None = None
        """With one both files are encrypted; the manifest is over the encrypted bytes."""
        self.root, self.keep, self.best, self.may_overflow = root, keep, best, may_overflow
        self.keep_best = keep_best
        retention: JsonObject = {"keep": keep, "best": best, "keep_best": keep_best}
        self.mirror = Mirror(mirror, **retention, at=at, report=report) if mirror else None
        self._at, self._report = at, report
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._free: list[HostBuffer] = []
        self._pending: deque[tuple[Future[None], HostBuffer]] = deque()

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def reserve(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take the memory for saves of this size now, so that the first one does not pay for it."""
        if not self._free and not self._pending:
            self._free.append(HostBuffer())
            self._free[0].reserve(sum_bytes(tensors), pinned=any(value.is_cuda for value in tensors.values()))

    def save(
        self,
        step: int,
        tensors: Mapping[str, torch.Tensor],
        values: JsonMapping,
        *,
        metric: float | None = None,
    ) -> Staged:
        """Copy the state and have it written; when this returns, the tensors may change.

        `values` is plain JSON (NaN and infinity included); it must not change afterwards, for the background
        thread reads it. A checkpoint of the same step is replaced.
        """
        started = time.perf_counter()
        buffer = self._take_buffer(sum_bytes(tensors))
        waited_s = time.perf_counter() - started
        buffer.stage(tensors)
        written = self._executor.submit(self._write, buffer, step, values, metric)
        self._pending.append((written, buffer))
        return Staged(step, buffer.layout.size, time.perf_counter() - started, waited_s)

    def wait(self) -> None:
        """Return when everything that was saved is on the disk (and in the mirror)."""
        while self._pending:
            self._collect()
        if self.mirror is not None:
            self.mirror.wait()
            self._prune()

    def close(self) -> None:
        """`wait`, and end the threads. Nothing can be saved afterwards."""
        try:
            self.wait()
        finally:
            self._executor.shutdown()
            if self.mirror is not None:
                self.mirror.close()
            self._free.clear()

    def _take_buffer(self, size: int) -> HostBuffer:
        while self._pending and self._pending[0][0].done():
            self._collect()
        if not self._free and len(self._pending) < BUFFERS and (not self._pending or fits_in_memory(size)):
            return HostBuffer()
        if not self._free:
            self._collect()
        return self._free.pop()

    def _collect(self) -> None:
        future, buffer = self._pending.popleft()
        self._free.append(buffer)
        future.result()

    def _write(self, buffer: HostBuffer, step: int, values: JsonMapping, metric: float | None) -> None:
        """Device -> host memory -> disk -> mirror, then prune both. Runs in the background thread."""
        started = time.perf_counter()
        buffer.settle()
        text = json.dumps({"format": FORMAT, "step": step, "values": values}).encode()
        gated = {name: value for name, value in buffer.tensors().items() if not name.startswith(self.may_overflow)}
        require_finite(gated, step)

        def write(folder: Path) -> Described:
            digests = {TENSORS_FILE: buffer.write(folder / TENSORS_FILE, self.sealer)}
            digests[STATE_FILE] = write_bytes(folder / STATE_FILE, text, self.sealer)
            return {
                name: {"sha256": digest, "bytes": (folder / name).stat().st_size} for name, digest in digests.items()
            }

        facts = {"step": step, "metric": metric}
        path = commit(self.root, step, write, at=self._at, keep=None, facts=facts)
        size = sum(file.stat().st_size for file in path.iterdir())
        seconds = round(time.perf_counter() - started, 3)
        self._report({"tier": "disk", "path": str(path), "bytes": size, "seconds": seconds, **facts})
        if self.mirror is not None:
            self.mirror.send(path, step)
        self._prune()

    def _prune(self) -> None:
        """Return the step being mirrored, which stays until the next checkpoint exists."""
        busy = self.mirror.busy if self.mirror is not None else set()
        folders = {step: path for path, step in checkpoints(self.root)}
        metrics = {step: read_metric(path) for step, path in folders.items()}
        for step in list_prunable(metrics, self.keep, self.best, self.keep_best):
            if step not in busy:
                drop(folders[step])


def load_checkpoint(
    path: Path, *, verify: bool = True, sealer: Sealer | None = None
) -> tuple[dict[str, torch.Tensor], JsonObject]:
    """Tensors (on the CPU) and values of a checkpoint, its SHA-256 verified before anything is read.

    `verify=False` is for a path that `find_newest` has verified just now. Raises `Corrupt`: `E-CHECKPOINT-CORRUPT`, or
    `E-CHECKPOINT-MISMATCH` for one that another version or another backend wrote.
    """
    damage = find_damage(path) if verify else None
    if damage is not None:
        raise Corrupt(
            f"The checkpoint {path.name} is damaged: {damage}.",
            why="A file was changed, cut or removed after it was written.",
            do="Start the run again: it continues from the newest checkpoint that is whole.",
            code="E-CHECKPOINT-CORRUPT",
        )
    state = json.loads(read_bytes(path / STATE_FILE, sealer)) if (path / STATE_FILE).is_file() else {}
    if state.get("format") != FORMAT or not (path / TENSORS_FILE).is_file():
        raise Corrupt(
            f"The checkpoint {path.name} has format {state.get('format')}; this version reads format {FORMAT}.",
            why="Another version of the program or another backend wrote it.",
            do="Continue with the version that wrote it, or move it away to start from zero.",
            code="E-CHECKPOINT-MISMATCH",
        )
    if is_sealed(path / TENSORS_FILE):
        return load(read_bytes(path / TENSORS_FILE, sealer)), state["values"]
    # Read, not mapped: the file may be pruned, or the disk fail, while the run still uses what came from it.
    return load_file(path / TENSORS_FILE, backend="pread"), state["values"]
