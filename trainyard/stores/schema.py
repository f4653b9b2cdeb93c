"""The schema version of every kind of file that is stored: one table, written by the writer, checked by the reader.

    write_json_durably(path, versioned("job", value))
    value = read_versioned("job", data, path)

The version is a key of the file. A file without it is of version 1, the form before files had a version, and is read as
it is. One of a later version than ours is refused: what its new fields mean is not known here.

What a digest is computed from has no version of its own, so that digests stay equal: the files of an adapter, of an
artifact and of a snapshot. Their manifest has one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainyard.errors import Conflict
from trainyard.json_types import JsonMapping, JsonObject

KEY = "schema_version"
UNVERSIONED = 1


@dataclass(frozen=True)
class StoredKind:
    """A kind of file: where such files are below TRAINYARD_HOME, and the version that this Trainyard writes."""

    patterns: tuple[str, ...]
    version: int = 2


KINDS: Mapping[str, StoredKind] = {
    "adapter": StoredKind(("adapters/*/*/v*/manifest.json",)),
    "anchor": StoredKind(("ledger/anchors/*.json",)),
    "anchors": StoredKind(("access/anchors.json",)),
    "artifact": StoredKind(("artifacts/*/*/manifest.json",)),
    "chain": StoredKind(("chains/*/chain-*/*.json",)),
    "choices": StoredKind(("choices/*.json",)),
    "commit": StoredKind(("repositories/tenants/*/*/*/commits/*.json",)),
    "document": StoredKind(("tenants/*/documents.jsonl",)),
    "exposure": StoredKind(("services/exposure.json",)),
    "intent": StoredKind(("tenants/*/intent.json",)),
    "job": StoredKind(("jobs/*.json",)),
    "live": StoredKind(("adapters/*/*/live.json",)),
    "logins": StoredKind(("access/logins.json",)),
    "marker": StoredKind(("tenants/*/markers/*.json*",)),
    "night": StoredKind(("tenants/*/nights/*/begun.json", "tenants/*/nights/*/report.json")),
    "night-watch": StoredKind(("services/night-watch.json",)),
    "note": StoredKind(("notes/*.json",)),
    "object": StoredKind(()),
    "openai": StoredKind(("tenants/*/openai/*/*.json",)),
    "pin": StoredKind(("pins/*.json",)),
    "recipe": StoredKind(("recipes/*.json",)),
    "rental": StoredKind(("rentals/*.json",)),
    "repository": StoredKind(("repositories/tenants/*/*/*/refs.json",)),
    "run": StoredKind(("runs/*/result.json",)),
    "service": StoredKind(("services/*.json", "services/started/*.json")),
    "session": StoredKind(("sessions/*/session.json", "sessions/*/status.json")),
    "signing-keys": StoredKind(("access/signing-keys.json",)),
    "spending": StoredKind(("spending/*/*/*.json",)),
    "sweep": StoredKind(("sweeps/*/sweep.json",)),
    "timings": StoredKind(("timings/*.json",)),
    "tinker": StoredKind(("tinker/*/*.json",)),
    "tokens": StoredKind(("access/tokens.json",)),
    "trained": StoredKind(("tenants/*/training/*/trained.json",)),
    "usage": StoredKind(("repositories/tenants/*/usage.json",)),
}
"""Where the places of two kinds overlap, the first one counts. An object store's root is anywhere."""
OTHERS = ("services/bootstrap.json", "services/working_folder.json")
"""Files in the places of a kind that are not of it."""


@dataclass(frozen=True)
class EarlierFiles:
    """Files of one kind in an earlier form."""

    kind: str
    version: int
    now: int
    files: int


def add_version(kind: str, value: Mapping[str, object]) -> dict[str, object]:
    """Return the value as it is stored."""
    return {**value, KEY: KINDS[kind].version}


def read_versioned(kind: str, data: bytes, where: Path | str) -> JsonObject:
    """Return the value of a stored JSON file.

    Raises `ValueError` for text that is not a JSON mapping, `Conflict` (`E-SCHEMA`) for a newer version.
    """
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError(f"{where} is not a mapping")
    return strip_version(kind, value, where)


def strip_version(kind: str, value: JsonMapping, where: Path | str) -> JsonObject:
    """Return the value without its version. Raises `Conflict` (`E-SCHEMA`) for a later version than ours."""
    version, newest = value.get(KEY, UNVERSIONED), KINDS[kind].version
    if not isinstance(version, int) or version > newest:
        raise Conflict(
            f"{where} was made by a newer Trainyard.",
            why=f"Its schema version is {version}; this Trainyard reads up to {newest}.",
            do="Update Trainyard, or use another TRAINYARD_HOME with this one.",
            code="E-SCHEMA",
        )
    return {name: entry for name, entry in value.items() if name != KEY}


def earlier_files(home: Path) -> list[EarlierFiles]:
    """Return how many files of each kind below a home have an earlier form. They are read as they are."""
    seen = {home / name for name in OTHERS}
    counts: Counter[tuple[str, int]] = Counter()
    for kind, row in KINDS.items():
        paths = {path for pattern in row.patterns for path in home.glob(pattern) if path.is_file()} - seen
        seen |= paths
        counts.update((kind, version) for path in paths if (version := read_version(path)) < row.version)
    return [EarlierFiles(kind, version, KINDS[kind].version, n) for (kind, version), n in sorted(counts.items())]


def read_version(path: Path) -> int:
    """Return the version of a file, or of its first entry if each line has one; `UNVERSIONED` without JSON."""
    text = path.read_bytes()
    try:
        value = json.loads(text.split(b"\n", 1)[0] if path.suffix == ".jsonl" else text)
    except ValueError:
        return UNVERSIONED
    value = value.get("entry", value) if isinstance(value, dict) else {}
    return int(value.get(KEY, UNVERSIONED))
