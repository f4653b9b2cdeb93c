"""Checkpoints in a second place: the last tier, which survives the loss of the machine's disk.

    <mirror>/step-0000000120/state.safetensors, state.json
    <mirror>/step-0000000120/manifest.json      put last: a step without it does not exist

Four things are asked of an object store (`MirrorStore`), none of which is a rename, so that any store fits. Add one
with a class and a row in `STORES`; the folder of `file://` is also the double that tests use, and `gs://` is a bucket.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Protocol
from urllib.parse import unquote, urlsplit

from trainyard.errors import InvalidInput, NotFound, TrainyardError, Unavailable
from trainyard.json_types import JsonObject
from trainyard.settings import settings
from trainyard.stores.files import DISK, make_folders
from trainyard.stores.objects import addresses
from trainyard.stores.repositories.client import open_data_workers
from trainyard.stores.whole import MANIFEST, flush_tree, move_folder, new_file, whole_or_nothing
from trainyard.train.checkpoint.checkpoints import (
    Best,
    FoundCheckpoint,
    find_damage,
    list_prunable,
    newest_valid,
    quarantine,
    read_metric,
)

KIND = "models"
STEP = re.compile(r"step-(\d{10})/(.+)")


class MirrorStore(Protocol):
    """Store of a mirror. Names are relative, with slashes."""

    def put(self, name: str, path: Path) -> None:
        """Store a file atomically: a reader of the name sees the old bytes or the new ones."""

    def get(self, name: str, path: Path) -> None:
        """Write the object to a file."""

    def names(self) -> list[str]:
        """Of every object."""

    def remove(self, name: str) -> None:
        """Remove an object, or everything below a name that ends with a slash; nothing there is fine."""


class FolderMirror:
    """A folder, such as a network share or another disk."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, name: str, path: Path) -> None:
        target = self.root / name
        make_folders(DISK, target.parent)
        with new_file(target) as temporary:
            shutil.copyfile(path, temporary)

    def get(self, name: str, path: Path) -> None:
        shutil.copyfile(self.root / name, path)

    def names(self) -> list[str]:
        return [path.relative_to(self.root).as_posix() for path in self.root.rglob("*") if path.is_file()]

    def remove(self, name: str) -> None:
        path = self.root / name
        if not name.endswith("/"):
            path.unlink(missing_ok=True)
        elif path.exists():
            shutil.rmtree(path)


def folder_store(address: str) -> MirrorStore:
    parts = urlsplit(address)
    if parts.netloc not in ("", "localhost") or not parts.path.strip("/") or parts.path[0] != "/":
        raise InvalidInput(
            f"{address!r} is not a folder of this machine.",
            do="Write three slashes and an absolute path: file:///backup/checkpoints.",
            code="E-MIRROR",
        )
    return FolderMirror(Path(unquote(parts.path)))


class BucketMirror:
    """A bucket, below the prefix of the address."""

    def __init__(self, address: str) -> None:
        self.objects = addresses.open_store(address)

    def put(self, name: str, path: Path) -> None:
        self.objects.put(name, path)

    def get(self, name: str, path: Path) -> None:
        self.objects.download(name, path)

    def names(self) -> list[str]:
        return [info.name for info in self.objects.list()]

    def remove(self, name: str) -> None:
        for object_name in [info.name for info in self.objects.list(name)] if name.endswith("/") else [name]:
            self.objects.delete(object_name)


