"""Jobs of a reading process: a set becomes rows and a quarantine on disk, or a repository its tuples.

Bytes that somebody else has read: a document of a night's streams to its parts, a line of a corpus to its tuple.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Mapping
from functools import partial, singledispatch
from pathlib import Path

import orjson

from trainyard.data.formats.shapes import map_columns
from trainyard.data.functions import RowConverter, load_converter
from trainyard.data.limited import requests
from trainyard.data.limited.children import BREACHES, Batch, DocumentReply
from trainyard.data.limited.corpus_tuples import bad, spell
from trainyard.data.limited.requests import ParsedItem, ParseItem, ParseRequest, SetRequest
from trainyard.data.limited.sets import open_files, open_listed, open_repository_set, walk
from trainyard.data.paths import ROW_SUFFIXES, find_suffix
from trainyard.data.readers.chunks import OpenedSet
from trainyard.data.readers.parts import find_parts
from trainyard.data.readers.repositories import commit_documents, open_repository
from trainyard.data.readers.row_writer import RowWriter
from trainyard.data.readers.rowfiles import RowFile, no_row_error, read_first_rows
from trainyard.data.readers.selection import FileSelection
from trainyard.data.readers.streams import Limits
from trainyard.data.remote.queries import open_query
from trainyard.data.rows import to_chosen_row
from trainyard.errors import InvalidInput, LimitExceeded, Refused
from trainyard.sandbox.limits import allow_cpu
from trainyard.spec.axes.data import Port
from trainyard.spec.load.text import parse_text


def parse_item(item: ParseItem) -> ParsedItem:
    """Return the content of the item, or why it cannot be read."""
    try:
        return PARSERS[item.parser](item)
    except Refused as refused:
        return ParsedItem(unreadable=refused.reasons[0].because)
    except InvalidInput as error:
        return ParsedItem(unreadable=error.why)


def parse_document(item: ParseItem) -> ParsedItem:
    return ParsedItem(parts=find_parts(item.data.decode(), item.most_chars, item.overlap_chars))


def parse_values(item: ParseItem) -> ParsedItem:
    """Return a document of YAML or JSON: it has to be valid, and is read as text."""
    parse_text(item.data, max_bytes=len(item.data))
    return parse_document(item)


def parse_line(item: ParseItem, method: str) -> ParsedItem:
    """Return a line of a corpus in the one spelling of its tuple."""
    try:
        value = orjson.loads(item.data)
    except orjson.JSONDecodeError as error:
        raise bad(f"it is not valid JSON: {error}") from error
    return ParsedItem(value=spell(value, method))


PARSERS: Mapping[str, Callable[[ParseItem], ParsedItem]] = {
    "text": parse_document,
    "markdown": parse_document,
    "yaml": parse_values,
    "json": parse_values,
    "sft": partial(parse_line, method="sft"),
    "dpo": partial(parse_line, method="dpo"),
}
"""What turns bytes into parts or a tuple, by the parser of a stream or the method of a bucket."""


Report = Callable[[float, str], None]
MOST_COLUMNS, MOST_NAME_CHARS, EXAMPLE_CHARS = 200, 200, 120


@singledispatch
def run_request(request: object, report: Report) -> requests.Result:
    """Execute a request. Raises errors of reading; the limits of this process are set by the caller."""
    raise TypeError(f"no reading process knows {type(request).__name__}")


@run_request.register
def read_set(request: SetRequest, report: Report) -> requests.SetReadResult:
    """Read the set into `target/<port>`. A preference set under `sft` gives its chosen side."""
    allow_cpu(request.limits.chunk_cpu_s)
    path, selection, roots, limits = request.path, request.selection, request.roots, request.limits
    convert: RowConverter | None = load_converter(*request.converter) if request.converter else None
    convert = map_columns(request.columns) if request.columns else convert
    if request.repository:
        opened = open_repository_set(path, selection, roots, limits)
    elif request.query:
        opened = open_query(request.query, request.tables, request.format, roots, convert)
    elif request.files:
        opened = open_listed(request.files, request.format, request.name, roots, limits, convert=convert)
    else:
        opened = open_files(
            path, selection, request.format, roots=roots, limits=limits, name=request.name, convert=convert
        )
    port = choose_port(request, opened)
    last, folder = 0.0, Path(request.target) / port.value
    gc.disable()  # until this process ends: millions of rows are allocated, none is part of a cycle
    with RowWriter(folder, port, deduplicate=request.deduplicate, max_rows=selection.max_rows) as intake:
        balance = intake.balance
        for chunk in opened.chunks:
            allow_cpu(limits.chunk_cpu_s)
            if port is not opened.port:
                chunk.rows = [to_chosen_row(row) for row in chunk.rows]  # type: ignore[arg-type]
            intake.take(chunk)
            refuse_breaches(opened.name, sum(balance.dropped.get(reason, 0) for reason in BREACHES), limits)
            if intake.full:
                break
            fraction = opened.fraction()
            if fraction - last >= 0.01:
                last = fraction
                report(fraction, f"{opened.name}: {intake.num_rows} rows")
    balance.skipped.update(opened.skipped)
    first = intake.quarantine.first
    return requests.SetReadResult(opened.name, port, opened.format, balance, opened.facts, first, opened.why_empty)


@run_request.register
def read_commits(request: requests.CommitsRequest, report: Report) -> requests.CommitsResult:
    """Read the tuples of a repository's commits: diff, message, and the review brief where there is one.

    Commits that give no tuple are counted by reason.
    """
    repository = open_repository(request.path, request.roots, request.limits)
    briefs = {name[:12]: brief for name, brief in request.briefs.items()}
    values = []
    for document in commit_documents(repository):
        allow_cpu(request.limits.chunk_cpu_s)
        # The text is the message, an empty line and the diff, which begins with its first "diff --git".
        message, sign, diff = document.text.partition("\n\ndiff --git ")
        brief = briefs.get(document.source.rpartition("@")[2])
        value = {"diff": f"diff --git {diff}", "message": message}
        if not sign or not message.strip():
            repository.skipped["no_text_change"] += 1
        elif len(value["diff"]) > requests.MOST_CHARS or len(message) > requests.MOST_CHARS:
            repository.skipped["large_diff"] += 1
        else:
            values.append({**value, "brief": brief} if brief else value)
    # Those that are not read included.
    commits = int(repository.run("rev-list", "--count", "--end-of-options", "HEAD"))
    return requests.CommitsResult(values, dict(repository.skipped), commits)


@run_request.register
def read_columns(request: requests.ColumnsRequest, report: Report) -> requests.ColumnsResult:
    """Read the names of the columns, and the beginning of the first value of each that is not empty."""
    allow_cpu(request.limits.chunk_cpu_s)
    paths = walk(request.path, FileSelection()) if request.path.is_dir() else [request.path]
    files = (path for path in paths if find_suffix(path.name) in ROW_SUFFIXES)
    sample = read_first_rows(RowFile(path, path.name, request.roots, request.limits) for path in files)
    if not sample.records and sample.fault is not None:
        raise no_row_error(sample.fault)
    values: dict[str, str] = {}
    for record in sample.records:
        for name, value in record.items() if isinstance(record, Mapping) else ():
            name = str(name)[:MOST_NAME_CHARS]
            if len(values) < MOST_COLUMNS or name in values:
                values[name] = values.get(name) or shorten(value)
    return requests.ColumnsResult(values)


def shorten(value: object) -> str:
    """Return the beginning of a value; other values than texts as JSON."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= EXAMPLE_CHARS else f"{text[:EXAMPLE_CHARS]}…"


