"""The data_source node: reads documents or rows from a path, an address or a repository, and accounts for each row.

Every set becomes a folder named by its port: `rows.arrow`, `quarantine.jsonl` (bad rows with line, byte offset and
reason) and `report.json` (read = kept + dropped by reason). Nothing is dropped without being counted there.

This process opens none of the files; the modules that do, from the config to the bytes:

    sources.py                     chooses the place of a set: a path here, or a kind of `remote/kinds.py` to fetch
    remote/                        fetches files of the Hub, buckets, databases and http(s) addresses
    limited/service.py, server.py  fork a process under limits for each set
    limited/sets.py                lists the files of a path and chooses the reader of each
    readers/streams.py             opens a file as UTF-8 blocks: gzip, encodings, size caps
    readers/rowfiles.py            rows: tables.py (JSON, JSON Lines), delimited.py (CSV), columns.py (Parquet, Arrow)
    readers/documents.py           documents: markup/ (HTML, PDF, office files, mails, books)
    readers/repositories.py        a git repository
    remote/queries.py              SQL over local files
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainyard.data.functions import find_reference
from trainyard.data.limited.requests import SetReadResult, SetRequest
from trainyard.data.limited.service import ReadingService, reading_service
from trainyard.data.mixing import Share, write_mixture
from trainyard.data.paths import data_roots, resolve_inside
from trainyard.data.quarantine import QUARANTINE_FILE, REPORT_FILE, Balance
from trainyard.data.readers.selection import FileSelection, empty_set_error
from trainyard.data.readers.streams import Limits
from trainyard.data.remote.fetching import FetchJob, LocalSet
from trainyard.data.remote.kinds import RemoteKind, find_kind
from trainyard.errors import InvalidInput
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.settings import Settings
from trainyard.spec.axes.data import DataFormat, Port
from trainyard.spec.nodes import DataSourceConfig, Mixture, SourceSet
from trainyard.spec.ports import kinds_of_set
from trainyard.stores.artifacts import Produced, ProducedSet

Report = Callable[[float, str], None]
AS_NAMED = {Port.TEXT: DataFormat.TEXT, Port.DOCUMENTS: DataFormat.DOCUMENTS}
"""A set named by one of these ports has the port's format when it names none."""


def read_source(
    config: DataSourceConfig,
    folder: Path,
    *,
    settings: Settings,
    report: Report,
    limits: Limits | None = None,
    judged: bool = True,
) -> Produced:
    """Read every set of the config into its own sub-folder of `folder`, named by the port that it fills.

    `report` gets the fraction done and a line of text. A plan only counts bad rows: they are not `judged`. Raises
    `Refused` (`R-PATH-ROOT`, `R-URL`), `NotFound` and `InvalidInput` (`E-DATA-…`, among them `E-DATA-BAD-ROWS` when
    more than `max_bad_fraction` of the rows of a set are bad; the quarantine is then kept under
    `TRAINYARD_HOME/quarantine`).
    """
    if config.mix is not None:
        limits = limits or Limits()
        return read_mixture(config, config.mix, folder, settings=settings, report=report, limits=limits, judged=judged)
    sets = list(config.sets.items()) if config.sets else [(None, config.single())]
    outputs: dict[Port, ProducedSet] = {}
    with reading_service() as service:
        for number, (named, source) in enumerate(sets):
            reading = SetReading(source, named, bad_rows_limit(config, judged=judged), settings, limits or Limits())

            def progress(fraction: float, text: str, number: int = number) -> None:
                report((number + fraction) / len(sets), text)

            port, part = reading.into(folder, service, progress)
            outputs[port] = part
    return Produced(outputs=outputs, facts={port.value: part.facts for port, part in outputs.items()})


