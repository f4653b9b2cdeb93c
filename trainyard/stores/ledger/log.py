"""The append-only log: canonical JSON entries in tiles, under a checkpoint that an Ed25519 key signs.

    ledger = Ledger(home)
    ledger.append({"kind": "trained", "key": "…", "run": "…", …})      returns once the entry is on the disk

What the checkpoint does not cover does not exist: an append writes its tiles first, each whole and flushed, and then
replaces the checkpoint. A process or a machine that ends before that leaves tiles that the next append writes over.
Writers of several processes take turns by a lock; the threads of one process that wait share the next commit.
An entry has a run key: a recorded step is not recorded again.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from trainyard.errors import Conflict, Corrupt, InvalidInput, LimitExceeded, NotFound
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.spec.chain import canonical_json
from trainyard.stores.files import DISK, Files, RealFiles, make_folders, translate_os_errors
from trainyard.stores.ledger.index import IndexRow, LedgerIndex
from trainyard.stores.ledger.merkle import EMPTY_ROOT, hash_leaf, hash_node, range_root
from trainyard.stores.ledger.notes import (
    ED25519,
    Checkpoint,
    Note,
    PublicKey,
    SigningKey,
    parse_checkpoint,
    parse_note,
    parse_vkey,
)
from trainyard.stores.ledger.tiles import (
    ENTRIES,
    HASH_BYTES,
    MAX_ENTRY_BYTES,
    RESTORE,
    WIDTH,
    Tile,
    TileReader,
    list_tiles,
    pack_entries,
    subtree_of_tiles,
)
from trainyard.stores.whole import file_to_create, flush_name, new_file

CHECKPOINT = "checkpoint"
OPENED, ROTATED = "opened", "rotated"
"""Kinds of entries that name the key of the checkpoints from there on."""
LATE = "unledgered"
"""Field of an entry that was added later than its step: {time, code}."""
KEY_PREFIX = "PRIVATE+KEY+"


@dataclass(frozen=True)
class Receipt:
    """Number of an entry in the log, and whether it was there before."""

    seq: int
    repeated: bool = False


@dataclass
class Ticket:
    """Entries of one call that wait for a commit."""

    drafts: Sequence[JsonMapping]
    receipts: list[Receipt] | None = None
    error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        return self.receipts is not None or self.error is not None


@dataclass(frozen=True)
class Head:
    """The log as one checkpoint has it."""

    checkpoint: Checkpoint
    note: Note | None
    """None before the first checkpoint."""
    tiles: TileReader

    @property
    def size(self) -> int:
        return self.checkpoint.size

    def entry(self, seq: int) -> JsonObject:
        return dict(json.loads(self.tiles.entry(seq)))


@dataclass
class Ledger:
    """The ledger of one home."""

    folder: Path
    """What a file server may serve: the checkpoint and the tiles."""
    key_file: Path
    """The private key, for the owner of this home alone."""
    files: Files = DISK
    now: Callable[[], float] = time.time
    index: LedgerIndex = field(init=False)
    _queue: list[Ticket] = field(default_factory=list, init=False)
    _turn: threading.Condition = field(default_factory=threading.Condition, init=False)
    """Guards the queue; one thread commits what all of them have put there, the others wait for it."""
    _committing: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.index = LedgerIndex(self.index_path if isinstance(self.files, RealFiles) else None)

    @classmethod
    def at_home(cls, home: Path) -> Ledger:
        return cls(home / "ledger", home / "access" / "ledger.key")

    @property
    def index_path(self) -> Path:
        return self.folder / "index.sqlite"

    # Reading

    def head(self) -> Head:
        """Return the newest checkpoint; its signature is not checked here. Raises `NotFound`, `Corrupt`."""
        try:
            data = self.files.read(self.folder / CHECKPOINT)
        except FileNotFoundError:
            raise NotFound(
                "This home has no ledger yet.",
                why="The first step of a run begins it.",
                do="Run a chain, then ask again.",
            ) from None
        note = parse_note(data)
        checkpoint = parse_checkpoint(note.text)
        return Head(checkpoint, note, TileReader(self.folder, checkpoint.size, self.files))

    def rows(self, head: Head, since: int) -> Iterator[IndexRow]:
        for seq in range(since, head.size):
            yield seq, head.entry(seq), head.tiles.hash_at(0, seq)

    def synced(self) -> Head:
        """Return the newest checkpoint, after the index was brought up to it. Raises `NotFound`, `Corrupt`."""
        self.head()  # a home without a ledger gets no folder and no lock by a question
        with translate_os_errors("The ledger's index was not written"), self.files.locked(self.folder / ".lock"):
            head = self.head()
            self.index.sync(head.size, lambda seq: head.tiles.hash_at(0, seq), lambda since: self.rows(head, since))
        return head

    def private_key(self) -> SigningKey | None:
        """Return the private key of this home; None if there is none. Raises `Corrupt`."""
        try:
            data = self.files.read(self.key_file)
        except FileNotFoundError:
            return None
        try:
            return parse_private_key(data, ED25519)
        except ValueError:
            raise Corrupt(f"{self.key_file.name} is not a private key of a ledger.", do=LOST_KEY) from None

    def sound_private_key(self) -> SigningKey | None:
        """Return the private key of this home; None also for a file that is not one."""
        try:
            return self.private_key()
        except Corrupt:
            return None

    def current_key(self, head: Head) -> PublicKey:
        """Return the key that the log itself names: that of its beginning, or of its last rotation."""
        self.index.sync(head.size, lambda seq: head.tiles.hash_at(0, seq), lambda since: self.rows(head, since))
        newest = [*self.index.select(kind=ROTATED, limit=1), *self.index.select(kind=OPENED, limit=1)]
        return parse_vkey(str(head.entry(max(newest))["vkey"]))

    # Appending

    def append(self, *drafts: JsonMapping) -> list[Receipt]:
        """Add entries, each with a `kind` and a run key `key`, and return their numbers once they are on the disk.

        An entry whose key is there is not added again. Raises `Corrupt` (`E-CORRUPT`) where the end of the log does
        not fit its checkpoint, `Conflict` without its private key, and on the disk: the log is as before then.
        """
        ticket = Ticket(drafts)
        with self._turn:
            self._queue.append(ticket)
            self._turn.wait_for(lambda: ticket.is_done or not self._committing)
            self._committing = self._committing or not ticket.is_done
            leads = not ticket.is_done
        if leads:
            try:
                self._commit_all()
            finally:
                with self._turn:
                    self._committing = False
                    self._turn.notify_all()
        if ticket.error is not None:
            raise ticket.error
        assert ticket.receipts is not None
        return ticket.receipts

    def _commit_all(self) -> None:
        """Commit what all threads wait for, also what comes while the lock is waited for and the log is checked."""
        batch: list[Ticket] = []
        try:
            with translate_os_errors("The ledger was not written"):
                make_folders(self.files, self.folder)
                with self.files.locked(self.folder / ".lock"):
                    key, head = self._writable()
                    batch += self._take_queue()
                    receipts = self._commit(key, head, [draft for ticket in batch for draft in ticket.drafts])
        except BaseException as error:
            for ticket in batch or self._take_queue():
                ticket.error = error
            if not isinstance(error, Exception):
                raise
            return
        for ticket in batch:
            ticket.receipts, receipts = receipts[: len(ticket.drafts)], receipts[len(ticket.drafts) :]

    def _take_queue(self) -> list[Ticket]:
        with self._turn:
            batch, self._queue = self._queue, []
        return batch

    def _writable(self) -> tuple[SigningKey, Head]:
        """Return the key and the head, after a check that the end of the log is what the key has signed."""
        key = self.private_key()
        if not self.files.exists(self.folder / CHECKPOINT):
            return self._begin(key)
        head = self.head()
        self.require_whole(head)
        if head.size == 1:  # a log without a checkpoint may have nothing else
            self.files.fsync_folder(self.folder)
        if key is None or head.note is None or not head.note.is_signed_by(key.public):
            raise Conflict(
                "The private key of this home's ledger is gone, or it is another ledger's.",
                why="The last checkpoint was signed by another key, so nothing can be added to it.",
                do=LOST_KEY,
            )
        return key, head

    def require_whole(self, head: Head) -> None:
        """Raise `Corrupt` unless the tiles at the end of the log give the root of its checkpoint."""
        if range_root(0, head.size, head.tiles.subtree) != head.checkpoint.root:
            raise Corrupt(
                "The tiles of the ledger do not fit its checkpoint.", why="A file was changed or cut.", do=RESTORE
            )

    def _begin(self, key: SigningKey | None) -> tuple[SigningKey, Head]:
        """Begin a log with the entry that names its key."""
        if others := self.list_orphans():
            raise Corrupt(f"The ledger's checkpoint is missing; {others[0]} is there.", do=RESTORE)
        if key is not None:
            flush_name(self.files, self.key_file)  # its creator may have failed or died before this
        key = key or self._create_key(f"trainyard.local/{secrets.token_hex(8)}")
        head = Head(Checkpoint(key.name, 0, EMPTY_ROOT), None, TileReader(self.folder, 0, self.files))
        self._commit(key, head, [{"kind": OPENED, "key": f"{OPENED}:{key.name}", "vkey": key.public.vkey}])
        return key, self.head()

    def list_orphans(self) -> list[str]:
        """Return the tiles that no log has which is only beginning: its first commit has one entry."""
        first = {Tile(ENTRIES, 0, 1).path, Tile("0", 0, 1).path}
        return [path for path in list_tile_files(self.files, self.folder) if path not in first]

    def _create_key(self, name: str) -> SigningKey:
        key = SigningKey(name, os.urandom(HASH_BYTES) if isinstance(self.files, RealFiles) else bytes(HASH_BYTES))
        write_key(self.files, self.key_file, key)
        return key

    def rotate(self, because: str) -> Receipt:
        """Replace the key, which may be lost: an entry names the old and the new one, which signs from there on."""
        self.head()
        with translate_os_errors("The ledger was not written"), self.files.locked(self.folder / ".lock"):
            head = self.head()
            self.require_whole(head)
            before, private = self.current_key(head), self.sound_private_key()
            key = SigningKey(head.checkpoint.origin, os.urandom(HASH_BYTES))
            draft = {
                "kind": ROTATED,
                "key": f"{ROTATED}:{key.public.vkey}",
                "vkey": key.public.vkey,
                "before": before.vkey,
                "is_signed_by_previous": private is not None and private.public == before,
                "because": because,
            }
            (receipt,) = self._commit(key, head, [draft])
            with suppress(FileNotFoundError):
                self.files.unlink(self.key_file)
            write_key(self.files, self.key_file, key)
        return receipt

    def _commit(self, key: SigningKey, head: Head, drafts: Sequence[JsonMapping]) -> list[Receipt]:
        self.index.sync(head.size, lambda seq: head.tiles.hash_at(0, seq), lambda since: self.rows(head, since))
        numbers = {
            text: seq
            for text, seq in self.index.find_keys([str(draft["key"]) for draft in drafts]).items()
            if head.entry(seq)["key"] == text
        }
        receipts, entries, before_s = list[Receipt](), list[bytes](), self._last_time(head)
        for draft in drafts:
            text = str(draft["key"])
            if text in numbers:
                receipts.append(Receipt(numbers[text], repeated=True))
                continue
            now_s = round(self.now(), 3)
            behind = {"clock_behind_s": round(before_s - now_s, 3)} if now_s < before_s else {}
            numbers[text] = head.size + len(entries)
            before_s = max(before_s, now_s)
            entries.append(encode_entry({**draft, "seq": numbers[text], "time": now_s, **behind}))
            receipts.append(Receipt(numbers[text]))
        if entries:
            self._write(key, head, entries)
            new = ((head.size + at, json.loads(entry), hash_leaf(entry)) for at, entry in enumerate(entries))
            with suppress(OSError):  # they are in the log; the next append brings the index up to it
                self.index.add(new)
        else:  # they were written by a process that may have failed or died before its last flush
            self.files.fsync_folder(self.folder)
        return receipts

    def _last_time(self, head: Head) -> float:
        return float(head.entry(head.size - 1)["time"]) if head.size else 0.0

    def _write(self, key: SigningKey, head: Head, entries: list[bytes]) -> None:
        """Write the tiles that the entries add or make longer, then the checkpoint, then remove outgrown tiles."""
        size = head.size + len(entries)
        grown = GrownTree(head, entries)
        remove_unsigned(self.files, self.folder, head.size)
        tiles = list(list_tiles(size, head.size))
        for tile in tiles:
            path = self.folder / tile.path
            make_folders(self.files, path.parent)
            with new_file(path, self.files) as temporary:
                self.files.write(temporary, grown.content(tile))
        checkpoint = Checkpoint(head.checkpoint.origin, size, range_root(0, size, grown.subtree))
        with new_file(self.folder / CHECKPOINT, self.files) as temporary:
            self.files.write(temporary, f"{checkpoint.text}\n{key.signature_line(checkpoint.text)}".encode())
        for tile in tiles:
            if tile.width == WIDTH:
                remove_partials(self.files, self.folder / f"{tile.path}.p")


LOST_KEY = "Put the key back from a backup, or begin a new one with `trainyard ledger rotate`, which is recorded."


class GrownTree:
    """A log with more entries than its checkpoint has, in memory."""

    def __init__(self, head: Head, entries: list[bytes]) -> None:
        self.head, self.added, self.size = head, entries, head.size + len(entries)
        self.leaves = [hash_leaf(entry) for entry in entries]
        self.subtree = subtree_of_tiles(self.hash_at)
        self._hashes: dict[tuple[int, int], bytes] = {}

    def hash_at(self, level: int, index: int) -> bytes:
        if index < self.head.size >> (8 * level):
            return self.head.tiles.hash_at(level, index)
        if level == 0:
            return self.leaves[index - self.head.size]
        if (level, index) not in self._hashes:
            below = [self.hash_at(level - 1, index * WIDTH + at) for at in range(WIDTH)]
            while len(below) > 1:
                below = [hash_node(left, right) for left, right in zip(below[::2], below[1::2], strict=True)]
            self._hashes[level, index] = below[0]
        return self._hashes[level, index]

    def content(self, tile: Tile) -> bytes:
        numbers = range(tile.start, tile.start + tile.width)
        if tile.level != ENTRIES:
            return b"".join(self.hash_at(int(tile.level), index) for index in numbers)
        size = self.head.size
        before = (self.head.tiles.entry(index) if index < size else self.added[index - size] for index in numbers)
        return pack_entries(list(before))


def encode_entry(entry: JsonMapping) -> bytes:
    """Return the canonical JSON of an entry. Raises `LimitExceeded` over 64 KiB, `InvalidInput` for other values."""
    try:
        data = canonical_json(dict(entry))
    except ValueError as error:
        raise InvalidInput(f"An entry of the ledger cannot be written as JSON: {error}.") from error
    if len(data) > MAX_ENTRY_BYTES:
        raise LimitExceeded(
            f"An entry of the ledger has {len(data):,} bytes, more than {MAX_ENTRY_BYTES:,}.",
            why="It contains digests and settings, never data.",
        )
    return data


def parse_private_key(data: bytes, kind: int) -> SigningKey:
    """Return a private key of one type as `write_key` writes it. Raises `ValueError`."""
    name, _, encoded = data.decode().strip().removeprefix(KEY_PREFIX).split("+", 2)
    value = base64.b64decode(encoded, validate=True)
    if len(value) != 1 + HASH_BYTES or value[0] != kind:
        raise ValueError("a key of another type or length")
    return SigningKey(name, value[1:], kind)


def write_key(files: Files, path: Path, key: SigningKey) -> None:
    """Write a private key for the owner of this home alone."""
    make_folders(files, path.parent)
    line = f"{KEY_PREFIX}{key.name}+{key.public.id.hex()}+{base64.b64encode(bytes([key.kind]) + key.seed).decode()}\n"
    with file_to_create(path, files) as temporary:
        if isinstance(files, RealFiles):
            path.parent.chmod(0o700)
            temporary.touch(mode=0o600)
        files.write(temporary, line.encode())


def list_tile_files(files: Files, folder: Path) -> list[str]:
    """Return the tiles that are there, as paths below the ledger's folder."""

    def below(path: Path) -> Iterator[str]:
        for name in files.listdir(path) if files.is_folder(path) else ():
            if files.is_folder(path / name):
                yield from below(path / name)
            elif not name.startswith("."):
                yield (path / name).relative_to(folder).as_posix()

    return sorted(below(folder / "tile"))


def remove_unsigned(files: Files, folder: Path, size: int) -> None:
    """Remove the partial tiles beyond a checkpoint, which an interrupted writer left: another entry takes their place.

    They go before the next checkpoint, so that no partial tile within it was made of other entries.
    """
    for level in (ENTRIES, "0"):
        partials = folder / f"{Tile(level, size // WIDTH, WIDTH).path}.p"
        names = files.listdir(partials) if files.is_folder(partials) else []
        strays = [name for name in names if not name.isdecimal() or int(name) > size % WIDTH]
        for name in strays:
            files.unlink(partials / name)
        if strays:
            files.fsync_folder(partials)


def remove_partials(files: Files, folder: Path) -> None:
    """Remove the partial tiles of a tile that is full. A failure loses nothing: the next one removes them."""
    with suppress(OSError):
        for name in files.listdir(folder):
            files.unlink(folder / name)
        files.rmdir(folder)


def run_key(*parts: object) -> str:
    """Return the key of an entry: equal for the same step of the same run."""
    return hashlib.sha256(canonical_json([str(part) for part in parts])).hexdigest()
