"""Finished results by the runs that have them: the folder of a run names its nodes, the artifact store has the bytes.

A result is shown as part of a run, so that it belongs to the run's tenant, and so that it is listed again for each run
that reused it. Nothing but the runs' folders is read: no server has to run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import orjson

from trainyard.app.context import Context
from trainyard.app.run_records import read_events
from trainyard.cancellation import iterate_until_departure
from trainyard.data.paths import resolve_inside
from trainyard.errors import Conflict, Corrupt, NotFound
from trainyard.json_types import JsonObject
from trainyard.spec.axes.data import Port
from trainyard.stores.artifacts import ArtifactStore, NodeOutput, Reference
from trainyard.stores.schema import read_versioned
from trainyard.stores.whole import MANIFEST

CHAIN_FILE = "chain.json"
ENDED = ("finished", "reused")


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run, and when its last start wrote the chain (seconds of the epoch)."""

    path: Path
    began: float

    @property
    def id(self) -> str:
        return self.path.name

    @cached_property
    def chain(self) -> JsonObject:
        """Return the resolved chain; empty where it cannot be read."""
        try:
            value = orjson.loads((self.path / CHAIN_FILE).read_bytes())
        except (OSError, ValueError):
            value = None
        return value if isinstance(value, dict) else {}

    @property
    def name(self) -> str:
        return str(self.chain.get("name") or "")

    @property
    def tenant(self) -> str:
        return str(self.chain.get("tenant") or "")

    def makes(self, port: Port | None) -> bool:
        """Return whether a node of the chain fills a port."""
        nodes = [node for node in self.chain.get("nodes") or () if isinstance(node, dict)]
        return port is None or any(port in (node.get("produces") or ()) for node in nodes)

    def node_type(self, node: str) -> str:
        nodes = self.chain.get("nodes") or ()
        return next((str(entry["type"]) for entry in nodes if isinstance(entry, dict) and entry.get("id") == node), "")


@dataclass(frozen=True)
class FoundArtifact:
    """A port of one finished node of a run."""

    run: RunFolder
    node: str
    port: Port
    key: str
    ended: float
    reused: bool
    output: NodeOutput | None
    """The stored result; None if it was removed meanwhile, or cannot be read."""
    rows: int | None = None
    problem: str = ""
    """Why it cannot be read."""

    @property
    def reference(self) -> Reference | None:
        return self.output.outputs.get(self.port) if self.output else None

    def matches(self, port: Port | None, sha256: str | None) -> bool:
        reference = self.reference
        return port in (None, self.port) and sha256 in (None, reference.sha256 if reference else "")

    def folder(self, store: ArtifactStore) -> Path:
        """Return where its files are, inside the store of this home whatever its reference says."""
        reference, root = self.reference, store.folder(self.key)
        if reference is None:
            raise missing_result_error(self)
        return root if reference.path.name == self.key else resolve_inside(reference.path.name, (root,), field="port")


def open_store(context: Context) -> ArtifactStore:
    return ArtifactStore(context.settings.artifacts)


def run_folders(context: Context) -> list[RunFolder]:
    """Return every run that has begun, the newest first."""
    try:
        entries = list(os.scandir(context.settings.runs))
    except FileNotFoundError:
        return []
    found_runs = []
    for entry in iterate_until_departure(entries):
        try:
            began = os.stat(f"{entry.path}/{CHAIN_FILE}").st_mtime
        except OSError:  # a folder of something else, or a run that has not begun
            continue
        found_runs.append(RunFolder(Path(entry.path), began))
    return sorted(found_runs, key=lambda run: (run.began, run.id), reverse=True)


def resolve_tenant(tenant: str | None, context: Context) -> str | None:
    """Whose records a caller asks for: "" for all, None if they are another tenant's, which are not there."""
    caller_tenant = context.caller.tenant
    return None if caller_tenant and tenant not in (None, caller_tenant) else caller_tenant or tenant or ""


def find_artifacts(run: RunFolder, store: ArtifactStore) -> Iterator[FoundArtifact]:
    """Yield every port that the nodes of a run have filled so far, in the order in which the nodes ended."""
    ended: dict[str, JsonObject] = {}
    for event in read_events(run.path):
        if event["event"] in ENDED and isinstance(event.get("key"), str) and isinstance(event.get("node"), str):
            ended.pop(event["node"], None)
            ended[event["node"]] = event
    for node, event in iterate_until_departure(ended.items()):
        output, problem = None, ""
        try:
            output = read_output(store, event["key"])
        except (Corrupt, Conflict) as error:
            problem = str(error)
        counted = event.get("rows") or {}
        ports = output.outputs if output else [Port(port) for port in counted if port in set(Port)]
        for port in ports:
            yield FoundArtifact(
                run, node, Port(port), event["key"], float(event.get("time") or 0.0), event["event"] == "reused",
                output, output.outputs[Port(port)].rows if output else counted.get(port), problem,
            )  # fmt: skip


def read_output(store: ArtifactStore, key: str) -> NodeOutput | None:
    """Return what a manifest says; None for a result that was removed. Its files are not read: nothing is verified.

    Raises `Corrupt` (`E-CORRUPT`), and `Conflict` (`E-SCHEMA`) for one of a later version.
    """
    try:
        path = store.folder(key) / MANIFEST
        data = path.read_bytes() if key.isalnum() else None
    except OSError:
        data = None
    if data is None:
        return None
    try:
        return NodeOutput.model_validate(read_versioned("artifact", data, path)["output"])
    except (ValueError, KeyError, TypeError) as error:
        raise unreadable_result(key, str(error)) from error


def missing_result_error(artifact: FoundArtifact) -> NotFound | Corrupt:
    """Return the error for a result whose files are not there."""
    if artifact.problem:
        return unreadable_result(artifact.key, artifact.problem)
    return NotFound(
        f"The {artifact.port.value} of {artifact.node} is no longer stored.",
        why="It was removed: by `trainyard gc`, or by hand.",
        do="Run the chain again with --refresh.",
        code="E-NOT-FOUND",
    )


def unreadable_result(key: str, why: str) -> Corrupt:
    return Corrupt(
        f"The stored result {key[:12]} cannot be read.",
        why=why[:500],
        do=f"Move the folder {key} away and run the chain again.",
        code="E-CORRUPT",
    )
