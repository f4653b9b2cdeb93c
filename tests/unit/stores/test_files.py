"""The file-system calls of the stores: the kernel's, and the disk that forgets."""

from __future__ import annotations

import errno
import random
import threading
from pathlib import Path

import pytest

from trainyard.errors import Conflict, LimitExceeded, Unavailable
from trainyard.stores import files as files_module
from trainyard.stores.files import Files, RealFiles, make_folders, translate_os_errors
from trainyard.stores.whole import create_whole, write_whole
from trainyard.testing.simulated_files import SimulatedFiles

ROOT = Path("/disk")


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Files, Path]:
    if request.param == "real":
        return RealFiles(), tmp_path
    files = SimulatedFiles()
    files.mkdir(ROOT)
    return files, ROOT


def test_both_disks_do_the_same(disk: tuple[Files, Path]) -> None:
    files, root = disk
    path = root / "a"
    files.append(path, b"one ")
    files.append(path, b"two")
    assert (files.read(path), files.size(path)) == (b"one two", 7)
    files.truncate(path, 3)
    files.fsync(path)
    write_whole(files, root / "b", b"B")
    assert (files.read(path), files.listdir(root)) == (b"one", ["a", "b"])
    with pytest.raises(Conflict, match="E-FILE-EXISTS"):
        files.rename_noreplace(path, root / "b")
    files.replace(path, root / "b")
    assert files.read(root / "b") == b"one"
    files.rename_noreplace(root / "b", root / "c")
    assert (files.exists(root / "b"), files.exists(root / "c")) == (False, True)
    with pytest.raises(FileNotFoundError):
        files.rename_noreplace(root / "b", root / "d")
    with pytest.raises(FileNotFoundError):
        files.read(root / "b")
    with pytest.raises(FileNotFoundError):
        files.write(root / "nowhere" / "x", b"")
    files.unlink(root / "c")
    with pytest.raises(FileNotFoundError):
        files.unlink(root / "c")
    assert files.listdir(root) == []


def test_both_disks_make_and_rename_folders(disk: tuple[Files, Path]) -> None:
    files, root = disk
    make_folders(files, root / "x" / "y")
    make_folders(files, root / "x" / "y")
    assert (files.mkdir(root / "x"), files.is_folder(root / "x" / "y")) == (False, True)
    files.write(root / "x" / "y" / "f", b"F")
    files.rename_noreplace(root / "x", root / "z")
    assert files.read(root / "z" / "y" / "f") == b"F"
    assert not files.exists(root / "x")
    files.mkdir(root / "other")
    with pytest.raises(Conflict, match="E-FILE-EXISTS"):
        files.rename_noreplace(root / "other", root / "z")


def test_creating_whole_has_one_winner_and_leaves_nothing_behind(tmp_path: Path) -> None:
    results: list[bool] = []

    def create(number: int) -> None:
        try:
            create_whole(RealFiles(), tmp_path / "it", str(number).encode(), word=str(number))
        except Conflict:
            results.append(False)
        else:
            results.append(True)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(results) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["it"]


def test_without_the_flag_a_link_takes_its_place(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("A")
    (tmp_path / "b").write_text("B")
    assert files_module._link_and_unlink(tmp_path / "a", tmp_path / "b") == errno.EEXIST
    assert files_module._link_and_unlink(tmp_path / "a", tmp_path / "c") == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "c"]
    assert files_module._link_and_unlink(tmp_path / "a", tmp_path / "d") == errno.ENOENT


def test_a_full_or_broken_disk_gets_an_answer() -> None:
    for number, kind, code in (
        (errno.ENOSPC, LimitExceeded, "E-DISK-FULL"),
        (errno.EDQUOT, LimitExceeded, "E-DISK-FULL"),
        (errno.EROFS, Unavailable, "E-DISK-READ-ONLY"),
        (errno.EIO, Unavailable, "E-DISK-ERROR"),
    ):
        with pytest.raises(kind, match=code), translate_os_errors("The ledger was not written"):
            raise OSError(number, "as the kernel says", "ledger.jsonl")
    with pytest.raises(FileNotFoundError), translate_os_errors("The ledger was not read"):
        raise FileNotFoundError(errno.ENOENT, "no such file", "ledger.jsonl")


