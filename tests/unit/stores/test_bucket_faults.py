"""What a bucket may do to us, and what each operation makes of it: the real client against the double."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.selection import choose_by_default
from trainyard.errors import Conflict, Corrupt, TrainyardError
from trainyard.stores.objects.addresses import open_store
from trainyard.stores.objects.store import ObjectSettings, ObjectStore
from trainyard.testing.object_server import ObjectServer

pytest.importorskip("google.cloud.storage", reason="needs the gcs extra")

QUICK = ObjectSettings(deadline_s=1.2, request_timeout_s=0.4, first_wait_s=0.01, most_wait_s=0.05, chunk_bytes=1 << 20)
PASSING = ["408", "429", "500", "502", "503", "504", "reset", "stall", "delay"]
OPERATIONS = ["put", "get", "head", "list", "delete"]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    with ObjectServer(stall_s=1.0, delay_s=0.02) as double:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", double.url)
        yield double


@pytest.fixture
def store(server: ObjectServer) -> ObjectStore:
    opened = open_store("gs://weights/night", QUICK)
    opened.put("old", b"OLD", metadata={"run": "r0"})
    return opened


def act(store: ObjectStore, operation: str) -> object:
    match operation:
        case "put":
            return store.put("new", b"NEW", if_generation_match=0).size
        case "get":
            return store.get("old")
        case "head":
            info = store.head("old")
            return info and info.size
        case "list":
            return [info.name for info in store.list()]
        case _:
            return store.delete("old")


EXPECTED = {"put": 3, "get": b"OLD", "head": 3, "list": ["old"], "delete": True}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("fault", PASSING)
def test_what_passes_is_tried_again(store: ObjectStore, server: ObjectServer, operation: str, fault: str) -> None:
    server.script(fault)
    assert act(store, operation) == EXPECTED[operation]
    assert server.faults[fault] == 1


@pytest.mark.parametrize("operation", ["put", "delete"])
def test_a_lost_acknowledgement_is_looked_up(store: ObjectStore, server: ObjectServer, operation: str) -> None:
    server.script("lost-ack", "503")
    assert act(store, operation) == EXPECTED[operation]
    assert server.faults["lost-ack"] == 1
    assert [info.name for info in store.list()] == {"put": ["new", "old"], "delete": []}[operation]


def test_a_lost_acknowledgement_of_a_renewal_is_ours_too(store: ObjectStore, server: ObjectServer) -> None:
    first = store.put("lease", b"1", if_generation_match=0)
    server.script("lost-ack")
    second = store.put("lease", b"2", if_generation_match=first.generation)
    assert store.put("lease", b"3", if_generation_match=second.generation).size == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("operation", choose_by_default(["put"], OPERATIONS))
@pytest.mark.parametrize("fault", ["401", "403"])
def test_what_does_not_let_us_in_is_not_asked_twice(
    store: ObjectStore, server: ObjectServer, operation: str, fault: str
) -> None:
    before = len(server.requests)
    server.script(fault)
    with pytest.raises(TrainyardError, match="E-OBJECT-STORE"):
        act(store, operation)
    assert len(server.requests) == before + 1
    gc.collect()  # google-auth drops the answer of a 401 unread, and its socket warns wherever it is collected


def test_a_bucket_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    with ObjectServer(buckets=("other",)) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        with pytest.raises(TrainyardError, match=r"E-OBJECT-STORE.*bucket does not exist"):
            open_store("gs://weights", QUICK).put("it", b"")
        assert len(server.requests) == 1


def test_a_precondition_that_fails_by_itself_is_a_conflict(store: ObjectStore, server: ObjectServer) -> None:
    server.script("412")
    with pytest.raises(Conflict, match="E-OBJECT-EXISTS"):
        store.put("new", b"NEW", if_generation_match=0)
    server.script("412")
    with pytest.raises(Conflict, match="E-OBJECT-CHANGED"):
        store.delete("old", if_generation_match=5)


@pytest.mark.parametrize(
    ("operation", "fault"), [("put", "503"), ("get", "429"), ("head", "reset"), ("put", "stall"), ("list", "stall")]
)
def test_one_deadline_holds_over_all_tries(
    store: ObjectStore, server: ObjectServer, operation: str, fault: str
) -> None:
    server.script(*[fault] * 500)
    began = time.monotonic()
    with pytest.raises(TrainyardError, match=r"E-OBJECT-STORE.*Within 1.2 s"):
        act(store, operation)
    assert time.monotonic() - began < QUICK.deadline_s + QUICK.request_timeout_s + 30


def test_a_broken_download_goes_on_where_it_broke(store: ObjectStore, server: ObjectServer) -> None:
    content = os.urandom(300_000)
    store.put("big", content)
    server.script("broken-download")
    assert store.get("big") == content
    assert server.requests[-1].content_range.startswith("bytes=14")  # half had come, in pieces of 8 KiB


def test_damaged_bytes_are_read_again_and_then_refused(
    store: ObjectStore, server: ObjectServer, tmp_path: Path
) -> None:
    server.script("wrong-crc")
    assert store.get("old") == b"OLD"
    server.script(*["wrong-crc"] * 3)
    with pytest.raises(Corrupt, match="E-CORRUPT"):
        store.get("old")
    server.script("ok", *["wrong-crc"] * 3)
    with pytest.raises(Corrupt, match="E-CORRUPT"):
        store.download("old", tmp_path / "it")
    assert list(tmp_path.glob("*it*")) == []


@pytest.mark.parametrize("fault", ["reset", "503", "stall", "lost-ack"])
def test_a_large_upload_resumes(store: ObjectStore, server: ObjectServer, fault: str, tmp_path: Path) -> None:
    content = os.urandom((9 << 20) + 17)
    (tmp_path / "weights").write_bytes(content)
    server.script(*["ok"] * 4, fault)
    info = store.put("weights", tmp_path / "weights", if_generation_match=0)
    assert (info.size, server.faults[fault]) == (len(content), 1)
    assert store.get("weights") == content
    chunks = [request for request in server.requests if request.method == "PUT"]
    assert len(chunks) <= 10 + 2


def test_two_publishers_create_each_version_once(server: ObjectServer) -> None:
    """A hundred and twenty names, two writers, connections that lie: each name has one winner, whose bytes it holds."""
    server.rates = {"503": 0.05, "lost-ack": 0.05}
    patient = ObjectSettings(deadline_s=20, first_wait_s=0.01, most_wait_s=0.05)
    won: dict[str, list[str]] = {"one": [], "two": []}

    def publish(publisher: str) -> None:
        store = open_store("gs://weights", patient)
        for number in range(120):
            try:
                store.put(f"v{number}/manifest.json", publisher.encode(), if_generation_match=0)
            except Conflict:
                continue
            won[publisher].append(f"v{number}/manifest.json")

    threads = [threading.Thread(target=publish, args=(publisher,)) for publisher in won]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won["one"] + won["two"]) == sorted(f"v{number}/manifest.json" for number in range(120))
    for publisher, names in won.items():
        assert {server.objects["weights", name].data for name in names} <= {publisher.encode()}


def test_no_question_is_asked_that_was_not_meant(store: ObjectStore, server: ObjectServer) -> None:
    """The client would ask after the bucket itself, which a role for objects alone may not."""
    before = len(server.requests)
    store.head("old")
    store.delete("old")
    assert len(server.requests) == before + 2