@run_request.register
def parse_items(request: ParseRequest, report: Report) -> list[ParsedItem]:
    """Parse the items in children of this process, many in each."""
    items, breaches = request.items, 0
    results: list[ParsedItem] = []

    def parse(number: int) -> DocumentReply:
        return DocumentReply(parsed=parse_item(items[number]))

    for reply in Batch([len(item.data) for item in items], parse, request.limits).replies():
        breaches += reply.reason in BREACHES
        refuse_breaches(request.label, breaches, request.limits)
        results.append(reply.parsed or ParsedItem(unreadable=reply.detail))
    return results


def choose_port(request: SetRequest, opened: OpenedSet) -> Port:
    """The port that is filled: the named one, if the rows fit it, else one that the file's name lets a chain expect."""
    named = request.named
    if named is not None:
        if named is opened.port or (named is Port.SFT and opened.port is Port.PREFERENCE):
            return named
        raise InvalidInput(
            f"The set {named.value!r} contains rows for {opened.port.value} ({opened.name}).",
            why=f"Its first rows are in the format {opened.format.value}.",
            do=f"Name the set {opened.port.value}, or give another file.",
            code="E-DATA-FORMAT",
        )
    expected = request.expected
    if opened.port in expected:
        return opened.port
    raise InvalidInput(
        f"{opened.name} contains rows for {opened.port.value}; the chain expects {expected[0].value} from its name.",
        why=f"Its first rows are in the format {opened.format.value}, which the name does not say.",
        do=f"Give format: {opened.format.value}.",
        code="E-DATA-FORMAT",
    )


def refuse_breaches(name: str, breaches: int, limits: Limits) -> None:
    """Raises `LimitExceeded` (`E-DATA-UNREADABLE`): a folder of such documents would keep a machine busy for days."""
    if breaches > limits.breaches:
        raise LimitExceeded(
            f"{name} was not read to its end: {breaches} of its documents went over the limits of reading.",
            why=f"At most {limits.breaches} may; each takes up to {limits.document_cpu_s:g} s and more.",
            do="Leave such documents out: by `exclude` of a data source, by the globs of a stream.",
            code="E-DATA-UNREADABLE",
        )
