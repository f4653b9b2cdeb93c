"""Every kind of set that is fetched before it is read: one row each.

    match   whether the row is that of a set           pin     the place whose listing is pinned before the run
    fetch   the files of the set on this machine

To add a source such as `notion://`: a module next to this one with its `fetch`, its row in `KINDS`, and a test. `fetch`
yields what a limited child then reads (`LocalSet`). A source whose state has a revision also gets a `pin`, which says
what `RemotePlace` asks; a set without one is read again by each run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from trainyard.data.remote import buckets, databases, hub, repositories
from trainyard.data.remote.fetching import FetchJob, LocalSet, RemotePlace, pin_place, read_pin
from trainyard.settings import Settings
from trainyard.spec.nodes import DataSourceConfig, SourceSet


class RemoteKind(NamedTuple):
    """A kind of remote set."""

    name: str
    match: Callable[[SourceSet], bool]
    fetch: Callable[[FetchJob], Iterator[LocalSet]]
    """Yields the set with more and more of its files, the last time with all of them."""
    pin: Callable[[SourceSet, Settings], RemotePlace] | None = None


def fetch_address(job: FetchJob) -> Iterator[LocalSet]:
    """Fetch the file of an http(s) address. Raises what `http.fetch` raises."""
    from trainyard.data.remote.http import fetch_set  # imports httpcore

    return fetch_set(job)


KINDS: tuple[RemoteKind, ...] = (
    RemoteKind("data worker", repositories.is_worker_set, repositories.fetch_set, repositories.open_place),
    RemoteKind("hub", hub.is_hub_set, hub.fetch_set, hub.open_place),
    RemoteKind("bucket", buckets.is_bucket_set, buckets.fetch_set, buckets.open_place),
    RemoteKind("sql", databases.is_database_set, databases.fetch_set),
    RemoteKind("http", lambda source: source.url is not None, fetch_address),
)
"""The first row that matches is that of a set; an address of no other kind has to be one of http(s)."""


def find_kind(source: SourceSet) -> RemoteKind | None:
    """Return the row of a remote set; None for one of this machine."""
    return next((kind for kind in KINDS if kind.match(source)), None)


def find_place(source: SourceSet, settings: Settings) -> RemotePlace | None:
    """Return the place of a set that is pinned; None for any other set."""
    kind = find_kind(source)
    return kind.pin(source, settings) if kind is not None and kind.pin is not None else None


def pin_sources(
    config: DataSourceConfig, settings: Settings, *, run: str, refresh: bool, say: Callable[[str], None]
) -> None:
    """Pin every set of a data source that can be pinned, and report changes. Raises the errors of `pin_place`."""
    for remote in (find_place(source, settings) for _, _, source in config.named_sets()):
        if remote is not None:
            before = read_pin(remote, settings)
            pin = pin_place(remote, settings, run=run, refresh=refresh)
            if before is None or before.revision != pin.revision:
                say(f"{pin.address} is {pin.revision[:12]}, {len(pin.files)} file{'s' * (len(pin.files) != 1)}")
