"""Campaigns over stores on a disk in memory that forgets: failed calls, deaths between any two calls, power cuts.

A campaign of a store adds its calls and what has to be true after each; `run_command` is its command line.
"""

from __future__ import annotations

import argparse
import errno
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from trainyard.errors import Corrupt, TrainyardError
from trainyard.testing.simulated_files import SimulatedFiles
from trainyard.testing.simulation import SimulationOutcome, violation_lines

HOME = Path("/home")


class Death(BaseException):
    """The process ends here."""


@dataclass
class DiskCampaign:
    """The disk, and the violations that were found. A pure function of its seed."""

    seed: int
    most_calls: int = 60
    """File-system calls within which a fault falls."""
    violations: list[str] = field(default_factory=list)
    checked: int = 0
    attempts: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.left, self.power = 0, False
        """File-system calls until the process dies (0: it does not), and whether all power goes with it."""
        self.disk = SimulatedFiles(self.seed, before=self.before_call)
        self.disk.mkdir(HOME)
        self.disk.fsync_folder(HOME.parent)
        self.seconds = 1_800_000_000.0

    def before_call(self, _call: str) -> None:
        if self.left:
            self.left -= 1
            if not self.left:
                raise Death

    def violated(self, message: str) -> None:
        self.violations.append(f"seed {self.seed}: {message}")

    def attempt(self, act: Callable[[], None], *, quiet: bool) -> None:
        """Make one call by one process, which a fault may strike; afterwards perhaps a power cut."""
        self.attempts += 1
        kind = "none" if quiet else self.random.choice(["death", "death", "power", "power", "failed", "none"])
        if kind in ("death", "power"):
            self.left, self.power = self.random.randint(1, self.most_calls), kind == "power"
        elif kind == "failed":
            numbers = [errno.ENOSPC, errno.EIO, errno.EROFS]
            self.disk.fail_at(self.random.randint(1, self.most_calls), self.random.choice(numbers))
        try:
            act()
        except Death:
            if self.power:
                self.disk.crash(self.random)
        except (TrainyardError, OSError) as error:
            if kind != "failed" or isinstance(error, Corrupt):
                self.violated(f"{act.__name__} fails without a fault: {type(error).__name__}: {error}")
        self.left, self.power = 0, False
        self.disk.heal()
        if not quiet and self.random.random() < 0.4:
            self.disk.crash(self.random)


def run_command(simulate: Callable[..., SimulationOutcome], bugs: Collection[str], replay: str) -> int:
    """Run the command line of a simulator; `replay` is its command. Return the exit code."""
    parser = argparse.ArgumentParser(description="Simulate faults; each violation is printed with its replay.")
    parser.add_argument("--campaigns", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--campaign", type=int, help="replay the campaign with this seed")
    parser.add_argument("--inject", choices=bugs)
    options = parser.parse_args()
    outcome = simulate(options.campaigns, options.seed, inject=options.inject, campaign=options.campaign)
    print(*violation_lines(outcome.violations, outcome.failed, replay, outcome.inject), sep="\n")
    print(f"{outcome.nights:,} campaigns in {outcome.seconds:.0f} s")
    print(outcome.last_line)
    return outcome.exit_code