class WorkerMirror:
    """A repository of a data worker, `data-worker://tenant/name`, whose history ends where files are removed."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self.repository = f"{parts.netloc}{parts.path}"
        self.workers = open_data_workers(settings())
        self.workers.create(KIND, self.repository)

    def put(self, name: str, path: Path) -> None:
        line = self.workers.prepare(KIND, self.repository, name, path, {})
        self.workers.commit(KIND, self.repository, [line] if line else [], f"Store {name}")

    def get(self, name: str, path: Path) -> None:
        commit = self.workers.find_commit(KIND, self.repository, "main")
        entry = next((e for e in self.workers.list_files(KIND, self.repository, commit) if e["path"] == name), None)
        if entry is None:
            raise NotFound(f"There is no {name} in {self.repository}.")
        self.workers.download(KIND, self.repository, commit, entry, path)

    def names(self) -> list[str]:
        return [entry["path"] for entry in self.workers.list_files(KIND, self.repository, "main")]

    def remove(self, name: str) -> None:
        names = [path for path in self.names() if path == name or (name.endswith("/") and path.startswith(name))]
        if names:
            lines: list[JsonObject] = [{"key": "deletedFile", "value": {"path": path}} for path in names]
            self.workers.commit(KIND, self.repository, lines, f"Remove {name}")
            self.workers.squash(KIND, self.repository)


STORES: dict[str, Callable[[str], MirrorStore]] = {
    "file": folder_store,
    "gs": BucketMirror,
    "data-worker": WorkerMirror,
}
"""Scheme of an address -> what opens it."""


def open_store(address: str) -> MirrorStore:
    """Raises `InvalidInput` (`E-MIRROR`) for an address that no row of `STORES` opens."""
    scheme = urlsplit(address).scheme
    if scheme not in STORES:
        raise InvalidInput(
            f"A mirror for checkpoints cannot be at {address!r}.",
            why=f"There is a store for: {', '.join(f'{name}://' for name in STORES)}.",
            do="Write engine.mirror as file:///backup/checkpoints or gs://bucket/prefix, or leave it out.",
            code="E-MIRROR",
        )
    return STORES[scheme](address)


class Mirror:
    """Copies committed checkpoints to a store, one at a time and in a thread of its own.

    A slow store blocks nothing: a waiting checkpoint is replaced by a newer one, and that is reported. A store that
    fails is reported too (`E-MIRROR`); the checkpoint on the disk stays valid, and the next one is tried again.
    """

    def __init__(
        self,
        address: str,
        *,
        keep: int,
        best: Best,
        keep_best: int,
        at: Callable[[str], None],
        report: Callable[[JsonObject], None],
    ) -> None:
        self.address, self.store, self.keep, self.best = address, open_store(address), keep, best
        self.keep_best = keep_best
        self.busy: set[int] = set()
        """Steps whose folders are still needed here."""
        self._at, self._report = at, report
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="mirror")
        self._sending: dict[int, Future[None]] = {}

    def send(self, folder: Path, step: int) -> None:
        """Have a committed checkpoint copied."""
        for earlier, future in list(self._sending.items()):
            if future.cancel():
                self.forget(earlier)
                self._report({"tier": "mirror", "step": earlier, "path": self.address, "overtaken_by": step})
            elif future.done():
                self._sending.pop(earlier).result()
        self.busy.add(step)
        self._sending[step] = self._executor.submit(self._copy, folder, step)

    def wait(self) -> None:
        """Wait until everything that was sent is there, or its failure is reported."""
        for step, future in list(self._sending.items()):
            future.result()
            self.forget(step)

    def close(self) -> None:
        self._executor.shutdown()

    def forget(self, step: int) -> None:
        self.busy.discard(step)
        self._sending.pop(step, None)

    def _copy(self, folder: Path, step: int) -> None:
        started = time.perf_counter()
        record: JsonObject = {"tier": "mirror", "step": step, "path": self.address}
        try:
            record["bytes"] = upload(self.store, folder)
            self._at("checkpoint.mirrored")
            prune(self.store, step, self.keep, self.best, self.keep_best)
        except (OSError, TrainyardError) as error:
            record |= {"code": "E-MIRROR", "error": str(error)}
        finally:
            self.busy.discard(step)
        self._report({**record, "seconds": round(time.perf_counter() - started, 3)})


def upload(store: MirrorStore, folder: Path) -> int:
    """Copy a committed checkpoint, and return its bytes. An older copy of the same step stops to exist first."""
    store.remove(f"{folder.name}/{MANIFEST}")
    names = [*file_names(folder), MANIFEST]
    for name in names:
        store.put(f"{folder.name}/{name}", folder / name)
    return sum((folder / name).stat().st_size for name in names)


def file_names(folder: Path) -> list[str]:
    return sorted(json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"])


def list_mirrored_steps(store: MirrorStore) -> dict[int, bool]:
    """Step -> whether its manifest is there, newest first."""
    steps: dict[int, bool] = {}
    for name in store.names():
        if match := STEP.fullmatch(name):
            steps[int(match[1])] = steps.get(int(match[1]), False) or match[2] == MANIFEST
    return dict(sorted(steps.items(), reverse=True))


def prune(store: MirrorStore, newest: int, keep: int, best: Best, keep_best: int = 1) -> None:
    """Remove old checkpoints, and half-copied ones of ended processes."""
    steps = list_mirrored_steps(store)
    metrics: dict[int, float | None] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for step in (step for step, whole in steps.items() if whole):
            store.get(f"step-{step:010d}/{MANIFEST}", Path(scratch) / MANIFEST)
            metrics[step] = read_metric(Path(scratch))
    torn = [step for step, whole in steps.items() if not whole and step != newest]
    for step in [*list_prunable(metrics, keep, best, keep_best), *torn]:
        # The manifest first: a half-removed checkpoint does not exist.
        store.remove(f"step-{step:010d}/{MANIFEST}")
        store.remove(f"step-{step:010d}/")


def find_newest(root: Path, mirror: str | None = None) -> FoundCheckpoint:
    """Return the newest checkpoint that is whole, here or in the mirror; one that is only there is fetched and
    verified.

    Damaged ones, from either place, move to `root/quarantine` and are reported in `FoundCheckpoint.quarantined`.
    Raises `E-MIRROR` when the mirror cannot be read: an older checkpoint would quietly lose what it may
    contain.
    """
    local_newest = newest_valid(root)
    if mirror is None:
        return local_newest
    store, damaged = open_store(mirror), list(local_newest.quarantined)
    try:
        for step in (step for step, whole in list_mirrored_steps(store).items() if whole):
            if local_newest.path is not None and step <= local_newest.step:
                break
            damage = fetch(store, step, root)
            if damage is None:
                return FoundCheckpoint(root / f"step-{step:010d}", step, tuple(damaged), fetched_from=mirror)
            damaged.append(f"The mirrored checkpoint of step {step} is damaged ({damage}) and was quarantined.")
    except (OSError, Unavailable) as error:
        raise Unavailable(
            f"The mirror {mirror} cannot be read: {error}.",
            why="It may contain a newer checkpoint than this machine.",
            do="Make it readable again, or leave engine.mirror out to continue with what is here.",
            code="E-MIRROR",
        ) from error
    return replace(local_newest, quarantined=tuple(damaged))


def find_step(root: Path, step: int, mirror: str | None = None) -> Path | None:
    """Return the checkpoint of a step, here or fetched from the mirror; None where it is in neither or damaged there.

    Raises `Unavailable` for a mirror that cannot be read.
    """
    path = root / f"step-{step:010d}"
    if path.is_dir():
        return path
    store = open_store(mirror) if mirror else None
    if store is None or not list_mirrored_steps(store).get(step) or fetch(store, step, root) is not None:
        return None
    return path


def fetch(store: MirrorStore, step: int, root: Path) -> str | None:
    """Copy a mirrored step to `root`; return its problem, or None if it is whole and in its place."""
    name = f"step-{step:010d}"
    temporary = root / f".{name}.fetched.tmp"
    with whole_or_nothing(temporary):
        folder = temporary / name
        folder.mkdir()
        damage = download(store, name, folder) or find_damage(folder)
        if damage is None:
            flush_tree(DISK, folder)
            move_folder(DISK, folder, root / name)
        else:
            quarantine(root, folder)
    temporary.rmdir()
    return damage


def download(store: MirrorStore, name: str, folder: Path) -> str | None:
    """Return the manifest and the files that it names, or the problem of the names."""
    store.get(f"{name}/{MANIFEST}", folder / MANIFEST)
    present = set(store.names())
    try:
        names = file_names(folder)
    except (ValueError, KeyError, TypeError):
        return "its manifest cannot be read"
    for file in names:
        # A writer of the mirror must not choose where this process writes.
        if len(PurePosixPath(file).parts) != 1 or file in ("..", MANIFEST):
            return f"its manifest names {file!r}"
        if f"{name}/{file}" in present:
            store.get(f"{name}/{file}", folder / file)
    return None
