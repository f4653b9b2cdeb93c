"""Pins of remote sets from their first listing: the revision and its files, so that the next run reads the same.

    TRAINYARD_HOME/pins/<digest of the address>.json     {address, revision, files, run}

A pin is made before a node's result gets its key, so that the key names what will be read. `check` and `plan` only read
pins: they ask no server. A data set of the Hub keeps its pin until a run with `--refresh`; every run lists a bucket.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path

from trainyard.data.remote.listing import Pin, RemoteFile, RemotePlace
from trainyard.settings import Settings
from trainyard.stores.schema import add_version, read_versioned
from trainyard.stores.whole import write_json_durably


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
