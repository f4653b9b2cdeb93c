"""The data_source node: reads documents or rows from a path, an address or a repository, and accounts for each row.

Every set becomes a folder named by its port: `rows.arrow`, `quarantine.jsonl` (bad rows with line, byte offset and
reason) and `report.json` (read = kept + dropped by reason). Nothing is dropped without being counted there.
"""

from __future__ import annotations

import contextlib
import gc
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainyard.data.paths import data_roots, resolve_inside
from trainyard.data.quarantine import QUARANTINE_FILE, REPORT_FILE, Balance, Quarantine
from trainyard.data.readers.addresses import Fetched, fetch
from trainyard.data.readers.chunks import OpenedSet, nothing_to_read
from trainyard.data.readers.intake import Intake
from trainyard.data.readers.sets import open_files, open_repository_set
from trainyard.data.readers.streams import Limits
from trainyard.data.rows import chosen_side
from trainyard.errors import InvalidInput
from trainyard.settings import Settings
from trainyard.spec.axes import DataFormat, Port
from trainyard.spec.nodes import DataSourceConfig, SourceSet
from trainyard.spec.ports import kinds_of_set
from trainyard.stores.artifacts import Produced, ProducedSet

Report = Callable[[float, str], None]
AS_NAMED = {Port.TEXT: DataFormat.TEXT, Port.DOCUMENTS: DataFormat.DOCUMENTS}
"""A set named by one of these ports has the port's format when it names none."""


def read_source(
    config: DataSourceConfig, folder: Path, *, settings: Settings, report: Report, limits: Limits | None = None
) -> Produced:
    """Read every set of the config into its own sub-folder of `folder`, named by the port that it fills.

    `report` gets the fraction done and a line of text. Raises `Refused` (`R-PATH-ROOT`, `R-URL…`),
    `NotFound` and `InvalidInput` (`E-DATA-…`, among them `E-DATA-BAD-ROWS` when more than `max_bad_fraction` of the
    rows of a set are bad; the quarantine is then kept under `TRAINYARD_HOME/quarantine`).
    """
    sets = list(config.sets.items()) if config.sets else [(None, config.single())]
    outputs: dict[Port, ProducedSet] = {}
    for number, (named, given) in enumerate(sets):
        reading = Reading(given, named, config.max_bad_fraction, settings, limits or Limits())

        def progress(fraction: float, text: str, number: int = number) -> None:
            report((number + fraction) / len(sets), text)

        port, part = reading.into(folder, progress)
        outputs[port] = part
    return Produced(outputs=outputs, facts={port.value: part.facts for port, part in outputs.items()})


