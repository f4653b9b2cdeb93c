"""One contract, two stores: a folder, and a bucket behind the real client."""

from __future__ import annotations

import base64
import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainyard.errors import Conflict, Corrupt, InvalidInput, LimitExceeded, NotFound
from trainyard.stores.objects.addresses import open_store
from trainyard.stores.objects.local import POINTS, FolderStore
from trainyard.stores.objects.store import ObjectStore, crc32c
from trainyard.testing.object_server import ObjectServer
from trainyard.testing.simulated_files import SimulatedFiles


@pytest.fixture(params=["folder", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    if request.param == "folder":
        yield open_store(f"file://{tmp_path}/store")
    else:
        pytest.importorskip("google.cloud.storage", reason="needs the gcs extra")
        with ObjectServer() as server:
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
            yield open_store("gs://weights/below/here")


def test_what_is_put_is_got(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(os.urandom(100_000))
    info = store.put("acme/coder/v1/weights", tmp_path / "weights", if_generation_match=0, metadata={"run": "r1"})
    assert (info.name, info.size, info.metadata) == ("acme/coder/v1/weights", 100_000, {"run": "r1"})
    assert info.crc32c == crc32c((tmp_path / "weights").read_bytes())
    assert store.head("acme/coder/v1/weights") == info
    assert store.get("acme/coder/v1/weights") == (tmp_path / "weights").read_bytes()
    assert store.download("acme/coder/v1/weights", tmp_path / "new" / "copy") == info
    assert (tmp_path / "new" / "copy").read_bytes() == (tmp_path / "weights").read_bytes()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["copy"]
    empty = store.put("empty", b"")
    assert (store.get("empty"), empty.size) == (b"", 0)
    assert store.list() == [info, empty]
    assert store.list("acme/co") == [info]
    assert store.list("other") == []


def test_preconditions_hold(store: ObjectStore) -> None:
    first = store.put("it", b"1", if_generation_match=0)
    with pytest.raises(Conflict, match="E-OBJECT-EXISTS"):
        store.put("it", b"2", if_generation_match=0)
    second = store.put("it", b"2", if_generation_match=first.generation)
    assert second.generation > first.generation
    with pytest.raises(Conflict, match="E-OBJECT-CHANGED"):
        store.put("it", b"3", if_generation_match=first.generation)
    with pytest.raises(Conflict, match="E-OBJECT-CHANGED"):
        store.delete("it", if_generation_match=first.generation)
    assert store.get("it", generation=second.generation) == b"2"
    with pytest.raises(NotFound, match="E-NOT-FOUND"):
        store.get("it", generation=first.generation)
    assert [store.delete("it", if_generation_match=second.generation), store.delete("it")] == [True, False]
    assert store.put("it", b"4", if_generation_match=0).generation > second.generation
    with pytest.raises(Conflict, match="E-OBJECT-CHANGED"):
        store.put("never", b"", if_generation_match=7)


def test_what_is_not_there(store: ObjectStore, tmp_path: Path) -> None:
    assert (store.head("no"), store.delete("no")) == (None, False)
    with pytest.raises(NotFound, match="E-NOT-FOUND"):
        store.get("no")
    with pytest.raises(NotFound, match="E-NOT-FOUND"):
        store.download("no", tmp_path / "no")
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    "name", ["../x", "a/../b", "/etc/passwd", "", "a//b", "a/", ".objects/x", "a\\b", "a\nb", "\ud800"]
)
def test_a_name_stays_inside(store: ObjectStore, name: str) -> None:
    for call in (store.get, store.head, store.delete, lambda object_name: store.put(object_name, b"")):
        with pytest.raises(InvalidInput, match="E-NAME"):
            call(name)
    with pytest.raises(InvalidInput, match="E-NAME"):
        store.put("a" * 2000, b"")


def test_a_link_cannot_lead_out(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    store.put("a/b", b"")
    (tmp_path / "store" / "out").symlink_to(tmp_path)
    with pytest.raises(InvalidInput, match=r"E-NAME.*symbolic link"):
        store.put("out/x", b"")
    with pytest.raises(InvalidInput, match=r"E-NAME.*below another object"):
        store.put("a/b/c", b"")


@pytest.mark.parametrize(
    "address",
    ["", "weights", "s3://bucket", "gs://", "gs://B!", "gs://ok/../x", "file:///", "file:///a/../b", "file://host/a", "gs://ok?x"],
)  # fmt: skip
def test_an_address_that_means_nothing(address: str) -> None:
    with pytest.raises(InvalidInput, match=r"E-OBJECT-STORE|E-NAME"):
        open_store(address)


def test_sixteen_creators_have_one_winner(tmp_path: Path) -> None:
    store, results = FolderStore(tmp_path), []

    def create(number: int) -> None:
        try:
            store.put("it", str(number).encode(), if_generation_match=0)
        except Conflict:
            results.append(-1)
        else:
            results.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [number for number in results if number >= 0]
    assert [store.get("it")] == [str(number).encode() for number in winners]


def test_bytes_that_changed_on_the_disk_are_told(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.put("it", b"good")
    (tmp_path / "it").write_bytes(b"evil")
    with pytest.raises(Corrupt, match=r"E-CORRUPT.*arrived damaged"):
        store.get("it")
    (tmp_path / ".objects" / "it").write_text("{")
    with pytest.raises(Corrupt, match=r"E-CORRUPT.*cannot be read"):
        store.head("it")


def test_a_full_disk_keeps_the_old_object() -> None:
    for call in range(1, 12):
        files = SimulatedFiles(call)
        store = FolderStore(Path("/store"), files)
        store.put("a/it", b"old")
        files.fail_at(call, errno.ENOSPC)
        try:
            store.put("a/it", b"new")
        except LimitExceeded as error:
            done = (error.code, store.get("a/it") in (b"old", b"new"))
        else:
            done = ("written", store.get("a/it") == b"new")
        assert done[1], done


@pytest.mark.parametrize("effect", ["create", "overwrite", "same", "delete"])
def test_the_power_fails_at_every_call(effect: str) -> None:
    """Afterwards there is the old object or the new one, whole, and never a generation that was seen before."""
    for call in range(1, 30):
        for seed in range(8):
            store, finished = die_amid(effect, call, seed)
            before, after = {
                "create": ((None, None), (None, b"NEW")),
                "overwrite": ((b"OLD", None), (b"NEW", None)),
                "same": ((b"OLD", None), (b"OLD", None)),
                "delete": ((b"OLD", None), (None, None)),
            }[effect]
            contents = tuple(store.get(name) if store.head(name) else None for name in ("a/it", "b/to"))
            assert contents in ([after] if finished else [before, after])
            assert [info.name for info in store.list()] == [
                name for name, content in zip(("a/it", "b/to"), contents, strict=True) if content is not None
            ]
            assert store.put("a/it", b"X").generation > 1 or effect == "create"
        if finished:
            return
    raise AssertionError("it never finished")


def die_amid(effect: str, call: int, seed: int) -> tuple[FolderStore, bool]:
    files = SimulatedFiles(seed)
    store = FolderStore(Path("/store"), files)
    if effect != "create":
        store.put("a/it", b"OLD")
    count = iter(range(1, 1000))

    def die(_call: str) -> None:
        if next(count) == call:
            raise KeyboardInterrupt

    files.before, finished = die, True
    try:
        match effect:
            case "create":
                store.put("b/to", b"NEW", if_generation_match=0)
            case "overwrite":
                store.put("a/it", b"NEW", if_generation_match=1)
            case "same":
                store.put("a/it", b"OLD", metadata={"again": "yes"})
            case "delete":
                store.delete("a/it")
    except KeyboardInterrupt:
        finished = False
    files.before = lambda _call: None
    files.crash()
    return FolderStore(Path("/store"), files), finished


PROGRAM = """
import sys
from pathlib import Path
from trainyard.compute.child import faultpoint
from trainyard.errors import Conflict
from trainyard.stores.objects.local import FolderStore
store = FolderStore(Path(sys.argv[1]), at=faultpoint)
try:
    store.put("a/it", b"NEW", if_generation_match=0)
except Conflict:
    print("there")
"""


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_point_and_run_again_it_is_there_once(point: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    killed = subprocess.run(command, env={**os.environ, "TRAINYARD_FAULT": point}, check=False)
    assert killed.returncode == -signal.SIGKILL
    subprocess.run(command, check=True)
    assert [(info.name, info.size) for info in FolderStore(tmp_path).list()] == [("a/it", 3)]
    assert FolderStore(tmp_path).get("a/it") == b"NEW"


def test_crc32c_of_known_texts() -> None:
    """RFC 3720, appendix B.4, and Cloud Storage's own example of base64."""
    checksums = {b"123456789": 0xE3069283, bytes(32): 0x8A9136AA, bytes(range(32)): 0x46DD794E}
    for text, value in checksums.items():
        assert base64.b64decode(crc32c(text)) == value.to_bytes(4, "big")
    assert crc32c(b"") == "AAAAAA=="
