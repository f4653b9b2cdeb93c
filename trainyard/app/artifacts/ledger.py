"""The ledger of this home: entries, verification, proofs, bundles, and the cosignatures of witnesses.

A witness is another home that signs this one's checkpoint only where the log of its last signature is the beginning of
it: then two logs cannot be shown, not even with the key.
"""

from __future__ import annotations

import base64
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from pydantic import Field

from trainyard.app.artifacts.recipe_inputs import DATA_FOLDER, InputStore, missing_input
from trainyard.app.context import Context
from trainyard.app.responses import Response
from trainyard.backends.recipe import RECIPES, read_recipe, recipe_file
from trainyard.errors import Conflict, Corrupt, InvalidInput, NotFound, Unavailable
from trainyard.json_types import JsonObject
from trainyard.operations import ledger as requests
from trainyard.stores.files import DISK, make_folders
from trainyard.stores.ledger import checking
from trainyard.stores.ledger.anchors.keeping import check_records, read_pending, verify_anchors
from trainyard.stores.ledger.anchors.table import ANCHOR_KINDS
from trainyard.stores.ledger.audit_stream import check_audit
from trainyard.stores.ledger.checking import LedgerVerification, verify_ledger
from trainyard.stores.ledger.log import CHECKPOINT, Head, Ledger
from trainyard.stores.ledger.merkle import prove_consistency, range_root, verify_consistency
from trainyard.stores.ledger.notes import parse_checkpoint, parse_note, parse_vkey
from trainyard.stores.ledger.proofs import format_inclusion, read_checkpoint
from trainyard.stores.ledger.recording import ANCHORED, AUDITED, TRAINED
from trainyard.stores.ledger.tiles import ENTRIES, list_tiles, pack_entries
from trainyard.stores.ledger.unledgered import UnledgeredFile
from trainyard.stores.ledger.witnessing import Witness
from trainyard.stores.whole import create_whole, write_folder, write_whole

SCRIPT = Path(checking.__file__).with_name("verify_ledger.py")
"""Checks a bundle without this package; it is part of each."""
SHORTEST = 6
"""Characters of a key or an id that name an entry."""


class LedgerEntry(Response):
    """An entry with its number and the hash of its leaf."""

    seq: int
    leaf: str
    """SHA-256 (hex) of the byte 0 and its canonical JSON."""
    entry: JsonObject


class LedgerEntries(Response):
    entries: tuple[LedgerEntry, ...]
    size: int
    """Entries of the whole log."""
    more: bool = False
    """Whether there are older ones."""
    unledgered: tuple[JsonObject, ...] = ()
    """Entries that could not be written, with `time` and `code`; the next entry brings them along."""


class LedgerFault(Response):
    """Something that does not fit."""

    file: str
    problem: str
    entry: int | None = None


class AnchorCheck(Response):
    """Comparison of an anchor's checkpoints with the ledger."""

    name: str
    kind: str
    checkpoints: int = 0
    size: int | None = None
    """Entries of its newest checkpoint."""
    where: str = ""
    time: float | None = None
    """As the anchor says it."""
    proves: str = ""
    unreachable: str = ""
    """Why it could not be asked."""


class LedgerCheck(Response):
    """Result of verifying the whole ledger."""

    origin: str
    size: int
    root: str
    key: str
    """The public key of the checkpoint, as C2SP writes it."""
    problems: tuple[LedgerFault, ...] = ()
    notes: tuple[str, ...] = ()
    witnessed: tuple[str, ...] = ()
    anchored: tuple[str, ...] = ()
    """Newest checkpoint of each anchor as this home keeps it."""
    anchors: tuple[AnchorCheck, ...] = ()
    """Anchors that were asked."""

    @property
    def exit_code(self) -> int:
        if self.problems:
            return Corrupt.exit_code
        return Unavailable.exit_code if any(check.unreachable for check in self.anchors) else 0


class LedgerProof(Response):
    """A proof as text."""

    kind: str
    """inclusion or consistency."""
    size: int
    proof: str


class ExportedLedger(Response):
    folder: Path
    entries: int
    proofs: int
    recipes: int = 0
    """Trainings that another home can carry out again with the bundle."""


class Cosigned(Response):
    """Checkpoint that this home has witnessed, or one of its own that it keeps."""

    origin: str
    size: int
    checkpoint: str
    key: str = ""
    """Public key of this witness."""
    before: int = Field(0)
    """Entries that it had cosigned before."""
    out: Path | None = None
    kept: bool = False


class RotatedKey(Response):
    seq: int
    key: str


def open_ledger(context: Context) -> Ledger:
    return Ledger.at_home(context.settings.home)


def build_entry(head: Head, seq: int) -> LedgerEntry:
    return LedgerEntry(seq=seq, leaf=head.tiles.hash_at(0, seq).hex(), entry=head.entry(seq))