def read_mixture(
    config: DataSourceConfig,
    mix: Mixture,
    folder: Path,
    *,
    settings: Settings,
    report: Report,
    limits: Limits,
    judged: bool = True,
) -> Produced:
    """Read every set of the mixture, and write the rows that are drawn from them as one set.

    Raises what reading a set raises, and `InvalidInput` (`E-DATA-FORMAT`) for sets that fill different ports.
    """
    parts: dict[str, tuple[Port, ProducedSet]] = {}
    with reading_service() as service:
        for number, (name, source) in enumerate(mix.sets.items()):
            reading = SetReading(source, mix.port, bad_rows_limit(config, judged=judged), settings, limits)

            def progress(fraction: float, text: str, number: int = number, name: str = name) -> None:
                report((number + fraction) / len(mix.sets) * 0.9, f"{name}: {text}")

            parts[name] = reading.into(folder / f".{name}", service, progress)
    ports = {name: port.value for name, (port, _) in parts.items()}
    if len(set(ports.values())) > 1:
        raise InvalidInput(
            "The sets of the mixture contain rows of different kinds.",
            why=", ".join(f"{name} contains {port}" for name, port in ports.items()) + ".",
            do="Mix sets of one kind, or name the port: a preference set under `port: sft` gives its chosen side.",
            code="E-DATA-FORMAT",
        )
    port = next(port for port, _ in parts.values())
    report(0.9, "mixing")
    folders = {name: folder / f".{name}" / part.folder for name, (_, part) in parts.items()}
    target = folder / port.value
    shares, distinct = write_mixture(mix, folders, port, target)
    with (target / QUARANTINE_FILE).open("wb") as quarantine:
        for set_folder in folders.values():
            quarantine.write((set_folder / QUARANTINE_FILE).read_bytes())
    facts = mixture_facts(mix, shares, distinct, {name: part.facts for name, (_, part) in parts.items()})
    (target / REPORT_FILE).write_text(json.dumps(facts, indent=1, sort_keys=True), encoding="utf-8")
    for name in folders:
        shutil.rmtree(folder / f".{name}")
    rows = sum(share.count for share in shares)
    report(1.0, f"{rows} rows of {len(shares)} sets as {port.value}")
    part = ProducedSet(folder=port.value, rows=rows, facts=facts)
    return Produced(outputs={port: part}, facts={port.value: facts})


def bad_rows_limit(config: DataSourceConfig, *, judged: bool) -> float | None:
    """Largest share of bad rows; None where they are only counted."""
    return config.max_bad_fraction if judged else None


def mixture_facts(mix: Mixture, shares: Sequence[Share], distinct: int, sets: Mapping[str, JsonMapping]) -> JsonObject:
    """The account of a mixture: read = kept + dropped over all sets; a row that is taken again counts as repeated."""
    dropped: Counter[str] = Counter()
    for facts in sets.values():
        dropped.update(facts["dropped"])
    read, rows = sum(facts["read"] for facts in sets.values()), sum(share.count for share in shares)
    dropped["not_drawn"] = read - sum(dropped.values()) - distinct
    return {
        "format": "mixture", "read": read, "kept": distinct, "repeated": rows - distinct,
        "dropped": {reason: count for reason, count in sorted(dropped.items()) if count},
        "quarantined": sum(facts["quarantined"] for facts in sets.values()),
        "mixture": {share.name: {**share.facts, "set": dict(sets[share.name])} for share in shares},
        "seed": mix.seed, "ended_by": next((s.name for s in shares if s.facts["exhausted"]), None),
    }  # fmt: skip


