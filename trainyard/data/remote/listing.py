"""Contract of remote sets: the revision, its files, and one of the files as a local path.

What a set elsewhere was when it was first listed: its revision and its files, so that the next run reads the same.

    TRAINYARD_HOME/pins/<digest of the address>.json     {address, revision, files, run}

A pin is made before a node's result gets its key, so that the key names what will be read. `check` and `plan` only read
pins: they ask no server. A data set of the Hub keeps its pin until a run with `--refresh`; every run lists a bucket.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from trainyard.settings import Settings
from trainyard.stores.schema import add_version, read_versioned
from trainyard.stores.whole import write_json_durably


@dataclass(frozen=True)
class RemoteFile:
    """A file of a set."""

    name: str
    size: int | None = None
    version: str = ""
    """What changes with its bytes: an ETag or a generation; empty where the revision of the set says it."""


@dataclass(frozen=True)
class Pin:
    """A set elsewhere as it was listed."""

    address: str
    revision: str
    """Commit of a data set, or the digest of a listing."""
    files: tuple[RemoteFile, ...]
    run: str = ""
    """The run that listed it."""

    @property
    def digest(self) -> str:
        value = [self.address, self.revision, [asdict(file) for file in self.files]]
        return hashlib.sha256(json.dumps(value).encode()).hexdigest()


class RemotePlace(Protocol):
    """A place with files."""

    @property
    def address(self) -> str:
        """Return what a person calls it; has no secrets."""

    @property
    def lasting(self) -> bool:
        """Whether a pin stays right: the files of a commit do not change, those of a bucket may."""

    def require_access(self, settings: Settings) -> None:
        """Raise `Refused` for a place that the operator does not let chains read."""

    def look_up(self) -> tuple[str, Sequence[RemoteFile]]:
        """(revision, files in the order of reading). Asks the network."""

    def fetch(self, pin: Pin, file: RemoteFile, folder: Path) -> tuple[Path, Path]:
        """(local path, folder in which it and the target of its link are). `folder` is for what is not cached."""


def pin_file(address: str, settings: Settings) -> Path:
    return settings.home / "pins" / f"{hashlib.sha256(address.encode()).hexdigest()[:32]}.json"


def read_pin(remote: RemotePlace, settings: Settings) -> Pin | None:
    """Return what a place was when it was last listed; None if that has not happened."""
    path = pin_file(remote.address, settings)
    if not path.is_file():
        return None
    value = read_versioned("pin", path.read_bytes(), path)
    files = tuple(RemoteFile(**file) for file in value["files"])
    return Pin(value["address"], value["revision"], files, value["run"])


def pin_place(remote: RemotePlace, settings: Settings, *, run: str = "", refresh: bool = False) -> Pin:
    """Return the place's pin, made now if there is none, or if the place may have changed.

    A run lists a place at most once. Raises what listing raises, and `Refused` for a place that chains may not read.
    """
    remote.require_access(settings)
    pin = read_pin(remote, settings)
    again = refresh or not remote.lasting
    if pin is not None and (not again or (run and pin.run == run)):
        return pin
    revision, files = remote.look_up()
    pin = Pin(remote.address, revision, tuple(files), run)
    path = pin_file(remote.address, settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json_durably(path, add_version("pin", asdict(pin)))
    return pin
