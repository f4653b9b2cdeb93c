"""Bugs that are injected into the ledger on purpose, and campaigns of failed calls, deaths and power cuts over it.

    python -m trainyard.testing.ledger_faults --campaigns 2000
    python -m trainyard.testing.ledger_faults --campaigns 2000 --inject checkpoint-first      ends with exit code 1

What `append` returned has to be in the log after every later fault, once, under a checkpoint that verifies; what it did
not return may be there or not, but never half.
"""

from __future__ import annotations

import argparse
import errno
import random
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainyard.callbacks import ignore
from trainyard.errors import Corrupt, NotFound, TrainyardError
from trainyard.stores.files import make_folders
from trainyard.stores.ledger import log
from trainyard.stores.ledger.checking import verify_ledger
from trainyard.stores.ledger.index import LedgerIndex
from trainyard.stores.ledger.log import Ledger
from trainyard.stores.ledger.merkle import range_root
from trainyard.stores.ledger.notes import Checkpoint
from trainyard.stores.ledger.tiles import list_tiles
from trainyard.stores.whole import new_file
from trainyard.testing.simulated_files import SimulatedFiles
from trainyard.testing.simulation import Simulator, Swap, always, violation_lines

HOME = Path("/home")
STEPS = 24
MOST_CALLS = 40
"""File-system calls within which a fault falls; an append of one entry takes about twenty."""
KEYS = 60
"""So few that writers meet each other's entries."""


class PowerCut(BaseException):
    """The process ends here."""


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


@dataclass
class LedgerCampaign:
    """The disk, and the entries that the ledger has acknowledged."""

    seed: int
    violations: list[str] = field(default_factory=list)
    checked: int = 0
    attempts: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.left, self.power = 0, False
        self.disk = SimulatedFiles(self.seed, before=self.before_call)
        self.disk.mkdir(HOME)
        self.disk.fsync_folder(HOME.parent)
        self.seconds = 1_800_000_000.0
        self.acknowledged: dict[str, int] = {}

    def before_call(self, _call: str) -> None:
        if self.left:
            self.left -= 1
            if not self.left:
                raise PowerCut

    def time(self) -> float:
        self.seconds += self.random.choice((1.0, 1.0, 1.0, -30.0))
        return self.seconds

    def violated(self, message: str) -> None:
        self.violations.append(f"seed {self.seed}: {message}")

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

    def attempt(self, *, quiet: bool) -> None:
        """One append by one process, which a fault may strike; afterwards perhaps a power cut."""
        self.attempts += 1
        kind = "none" if quiet else self.random.choice(["death", "death", "power", "power", "failed", "none"])
        if kind in ("death", "power"):
            self.left, self.power = self.random.randint(1, MOST_CALLS), kind == "power"
        elif kind == "failed":
            numbers = [errno.ENOSPC, errno.EIO, errno.EROFS]
            self.disk.fail_at(self.random.randint(1, MOST_CALLS), self.random.choice(numbers))
        try:
            self.append()
        except PowerCut:
            if self.power:
                self.disk.crash(self.random)
        except (TrainyardError, OSError) as error:
            if kind != "failed" or isinstance(error, Corrupt):
                self.violated(f"append fails without a fault: {type(error).__name__}: {error}")
        self.left, self.power = 0, False
        self.disk.heal()
        if not quiet and self.random.random() < 0.4:
            self.disk.crash(self.random)


def run_campaign(seed: int) -> LedgerCampaign:
    """Return one campaign, carried out; it ends at the first violation."""
    campaign = LedgerCampaign(seed)
    for number in range(STEPS):
        campaign.attempt(quiet=number >= STEPS - 3)
        campaign.check()
        if campaign.violations:
            break
    return campaign


simulate: Callable[..., Any] = Simulator(run_campaign, build_swaps).run
REPLAY = "python -m trainyard.testing.ledger_faults"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--campaigns", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--campaign", type=int, help="replay the one that has this seed")
    parser.add_argument("--inject", choices=INJECTED_BUGS)
    options = parser.parse_args()
    outcome = simulate(
        options.campaigns, options.seed, inject=options.inject, campaign=options.campaign, on_progress=ignore
    )
    print(*violation_lines(outcome.violations, outcome.failed, REPLAY, outcome.inject), sep="\n")
    print(f"{outcome.nights:,} campaigns in {outcome.seconds:.0f} s")
    print(outcome.last_line)
    return outcome.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
