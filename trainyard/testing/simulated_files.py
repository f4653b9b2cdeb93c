"""A disk in memory that forgets: what was not flushed before `crash` is lost or torn, as the file system may do it.

    files = SimulatedFiles(seed=7)
    ledger = DocumentLedger(Path("/night/ledger.jsonl"), files=files)
    files.fail_at(12, errno.ENOSPC)                     the 12th writing call from now fails, half done
    files.crash()                                       power cut: forget, then go on with the same object

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

from trainyard.stores.files import file_exists


@dataclass
class Inode:
    """A file's bytes as running processes see them, and as the disk has them."""

    now: bytearray = field(default_factory=bytearray)
    flushed: bytes = b""
    dirty: bool = False


FOLDER = None
"""What stands for a folder where a name leads to an inode."""
Change = dict[Path, "Inode | str | None"]
"""Names that one call changed: to an inode, to FOLDER, or to GONE."""
GONE = "gone"


def nothing(_call: str) -> None:
    """The `before` of a disk on which nobody is killed."""


class SimulatedFiles:
    """`Files` in memory. Deterministic for a seed."""

    def __init__(self, seed: int = 0, *, before: Callable[[str], None] = nothing, root: Path = Path("/")) -> None:
        self.random = random.Random(seed)
        self.before = before
        self.calls: Counter[str] = Counter()
        self._names: dict[Path, Inode | None] = dict.fromkeys((root, *root.parents), FOLDER)
        self._kept = dict(self._names)
        self._changes: dict[Path, list[Change]] = {}
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
        """Lose power: afterwards there is only what the disk has."""
        chance = chance or self.random
        for folder in sorted(self._changes):
            changes = self._changes[folder]
            for change in changes[: chance.randint(0, len(changes))]:
                self._keep(change)
        self._changes.clear()
        self._names = {path: inode for path, inode in self._kept.items() if self._reachable(path)}
        self._kept = dict(self._names)
        for inode in {id(one): one for one in self._names.values() if one is not FOLDER}.values():
            inode.now = bytearray(_torn(inode, chance))
            inode.flushed, inode.dirty = bytes(inode.now), False
        self._locks.clear()

    def snapshot(self) -> dict[str, bytes]:
        """Every file as processes see it."""
        return {str(path): bytes(inode.now) for path, inode in sorted(self._names.items()) if inode is not FOLDER}

    # The calls of `Files`.

    def read(self, path: Path) -> bytes:
        return bytes(self._inode(path).now)

    def write(self, path: Path, data: bytes) -> None:
        failure = self._begin("write", path)
        inode = self._names.get(path)
        if inode is FOLDER:
            if path in self._names:
                raise _error(errno.EISDIR, path)
            inode = self._create(path)
        inode.dirty = True
        inode.now = bytearray(data if not failure else data[: self.random.randint(0, len(data))])
        self._end(failure, path)

    def append(self, path: Path, data: bytes) -> None:
        failure = self._begin("append", path)
        inode = self._names.get(path) or self._create(path)
        inode.dirty = True
        inode.now += data if not failure else data[: self.random.randint(0, len(data))]
        self._end(failure, path)

    def fsync(self, path: Path) -> None:
        failure = self._begin("fsync", path)
        inode = self._inode(path)
        self._end(failure, path)
        inode.flushed, inode.dirty = bytes(inode.now), False

    def fsync_folder(self, path: Path) -> None:
        failure = self._begin("fsync_folder", path)
        self._folder(path)
        self._end(failure, path)
        for change in self._changes.pop(path, []):
            self._keep(change)

    def rename_noreplace(self, source: Path, target: Path) -> None:
        failure = self._begin("rename_noreplace", target)
        self._present(source)
        if target in self._names:
            raise file_exists(target)
        self._end(failure, target)
        self._rename(source, target)

    def replace(self, source: Path, target: Path) -> None:
        failure = self._begin("replace", target)
        self._present(source)
        if target in self._names and self._names[target] is FOLDER:
            raise _error(errno.EISDIR, target)
        self._end(failure, target)
        self._rename(source, target)

    def mkdir(self, path: Path) -> bool:
        failure = self._begin("mkdir", path)
        self._end(failure, path)
        if path in self._names:
            return False
        self._change(path.parent, {path: FOLDER})
        return True

    def listdir(self, path: Path) -> list[str]:
        self._folder(path)
        below = str(path).rstrip("/") + "/"
        names = [text[len(below) :] for one in self._names if (text := str(one)).startswith(below)]
        return sorted(name for name in names if name and "/" not in name)

    def exists(self, path: Path) -> bool:
        return path in self._names

    def is_folder(self, path: Path) -> bool:
        return path in self._names and self._names[path] is FOLDER

    def unlink(self, path: Path) -> None:
        failure = self._begin("unlink", path)
        self._inode(path)
        self._end(failure, path)
        self._change(path.parent, {path: GONE})

    def size(self, path: Path) -> int:
        return len(self._inode(path).now)

    def truncate(self, path: Path, size: int) -> None:
        failure = self._begin("truncate", path)
        inode = self._inode(path)
        self._end(failure, path)
        inode.dirty = True
        del inode.now[size:]

    @contextmanager
    def locked(self, path: Path) -> Iterator[None]:
        """Locks leave no name behind: they are the kernel's, not the disk's."""
        self._folder(path.parent)
        with self._locks.setdefault(path, threading.RLock()):
            yield

    # Inside.

    def _begin(self, call: str, path: Path) -> int:
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
        """One change, kept or lost as a whole; of a folder, with everything below it."""
        moved = [source]
        if self._names[source] is FOLDER:
            moved += [path for path in self._names if source in path.parents]
        change: Change = dict.fromkeys(moved, GONE)
        change.update({target / path.relative_to(source): self._names[path] for path in moved})
        for path in moved:
            self._changes.pop(path, None)
        self._change(target.parent, change)

    def _change(self, folder: Path, change: Change) -> None:
        self._changes.setdefault(folder, []).append(change)
        _apply(self._names, change)

    def _keep(self, change: Change) -> None:
        _apply(self._kept, change)

    def _reachable(self, path: Path) -> bool:
        return all(parent in self._kept and self._kept[parent] is FOLDER for parent in path.parents)

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


def _apply(names: dict[Path, Inode | None], change: Change) -> None:
    for path, inode in change.items():
        if isinstance(inode, str):
            names.pop(path, None)
        else:
            names[path] = inode


def _torn(inode: Inode, chance: random.Random) -> bytes:
    """What the disk has of a file: all that was flushed, and perhaps some of what came after."""
    if not inode.dirty:
        return bytes(inode.now)
    now, flushed = bytes(inode.now), inode.flushed
    if not now.startswith(flushed):  # overwritten or cut: the old content, the new, or a part of the new
        return chance.choice([flushed, now, now[: chance.randint(0, len(now))]])
    more = now[len(flushed) :]
    kept = more[: chance.randint(0, len(more))]
    if len(kept) < len(more) and chance.random() < 0.25:  # the size grew before the bytes arrived
        kept += bytes(chance.randint(1, len(more) - len(kept)))
    return flushed + kept


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))
