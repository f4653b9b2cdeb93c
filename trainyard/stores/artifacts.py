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
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from trainyard.errors import Corrupt, NotFound
from trainyard.spec.axes import Port
from trainyard.spec.chain import digest

MANIFEST = "manifest.json"
LOCK = ".lock"
REPLACED = ".replaced"
Facts = dict[str, Any]


class Reference(BaseModel):
    """What travels between nodes: where a finished result is and what it is, never the data itself."""

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
    """What a node returns: one reference per port that it fills, and facts for the plan table and the report."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str
    outputs: dict[Port, Reference]
    facts: Facts = {}
    reused: bool = False


class Produced(BaseModel):
    """What a room's function left in the folder that it was given: port -> (sub-folder, rows, facts)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    outputs: dict[Port, ProducedSet]
    facts: Facts = {}


class ProducedSet(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    folder: str
    rows: int | None = None
    facts: Facts = {}


Produced.model_rebuild()


def file_sha256(path: Path) -> str:
    """SHA-256 (hex) of a file, read in 1 MiB pieces."""
    hasher = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            hasher.update(block)
    return hasher.hexdigest()


def fsync_path(path: Path) -> None:
    """Flush a file or a folder entry to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def describe_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Relative name -> {sha256, bytes} of every regular file below `folder`, the manifest excepted."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.relative_to(folder) != Path(MANIFEST))
    return {
        path.relative_to(folder).as_posix(): {"sha256": file_sha256(path), "bytes": path.stat().st_size}
        for path in files
    }


def write_json_durably(path: Path, value: Any) -> None:
    """Write JSON so that a reader sees the old text or the new one, never a half."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as stream:
        json.dump(value, stream, indent=1, sort_keys=True)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.rename(path)
    fsync_path(path.parent)


def node_key(node_type: str, config: Mapping[str, Any], inputs: Mapping[str, str], versions: Mapping[str, str]) -> str:
    """Name of a result before it exists: the same config, inputs and versions give the same key.

    `config` is the resolved config's JSON form, `inputs` maps a port (or `port/node`) to the input's digest.
    """
    return digest({"type": node_type, "config": dict(config), "inputs": dict(inputs), "versions": dict(versions)})


class ArtifactStore:
    """The store under `TRAINYARD_HOME/artifacts`. Safe for several processes: a commit is one rename."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, key: str) -> Path:
        return self.root / key[:2] / key

    def find(self, key: str) -> NodeOutput | None:
        """The finished result, its digests verified; None if there is none. Raises `Corrupt` if bytes changed."""
        folder = self.folder(key)
        if not (folder / MANIFEST).is_file():
            return None
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if describe_files(folder) != manifest["files"]:
            raise Corrupt(
                f"The stored result {key[:12]} no longer matches its manifest.",
                why="A file was changed, added or removed after it was committed.",
                do=f"Move {folder.name} away and run the chain again.",
                code="E-ARTIFACT-CORRUPT",
            )
        return NodeOutput.model_validate({**manifest["output"], "reused": True})

    def produce(self, key: str, make: Callable[[Path], Produced], *, replace: bool = False) -> NodeOutput:
        """Call `make(folder)` with an empty folder and commit what it left; nothing is left behind if it fails.

        With `replace`, a result that stands there already is exchanged, and kept for as long as the new one is not
        whole. What a killed process left in this store is removed on the way.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        sweep_work_folders(self.root)
        with work_folder(self.root, key) as temporary:
            return self.commit(key, temporary, make(temporary), replace=replace)

    def commit(self, key: str, temporary: Path, produced: Produced, *, replace: bool = False) -> NodeOutput:
        """fsync, hash, write the manifest last, rename. A result that another process committed first is kept."""
        final = self.folder(key)
        files = describe_files(temporary)
        outputs = {port: reference(final, temporary, port, part, files) for port, part in produced.outputs.items()}
        output = NodeOutput(key=key, outputs=outputs, facts=produced.facts)
        for name in files:
            fsync_path(temporary / name)
        write_json_durably(temporary / MANIFEST, {"files": files, "output": output.model_dump(mode="json")})
        final.parent.mkdir(parents=True, exist_ok=True)
        if final.exists() and (replace or not (final / MANIFEST).is_file()):
            final.rename(temporary.with_name(f"{temporary.name}{REPLACED}"))
        try:
            temporary.rename(final)
        except OSError:
            if not (final / MANIFEST).is_file():
                raise
            existing = self.find(key)
            assert existing is not None
            return existing
        fsync_path(final.parent)
        return output


@contextlib.contextmanager
def work_folder(root: Path, key: str) -> Iterator[Path]:
    """An empty folder `root/.<key>-<random>`, removed at the end unless it was renamed.

    A lock on the file beside it says that its owner lives. A lock of the operating system ends with its process, also
    in another container, where a process id would say nothing.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{key[:12]}-", suffix=LOCK, dir=root)
    folder = Path(name.removesuffix(LOCK))
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        remove_work_folder(folder)
        os.close(descriptor)


def sweep_work_folders(root: Path) -> None:
    """Remove the work folders whose owners are dead."""
    for lock in root.glob(f".*{LOCK}"):
        # The lock is held by a living owner, or its folder was finished in the meantime: nothing is left behind.
        with contextlib.suppress(FileNotFoundError, BlockingIOError), lock.open() as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_work_folder(Path(str(lock).removesuffix(LOCK)))


def remove_work_folder(folder: Path) -> None:
    """The folder, the result that it replaced, and its lock."""
    for path in (folder, folder.with_name(f"{folder.name}{REPLACED}")):
        shutil.rmtree(path, ignore_errors=True)
    Path(f"{folder}{LOCK}").unlink(missing_ok=True)


def reference(
    final: Path, temporary: Path, port: Port, part: ProducedSet, files: Mapping[str, Mapping[str, Any]]
) -> Reference:
    """The reference of one port's sub-folder, from the digests of its files."""
    prefix = f"{part.folder}/" if part.folder else ""
    own = {name.removeprefix(prefix): entry for name, entry in files.items() if name.startswith(prefix)}
    if not own and part.folder and not (temporary / part.folder).is_dir():
        raise NotFound(
            f"The node said it fills {port.value} but left no folder {part.folder!r}.", code="E-OUTPUT-MISSING"
        )
    return Reference(
        uri=f"file://{final / part.folder if part.folder else final}",
        sha256=digest({name: entry["sha256"] for name, entry in own.items()}),
        kind=port,
        rows=part.rows,
        bytes=sum(entry["bytes"] for entry in own.values()),
        facts=part.facts,
    )


def open_reference(given: Reference) -> Path:
    """The folder of a reference, after a check that its bytes are what the reference says.

    Raises `NotFound` (`E-ARTIFACT-MISSING`) or `Corrupt` (`E-ARTIFACT-CORRUPT`).
    """
    if not given.path.is_dir():
        raise NotFound(
            f"The {given.kind.value} result at {given.uri} is gone.",
            do="Run the chain again with refresh=true.",
            code="E-ARTIFACT-MISSING",
        )
    found = digest({name: entry["sha256"] for name, entry in describe_files(given.path).items()})
    if found != given.sha256:
        raise Corrupt(
            f"The {given.kind.value} result at {given.uri} has other bytes than when it was made.",
            do="Run the chain again with refresh=true.",
            code="E-ARTIFACT-CORRUPT",
        )
    return given.path
