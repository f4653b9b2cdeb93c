"""Checkpoints on disk: a checkpoint exists whole and verified, or does not exist. Retention: the newest and the best.

Written to a temporary folder, every file fsynced, `manifest.json` with the SHA-256 of each last, then renamed and the
parent fsynced. A resumed run takes the newest one whose files match their manifest; one that does not match is
quarantined (never deleted, never loaded) and reported.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainyard.callbacks import ignore
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.stores import whole
from trainyard.stores.files import DISK, Files
from trainyard.stores.whole import MANIFEST, NO_FACTS, REPLACED, Described, flush_name

Best = Callable[[Iterable[float]], float]
"""`min` for a loss, `max` for an accuracy."""


def list_prunable(metrics: Mapping[int, float | None], keep: int, best: Best, keep_best: int = 1) -> list[int]:
    """Of step -> metric: the steps that are neither among the newest `keep` nor among the best `keep_best`."""
    measured = {step: metric for step, metric in metrics.items() if metric is not None}
    best_steps = list_best(measured, best)[:keep_best]
    return [step for step in sorted(metrics, reverse=True)[keep:] if step not in best_steps]


def list_best(metrics: Mapping[int, float], best: Best) -> list[int]:
    """Return the steps, the best one first; of equal ones the earliest, which has learned no less from less."""
    falling = best((0.0, 1.0)) > 0
    return sorted(metrics, key=lambda step: (-metrics[step] if falling else metrics[step], step))


def read_metric(folder: Path) -> float | None:
    """Return the metric in a checkpoint's manifest; None without one, if it cannot be compared, or cannot be read.

    A damaged manifest is found, reported and quarantined at the next start; it must not end a running training.
    """
    try:
        manifest: JsonObject = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        metric = manifest.get("metric")
    except (OSError, ValueError, AttributeError):
        return None
    return float(metric) if isinstance(metric, int | float) and math.isfinite(metric) else None


KEPT = 2
NAME = re.compile(r"step-(\d{10})")
QUARANTINE = "quarantine"


@dataclass(frozen=True)
class FoundCheckpoint:
    """The newest valid checkpoint, and the damaged ones that were quarantined on the way to it."""

    path: Path | None
    step: int
    quarantined: tuple[str, ...] = ()
    """One sentence for each checkpoint that was found damaged."""
    fetched_from: str = ""
    """Address of the mirror that it was brought from; empty if it was here."""


def commit(
    root: Path,
    step: int,
    write: Callable[[Path], Described | None],
    *,
    at: Callable[[str], None] = ignore,
    keep: int | None = KEPT,
    facts: JsonMapping = NO_FACTS,
    files: Files = DISK,
) -> Path:
    """Write a checkpoint by `write(folder)` and make it exist; keep the newest `keep` (None: prune nothing).

    A `write` that hashed what it wrote returns the digests, as `describe_files` does, and nothing is read again.
    `facts` go into the manifest. `at` gets each point that is passed (`checkpoint.written`, `.synced`, `.manifest`,
    `.replaced` where there was one of that step, `.renamed`): a test kills the process there. Raises `E-DISK-FULL`
    without leaving anything behind.
    """
    final = root / f"step-{step:010d}"
    whole.write_folder(final, write, facts=facts, at=lambda point: at(f"checkpoint.{point}"), files=files)
    if keep is not None:
        for path, _ in checkpoints(root, files)[keep:]:
            drop(path, files)
    return final


def drop(path: Path, files: Files = DISK) -> None:
    """Remove a checkpoint that is not needed any more: by its name first, so that a half of it is never found."""
    going = path.with_name(f".{path.name}.{os.getpid()}.old.tmp")
    files.rename_noreplace(path, going)
    files.fsync_folder(path.parent)
    whole.remove_folder(files, going)


def require_space(folder: Path, needed: int) -> None:
    """Refuse to start what cannot be saved. Raises `E-DISK-FULL`."""
    folder.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(folder).free < needed:
        raise whole.disk_full(folder, needed)


def checkpoints(root: Path, files: Files = DISK) -> list[tuple[Path, int]]:
    """Committed checkpoints and their steps, newest first."""
    if not files.is_folder(root):
        return []
    checkpoints_here = [(root / name, int(match[1])) for name in files.listdir(root) if (match := NAME.fullmatch(name))]
    return sorted(checkpoints_here, key=lambda pair: pair[1], reverse=True)


def newest_valid(root: Path, files: Files = DISK) -> FoundCheckpoint:
    """Return the newest checkpoint whose bytes match its manifest. Damaged ones move to `quarantine/`; leftovers go.

    What is found survives a power cut: its name is flushed again, for its writer may have died before it did.
    """
    tidy(root, files)
    aside: list[str] = []
    for path, step in checkpoints(root, files):
        damage = find_damage(path, files)
        if damage is None:
            flush_name(files, path)
            return FoundCheckpoint(path, step, tuple(aside))
        aside.append(f"The checkpoint of step {step} is damaged ({damage}) and was quarantined.")
        quarantine(root, path, files)
    return FoundCheckpoint(None, 0, tuple(aside))


def tidy(root: Path, files: Files = DISK) -> None:
    """Remove what a killed process left half-written; put back what it was about to replace."""
    for name in files.listdir(root) if files.is_folder(root) else ():
        if name.startswith(".step-") and name.endswith(".tmp"):
            whole.remove_folder(files, root / name)
        elif name.startswith(".step-") and name.endswith(REPLACED):
            whole.finish_exchange(files, root / name, root / name.removeprefix(".").removesuffix(REPLACED))


def find_damage(folder: Path, files: Files = DISK) -> str | None:
    """Return the problem of a checkpoint; None if every file matches its manifest."""
    try:
        expected = dict(json.loads(files.read(folder / MANIFEST))["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return "its manifest cannot be read"
    present = whole.describe(files, folder)
    for name in sorted(expected.keys() | present.keys()):
        if name not in present:
            return f"{name} is missing"
        if name not in expected:
            return f"{name} is not in its manifest"
        if present[name] != expected[name]:
            return f"{name} has other bytes than when it was written"
    return None


def quarantine(root: Path, path: Path, files: Files = DISK) -> None:
    target = root / QUARANTINE / path.name
    number = 1
    while files.exists(target):
        number += 1
        target = target.with_name(f"{path.name}-{number}")
    whole.move_folder(files, path, target)
