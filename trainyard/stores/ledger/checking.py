"""Verification of a whole ledger: every entry, tile and signature, and the name of whatever does not fit.

The signed root decides who is right: where the leaf hashes of the tiles give it, an entry that hashes to something
else was changed; where the entries give it, the tile was.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile

from trainyard.cancellation import iterate_until_departure
from trainyard.errors import Corrupt, InvalidInput, NotFound
from trainyard.json_types import JsonObject
from trainyard.spec.chain import canonical_json
from trainyard.stores.ledger.index import LedgerIndex
from trainyard.stores.ledger.log import CHECKPOINT, LATE, OPENED, ROTATED, Head, Ledger, list_tile_files
from trainyard.stores.ledger.merkle import hash_leaf, hash_node, tree_root
from trainyard.stores.ledger.notes import PublicKey, parse_checkpoint, parse_note, parse_vkey
from trainyard.stores.ledger.tiles import ENTRIES, HASH_BYTES, WIDTH, Tile, list_tiles, unpack_entries

MOST_PROBLEMS = 50
CLOCK_TOLERANCE_S = 300.0


@dataclass(frozen=True)
class LedgerProblem:
    """Fault in a ledger: its file, its entry and its description."""

    file: str
    problem: str
    entry: int | None = None
    """Number of the entry that it is about."""


@dataclass
class LedgerVerification:
    """Result of verifying a ledger."""

    origin: str = ""
    size: int = 0
    root: str = ""
    key: str = ""
    """The public key that signed the checkpoint, as a vkey."""
    problems: list[LedgerProblem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Facts that are not problems, such as tiles that a writer left which was interrupted."""
    late: list[int] = field(default_factory=list)
    """Entries that were added later than their step, because they could not be written then."""
    witnessed: list[str] = field(default_factory=list)
    """Cosigned checkpoints that this log contains."""
    kinds: dict[str, list[int]] = field(default_factory=dict)
    """Numbers of the entries of each kind, as they were read: the index could be changed."""

    def add(self, file: str, problem: str, entry: int | None = None) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(LedgerProblem(file, problem, entry))


def verify_ledger(ledger: Ledger, key: PublicKey | None = None) -> LedgerVerification:
    """Check everything; `key` is the public key that is trusted, by default that of this home.

    Raises `NotFound` for a home without a ledger.
    """
    result = LedgerVerification()
    try:
        head = ledger.head()
    except Corrupt as error:
        result.add(CHECKPOINT, f"{error.what} {error.why}".strip())
        return result
    except NotFound:
        if not ledger.list_orphans():
            raise
        result.add(CHECKPOINT, "It is missing, and tiles are there.")
        return result
    result.origin, result.size, result.root = head.checkpoint.origin, head.size, head.checkpoint.root.hex()
    entries = read_entries(head, result)
    leaves = check_leaves(head, entries, result)
    rows = check_contents(entries, result)
    check_times(rows, ledger.now(), result)
    check_signature(ledger, head, rows, key, result)
    check_upper_tiles(ledger, head, leaves, result)
    check_other_files(ledger, head, leaves, result)
    check_index(ledger, head, result)
    check_witnessed(ledger, head, leaves, result)
    return result


def read_entries(head: Head, result: LedgerVerification) -> list[bytes | None]:
    """Return the entries, None for one that cannot be read."""
    entries: list[bytes | None] = []
    for tile in list_tiles(head.size):
        if tile.level != ENTRIES:
            continue
        require_next = [None] * tile.width
        try:
            bundle: list[bytes] = unpack_entries(head.tiles.read(tile))
            if len(bundle) != tile.width:
                at = tile.start + min(len(bundle), tile.width)
                result.add(tile.path, f"It has {len(bundle)} entries, {tile.width} were signed.", at)
            entries += [*bundle[: tile.width], *require_next[len(bundle) :]]
        except (Corrupt, ValueError):
            readable = read_until_cut(head, tile)
            result.add(tile.path, "It is missing or cut.", tile.start + len(readable))
            entries += [*readable, *require_next[len(readable) :]]
    return entries


def read_until_cut(head: Head, tile: Tile) -> list[bytes]:
    """Return the entries of a bundle before the place where it cannot be read."""
    try:
        data = head.tiles.read(tile)
    except Corrupt:
        return []
    return split_entries(data)[0][: tile.width]


def split_entries(data: bytes) -> tuple[list[bytes], bytes]:
    """Return the entries of a bundle before the place where it is cut, and what is left there."""
    entries, at = list[bytes](), 0
    while at + 2 <= len(data) and at + 2 + int.from_bytes(data[at : at + 2], "big") <= len(data):
        end = at + 2 + int.from_bytes(data[at : at + 2], "big")
        entries.append(data[at + 2 : end])
        at = end
    return entries, data[at:]