def test_what_was_not_flushed_is_lost_or_torn() -> None:
    seen = set()
    for seed in range(60):
        files = SimulatedFiles(seed)
        files.mkdir(ROOT)
        files.fsync_folder(Path("/"))
        files.append(ROOT / "log", b"kept|")
        files.fsync(ROOT / "log")
        files.fsync_folder(ROOT)
        files.append(ROOT / "log", b"torn")
        files.write(ROOT / "new", b"content")
        files.fsync(ROOT / "new")
        files.crash()
        log = files.read(ROOT / "log")
        assert log.startswith(b"kept|")
        seen.add((len(log) - 5, files.exists(ROOT / "new")))
    assert {length for length, _ in seen} == {0, 1, 2, 3, 4}
    assert {there for _, there in seen} == {True, False}


def test_a_rename_without_a_flushed_folder_may_be_undone_and_never_half_done() -> None:
    outcomes = set()
    for seed in range(40):
        files = SimulatedFiles(seed)
        files.mkdir(ROOT)
        files.fsync_folder(Path("/"))
        write_whole(files, ROOT / "a", b"A")
        files.rename_noreplace(ROOT / "a", ROOT / "b")
        files.crash()
        outcomes.add(tuple(files.listdir(ROOT)))
    assert outcomes == {("a",), ("b",)}


def test_a_whole_write_is_old_or_new_at_every_call() -> None:
    for call in range(1, 5):
        for seed in range(10):
            files = dying_disk(call, seed)
            with pytest.raises(KeyboardInterrupt):
                write_whole(files, ROOT / "a", b"NEW")
            files.before = lambda _call: None
            files.crash()
            assert files.read(ROOT / "a") == b"OLD"


def dying_disk(call: int, seed: int) -> SimulatedFiles:
    files = SimulatedFiles(seed)
    files.mkdir(ROOT)
    files.fsync_folder(Path("/"))
    write_whole(files, ROOT / "a", b"OLD")
    left = iter(range(call - 1, -1, -1))

    def die(_call: str) -> None:
        if (next(left) == 0 and call < 4) or (call == 4 and _call == "replace"):
            raise KeyboardInterrupt

    files.before = die
    return files


def test_injected_errors_are_the_kernels() -> None:
    files = SimulatedFiles()
    files.mkdir(ROOT)
    files.fail_at(2, errno.ENOSPC)
    files.write(ROOT / "a", b"x")
    with pytest.raises(OSError, match="No space left"):
        files.append(ROOT / "a", b"y" * 100)
    assert files.read(ROOT / "a").startswith(b"x")
    files.append(ROOT / "a", b"z")
    files.crash(random.Random(1))


@pytest.mark.parametrize("seed", range(8))
def test_a_folder_whose_name_was_never_flushed_is_flushed_by_the_next_who_needs_it(seed: int) -> None:
    """An input/output error, or a kill, between `mkdir` and the flush of its name; then a power cut."""
    files = SimulatedFiles()
    files.fail_at(2, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        make_folders(files, ROOT)
    files.heal()
    make_folders(files, ROOT / "below")
    write_whole(files, ROOT / "below" / "kept", b"it")
    files.crash(random.Random(seed))
    assert files.snapshot() == {"/disk/below/kept": b"it"}


def test_a_folder_that_holds_something_is_looked_at_once() -> None:
    files = SimulatedFiles()
    make_folders(files, ROOT)
    files.write(ROOT / "a", b"")
    before = files.calls["fsync_folder"]
    for _ in range(3):
        make_folders(files, ROOT)
    assert files.calls["fsync_folder"] == before


@pytest.mark.parametrize("seed", range(8))
def test_a_file_that_is_there_already_is_on_the_disk(seed: int) -> None:
    """Its creator could not flush its name; the next one finds it, and builds on it; then a power cut."""
    files = SimulatedFiles()
    make_folders(files, ROOT)
    files.fail_at(4, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        create_whole(files, ROOT / "it", b"it")
    files.heal()
    with pytest.raises(Conflict, match="E-FILE-EXISTS"):
        create_whole(files, ROOT / "it", b"it")
    files.crash(random.Random(seed))
    assert files.snapshot() == {"/disk/it": b"it"}


@pytest.mark.parametrize("seed", range(8))
def test_what_was_removed_under_a_name_does_not_touch_the_folder_that_takes_it(seed: int) -> None:
    """The removal of the first folder is not flushed when the second one, which is, gets its name."""
    files = SimulatedFiles()
    for name in ("first", "second"):
        make_folders(files, ROOT / name)
        write_whole(files, ROOT / name / "it", name.encode())
    files.unlink(ROOT / "first" / "it")
    files.rmdir(ROOT / "first")
    files.rename_noreplace(ROOT / "second", ROOT / "first")
    files.crash(random.Random(seed))
    assert b"second" in files.snapshot().values()
