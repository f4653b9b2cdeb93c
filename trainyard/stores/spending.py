"""Spending of trainings: one small JSON file per training and month, below `TRAINYARD_HOME/spending`.

    spending/2026-11/<run>/<node>-<start>.json

A training writes its own file while it runs, so that other trainings see what a run, a month or a tenant has spent.
The files stay when the run's folder is removed: a month's limit does not forget.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path

from trainyard.spec.money import ZERO, Cost, add_costs, round_usd
from trainyard.stores.files import DISK, Files, make_folders
from trainyard.stores.schema import add_version, read_versioned
from trainyard.stores.whole import write_json_durably

UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")
MONTH = re.compile(r"\d{4}-\d{2}")


class SpendingEntry(Cost):
    """Cost of one training in one month."""

    month: str
    run: str
    """The run's id, or the name of the work folder of a training outside of runs."""
    node: str
    name: str
    """Of the file: the node and the start."""
    tenant: str = ""
    seconds: float = 0.0
    updated: float = 0.0


class SpendingStore:
    """The spending of a home."""

    def __init__(self, folder: Path, files: Files = DISK) -> None:
        self.folder, self.files = folder, files

    def path(self, entry: SpendingEntry) -> Path:
        return self.folder / entry.month / safe_name(entry.run) / f"{safe_name(entry.name)}.json"

    def write(self, entry: SpendingEntry) -> None:
        """Write the entry of a training whole, in place of its earlier one of the same month."""
        path = self.path(entry)
        make_folders(self.files, path.parent)
        write_json_durably(path, add_version("spending", entry.model_dump(mode="json")), self.files)

    def list_months(self) -> list[str]:
        names = self.files.listdir(self.folder) if self.files.is_folder(self.folder) else []
        return sorted(name for name in names if MONTH.fullmatch(name))

    def list_run(self, run: str) -> list[SpendingEntry]:
        """Return the entries of a run, of every month."""
        folders = (self.folder / month / safe_name(run) for month in self.list_months())
        return [entry for folder in folders for entry in self.read_folder(folder)]

    def list_month(self, month: str) -> Iterator[SpendingEntry]:
        """Yield the entries of a month, of every run."""
        folder = self.folder / month
        for run in self.files.listdir(folder) if self.files.is_folder(folder) else []:
            yield from self.read_folder(folder / run)

    def read_folder(self, folder: Path) -> Iterator[SpendingEntry]:
        names = self.files.listdir(folder) if self.files.is_folder(folder) else []
        for name in sorted(names):
            if name.endswith(".json"):
                path = folder / name
                yield SpendingEntry.model_validate(read_versioned("spending", self.files.read(path), path))

    def find_cost(self, run: str) -> Cost | None:
        """Return what a run has cost so far; None where no price is known."""
        return add_costs(Cost(**{name: getattr(e, name) for name in Cost.model_fields}) for e in self.list_run(run))


def safe_name(text: str) -> str:
    return UNSAFE.sub("_", text)[:128] or "_"


def sum_usd(entries: Iterable[SpendingEntry]) -> Decimal:
    return round_usd(sum((entry.usd for entry in entries), ZERO))