@dataclass
class SetReading:
    """A set being read."""

    source: SourceSet
    named: Port | None
    max_bad_fraction: float | None
    settings: Settings
    limits: Limits = field(default_factory=Limits)

    def into(self, folder: Path, service: ReadingService, report: Report) -> tuple[Port, ProducedSet]:
        """Read the set into a sub-folder; returns the port that it fills."""
        folder.mkdir(parents=True, exist_ok=True)
        scratch = folder / f".{self.named or 'set'}"
        scratch.mkdir(parents=True)
        try:
            kind = find_kind(self.source)
            if kind is None:
                result = service.read_set(self.request(folder, self.find_local()), report)
            else:
                result = self.read_remote(kind, scratch, folder, service, report)
        finally:
            shutil.rmtree(scratch)
        target, balance = folder / result.port.value, result.balance
        self.judge(result, balance, target)
        facts = {"format": result.format.value, **result.facts, **balance.as_dict()}
        (target / REPORT_FILE).write_text(json.dumps(facts, indent=1, sort_keys=True), encoding="utf-8")
        report(1.0, f"{result.name}: {balance.kept_rows} of {balance.read} rows kept as {result.port.value}")
        return result.port, ProducedSet(folder=result.port.value, rows=balance.kept_rows, facts=facts)

    def read_remote(
        self, kind: RemoteKind, scratch: Path, folder: Path, service: ReadingService, report: Report
    ) -> SetReadResult:
        """Fetch and read a remote set: all its files, or with `max_rows` more and more until there are enough rows."""
        job = FetchJob(
            self.source, self.settings, scratch, self.limits, lambda fraction, text: report(fraction / 2, text)
        )
        for fetched in kind.fetch(job):
            request = self.request(folder, fetched)
            result = service.read_set(request, lambda fraction, text: report(0.5 + fraction / 2, text))
            if fetched.complete or result.balance.read - result.balance.bad >= (self.source.max_rows or 0):
                result.facts |= fetched.facts
                return result
            shutil.rmtree(folder / result.port.value)
        raise AssertionError("the last set that a kind fetches is complete")

    @property
    def data_format(self) -> DataFormat:
        """Return the format; a set that is named by a port of texts or documents has it unsaid."""
        named = self.source.format is DataFormat.AUTO and self.named in AS_NAMED
        return AS_NAMED[self.named] if named and self.named is not None else self.source.format

    @property
    def converter(self) -> tuple[str, str] | None:
        """Name and reference of the operator's function that converts each row."""
        name = self.source.converter
        return None if name is None else (name, find_reference(name, self.settings))

    def find_local(self) -> LocalSet:
        """Return the place of a set on this machine. Raises `Refused` (`R-PATH-ROOT`), `NotFound`."""
        source, roots = self.source, tuple(root.expanduser().absolute() for root in data_roots(self.settings))
        selection = FileSelection(source.include, source.exclude, source.max_rows)
        if source.sql is not None:
            tables = {table: resolve_inside(path, roots) for table, path in source.sql.files.items()}
            first = next(iter(tables.values()))
            return LocalSet(first, roots, "query", selection, query=source.sql.query, tables=tables)
        if source.repository:
            return LocalSet(resolve_inside(source.repository, roots, field="config.repository"), roots, "", selection)
        assert source.path is not None
        return LocalSet(resolve_inside(source.path, roots), roots, "", selection)

    def request(self, folder: Path, local_set: LocalSet) -> SetRequest:
        """Return what a reading process is asked to read into `folder`."""
        return SetRequest(
            local_set.path.absolute(), local_set.roots, folder.absolute(), local_set.selection,
            self.source.repository is not None,
            self.data_format, self.named, local_set.name, self.limits, files=local_set.files, query=local_set.query,
            tables=local_set.tables, expected=kinds_of_set(self.source), converter=self.converter,
            columns=self.source.columns,
        )  # fmt: skip

    def judge(self, result: SetReadResult, balance: Balance, target: Path) -> None:
        """Fail for a set without rows, and for one with too many bad rows."""
        if balance.read == 0:
            raise empty_set_error(result.name, result.why_empty or "It is empty.")
        if self.max_bad_fraction is None:
            return
        share = balance.bad / balance.read
        if share <= self.max_bad_fraction and balance.kept_rows:
            return
        none_left = share <= self.max_bad_fraction
        allowed = "No row is left." if none_left else f"At most {self.max_bad_fraction:.1%} may be."
        # Where it outlives the run's folder.
        quarantines = self.settings.home / "quarantine"
        quarantines.mkdir(parents=True, exist_ok=True)
        letters = (letter if letter.isalnum() or letter in "-_." else "_" for letter in result.name)
        kept_at = quarantines / f"{''.join(letters)[-100:].lstrip('.') or 'set'}.{QUARANTINE_FILE}"
        shutil.copyfile(target / QUARANTINE_FILE, kept_at)
        raise InvalidInput(
            f"{balance.bad} of {balance.read} rows of {result.name} are bad ({share:.1%}).",
            why=f"{allowed} The first: {'; '.join(result.first)}.",
            do=f"Look at {kept_at}, and correct the rows{'' if none_left else ', or raise max_bad_fraction'}.",
            code="E-DATA-BAD-ROWS",
        )


def jsonl_to_arrow(path: Path, folder: Path, *, deduplicate: bool = True) -> dict[str, object]:
    """One JSON Lines file to validated, normalised and, if wanted, exactly deduplicated Arrow. Returns the balance.

    The rows are in a folder of `folder` that is named by their port.
    """
    path = path.absolute()
    request = SetRequest(path, (path.parent,), folder.absolute(), deduplicate=deduplicate)
    with reading_service() as service:
        return service.read_set(request, lambda fraction, text: None).balance.as_dict()