@dataclass
class Reading:
    """One set being read."""

    given: SourceSet
    named: Port | None
    max_bad_fraction: float
    settings: Settings
    limits: Limits = field(default_factory=Limits)

    def into(self, folder: Path, report: Report) -> tuple[Port, ProducedSet]:
        """Read the set into a sub-folder; returns the port that it fills."""
        scratch = folder / f".{self.named or 'set'}"
        scratch.mkdir(parents=True)
        try:
            opened = self.open(scratch, report)
            port = self.port_of(opened)
            target = folder / port.value
            balance, quarantine = self.copy(opened, port, target, report)
        finally:
            shutil.rmtree(scratch)
        self.judge(opened, balance, quarantine, target)
        facts = {"format": opened.format.value, **opened.facts, **balance.as_dict()}
        (target / REPORT_FILE).write_text(json.dumps(facts, indent=1, sort_keys=True), encoding="utf-8")
        report(1.0, f"{opened.name}: {balance.kept} of {balance.read} rows kept as {port.value}")
        return port, ProducedSet(folder=port.value, rows=balance.kept, facts=facts)

    def open(self, scratch: Path, report: Report) -> OpenedSet:
        """Find the place and look at its first rows. Refuses what leaves its roots or the public internet."""
        given, roots = self.given, data_roots(self.settings)
        wanted = given.format
        if wanted is DataFormat.AUTO and self.named in AS_NAMED:
            wanted = AS_NAMED[self.named]
        if given.repository:
            place = resolve_inside(given.repository, roots, field="config.repository")
            return open_repository_set(place, given, roots, self.limits)
        if given.url:
            fetched = self.fetch(given.url, scratch, report)
            return open_files(fetched.path, given, wanted, roots=(scratch,), limits=self.limits, name=fetched.name)
        assert given.path is not None
        return open_files(resolve_inside(given.path, roots), given, wanted, roots=roots, limits=self.limits)

    def fetch(self, url: str, scratch: Path, report: Report) -> Fetched:
        def progress(done: int, total: int) -> None:
            report(done / total / 2 if total else 0.0, f"fetching: {done >> 20} MiB")

        allowed = self.settings.allow_private_urls
        return fetch(url, scratch, allowed=allowed, limits=self.limits, progress=every(1 << 24, progress))

    def port_of(self, opened: OpenedSet) -> Port:
        """The port that is filled: the named one, if the rows fit it."""
        if self.named is None:
            return self.planned(opened)
        if self.named is opened.port or (self.named is Port.SFT and opened.port is Port.PREFERENCE):
            return self.named
        raise InvalidInput(
            f"The set {self.named.value!r} holds rows for {opened.port.value} ({opened.name}).",
            why=f"Its first rows are in the format {opened.format.value}.",
            do=f"Name the set {opened.port.value}, or give another file.",
            code="E-DATA-PORT",
        )

    def planned(self, opened: OpenedSet) -> Port:
        """The port of a set without a name, which has to be one that the name of its file let the chain expect."""
        expected = kinds_of_set(self.given)
        if opened.port in expected:
            return opened.port
        raise InvalidInput(
            f"{opened.name} holds rows for {opened.port.value}; the chain expects {expected[0].value} from its name.",
            why=f"Its first rows are in the format {opened.format.value}, which the name does not say.",
            do=f"Give format: {opened.format.value}.",
            code="E-DATA-PORT",
        )

    def copy(self, opened: OpenedSet, port: Port, target: Path, report: Report) -> tuple[Balance, Quarantine]:
        """Stream the rows into the target folder. A preference set under `sft` gives its chosen side."""
        last = 0.0
        with Intake(target, port, max_rows=self.given.max_rows) as intake, collection_paused():
            for chunk in opened.chunks:
                if port is not opened.port:
                    chunk.rows = [chosen_side(row) for row in chunk.rows]  # type: ignore[arg-type]
                intake.take(chunk)
                if intake.full:
                    break
                fraction = opened.fraction()
                if fraction - last >= 0.01:
                    last = fraction
                    report(fraction, f"{opened.name}: {intake.taken} rows")
        intake.balance.skipped.update(opened.skipped)
        return intake.balance, intake.quarantine

    def judge(self, opened: OpenedSet, balance: Balance, quarantine: Quarantine, target: Path) -> None:
        """Fail for a set without rows, and for one with too many bad rows."""
        if balance.read == 0:
            raise nothing_to_read(opened.name, opened.why_empty or "It is empty.")
        share = balance.bad / balance.read
        if share <= self.max_bad_fraction and balance.kept:
            return
        kept_at = keep_quarantine(target / QUARANTINE_FILE, self.settings.home / "quarantine", opened.name)
        raise InvalidInput(
            f"{balance.bad} of {balance.read} rows of {opened.name} are bad ({share:.1%}).",
            why=f"At most {self.max_bad_fraction:.1%} may be. The first: {'; '.join(quarantine.first)}.",
            do=f"Look at {kept_at}, correct the rows, or raise max_bad_fraction.",
            code="E-DATA-BAD-ROWS",
        )


def keep_quarantine(file: Path, folder: Path, name: str) -> Path:
    """Copy the quarantine of a failed reading to where it outlives the run's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)[-100:].lstrip(".")
    target = folder / f"{plain or 'set'}.{QUARANTINE_FILE}"
    shutil.copyfile(file, target)
    return target


def every(step: int, progress: Callable[[int, int], None]) -> Callable[[int, int], None]:
    """Call `progress` once for every `step` bytes."""
    last = -step

    def seldom(done: int, total: int) -> None:
        nonlocal last
        if done - last >= step:
            last = done
            progress(done, total)

    return seldom


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Without cyclic garbage collection: millions of rows are allocated, none is part of a cycle."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def jsonl_to_arrow(path: Path, folder: Path, *, deduplicate: bool = True) -> dict[str, Any]:
    """One JSON Lines file to validated, normalised and, if wanted, exactly deduplicated Arrow. Returns the balance."""
    given = SourceSet(path=str(path))
    opened = open_files(path, given, DataFormat.AUTO, roots=(path.parent,), limits=Limits())
    with Intake(folder, opened.port, deduplicate=deduplicate) as intake, collection_paused():
        for chunk in opened.chunks:
            intake.take(chunk)
    return intake.balance.as_dict()
