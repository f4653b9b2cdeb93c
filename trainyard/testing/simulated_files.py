"""A disk in memory that forgets: what was not flushed before `crash` is lost or torn, as the file system may do it.

    files = SimulatedFiles(seed=7)
    ledger = DocumentLedger(Path("/night/ledger.jsonl"), files=files)
    files.fail_at(12, errno.ENOSPC)                     the 12th writing call from now fails, half done
    files.crash()                                       power cut: forget, then continue with the same object

The model, the weakest that common journalling file systems keep (T. S. Pillai et al., All File Systems Are Not Created
Equal, OSDI 2014): of a file's bytes that were not fsynced a random prefix survives, perhaps with garbage where the rest
should be; of a folder's names that were not flushed (created, renamed, removed) a random first part of the changes
survives; a rename is never half done. `before` is called ahead of every call that changes something: a test that raises
there has killed the process between any two of them.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from trainyard.callbacks import ignore
from trainyard.stores.files import file_exists


@dataclass
class Inode:
    """A file's bytes as running processes see them, and as the disk has them."""

    now: bytearray = field(default_factory=bytearray)
    flushed: bytes = b""
    dirty: bool = False


FOLDER = None
"""The value of a folder in the map from names to inodes."""
GONE = "gone"


class Change(dict[Path, "Inode | str | None"]):
    """Names that one call changed: to an inode, to FOLDER, or to GONE; as they were called at the moment `at`."""

    at = 0
    emptied = False
    """Whether what was below a folder that it removes is forgotten already, since the name has been taken again."""


@dataclass(eq=False)
class Move:
    """A folder's rename: one change, kept or lost as a whole. What is not flushed inside it stays so."""

    source: Path
    target: Path
    origins: list[Change]
    """The changes before it that are not flushed and name the source: once it is kept, they do not count."""
    at: int


