"""Bugs that are injected into the ledger on purpose, and campaigns of failed calls, deaths and power cuts over it.

    python -m trainyard.testing.ledger_faults --campaigns 2000
    python -m trainyard.testing.ledger_faults --campaigns 2000 --inject checkpoint-first      ends with exit code 1

What `append` returned has to be in the log after every later fault, once, under a checkpoint that verifies; what it did
not return may be there or not, but never half.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainyard.errors import NotFound
from trainyard.stores.files import make_folders
from trainyard.stores.ledger import log
from trainyard.stores.ledger.checking import verify_ledger
from trainyard.stores.ledger.index import LedgerIndex
from trainyard.stores.ledger.log import Ledger
from trainyard.stores.ledger.merkle import range_root
from trainyard.stores.ledger.notes import Checkpoint
from trainyard.stores.ledger.tiles import list_tiles
from trainyard.stores.whole import new_file
from trainyard.testing.disk_campaign import HOME, DiskCampaign, run_command
from trainyard.testing.simulated_files import SimulatedFiles
from trainyard.testing.simulation import Simulator, Swap, always

STEPS = 24
MOST_CALLS = 40
"""File-system calls within which a fault falls; an append of one entry takes about twenty."""
KEYS = 60
"""So few that writers meet each other's entries."""


@contextmanager
def writes_unflushed(path: Path, files: Any) -> Any:
    """Rename a file before its bytes are on the disk."""
    temporary = path.with_name(f".{path.name}.tmp")
    yield temporary
    files.replace(temporary, path)
    files.fsync_folder(path.parent)


@contextmanager
def writes_name_unflushed(path: Path, files: Any) -> Any:
    temporary = path.with_name(f".{path.name}.tmp")
    yield temporary
    files.fsync(temporary)
    files.replace(temporary, path)


def writes_checkpoint_first(self: Ledger, key: Any, head: Any, entries: list[bytes]) -> None:
    """The checkpoint comes before the tiles that it covers."""
    size = head.size + len(entries)
    grown = log.GrownTree(head, entries)
    checkpoint = Checkpoint(head.checkpoint.origin, size, range_root(0, size, grown.subtree))
    with new_file(self.folder / log.CHECKPOINT, self.files) as temporary:
        self.files.write(temporary, f"{checkpoint.text}\n{key.signature_line(checkpoint.text)}".encode())
    for tile in list_tiles(size, head.size):
        make_folders(self.files, (self.folder / tile.path).parent)
        with new_file(self.folder / tile.path, self.files) as temporary:
            self.files.write(temporary, grown.content(tile))


def build_swaps() -> dict[str, tuple[Swap, ...]]:
    """Name -> replaced attributes."""
    return {
        "no-fsync": ((SimulatedFiles, "fsync", always()),),
        "no-folder-fsync": ((SimulatedFiles, "fsync_folder", always()),),
        "tile-renamed-before-fsync": ((log, "new_file", writes_unflushed),),
        "names-not-flushed": ((log, "new_file", writes_name_unflushed),),
        "checkpoint-first": ((Ledger, "_write", writes_checkpoint_first),),
        "keys-forgotten": ((LedgerIndex, "find_keys", always({})),),
    }


INJECTED_BUGS = tuple(build_swaps())


class LedgerCampaign(DiskCampaign):
    """The disk, and the entries that the ledger has acknowledged."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.acknowledged: dict[str, int] = {}

    def time(self) -> float:
        self.seconds += self.random.choice((1.0, 1.0, 1.0, -30.0))
        return self.seconds

    def ledger(self) -> Ledger:
        """Return the ledger as a new process opens it."""
        return Ledger(HOME / "ledger", HOME / "access" / "ledger.key", self.disk, self.time)

    def append(self) -> None:
        keys = [f"key {self.random.randrange(KEYS)}" for _ in range(self.random.choice((1, 1, 1, 5, 40)))]
        drafts = [{"kind": "trained", "key": key, "text": "x" * self.random.randrange(300)} for key in keys]
        receipts = self.ledger().append(*drafts)
        for key, receipt in zip(keys, receipts, strict=True):
            if self.acknowledged.setdefault(key, receipt.seq) != receipt.seq:
                self.violated(f"{key} is entry {self.acknowledged[key]} and entry {receipt.seq}")

    def check(self) -> None:
        """Everything that was acknowledged is there, once, and the whole log verifies."""
        self.checked += 1
        ledger = self.ledger()
        try:
            result = verify_ledger(ledger)
        except NotFound:
            if self.acknowledged:
                self.violated("the ledger is gone")
            return
        if result.problems:
            self.violated(f"{result.problems[0].file}: {result.problems[0].problem}")
            return
        head = ledger.head()
        keys = [str(head.entry(seq)["key"]) for seq in range(head.size)]
        for key, seq in self.acknowledged.items():
            if keys[seq : seq + 1] != [key]:
                self.violated(f"{key} was acknowledged as entry {seq} and is not there")


def run_campaign(seed: int) -> LedgerCampaign:
    """Run one campaign and return it; it ends at the first violation."""
    campaign = LedgerCampaign(seed, MOST_CALLS)
    for number in range(STEPS):
        campaign.attempt(campaign.append, quiet=number >= STEPS - 3)
        campaign.check()
        if campaign.violations:
            break
    return campaign


simulate: Callable[..., Any] = Simulator(run_campaign, build_swaps).run
REPLAY = "python -m trainyard.testing.ledger_faults"


if __name__ == "__main__":
    raise SystemExit(run_command(simulate, INJECTED_BUGS, REPLAY))
