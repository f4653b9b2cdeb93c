"""Many workers, many markers, and connections that lie: each marker has exactly one winner, and none is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.unit.stores.marking import HandClock, marker, notes, open_markers, owner
from trainyard.errors import Conflict
from trainyard.stores.markers.local import LocalMarkers
from trainyard.stores.markers.records import LEASE_S, Claim, MarkerState, MarkerStore, find_owner
from trainyard.stores.markers.remote import ObjectMarkers
from trainyard.stores.objects.local import FolderStore
from trainyard.testing.object_server import ObjectServer
from trainyard.testing.simulated_files import SimulatedFiles

pytestmark = pytest.mark.integration

RATES = {"503": 0.05, "lost-ack": 0.05, "delay": 0.05}


def race(address: str, workers: int, folder: Path, *, kill: int = 0) -> list[dict[str, object]]:
    """Let the workers run to the end; the first `kill` of them die at their third claim. What they noted."""
    records = [folder / f"{number}.jsonl" for number in range(workers)]
    running = []
    for number, record in enumerate(records):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if number < kill:
            environment["TRAINYARD_FAULT"] = "marker.claimed#3"
        command = [sys.executable, "-m", "tests.unit.stores.marking", address, str(number), str(record)]
        running.append(subprocess.Popen(command, env=environment))
    for number, process in enumerate(running):
        assert process.wait(timeout=1500) == (-9 if number < kill else 0)
    return notes(records)


def check(address: str, count: int, noted: list[dict[str, object]]) -> None:
    wins = Counter(str(line["won"]) for line in noted if "won" in line)
    assert wins == Counter(marker(number).name for number in range(count))
    states = open_markers(address).states()
    assert states == {marker(number).name: MarkerState.COMPLETED for number in range(count)}


@pytest.mark.parametrize(
    ("workers", "count"), [(4, 40), pytest.param(8, 1000, marks=[pytest.mark.slow, pytest.mark.timeout(1600)])]
)
def test_local_claims_have_one_winner_each(workers: int, count: int, tmp_path: Path) -> None:
    address = f"folder:{tmp_path}/markers"
    markers = open_markers(address)
    assert all(markers.publish(marker(number)) for number in range(count))
    noted = race(address, workers, tmp_path, kill=1)
    check(address, count, noted)
    assert len([line for line in noted if line.get("fence") == 2]) == 1


@pytest.mark.parametrize(
    ("workers", "count"), [(3, 15), pytest.param(8, 1000, marks=[pytest.mark.slow, pytest.mark.timeout(1600)])]
)
def test_claims_in_a_bucket_have_one_winner_each(
    workers: int, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("google.cloud.storage", reason="needs the gcs extra")
    with ObjectServer(rates=RATES, seed=5, delay_s=0.02) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        address = "gs://weights/night"
        markers = open_markers(address)
        assert all(markers.publish(marker(number)) for number in range(count))
        check(address, count, race(address, workers, tmp_path))
        seen = [server.faults[fault] for fault in RATES]
        assert sum(seen) > 0  # in a short race not every kind of fault comes up
        assert min(seen) > 0 or count < 1000


class Night(RuleBasedStateMachine):
    """Two owners, two markers, a clock that is moved and a disk that loses power, against a simple model."""

    def make(self, files: SimulatedFiles) -> MarkerStore:
        return LocalMarkers(Path("/markers"), files, self.clock)

    @initialize(seed=st.integers(0, 999))
    def begin(self, seed: int) -> None:
        self.files, self.clock = SimulatedFiles(seed), HandClock()
        self.markers = self.make(self.files)
        self.claims: dict[tuple[int, int], Claim] = {}
        self.published: set[int] = set()
        self.ended: dict[str, MarkerState] = {}
        self.fences: dict[int, int] = {}
        self.leases: dict[int, float] = {}
        """Until when nobody else may have a marker."""

    @rule(number=st.integers(0, 1))
    def publish(self, number: int) -> None:
        assert self.markers.publish(marker(number)) == (number not in self.published)
        self.published.add(number)

    @rule(number=st.integers(0, 1), worker=st.integers(1, 2))
    def claim(self, number: int, worker: int) -> None:
        claim = self.markers.claim(marker(number), owner(worker))
        if claim is None:
            return
        assert number in self.published
        assert marker(number).name not in self.ended
        assert claim.fence > self.fences.get(number, 0)
        assert self.clock.now() > self.leases.get(number, 0.0)
        self.leases[number] = claim.expires
        self.fences[number] = claim.fence
        self.claims[number, worker] = claim

    @rule(number=st.integers(0, 1), worker=st.integers(1, 2))
    def heartbeat(self, number: int, worker: int) -> None:
        def verify(claim: Claim) -> None:
            self.claims[number, worker] = self.markers.verify(claim)
            self.leases[number] = self.claims[number, worker].expires

        self.act(number, worker, verify)

    @rule(number=st.integers(0, 1), worker=st.integers(1, 2))
    def complete(self, number: int, worker: int) -> None:
        if self.act(number, worker, lambda claim: self.markers.complete(claim, {"who": worker})):
            self.ended[marker(number).name] = MarkerState.COMPLETED

    @rule(number=st.integers(0, 1), worker=st.integers(1, 2), retry=st.booleans())
    def fail(self, number: int, worker: int, retry: bool) -> None:
        if self.act(number, worker, lambda claim: self.markers.fail(claim, "because", retry=retry)):
            self.leases.pop(number)
            if not retry:
                self.ended[marker(number).name] = MarkerState.FAILED

    def act(self, number: int, worker: int, effect: Callable[[Claim], None]) -> bool:
        """Only the last owner may act; nobody may once it has ended, but saying the same end twice is nothing new."""
        claim = self.claims.get((number, worker))
        if claim is None:
            return False
        before = self.markers.states()[marker(number).name]
        refused = ""
        try:
            effect(claim)
        except Conflict as error:
            refused = error.code
        if refused:
            assert refused == "E-MARKER-LOST"
            assert claim.fence < self.fences[number] or before is not MarkerState.CLAIMED
            return False
        assert claim.fence == self.fences[number]
        return before is MarkerState.CLAIMED

    @rule(seconds=st.sampled_from([LEASE_S / 2, LEASE_S + 31]))
    def wait(self, seconds: float) -> None:
        self.clock.pass_by(seconds)

    @rule()
    def lose_power(self) -> None:
        """What was acknowledged stands; the claims are in the hands of processes that are gone."""
        self.files.crash()
        self.markers = self.make(self.files)

    @rule(number=st.integers(0, 1), worker=st.integers(1, 2), call=st.integers(1, 6))
    def lose_power_amid_a_claim(self, number: int, worker: int, call: int) -> None:
        count = iter(range(1, 1000))

        def die(_call: str) -> None:
            if next(count) == call:
                raise KeyboardInterrupt

        self.files.before = die
        try:
            self.claim(number, worker)
        except KeyboardInterrupt:
            self.files.crash()
            self.markers = self.make(self.files)
            if number in self.published:
                record = self.markers.show(marker(number).name)
                self.fences[number] = max(self.fences.get(number, 0), record.fence)
                self.leases[number] = record.expires if record.state is MarkerState.CLAIMED else 0.0
        finally:
            self.files.before = lambda _call: None

    @invariant()
    def check_marker_states(self) -> None:
        if not hasattr(self, "markers"):
            return
        states = self.markers.states()
        assert set(states) == {marker(number).name for number in self.published}
        assert {name: states[name] for name in self.ended} == self.ended


class ObjectNight(Night):
    def make(self, files: SimulatedFiles) -> MarkerStore:
        return ObjectMarkers(FolderStore(Path("/store"), files), "markers", self.clock)


TestNight = Night.TestCase
TestNight.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestObjectNight = ObjectNight.TestCase
TestObjectNight.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)


def test_the_temporary_names_do_not_pile_up() -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        markers = LocalMarkers(folder)
        markers.publish(marker())
        assert markers.claim(marker(), owner(1)) is not None
        assert sorted(path.name for path in folder.iterdir()) == [".lock", f"{marker().name}.json.claimed"]


SLEEPER = """
import sys
from pathlib import Path
from tests.unit.stores.marking import marker
from trainyard.errors import Conflict
from trainyard.stores.markers.local import LocalMarkers
from trainyard.stores.markers.records import find_owner
markers = LocalMarkers(Path(sys.argv[1]), lease_s=0.3)
claim = markers.claim(marker(), find_owner())
print("claimed", flush=True)
sys.stdin.readline()
for effect in (lambda: markers.verify(claim), lambda: markers.complete(claim, {}), lambda: markers.heartbeat(claim)):
    try:
        effect()
    except Conflict as error:
        print(error.code, flush=True)
"""


def test_a_worker_that_was_stopped_beyond_its_lease_can_do_nothing_when_it_wakes(tmp_path: Path) -> None:
    markers = LocalMarkers(tmp_path, lease_s=60)
    markers.publish(marker())
    command = [sys.executable, "-c", SLEEPER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as sleeper:
        assert sleeper.stdout is not None
        assert sleeper.stdout.readline() == "claimed\n"
        sleeper.send_signal(signal.SIGSTOP)
        assert markers.claim(marker(), find_owner()) is None
        time.sleep(0.35)
        claim = markers.claim(marker(), find_owner())
        sleeper.send_signal(signal.SIGCONT)
        output, _ = sleeper.communicate("go on\n", timeout=120)
    assert output.split() == ["E-MARKER-LOST"] * 3
    assert claim is not None
    markers.complete(claim, {"by": "the second"})
    assert markers.show(marker().name).facts == {"by": "the second"}