def list_entries(request: requests.LedgerLogInput, context: Context) -> LedgerEntries:
    """Return the newest entries. Raises `NotFound` for a home without a ledger, `Corrupt`."""
    ledger, tenant = open_ledger(context), context.caller.tenant or request.tenant
    head = ledger.synced()
    numbers = ledger.index.select(
        limit=request.limit + 1, before=request.before, kind=request.kind, run=request.run, tenant=tenant
    )
    entries = tuple(build_entry(head, seq) for seq in numbers[: request.limit])
    missing = tuple(
        {**entry.draft, "time": entry.time, "code": entry.code}
        for entry in UnledgeredFile.of_ledger(ledger).read()
        if not tenant or entry.draft.get("tenant") == tenant
    )
    return LedgerEntries(entries=entries, size=head.size, more=len(numbers) > request.limit, unledgered=missing)


def list_rows(ledger: Ledger, tenant: str = "") -> dict[int, JsonObject]:
    """Return the entries of a ledger, of a tenant or all, by their numbers."""
    head = ledger.head()
    rows = ((seq, head.entry(seq)) for seq in range(head.size))
    return {seq: row for seq, row in rows if not tenant or row.get("tenant") == tenant}


def match_entry(word: str, rows: Mapping[int, JsonObject]) -> int | None:
    """Return the number of the entry that a word names: of a run, its last training, else its last step."""
    if re.fullmatch(r"\d{1,9}", word) and int(word) in rows:
        return int(word)
    if len(word) < SHORTEST:
        return None
    newest = sorted(rows, reverse=True)
    named = [seq for seq in newest if str(rows[seq]["key"]).startswith(word)]
    of_run = [seq for seq in newest if any(str(rows[seq].get(name, "")).startswith(word) for name in ("run", "job"))]
    trainings = [seq for seq in of_run if rows[seq]["kind"] == "trained"]
    return next(iter([*named[:1], *trainings[:1], *of_run[:1]]), None)


def find_entry(word: str, ledger: Ledger, context: Context) -> tuple[Head, int]:
    """Return the number of the entry that a word names, by `match_entry`. Raises `NotFound`."""
    head = ledger.synced()
    seq = match_entry(word, list_rows(ledger, context.caller.tenant))
    if seq is None:
        raise NotFound(
            f"The ledger has no entry {word!r}.",
            why=f"It has {head.size} entries, from 0 to {head.size - 1}.",
            do="Copy a number from `trainyard ledger log`, or name a run or a job.",
        )
    return head, seq


def show_entry(request: requests.LedgerShowInput, context: Context) -> LedgerEntry:
    """Return one entry. Raises `NotFound`."""
    return build_entry(*find_entry(request.entry, open_ledger(context), context))


def verify(request: requests.LedgerVerifyInput, context: Context) -> LedgerCheck:
    """Check the whole ledger. Raises `NotFound` for a home without one, `InvalidInput` for a key that is none."""
    ledger = open_ledger(context)
    result = verify_ledger(ledger, parse_vkey(request.key) if request.key else None)
    for vkey in request.witness:
        key = parse_vkey(vkey)
        notes = [parse_note(data) for data in read_cosigned(ledger)]
        if not any(note.is_signed_by(key) for note in notes):
            result.add("cosigned", f"The witness {key.name} has cosigned no checkpoint that is kept here.")
    result.notes += list_gaps(ledger, result)
    anchored, checks = check_anchors(ledger, result, request, context)
    faults = tuple(LedgerFault(**asdict(problem)) for problem in result.problems)
    return LedgerCheck(
        origin=result.origin, size=result.size, root=result.root, key=result.key, problems=faults,
        notes=tuple(result.notes), witnessed=tuple(result.witnessed), anchored=anchored, anchors=checks,
    )  # fmt: skip


def list_gaps(ledger: Ledger, result: LedgerVerification) -> list[str]:
    """Return the steps that are not in the ledger, and the entries that were added later than their step.

    Lines of the audit log that are not those that the ledger names are added to the problems.
    """
    lines = [
        f"not in the ledger: {entry.draft['kind']} {entry.draft.get('version') or entry.draft.get('run') or ''} "
        f"({entry.code}); the next entry brings it along"
        for entry in UnledgeredFile.of_ledger(ledger).read()
    ]
    if not result.problems:
        for problem in check_audit(ledger, ledger.head(), result.kinds.get(AUDITED, ())):
            result.add("audit", f"{problem[0].upper()}{problem[1:]}.")
    if result.late:
        lines.append(f"added later than their step, with the reason: entries {', '.join(map(str, result.late))}")
    return lines