class SimulatedFiles:
    """`Files` in memory. Deterministic for a seed."""

    def __init__(self, seed: int = 0, *, before: Callable[[str], None] = ignore, root: Path = Path("/")) -> None:
        self.random = random.Random(seed)
        self.before = before
        self.calls: Counter[str] = Counter()
        self._names: dict[Path, Inode | None] = dict.fromkeys((root, *root.parents), FOLDER)
        self._durable = dict(self._names)
        self._changes: dict[Path, list[Change | Move]] = {}
        self._now = 0
        self._moves: list[Move] = []
        """Those that are not flushed: what is below their targets is still below their sources on the disk."""
        self._failures: dict[int, int] = {}
        self._writes = 0
        self._locks: dict[Path, threading.RLock] = {}

    # What tests do to it.

    def fail_at(self, write: int, number: int = errno.ENOSPC) -> None:
        """Make the `write`-th changing call from now (1 = the next) fail with this error number."""
        self._failures[self._writes + write] = number

    def heal(self) -> None:
        """Forget the failures that are still to come."""
        self._failures.clear()

    def crash(self, chance: random.Random | None = None) -> None:
        """Lose power: afterwards only the disk's content exists."""
        chance = chance or self.random
        for folder in sorted(self._changes):
            changes = self._changes[folder]
            for change in changes[: chance.randint(0, len(changes))]:
                self._keep(change)
        self._changes.clear()
        self._moves.clear()
        self._names = {path: inode for path, inode in self._durable.items() if self._reachable(path)}
        self._durable = dict(self._names)
        for inode in {id(inode): inode for inode in self._names.values() if inode is not FOLDER}.values():
            inode.now = bytearray(_torn(inode, chance))
            inode.flushed, inode.dirty = bytes(inode.now), False
        self._locks.clear()

    def snapshot(self) -> dict[str, bytes]:
        """Return every file as processes see it."""
        return {str(path): bytes(inode.now) for path, inode in sorted(self._names.items()) if inode is not FOLDER}

    # The calls of `Files`.

    def read(self, path: Path) -> bytes:
        return bytes(self._inode(path).now)

    def write(self, path: Path, data: bytes) -> None:
        failure = self._count("write", path)
        inode = self._names.get(path)
        if inode is FOLDER:
            if path in self._names:
                raise _error(errno.EISDIR, path)
            inode = self._create(path)
        inode.dirty = True
        inode.now = bytearray(data if not failure else data[: self.random.randint(0, len(data))])
        self._end(failure, path)

    def append(self, path: Path, data: bytes) -> None:
        failure = self._count("append", path)
        inode = self._names.get(path) or self._create(path)
        inode.dirty = True
        inode.now += data if not failure else data[: self.random.randint(0, len(data))]
        self._end(failure, path)

    def fsync(self, path: Path) -> None:
        self._begin("fsync", path)
        inode = self._inode(path)
        inode.flushed, inode.dirty = bytes(inode.now), False

    def fsync_folder(self, path: Path) -> None:
        self._begin("fsync_folder", path)
        self._folder(path)
        for change in self._changes.pop(path, []):
            self._keep(change)

    def rename_noreplace(self, source: Path, target: Path) -> None:
        self._begin("rename_noreplace", target)
        self._present(source)
        if target in self._names:
            raise file_exists(target)
        self._rename(source, target)

    def replace(self, source: Path, target: Path) -> None:
        self._begin("replace", target)
        self._present(source)
        if target in self._names and self._names[target] is FOLDER:
            raise _error(errno.EISDIR, target)
        self._rename(source, target)

    def mkdir(self, path: Path) -> bool:
        self._begin("mkdir", path)
        if path in self._names:
            return False
        self._empty_removed(path)
        self._change(path.parent, {path: FOLDER})
        return True

    def listdir(self, path: Path) -> list[str]:
        self._folder(path)
        below = str(path).rstrip("/") + "/"
        names = [text[len(below) :] for other in self._names if (text := str(other)).startswith(below)]
        return sorted(name for name in names if name and "/" not in name)

    def exists(self, path: Path) -> bool:
        return path in self._names

    def is_folder(self, path: Path) -> bool:
        return path in self._names and self._names[path] is FOLDER

    def unlink(self, path: Path) -> None:
        self._begin("unlink", path)
        self._inode(path)
        self._change(path.parent, {path: GONE})

    def rmdir(self, path: Path) -> None:
        self._begin("rmdir", path)
        self._folder(path)
        if self.listdir(path):
            raise _error(errno.ENOTEMPTY, path)
        self._change(path.parent, {path: GONE})

    def size(self, path: Path) -> int:
        return len(self._inode(path).now)

    def truncate(self, path: Path, size: int) -> None:
        self._begin("truncate", path)
        inode = self._inode(path)
        inode.dirty = True
        del inode.now[size:]

    @contextmanager
    def locked(self, path: Path) -> Iterator[None]:
        """Locks leave no name behind: they are the kernel's, not the disk's."""
        self._folder(path.parent)
        with self._locks.setdefault(path, threading.RLock()):
            yield

    # Inside.

    def _begin(self, call: str, path: Path) -> None:
        """Count a call that fails before it has done anything, if it does."""
        self._end(self._count(call, path), path)

    def _count(self, call: str, path: Path) -> int:
        """Count the call, let the test kill us before it, and say which error it is to end with (0: none)."""
        self.calls[call] += 1
        self.before(call)
        self._writes += 1
        if not self.is_folder(path.parent):
            raise _error(errno.ENOENT, path)
        return self._failures.pop(self._writes, 0)

    def _end(self, failure: int, path: Path) -> None:
        if failure:
            raise _error(failure, path)

    def _create(self, path: Path) -> Inode:
        inode = Inode()
        self._change(path.parent, {path: inode})
        return inode

    def _rename(self, source: Path, target: Path) -> None:
        """One change, kept or lost as a whole."""
        if self._names[source] is not FOLDER:
            self._change(target.parent, {source: GONE, target: self._names[source]})
            return
        self._empty_removed(target)
        for folder in [path for path in self._changes if path == target or _is_below(path, target)]:
            del self._changes[folder]  # of the removed folder of this name: they never reach what takes its place
        origins = [
            change for change in self._changes.get(source.parent, []) if isinstance(change, Change) and source in change
        ]
        move = Move(source, target, origins, self._tick())
        _move(self._names, source, target)
        for folder in [path for path in self._changes if path == source or _is_below(path, source)]:
            changes = self._changes.pop(folder)
            for change in changes:
                change.at = self._tick()
            self._changes[_under(folder, source, target)] = [_moved(change, source, target) for change in changes]
        self._changes.setdefault(target.parent, []).append(move)
        self._moves.append(move)

    def _empty_removed(self, path: Path) -> None:
        """Forget the content of a removed folder, since its name is taken again."""
        for change in self._changes.get(path.parent, ()):
            if isinstance(change, Change) and change.get(path) == GONE and not change.emptied:
                self._forget_below(self._on_disk(path, change.at))
                change.emptied = True

    def _tick(self) -> int:
        self._now += 1
        return self._now

    def _change(self, folder: Path, names: dict[Path, Inode | str | None]) -> None:
        change = Change(names)
        change.at = self._tick()
        self._changes.setdefault(folder, []).append(change)
        _apply(self._names, change)

    def _keep(self, change: Change | Move) -> None:
        """Let the disk have a change, which may lie in a folder whose own rename it does not have yet."""
        if isinstance(change, Change):
            entries = {self._on_disk(path, change.at): inode for path, inode in change.items()}
            for path in [path for path, inode in entries.items() if inode == GONE and not change.emptied]:
                self._forget_below(path)
            _apply(self._durable, entries)
            return
        self._moves.remove(change)
        source, target = self._on_disk(change.source, change.at), self._on_disk(change.target, change.at)
        for stale in [path for path in self._durable if path == target or _is_below(path, target)]:
            del self._durable[stale]
        _move(self._durable, source, target)
        self._durable[target] = FOLDER
        for earlier in change.origins:
            earlier.pop(change.source, None)

    def _forget_below(self, folder: Path) -> None:
        """What was in a folder that is removed does not come back with the next one of its name."""
        if self._durable.get(folder, GONE) is FOLDER:
            for path in [path for path in self._durable if _is_below(path, folder)]:
                del self._durable[path]

    def _on_disk(self, path: Path, at: int) -> Path:
        """Path on the disk of the content that was at this path at that moment."""
        for move in sorted(self._moves, key=lambda move: move.at, reverse=True):
            if move.at < at:
                path = _under(path, move.target, move.source)
        return path

    def _reachable(self, path: Path) -> bool:
        return all(parent in self._durable and self._durable[parent] is FOLDER for parent in path.parents)

    def _present(self, path: Path) -> None:
        if path not in self._names:
            raise _error(errno.ENOENT, path)

    def _inode(self, path: Path) -> Inode:
        self._present(path)
        inode = self._names[path]
        if inode is FOLDER:
            raise _error(errno.EISDIR, path)
        return inode

    def _folder(self, path: Path) -> None:
        if not self.is_folder(path):
            raise _error(errno.ENOTDIR if path in self._names else errno.ENOENT, path)


