"""Finished results, addressed by what made them; a result exists whole and verified, or does not exist.

A node writes into a temporary folder; `commit` fsyncs every file, writes `manifest.json` with their SHA-256 last and
renames the folder to its key. Nodes hand each other a `Reference`, never data.

    artifacts/<key[:2]>/<key>/      key: digest of the node's resolved config, its inputs' digests and our versions
        manifest.json               {key, kind, rows, facts, files: {name: {sha256, bytes}}, references: {...}}
        …                           the files
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from trainyard.errors import Conflict, Corrupt, NotFound
from trainyard.json_types import JsonMapping
from trainyard.spec.axes.data import Port
from trainyard.spec.chain import digest
from trainyard.stores import whole
from trainyard.stores.files import DISK, NO_SPACE, Files, RealFiles, translate_os_errors
from trainyard.stores.schema import add_version, read_versioned
from trainyard.stores.whole import MANIFEST, REPLACED, flush_name

LOCK = ".lock"
REMOVAL_LOCK = "removal.lock"
"""Orders the removal of an old result and the mark that it is used."""
Facts = dict[str, Any]


class Reference(BaseModel):
    """Reference to a finished result, which travels between nodes instead of the data."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    uri: str
    """`file://` address of the folder."""
    sha256: str
    """Digest over the names and digests of the folder's files."""
    kind: Port
    rows: int | None = None
    bytes: int = 0
    facts: Facts = {}
    """Small JSON facts for tables and reports (counts, metrics, versions); never rows."""

    @property
    def path(self) -> Path:
        return Path(self.uri.removeprefix("file://"))


class NodeOutput(BaseModel):
    """Output of a node: one reference per port that it fills, and facts for the plan table and the report."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str
    outputs: dict[Port, Reference]
    facts: Facts = {}
    reused: bool = False


class ProducedSet(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    folder: str
    rows: int | None = None
    facts: Facts = {}


class Produced(BaseModel):
    """Files that a function left in its folder: port -> (sub-folder, rows, facts)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    outputs: dict[Port, ProducedSet]
    facts: Facts = {}


def node_key(
    node_type: str, config: Mapping[str, object], inputs: Mapping[str, str], versions: Mapping[str, str]
) -> str:
    """Name of a result before it exists: the same config, inputs and versions give the same key.

    `config` is the resolved config's JSON form, `inputs` maps a port (or `port/node`) to the input's digest.
    """
    return digest({"type": node_type, "config": dict(config), "inputs": dict(inputs), "versions": dict(versions)})


class ArtifactStore:
    """The store under `TRAINYARD_HOME/artifacts`. Safe for concurrent processes: a commit is one rename."""

    def __init__(self, root: Path, files: Files = DISK) -> None:
        self.root, self.files = root, files

    def folder(self, key: str) -> Path:
        return self.root / key[:2] / key

    def find(self, key: str) -> NodeOutput | None:
        """Return the finished result, its digests verified; None if there is none. Raises `Corrupt` if bytes changed.

        What is found survives a power cut: its name is flushed again, for its maker may have died before it did. It is
        also marked as used now, so that `trainyard gc` does not take it away from its finder.
        """
        folder = self.folder(key)
        if not self.files.exists(folder / MANIFEST) or not mark_used(self, folder):
            return None
        manifest = read_versioned("artifact", self.files.read(folder / MANIFEST), folder / MANIFEST)
        if whole.describe(self.files, folder) != manifest["files"]:
            raise Corrupt(
                f"The stored result {key[:12]} no longer matches its manifest.",
                why="A file was changed, added or removed after it was committed.",
                do=f"Move {folder.name} away and run the chain again.",
                code="E-CORRUPT",
            )
        flush_name(self.files, folder)
        return NodeOutput.model_validate({**manifest["output"], "reused": True})

    def produce(self, key: str, make: Callable[[Path], Produced], *, replace: bool = False) -> NodeOutput:
        """Call `make(folder)` with an empty folder and commit what it left; nothing is left behind if it fails.

        With `replace`, an existing result is exchanged, and kept until the new one is complete. What a killed
        process left in this store is removed on the way. Raises `LimitExceeded` (`E-DISK-FULL`).
        """
        failed = f"The result {key[:12]} was not written to {self.root}"
        with translate_os_errors(failed):
            self.root.mkdir(parents=True, exist_ok=True)
            sweep_work_folders(self)
        with translate_os_errors(failed, NO_SPACE), work_folder(self, key) as temporary:
            return self.commit(key, temporary, make(temporary), replace=replace)

    def commit(self, key: str, temporary: Path, produced: Produced, *, replace: bool = False) -> NodeOutput:
        """Flush everything, write the manifest last, rename. A result that another process committed first is kept."""
        final = self.folder(key)
        described = whole.describe(self.files, temporary)
        outputs = {port: reference(final, temporary, port, part, described) for port, part in produced.outputs.items()}
        output = NodeOutput(key=key, outputs=outputs, facts=produced.facts)
        whole.seal(
            self.files, temporary, described, add_version("artifact", {"output": output.model_dump(mode="json")})
        )
        if self.files.is_folder(final) and (replace or not self.files.exists(final / MANIFEST)):
            whole.move_folder(self.files, final, find_replaced(temporary))
        try:
            whole.move_folder(self.files, temporary, final)
        except Conflict:
            existing = self.find(key)
            if existing is None:
                raise
            return existing
        return output

    def settle(self, temporary: Path) -> None:
        """Remove the work folder of a dead process; a result that it was about to exchange is put back."""
        replaced = find_replaced(temporary)
        if self.files.exists(replaced / MANIFEST):
            key = json.loads(self.files.read(replaced / MANIFEST))["output"]["key"]
            whole.finish_exchange(self.files, replaced, self.folder(key))
        whole.remove_folder(self.files, replaced)
        whole.remove_folder(self.files, temporary)