def check_anchors(
    ledger: Ledger, result: LedgerVerification, request: requests.LedgerVerifyInput, context: Context
) -> tuple[tuple[str, ...], tuple[AnchorCheck, ...]]:
    """Check what is kept about anchors, and ask them where the request says so; problems are added to the result."""
    anchors, pending = context.settings.ledger_anchors, read_pending(ledger)
    result.notes += [f"anchor {name}: {row.text}" for name, row in pending.items() if name in anchors]
    if result.problems:  # the log itself does not fit, so that nothing can be compared with it
        return (), ()
    head = ledger.head()
    problems, anchored = check_records(ledger, head, result.kinds.get(ANCHORED, ()))
    for problem in problems:
        result.add("anchors", problem)
    if not request.anchor:
        return tuple(anchored), ()
    if not anchors:
        raise InvalidInput("trainyard.toml has no ledger_anchors.", do="See docs/ledger.md.", code="E-SETTINGS")
    checks = []
    for found in verify_anchors(ledger, head, anchors):
        if found.problem:
            result.add("anchors", f"The anchor {found.name}: {found.problem}")
        newest = found.newest
        checks.append(
            AnchorCheck(
                name=found.name, kind=found.kind, checkpoints=found.count, unreachable=found.unreachable,
                size=newest.size if newest else None, where=newest.where if newest else "",
                time=newest.time if newest else None, proves=ANCHOR_KINDS[found.kind].proves if newest else "",
            )
        )  # fmt: skip
    return (), tuple(checks)


def read_cosigned(ledger: Ledger) -> list[bytes]:
    """Return the checkpoints that witnesses have cosigned, brought by hand or by an anchor."""
    paths = [*ledger.folder.glob("cosigned/*"), *ledger.folder.glob("anchors/*.checkpoint")]
    return [path.read_bytes() for path in sorted(paths) if not path.name.startswith(".")]


def prove(request: requests.LedgerProveInput, context: Context) -> LedgerProof:
    """Return a C2SP proof of inclusion, or the hashes of a proof of consistency. Raises `NotFound`."""
    head, seq = find_entry(request.entry, open_ledger(context), context)
    if request.since is not None:
        return prove_growth(head, request.since)
    return LedgerProof(kind="inclusion", size=head.size, proof=format_inclusion(head, seq))


def prove_growth(head: Head, since: int) -> LedgerProof:
    if since > head.size:
        raise InvalidInput(
            f"The log has {head.size} entries, fewer than {since}.", do="Give a number of entries that it has had."
        )
    hashes = prove_consistency(since, head.size, head.tiles.subtree)
    earlier = base64.b64encode(range_root(0, since, head.tiles.subtree)).decode()
    lines = [f"consistency {since} {head.size}", f"root {earlier}", *(base64.b64encode(h).decode() for h in hashes)]
    return LedgerProof(kind="consistency", size=head.size, proof="\n".join(lines) + "\n\n" + read_checkpoint(head))


def export(request: requests.LedgerExportInput, context: Context) -> ExportedLedger:
    """Write a bundle that is checked without Trainyard. Raises `Conflict` (`E-FILE-EXISTS`), `Corrupt`, `NotFound`."""
    ledger, target = open_ledger(context), request.target.expanduser().absolute()
    if target.exists():
        raise Conflict(
            f"{target} exists already.", do="Name a folder that is not there; nothing is overwritten.",
            code="E-FILE-EXISTS",
        )  # fmt: skip
    result = verify_ledger(ledger)
    if result.problems:
        problem = result.problems[0]
        raise Corrupt(
            f"The ledger is not exported: {problem.problem} ({problem.file})", do="Run `trainyard ledger verify`."
        )
    head = ledger.head()
    numbers = [find_entry(word, ledger, context)[1] for word in request.entries]
    proofs = {seq: format_inclusion(head, seq) for seq in numbers}
    carried = list(list_carried([head.entry(seq) for seq in numbers], context)) if request.data else []

    def write(folder: Path) -> None:
        files = {
            tile.path: pack_entries(list(head.tiles.entries(tile.number)))
            if tile.level == ENTRIES
            else head.tiles.read(tile)
            for tile in list_tiles(head.size)
        }
        for kept in ("cosigned", "anchors"):
            names = DISK.listdir(ledger.folder / kept) if (ledger.folder / kept).is_dir() else []
            files |= {f"{kept}/{name}": (ledger.folder / kept / name).read_bytes() for name in names if name[0] != "."}
        files |= {CHECKPOINT: read_checkpoint(head).encode(), "key": f"{result.key}\n".encode()}
        files |= {SCRIPT.name: SCRIPT.read_bytes()}
        files |= {f"entry-{seq}.tlog-proof": proof.encode() for seq, proof in proofs.items()}
        for path, data in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)

        for source, name in carried:
            copy_inside(source, folder / name)

    write_folder(target, write, facts=None)
    recipes = sum(name.startswith(RECIPES) for _, name in carried)
    return ExportedLedger(folder=target, entries=head.size, proofs=len(proofs), recipes=recipes)