def _apply(names: dict[Path, Inode | None], change: dict[Path, Inode | str | None]) -> None:
    for path, inode in change.items():
        if isinstance(inode, str):
            names.pop(path, None)
        else:
            names[path] = inode


def _is_below(path: Path, folder: Path) -> bool:
    """`folder in path.parents`, ten times as fast."""
    return str(path).startswith(f"{str(folder).rstrip('/')}/")


def _under(path: Path, source: Path, target: Path) -> Path:
    """Return the path after a rename of a folder."""
    return target / path.relative_to(source) if path == source or _is_below(path, source) else path


def _move(names: dict[Path, Inode | None], source: Path, target: Path) -> None:
    """Rename a folder with all that is below it; nothing where it is not there."""
    for path in [path for path in names if path == source or _is_below(path, source)]:
        names[_under(path, source, target)] = names.pop(path)


def _moved(change: Change | Move, source: Path, target: Path) -> Change | Move:
    """Return a change inside a folder that is renamed, by its new names."""
    if isinstance(change, Move):
        change.source, change.target = _under(change.source, source, target), _under(change.target, source, target)
        return change
    moved = Change({_under(path, source, target): inode for path, inode in change.items()})
    moved.at = change.at
    return moved


def _torn(inode: Inode, chance: random.Random) -> bytes:
    """Return what the disk has of a file: all that was flushed, and perhaps some of what came after."""
    if not inode.dirty:
        return bytes(inode.now)
    now, flushed = bytes(inode.now), inode.flushed
    if not now.startswith(flushed):  # overwritten or cut: the old content, the new, or a part of the new
        return chance.choice([flushed, now, now[: chance.randint(0, len(now))]])
    more = now[len(flushed) :]
    tail = more[: chance.randint(0, len(more))]
    if len(tail) < len(more) and chance.random() < 0.25:  # the size grew before the bytes arrived
        tail += bytes(chance.randint(1, len(more) - len(tail)))
    return flushed + tail


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))