def mark_used(store: ArtifactStore, folder: Path) -> bool:
    """Set the time of a result's last use, the folder's own; False if the result has just been removed."""
    if not isinstance(store.files, RealFiles):
        return True
    try:
        with store.files.locked(store.root / REMOVAL_LOCK):
            os.utime(folder)
    except FileNotFoundError:
        return False
    except PermissionError:
        return True  # a store of another user, which this one reads and cannot collect
    return True


def move_unused(store: ArtifactStore, folder: Path, unused_since: float, target: Path) -> bool:
    """Move a result that was last used before `unused_since` to `target`; False if it was used meanwhile or is gone.

    A lock orders this and `mark_used`: a finder has the result whole, or there is none.
    """
    with store.files.locked(store.root / REMOVAL_LOCK):
        if not folder.is_dir() or folder.stat().st_mtime >= unused_since:
            return False
        folder.rename(target)
    return True


def find_replaced(temporary: Path) -> Path:
    """Where the result lies that this work folder is to replace."""
    return temporary.with_name(f"{temporary.name}{REPLACED}")


@contextlib.contextmanager
def work_folder(store: ArtifactStore, key: str) -> Iterator[Path]:
    """An empty folder `root/.<key>-<random>`, removed at the end unless it was renamed.

    A lock on the file next to it says that its owner lives. A lock of the operating system ends with its process, also
    in another container, where a process id would say nothing.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{key[:12]}-", suffix=LOCK, dir=store.root)
    folder = Path(name.removesuffix(LOCK))
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        remove_work_folder(store, folder)
        os.close(descriptor)


def sweep_work_folders(store: ArtifactStore) -> None:
    """Remove the work folders whose owners are dead."""
    for lock in store.root.glob(f".*{LOCK}"):
        # A live owner has the lock, or its folder was finished in the meantime: there is nothing to remove.
        with contextlib.suppress(FileNotFoundError, BlockingIOError), lock.open() as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_work_folder(store, Path(str(lock).removesuffix(LOCK)))


def remove_work_folder(store: ArtifactStore, folder: Path) -> None:
    """The folder, the result that it replaced, and its lock."""
    with contextlib.suppress(OSError):  # the next process that writes here tries again
        store.settle(folder)
    Path(f"{folder}{LOCK}").unlink(missing_ok=True)


def reference(
    final: Path, temporary: Path, port: Port, part: ProducedSet, files: Mapping[str, JsonMapping]
) -> Reference:
    """Return the reference of one port's sub-folder, from the digests of its files."""
    prefix = f"{part.folder}/" if part.folder else ""
    entries = {name.removeprefix(prefix): entry for name, entry in files.items() if name.startswith(prefix)}
    if not entries and part.folder and not (temporary / part.folder).is_dir():
        raise NotFound(f"The node said it fills {port.value} but left no folder {part.folder!r}.", code="E-NOT-FOUND")
    return Reference(
        uri=f"file://{final / part.folder if part.folder else final}",
        sha256=digest({name: entry["sha256"] for name, entry in entries.items()}),
        kind=port,
        rows=part.rows,
        bytes=sum(entry["bytes"] for entry in entries.values()),
        facts=part.facts,
    )


def open_reference(reference: Reference) -> Path:
    """Return the folder of a reference, after a check that its bytes match the reference.

    Raises `NotFound` (`E-NOT-FOUND`) or `Corrupt` (`E-CORRUPT`).
    """
    if not reference.path.is_dir():
        raise NotFound(
            f"The {reference.kind.value} result at {reference.uri} is gone.",
            do="Run the chain again with refresh=true.",
            code="E-NOT-FOUND",
        )
    actual = digest({name: entry["sha256"] for name, entry in whole.describe_files(reference.path).items()})
    if actual != reference.sha256:
        raise Corrupt(
            f"The {reference.kind.value} result at {reference.uri} has other bytes than when it was made.",
            do="Run the chain again with refresh=true.",
            code="E-CORRUPT",
        )
    return reference.path
