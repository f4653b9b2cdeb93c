"""Repositories: commits under concurrency, quotas, names, and collection, in a folder and in a bucket."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from trainyard.errors import Conflict, InvalidInput, NotFound
from trainyard.stores.repositories.bucket import BucketStorage
from trainyard.stores.repositories.commits import Commit, FileEntry, hash_git_blob
from trainyard.stores.repositories.names import RepositoryName, check_path, check_ref, parse_repository
from trainyard.stores.repositories.quota import QuotaReached, Quotas
from trainyard.stores.repositories.repository import Edits, Repositories
from trainyard.stores.repositories.storage import FolderStorage, Storage

NAME = RepositoryName("datasets", "acme", "chats")
MESSAGE = Commit({}, summary="add", author="test")


@pytest.fixture(params=["folder", "bucket"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return FolderStorage(tmp_path / "storage") if request.param == "folder" else BucketStorage(MemoryStore())


def open_repositories(storage: Storage, limit: int = 1 << 20, now: Callable[[], float] | None = None) -> Repositories:
    clock = now or (lambda: 1_800_000_000.0)
    return Repositories(storage, Quotas(storage, lambda tenant: limit, clock), clock)


def store(repositories: Repositories, tmp_path: Path, data: bytes, tenant: str = "acme") -> FileEntry:
    sha256 = hashlib.sha256(data).hexdigest()
    path = tmp_path / f"{sha256}.{tenant}"
    path.write_bytes(data)
    with repositories.reserving(tenant, {sha256: len(data)}) as take:
        take(sha256, path)
    return FileEntry(sha256, len(data), hash_git_blob(data))


def test_eight_writers_lose_nothing(storage: Storage, tmp_path: Path) -> None:
    open_repositories(storage).create(NAME, "test")

    def write(writer: int) -> None:
        repositories = open_repositories(storage)
        for number in range(5):
            entry = store(repositories, tmp_path, f"{writer} {number}".encode())
            repositories.commit(NAME, "main", Edits({f"{writer}/{number}.txt": entry}), MESSAGE)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    repositories = open_repositories(storage)
    head = repositories.resolve(NAME, "main")
    assert sorted(head.files) == sorted(f"{writer}/{number}.txt" for writer in range(8) for number in range(5))
    assert len(list(repositories.history(NAME, head))) == 41
    assert repositories.quotas.read("acme").total == 40 * 3


def test_commit_on_an_older_parent_is_refused(storage: Storage, tmp_path: Path) -> None:
    repositories = open_repositories(storage)
    repositories.create(NAME, "test")
    parent = repositories.resolve(NAME, "main").id
    first = repositories.commit(NAME, "main", Edits({"a": store(repositories, tmp_path, b"a")}), MESSAGE, parent=parent)
    with pytest.raises(Conflict, match="A commit has happened since"):
        repositories.commit(NAME, "main", Edits({"a": store(repositories, tmp_path, b"b")}), MESSAGE, parent=parent)
    assert repositories.resolve(NAME, "main").id == first.id
    assert repositories.resolve(NAME, parent).files == {}, "a commit stays what it was"


def test_quota_is_exact_and_equal_contents_count_once(storage: Storage, tmp_path: Path) -> None:
    repositories = open_repositories(storage, limit=10)
    store(repositories, tmp_path, b"123456")
    store(repositories, tmp_path, b"123456")
    with pytest.raises(QuotaReached, match="The storage quota of acme is reached: 10 bytes"):
        store(repositories, tmp_path, b"12345")
    assert repositories.quotas.read("acme").total == 6
    store(repositories, tmp_path, b"1234")
    assert repositories.quotas.read("acme").total == 10
    store(repositories, tmp_path, b"12345", tenant="other")


def test_concurrent_uploads_never_exceed_the_quota(storage: Storage, tmp_path: Path) -> None:
    repositories = open_repositories(storage, limit=100)

    def upload(number: int) -> bool:
        try:
            store(repositories, tmp_path, f"{number:010}".encode())
        except QuotaReached:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        accepted = list(pool.map(upload, range(24)))
    assert sum(accepted) == 10
    assert (
        sum(file.size for file in storage.list("tenants/acme/blobs")) == repositories.quotas.read("acme").total == 100
    )


def test_an_upload_that_says_a_wrong_size_makes_no_other_one_cheaper(storage: Storage, tmp_path: Path) -> None:
    repositories, data = open_repositories(storage, limit=1000), b"x" * 900
    digest = hashlib.sha256(data).hexdigest()
    with repositories.reserving("acme", {digest: 1}):
        store(repositories, tmp_path, data)
    assert repositories.quotas.read("acme").total == 900
    other, digest = b"y" * 50, hashlib.sha256(b"y" * 50).hexdigest()
    with repositories.reserving("acme", {digest: 1}), pytest.raises(QuotaReached):
        store(repositories, tmp_path, b"z" * 101)
    with repositories.reserving("acme", {digest: 1}), pytest.raises(QuotaReached):
        repositories.quotas.extend("acme", digest, 101)
    with repositories.reserving("acme", {digest: 99}):
        store(repositories, tmp_path, other)
    assert repositories.quotas.read("acme").total == 950


def test_contents_are_pinned_while_others_are_collected(tmp_path: Path) -> None:
    repositories = Repositories(storage := FolderStorage(tmp_path), Quotas(storage, lambda tenant: 1 << 20))
    with ThreadPoolExecutor(2) as pool:
        asking = pool.submit(lambda: [repositories.has("acme", f"{number:064x}", 1) for number in range(60_000)])
        while not asking.done():
            repositories.collect("acme")
        asking.result()
    assert len(repositories.pins) == 60_000


def test_many_folders_are_deleted_in_one_pass() -> None:
    entry = FileEntry("a" * 64, 1, "b" * 40)
    files = {f"d{number}/part/f{part}": entry for number in range(20_000) for part in range(2)}
    started = time.monotonic()
    kept = Edits({}, deleted_folders=[f"d{number}/" for number in range(1, 20_000)]).apply(files)
    assert (sorted(kept), time.monotonic() - started < 10) == (["d0/part/f0", "d0/part/f1"], True)
    with pytest.raises(NotFound, match="no folder d0/par to"):
        Edits({}, deleted_folders=["d0", "d0/par"]).apply(files)


def test_reservation_of_a_crashed_upload_expires(storage: Storage, tmp_path: Path) -> None:
    now = [0.0]
    repositories = open_repositories(storage, limit=10, now=lambda: now[0])
    repositories.quotas.reserve("acme", {"a" * 64: 8})
    with pytest.raises(QuotaReached):
        store(repositories, tmp_path, b"12345")
    now[0] = 4000.0
    store(repositories, tmp_path, b"12345")
    assert repositories.quotas.read("acme").total == 5


def test_collection_keeps_what_a_branch_or_tag_reaches(storage: Storage, tmp_path: Path) -> None:
    repositories = open_repositories(storage)
    repositories.create(NAME, "test")
    repositories.commit(NAME, "main", Edits({"a": store(repositories, tmp_path, b"kept")}), MESSAGE)
    repositories.create_ref(NAME, "branches", "trial", "main")
    lost = repositories.commit(NAME, "trial", Edits({"b": store(repositories, tmp_path, b"removed")}), MESSAGE)
    repositories.create_ref(NAME, "tags", "v1", "main")
    repositories.commit(NAME, "main", Edits({}, deleted_files=["a"]), MESSAGE)
    repositories.delete_ref(NAME, "branches", "trial")
    later = open_repositories(storage, now=lambda: 4_000_000_000.0)
    assert later.collect("acme") == len(b"removed")
    assert b"".join(later.read("acme", later.resolve(NAME, "v1").files["a"])) == b"kept"
    assert later.quotas.read("acme").total == len(b"kept")
    with pytest.raises(NotFound):
        later.resolve(NAME, lost.id)


def test_contents_on_the_way_are_not_collected(storage: Storage, tmp_path: Path) -> None:
    repositories = open_repositories(storage)
    entry = store(repositories, tmp_path, b"on the way")
    assert repositories.collect("acme") == 0, "its commit may be on the way"
    later = open_repositories(storage, now=lambda: 4_000_000_000.0)
    assert later.has("acme", entry.sha256, entry.size), "a client was told that it need not upload it"
    assert later.collect("acme") == 0


def test_commit_names_only_stored_contents_of_its_tenant(storage: Storage, tmp_path: Path) -> None:
    repositories = open_repositories(storage)
    repositories.create(NAME, "test")
    entry = store(repositories, tmp_path, b"secret", tenant="other")
    with pytest.raises(InvalidInput, match="was not uploaded"):
        repositories.commit(NAME, "main", Edits({"stolen": entry}), MESSAGE)


def test_name_is_not_a_file_and_a_folder(storage: Storage, tmp_path: Path) -> None:
    repositories = open_repositories(storage)
    repositories.create(NAME, "test")
    entry = store(repositories, tmp_path, b"a")
    repositories.commit(NAME, "main", Edits({"a/b": entry}), MESSAGE)
    with pytest.raises(InvalidInput, match="a file and a folder"):
        repositories.commit(NAME, "main", Edits({"a": entry}), MESSAGE)


@pytest.mark.parametrize("path", [
    "", "/etc/passwd", "../x", "a/../b", "a//b", "./a", "a/.", ".git/config", "a\x00b", "a\\b", "x" * 256, "\ud800",
    "/".join(["a"] * 33), "a/" * 600 + "a",
])  # fmt: skip
def test_hostile_path_is_refused(path: str) -> None:
    with pytest.raises(InvalidInput, match="not a valid path"):
        check_path(path)


@pytest.mark.parametrize("name", ["acme", "acme/", "../x", "acme/../x", "acme/a--b", "Acme/x", "acme/x/y", "acme/.x"])
def test_hostile_repository_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="not a valid name"):
        parse_repository("models", name)


@pytest.mark.parametrize("name", ["", "a/../b", "/a", "a" * 300, "0" * 40, "a b", "a\n"])
def test_hostile_ref_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="not a valid name"):
        check_ref(name)