def check_leaves(head: Head, entries: list[bytes | None], result: LedgerVerification) -> list[bytes]:
    """Compare entries with the leaf hashes of the tiles, and both with the signed root; return the right hashes."""
    computed = [hash_leaf(entry) if entry is not None else b"" for entry in iterate_until_departure(entries)]
    stored = [read_leaf(head, seq) for seq in range(head.size)]
    root = head.checkpoint.root
    stored_fit = all(stored) and tree_root(stored) == root
    computed_fit = all(computed) and tree_root(computed) == root
    for seq, (ours, tiles) in enumerate(zip(computed, stored, strict=True)):
        if ours == tiles:
            continue
        tile = locate(str(0), seq, head.size)
        if computed_fit:
            result.add(tile.path, "The hash of the entry was changed.", seq)
        else:
            bundle = Tile(ENTRIES, tile.number, tile.width)
            reason = "" if stored_fit else ", and the leaf hashes do not give the signed root either"
            result.add(bundle.path, f"The entry is not the one that was signed{reason}.", seq)
    if not stored_fit and not computed_fit and computed == stored:
        result.add(CHECKPOINT, "The entries do not give the root that it names.")
    return computed if computed_fit else stored


def read_leaf(head: Head, seq: int) -> bytes:
    try:
        return head.tiles.hash_at(0, seq)
    except Corrupt:
        return b""


def locate(level: str, index: int, count: int) -> Tile:
    number = index // WIDTH
    return Tile(level, number, min(WIDTH, count - number * WIDTH))


def check_contents(entries: list[bytes | None], result: LedgerVerification) -> list[JsonObject | None]:
    """Check that every entry is canonical JSON with its own number and a run key of its own."""
    rows: list[JsonObject | None] = []
    keys: dict[str, int] = {}
    for seq, data in enumerate(iterate_until_departure(entries)):
        rows.append(parse_entry(data))
        row = rows[-1]
        if data is None:
            continue
        where = locate(ENTRIES, seq, len(entries)).path
        if row is None:
            result.add(where, "The entry is not canonical JSON.", seq)
        elif row.get("seq") != seq:
            result.add(where, f"The entry says that it is number {row.get('seq')}.", seq)
        elif (first := keys.setdefault(str(row.get("key")), seq)) != seq:
            result.add(where, f"The entry has the key of entry {first}.", seq)
        elif LATE in row:
            result.late.append(seq)
        if row is not None:
            result.kinds.setdefault(str(row.get("kind")), []).append(seq)
    return rows


def check_times(rows: list[JsonObject | None], now_s: float, result: LedgerVerification) -> None:
    """Note the entries from the future: a clock was ahead then, or is behind now; their order is certain."""
    ahead = [seq for seq, row in enumerate(rows) if row and is_ahead(row.get("time"), now_s)]
    if ahead:
        result.notes.append(f"{len(ahead)} entries are from the future, the first is {ahead[0]}: a clock was wrong.")


def is_ahead(time_s: object, now_s: float) -> bool:
    return isinstance(time_s, int | float) and time_s > now_s + CLOCK_TOLERANCE_S


def parse_entry(data: bytes | None) -> JsonObject | None:
    try:
        row = json.loads(data or b"")
        return row if isinstance(row, dict) and canonical_json(row) == data else None
    except (ValueError, RecursionError):
        return None


def check_signature(
    ledger: Ledger, head: Head, rows: list[JsonObject | None], trusted: PublicKey | None, result: LedgerVerification
) -> None:
    """Check the checkpoint's signature by the key that the log names, and that key by the one that is trusted."""
    assert head.note is not None
    named = list_keys(rows)
    if not named or not rows or (rows[0] or {}).get("kind") != OPENED:
        result.add(CHECKPOINT, "The first entry names no key.", 0)
    current = named[-1] if named else None
    own = ledger.sound_private_key()
    expected = trusted or (own.public if own else current)
    if own is None and trusted is None:
        damage = " that can be read" if ledger.files.exists(ledger.key_file) else ""
        result.notes.append(f"This home has no private key{damage}; the key that the log itself names was used.")
    if expected is None or not head.note.is_signed_by(expected):
        result.add(CHECKPOINT, "It is not signed by the expected key: a foreign key, or its text was changed.")
        return
    result.key = expected.vkey
    if len(head.note.signatures) != 1:
        result.add(CHECKPOINT, "It has lines that are not the log's signature.")
    if current is not None and current != expected:
        result.add(CHECKPOINT, "The log names another key than the one that signed it.")
    if expected.name != head.checkpoint.origin or head.note.text != head.checkpoint.text:
        result.add(CHECKPOINT, "Its origin is not the name of the key.")


def list_keys(rows: list[JsonObject | None]) -> list[PublicKey]:
    """Return the keys that a log names, the last one signs."""
    keys = []
    for row in rows:
        if row is not None and row.get("kind") in (OPENED, ROTATED):
            try:
                keys.append(parse_vkey(str(row.get("vkey"))))
            except InvalidInput:
                continue
    return keys