def list_carried(rows: Sequence[JsonObject], context: Context) -> Iterator[tuple[Path, str]]:
    """Yield the recipe of each training with its rows and earlier weights, and where they are in a bundle.

    Raises `NotFound` naming a digest that this home does not have any more.
    """
    home, inputs = context.settings.home, InputStore(context.settings)
    for row in (row for row in rows if row["kind"] == TRAINED and row.get("recipe_sha256")):
        sha256 = str(row["recipe_sha256"])
        recipe = read_recipe(recipe_file(home, sha256), sha256)
        yield recipe_file(home, sha256), f"{RECIPES}/{sha256}.json"
        for item in (item for item in recipe.inputs if item.role != "base"):
            folder = inputs.find(item)
            if folder is None:
                raise missing_input(item, f"Entry {row['seq']} needs it; its files were removed or changed.")
            yield folder, f"{DATA_FOLDER}/{item.sha256}"


def copy_inside(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_file():
        shutil.copyfile(source, target)
    elif not target.exists():
        shutil.copytree(source, target)


# Witnesses


def witness(request: requests.LedgerWitnessInput, context: Context) -> Cosigned:
    """Cosign the checkpoint of another machine's ledger, or keep a cosigned checkpoint of this home's.

    Raises `NotFound`, `Corrupt` (`E-CORRUPT`) where the log does not begin with the one that was cosigned before.
    """
    source = request.source.expanduser().absolute()
    if source.is_file():
        return keep_cosigned(source, context)
    other = Ledger(source, source / "no-key")
    try:
        head = other.head()
    except NotFound:
        raise NotFound(
            f"There is no ledger in {source}.", why="It has no file `checkpoint`.",
            do="Name the folder `ledger` of the other home, or a cosigned checkpoint of this one.",
        ) from None  # fmt: skip
    result = verify_ledger(other)
    if result.problems:
        raise Corrupt(
            f"The ledger in {source} is not cosigned: {result.problems[0].problem}",
            do="Ask its owner for a whole copy.",
        )
    origin, own = head.checkpoint.origin, Witness(context.settings.home)
    assert head.note is not None
    with own.locked(origin) as before:
        if before is not None:
            require_growth(before.size, before.root, head)
        cosigned = own.cosign(head.note, [parse_vkey(result.key)]).data.decode()
    if request.out is not None:
        create_whole(DISK, request.out.expanduser().absolute(), cosigned.encode())
    return Cosigned(
        origin=origin, size=head.size, checkpoint=cosigned, key=own.key().public.vkey,
        before=before.size if before else 0, out=request.out,
    )  # fmt: skip


def require_growth(size: int, root: bytes, head: Head) -> None:
    """Raise `Corrupt` unless the log begins with the tree of an earlier checkpoint, by a proof of consistency."""
    if size <= head.size:
        proof = prove_consistency(size, head.size, head.tiles.subtree)
        if verify_consistency(size, head.size, root, head.checkpoint.root, proof):
            return
    raise Corrupt(
        f"The log has {head.size} entries that do not begin with the {size} which this witness has cosigned.",
        why="It was cut, put back to an earlier state, or written anew.",
        do="Keep both copies; ask the owner of the log which backup it was restored from.",
    )


def keep_cosigned(source: Path, context: Context) -> Cosigned:
    """Keep a cosigned checkpoint of this home's ledger, after a check that it is the beginning of it."""
    ledger = open_ledger(context)
    head, data = ledger.head(), source.read_bytes()
    note = parse_note(data)
    checkpoint = parse_checkpoint(note.text)
    if checkpoint.origin != head.checkpoint.origin or len(note.signatures) < 2:
        raise InvalidInput(
            f"{source.name} is not a cosigned checkpoint of this home's ledger.",
            why=f"Its origin is {checkpoint.origin}; it has {len(note.signatures)} signatures.",
            do="Run `trainyard ledger witness FOLDER --out FILE` on the witness, and bring its file here.",
        )
    require_growth(checkpoint.size, checkpoint.root, head)
    folder = ledger.folder / "cosigned"
    make_folders(DISK, folder)
    signer = base64.urlsafe_b64encode(note.signatures[-1][1]).decode().rstrip("=")
    write_whole(DISK, folder / f"{checkpoint.size:09d}-{signer}", data)
    return Cosigned(origin=checkpoint.origin, size=checkpoint.size, checkpoint=data.decode(), kept=True)


def rotate(request: requests.LedgerRotateInput, context: Context) -> RotatedKey:
    """Replace the key of this home's ledger. Raises `NotFound` without a ledger, `Corrupt`."""
    ledger = open_ledger(context)
    receipt = ledger.rotate(request.because)
    key = ledger.private_key()
    assert key is not None
    return RotatedKey(seq=receipt.seq, key=key.public.vkey)
