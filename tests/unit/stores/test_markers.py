"""Markers: one winner, a lease, a fencing number; the same in a folder and in an object store."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.stores.marking import HandClock, marker, open_markers, owner
from trainyard.errors import Conflict, Corrupt, InvalidInput, LimitExceeded, NotFound
from trainyard.stores.markers.local import LocalMarkers
from trainyard.stores.markers.records import LEASE_S, POINTS, MarkerState, MarkerStore, Owner, find_owner, owner_alive
from trainyard.stores.markers.remote import ObjectMarkers
from trainyard.stores.objects.addresses import open_store
from trainyard.stores.objects.local import FolderStore
from trainyard.testing.object_server import ObjectServer
from trainyard.testing.simulated_files import SimulatedFiles

KINDS = ["folder", "file", "bucket"]
LATER = LEASE_S + 60


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture(params=KINDS)
def markers(
    request: pytest.FixtureRequest, tmp_path: Path, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MarkerStore]:
    if request.param == "folder":
        yield LocalMarkers(tmp_path / "markers", clock=clock)
    elif request.param == "file":
        yield ObjectMarkers(open_store(f"file://{tmp_path}/store"), "markers", clock)
    else:
        pytest.importorskip("google.cloud.storage", reason="needs the gcs extra")
        with ObjectServer() as server:
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
            yield ObjectMarkers(open_store("gs://weights/night"), "markers", clock)


def test_the_way_of_a_marker(markers: MarkerStore) -> None:
    assert markers.states() == {}
    assert [markers.publish(marker()), markers.publish(marker())] == [True, False]
    assert markers.pending() == [marker()]
    assert markers.states() == {"run0000-acme-coder-engineering": MarkerState.PENDING}
    claim = markers.claim(marker(), owner(1))
    assert claim is not None
    assert (claim.fence, claim.owner, claim.expires) == (1, owner(1), 1.0e9 + LEASE_S)
    assert markers.claim(marker(), owner(2)) is None
    assert markers.claim(marker(), owner(1)) is None
    assert [markers.pending(), markers.expired(), markers.publish(marker())] == [[], [], False]
    claim = markers.verify(markers.heartbeat(claim))
    markers.complete(claim, {"version": "acme/coder/v1"})
    markers.complete(claim, {"version": "acme/coder/v1"})
    record = markers.show(marker().name)
    assert (record.state, record.facts) == (MarkerState.COMPLETED, {"version": "acme/coder/v1"})
    assert [markers.claim(marker(), owner(2)), markers.publish(marker()), markers.pending()] == [None, False, []]
    with pytest.raises(Conflict, match=r"E-MARKER-LOST.*It is completed now"):
        markers.heartbeat(claim)


def test_a_failure_gives_it_back_or_gives_it_up(markers: MarkerStore) -> None:
    markers.publish(marker())
    claim = markers.claim(marker(), owner(1))
    assert claim is not None
    markers.fail(claim, "out of memory", retry=True)
    record = markers.show(marker().name)
    assert (record.state, record.attempts, record.reason) == (MarkerState.PENDING, 1, "out of memory")
    with pytest.raises(Conflict, match="E-MARKER-LOST"):
        markers.verify(claim)
    again = markers.claim(marker(), owner(1))
    assert again is not None
    assert again.fence == 2
    markers.fail(again, "no adapter", retry=False)
    assert markers.states() == {marker().name: MarkerState.FAILED}
    assert markers.claim(marker(), owner(2)) is None


def test_a_silent_owner_is_replaced_once_and_can_do_nothing_more(markers: MarkerStore, clock: HandClock) -> None:
    markers.publish(marker())
    old = markers.claim(marker(), owner(1))
    assert old is not None
    clock.pass_by(LEASE_S - 1)
    assert markers.claim(marker(), owner(2)) is None
    clock.pass_by(LATER)
    assert [claim.fence for claim in markers.expired()] == [1]
    new = markers.claim(marker(), owner(2))
    assert new is not None
    assert new.fence == 2
    assert markers.claim(marker(), owner(3)) is None
    for effect in (markers.heartbeat, markers.verify, lambda claim: markers.complete(claim, {}), give_up(markers)):
        with pytest.raises(Conflict, match=r"E-MARKER-LOST.*fencing number 2"):
            effect(old)
    markers.complete(new, {"by": 2})
    assert markers.show(marker().name).facts == {"by": 2}


def give_up(markers: MarkerStore) -> Callable[..., None]:
    return lambda claim: markers.fail(claim, "late", retry=True)


def test_an_owner_that_woke_up_before_anybody_noticed_goes_on(markers: MarkerStore, clock: HandClock) -> None:
    markers.publish(marker())
    claim = markers.claim(marker(), owner(1))
    assert claim is not None
    clock.pass_by(LATER)
    claim = markers.verify(claim)
    assert [markers.expired(), markers.claim(marker(), owner(2))] == [[], None]
    markers.complete(claim, {})


def test_a_dead_process_of_this_machine_is_replaced_at_once(markers: MarkerStore) -> None:
    markers.publish(marker())
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    me = find_owner()
    assert markers.claim(marker(), replace(me, pid=dead.pid)) is not None
    assert len(markers.expired()) == 1
    claim = markers.claim(marker(), me)
    assert claim is not None
    assert (claim.fence, markers.expired()) == (2, [])
    markers.fail(claim, "again", retry=True)
    assert markers.claim(marker(), replace(me, boot_id="the boot before")) is not None
    assert markers.claim(marker(), me) is not None


def test_no_clock_change_ends_a_lease_on_the_owners_machine(markers: MarkerStore, clock: HandClock) -> None:
    markers.publish(marker())
    assert markers.claim(marker(), find_owner()) is not None
    clock.time += 10 * LEASE_S
    assert markers.expired() == []
    clock.time -= 20 * LEASE_S
    clock.since_boot += LEASE_S + 1
    assert len(markers.expired()) == 1


def test_who_is_alive() -> None:
    me = find_owner()
    assert owner_alive(me) is True
    assert owner_alive(replace(me, create_time="another boot/1")) is False
    assert owner_alive(replace(me, boot_id="another")) is False
    assert owner_alive(replace(me, host="another")) is None


@pytest.mark.parametrize("bad", ["../x", "a/b", "", "A", "a" * 64, "a\n", ".hidden"])
def test_a_name_cannot_leave_its_folder(bad: str) -> None:
    for field in ("tenant", "role", "bucket"):
        with pytest.raises(InvalidInput, match=f"E-NAME.*{field}"):
            replace(marker(), **{field: bad})
    with pytest.raises(InvalidInput, match=r"E-NAME.*run"):
        replace(marker(), run="../../etc")
    with pytest.raises(InvalidInput, match=r"E-NAME.*64 hexadecimal"):
        replace(marker(), corpus_sha256="nothing")


def test_two_markers_that_would_share_a_file_are_told_apart(markers: MarkerStore) -> None:
    markers.publish(marker(role="coder-x", bucket="y"))
    with pytest.raises(Conflict, match=r"E-NAME.*taken by role coder-x"):
        markers.publish(marker(role="coder", bucket="x-y"))


def test_an_unknown_marker(markers: MarkerStore) -> None:
    assert markers.claim(marker(), owner(1)) is None
    with pytest.raises(NotFound, match="E-NOT-FOUND"):
        markers.show("nothing")


def test_files_by_state(tmp_path: Path) -> None:
    markers = LocalMarkers(tmp_path)
    markers.publish(marker())
    claim = markers.claim(marker(), owner(1))
    assert claim is not None
    assert visible(tmp_path) == ["run0000-acme-coder-engineering.json.claimed"]
    markers.complete(claim, {})
    assert visible(tmp_path) == ["run0000-acme-coder-engineering.json.completed"]
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(Corrupt, match="E-CORRUPT"):
        markers.pending()


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_two_names_after_a_crash_amid_link_and_unlink_count_as_one(tmp_path: Path) -> None:
    markers = LocalMarkers(tmp_path)
    markers.publish(marker())
    os.link(tmp_path / f"{marker().name}.json", tmp_path / f"{marker().name}.json.claimed")
    assert (markers.pending(), list(markers.states().values())) == ([], [MarkerState.CLAIMED])
    assert markers.claim(marker(), owner(1)) is not None
    assert visible(tmp_path) == [f"{marker().name}.json.claimed"]


def claim_by_hand(markers: MarkerStore, *, with_metadata: bool = True) -> None:
    """Rename a pending marker to `.claimed`, as an operator (or a shell script) does it: nobody is its owner."""
    name = marker().name
    if isinstance(markers, LocalMarkers):
        (markers.folder / f"{name}.json").rename(markers.folder / f"{name}.json.claimed")
        return
    assert isinstance(markers, ObjectMarkers)
    there = markers.store.head(f"markers/{name}.json")
    assert there is not None
    content = markers.store.get(there.name)
    markers.store.delete(there.name)
    markers.store.put(f"{there.name}.claimed", content, metadata=there.metadata if with_metadata else {})


@pytest.mark.parametrize("with_metadata", [True, False], ids=["with-metadata", "without"])
def test_a_claim_without_an_owner_is_taken_by_the_next_worker(markers: MarkerStore, *, with_metadata: bool) -> None:
    markers.publish(marker())
    claim_by_hand(markers, with_metadata=with_metadata)
    waiting = [*markers.pending(), *(claim.marker for claim in markers.expired())]
    assert waiting == [marker()]
    claim = markers.claim(marker(), owner(1))
    assert claim is not None
    assert (markers.expired(), markers.claim(marker(), owner(2))) == ([], None)
    markers.complete(markers.verify(claim), {})
    assert markers.states() == {marker().name: MarkerState.COMPLETED}


def test_a_record_that_says_claimed_by_nobody_is_expired(markers: MarkerStore) -> None:
    markers.publish(marker())
    claim = markers.claim(marker(), owner(1))
    assert claim is not None
    if isinstance(markers, LocalMarkers):
        path = markers.folder / f"{marker().name}.json.claimed"
        path.write_bytes(replace(markers.show(marker().name), owner=None).to_json())
    else:
        assert isinstance(markers, ObjectMarkers)
        nobody = replace(markers.show(marker().name), owner=None).to_json()
        name = f"markers/{marker().name}.json.claimed"
        markers.store.put(name, nobody, metadata={"record": nobody.decode()})
    assert [claim.fence for claim in markers.expired()] == [1]
    new_claim = markers.claim(marker(), owner(2))
    assert new_claim is not None
    assert new_claim.fence == 2


def test_a_full_disk_leaves_the_marker_pending() -> None:
    for call in range(1, 6):
        files = SimulatedFiles(call)
        markers = LocalMarkers(Path("/markers"), files, HandClock())
        markers.publish(marker())
        files.fail_at(call, errno.ENOSPC)
        with pytest.raises(LimitExceeded, match="E-DISK-FULL"):
            markers.claim(marker(), owner(1))
        files.heal()
        assert markers.states() == {marker().name: MarkerState.PENDING}
        assert markers.claim(marker(), owner(1)) is not None


def test_what_a_crash_left_of_an_end_in_a_bucket_is_completed_by_the_next_look(tmp_path: Path) -> None:
    def die(point: str) -> None:
        if point == "marker.end-written":
            raise KeyboardInterrupt

    store = FolderStore(tmp_path)
    markers = ObjectMarkers(store, at=die)
    markers.publish(marker())
    claim = markers.claim(marker(), owner(1))
    assert claim is not None
    with pytest.raises(KeyboardInterrupt):
        markers.complete(claim, {"version": 1})
    assert markers.states() == {marker().name: MarkerState.COMPLETED}
    assert store.head(f"markers/{marker().name}.json.completed") is None
    assert ObjectMarkers(store).expired() == []
    assert store.head(f"markers/{marker().name}.json.completed") is not None


PROGRAM = """
import sys
from tests.unit.stores.marking import marker, open_markers
from trainyard.compute.child import faultpoint
from trainyard.stores.markers.records import find_owner
markers = open_markers(sys.argv[1], faultpoint)
markers.publish(marker())
for one in markers.pending() + [claim.marker for claim in markers.expired()]:
    claim = markers.claim(one, find_owner())
    markers.complete(markers.verify(claim), {"version": "v1"})
"""


@pytest.mark.parametrize("kind", ["folder:", "file://"])
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_point_and_run_again_it_ends_the_same(point: str, kind: str, tmp_path: Path) -> None:
    address = f"{kind}{tmp_path}/it"
    command = [sys.executable, "-c", PROGRAM, address]
    killed = subprocess.run(command, env={**os.environ, "TRAINYARD_FAULT": point}, check=False)
    if kind == "file://" and point == "marker.claim-written":
        assert killed.returncode == 0  # one conditional write: there is no such moment
    else:
        assert killed.returncode == -signal.SIGKILL
    subprocess.run(command, check=True)
    markers = open_markers(address)
    record = markers.show(marker().name)
    assert markers.states() == {marker().name: MarkerState.COMPLETED}
    assert (record.facts, record.marker) == ({"version": "v1"}, marker())
    assert isinstance(record.owner, Owner)