def check_upper_tiles(ledger: Ledger, head: Head, leaves: list[bytes], result: LedgerVerification) -> None:
    """Compare the tiles above the leaves with the hashes of the leaves."""
    hashes, level = leaves, 0
    while len(hashes) >= WIDTH and all(hashes):
        level += 1
        hashes = [fold(hashes[at : at + WIDTH]) for at in range(0, len(hashes) - WIDTH + 1, WIDTH)]
        for number in range(-(-len(hashes) // WIDTH)):
            part = hashes[number * WIDTH : (number + 1) * WIDTH]
            tile = Tile(str(level), number, len(part))
            try:
                same = head.tiles.read(tile) == b"".join(part)
            except Corrupt:
                same = False
            if not same:
                result.add(tile.path, "The tile is missing or was changed.", number * WIDTH ** (level + 1))


def fold(hashes: list[bytes]) -> bytes:
    while len(hashes) > 1:
        hashes = [hash_node(left, right) for left, right in zip(hashes[::2], hashes[1::2], strict=True)]
    return hashes[0]


def check_other_files(ledger: Ledger, head: Head, leaves: list[bytes], result: LedgerVerification) -> None:
    """Check the tiles of earlier checkpoints, which are beginnings of those of this one, and name all other files."""
    current = {tile.path for tile in list_tiles(head.size)}
    sizes = {tile.path: len(head.tiles.read(tile)) for tile in list_readable(head)}
    expected_sizes = {path: size for path, size in sizes.items() if "/entries/" not in path}
    for part in list_tiles(head.size):
        if (size := expected_sizes.get(part.path)) is not None and size != part.width * HASH_BYTES:
            result.add(part.path, f"It has {size} bytes, not {part.width * HASH_BYTES}.", part.start)
    for path in list_tile_files(ledger.files, ledger.folder):
        if path in current:
            continue
        tile = parse_tile(path)
        if tile is None:
            result.add(path, "It is not a tile of this log.")
        elif tile.level not in (ENTRIES, "0") or tile.start + tile.width > head.size:
            result.notes.append(f"{path} is beyond the checkpoint: a writer was interrupted. It counts for nothing.")
        else:
            hashes = split_hashes(ledger.files.read(ledger.folder / path), tile)
            right = leaves[tile.start : tile.start + tile.width]
            if hashes != right:
                same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(hashes, right, strict=False)))
                result.add(path, "The tile of an earlier checkpoint was changed.", tile.start + same)


def split_hashes(data: bytes, tile: Tile) -> list[bytes]:
    """Return the leaf hashes of a tile of level 0, or of a bundle's entries; an empty one where it cannot be read."""
    if tile.level != ENTRIES:
        return [data[at : at + HASH_BYTES] for at in range(0, len(data), HASH_BYTES)]
    entries, rest = split_entries(data)
    return [*map(hash_leaf, entries), *([b""] if rest else [])]


def list_readable(head: Head) -> Iterator[Tile]:
    for tile in list_tiles(head.size):
        try:
            head.tiles.read(tile)
        except Corrupt:
            continue
        yield tile


def parse_tile(path: str) -> Tile | None:
    """Return the tile of a path; None for a file that is none."""
    parts = path.split("/")
    try:
        level, digits = parts[1], parts[2:]
        width = int(digits.pop()) if digits[-2:-1] and digits[-2].endswith(".p") else WIDTH
        number = int("".join(part.removeprefix("x").removesuffix(".p") for part in digits))
    except (ValueError, IndexError):
        return None
    tile = Tile(level, number, width)
    return tile if tile.path == path and 0 < width <= WIDTH else None


def check_index(ledger: Ledger, head: Head, result: LedgerVerification) -> None:
    """Report a log that is shorter than its index: it was put back to an earlier state."""
    if ledger.index.path is None or not ledger.index.path.is_file():
        return
    try:
        last, _ = LedgerIndex(ledger.index.path).last()
    except sqlite3.DatabaseError as error:
        result.notes.append(f"The index cannot be read ({error}); it is made again by the next append.")
        return
    if last >= head.size:
        result.add(CHECKPOINT, f"Its index has seen {last + 1} entries, {head.size} are there: it was put back.")


def check_witnessed(ledger: Ledger, head: Head, leaves: list[bytes], result: LedgerVerification) -> None:
    """Check that every cosigned checkpoint that was brought here is a beginning of this log."""
    folder = ledger.folder / "cosigned"
    for name in ledger.files.listdir(folder) if ledger.files.is_folder(folder) else ():
        path = f"cosigned/{name}"
        try:
            note = parse_note(ledger.files.read(folder / name))
            checkpoint = parse_checkpoint(note.text)
        except Corrupt as error:
            result.add(path, error.what)
            continue
        beginning = leaves[: checkpoint.size]
        fits = len(beginning) == checkpoint.size and all(beginning) and tree_root(beginning) == checkpoint.root
        if checkpoint.origin != head.checkpoint.origin or not fits:
            result.add(path, f"A witness has signed {checkpoint.size} entries that are not those of this log.")
        else:
            result.witnessed.append(f"{checkpoint.size} entries by {', '.join(name for name, *_ in note.signatures)}")
