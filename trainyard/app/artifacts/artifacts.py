"""Artifacts, run by run: the list, one result with its parts and files, and the rows of a part."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from trainyard.app import run_folders as finding
from trainyard.app.artifacts import contents
from trainyard.app.context import Context
from trainyard.app.names import find_artifact, find_run
from trainyard.app.responses import Response
from trainyard.app.run_folders import FoundArtifact
from trainyard.errors import InvalidInput, NotFound
from trainyard.json_types import JsonObject
from trainyard.operations.artifacts import ArtifactInput, ArtifactRowsInput, ArtifactsInput, EvaluationsInput
from trainyard.spec.axes.data import Port
from trainyard.stores.live.job_index import read_cursor, write_cursor
from trainyard.stores.whole import MANIFEST

MOST_FILES = 1_000
MOST_DIGITS = 9
WHOLE_RUN = 10**MOST_DIGITS - 1
"""The place after all results of a run."""
SCANNED_RUNS = 500
"""Runs that one page looks at; a page may be short, and the next one have more."""


class Artifact(Response):
    """A result of one node of a run."""

    run_id: str
    run_name: str
    """Name of the run's chain."""
    tenant: str
    node: str
    node_type: str
    port: Port
    """What it is."""
    key: str
    """Its content key: the same for each run that reused it."""
    sha256: str = ""
    rows: int | None = None
    bytes: int = 0
    ended: float
    """When the node ended (seconds of the epoch)."""
    reused: bool = False
    """Whether the run found it finished."""
    available: bool = True
    """Whether it is still stored, and can be read."""
    problem: str = ""
    """Why it cannot be read."""


class ArtifactList(Response):
    artifacts: tuple[Artifact, ...]
    next: str | None = None
    """Cursor of the next page; None at the end."""


class ArtifactPart(Response):
    """A set of rows in a result: training rows, held-out rows, or dropped rows."""

    name: str
    rows: int
    bytes: int


class ArtifactFile(Response):
    name: str
    bytes: int
    sha256: str


class ArtifactDetail(Artifact):
    """A result, whole."""

    facts: JsonObject
    """What its node counted: the rows read, kept, held out and dropped by reason; tokens, losses, metrics."""
    parts: tuple[ArtifactPart, ...]
    files: tuple[ArtifactFile, ...]


class ArtifactRow(Response):
    index: int
    """Its number in the part, from 0."""
    values: JsonObject
    cut: tuple[str, ...] = ()
    """Paths of texts that are longer than `text_chars`."""


class ArtifactRows(Response):
    """A page of rows."""

    run_id: str
    node: str
    port: Port
    part: str
    total: int
    """Rows of the part, whatever was searched for."""
    offset: int
    next_offset: int | None
    """Where the next page begins; None at the end. Of a search, a page may be short and the next one have more."""
    columns: tuple[str, ...]
    rows: tuple[ArtifactRow, ...]
    reasons: dict[str, int]
    """Of dropped rows: reason -> rows, as the node counted them."""


def list_artifacts(request: ArtifactsInput, context: Context) -> ArtifactList:
    """Return a page of results, of the newest run first. Raises what `find_run` and `read_cursor` raise."""
    artifacts, cursor = select_artifacts(request, context, request.port, request.sha256)
    return ArtifactList(artifacts=tuple(Artifact(**artifact_fields(artifact)) for artifact in artifacts), next=cursor)


def select_artifacts(
    request: ArtifactsInput | EvaluationsInput, context: Context, port: Port | None, sha256: str | None = None
) -> tuple[list[FoundArtifact], str | None]:
    """Return the results of a page, and the cursor of the next one."""
    tenant = finding.resolve_tenant(request.tenant, context)
    if tenant is None:
        return [], None
    runs = [find_run(request.run, context)] if request.run else finding.run_folders(context)
    began, (last_run, passed) = (0.0, ("", -1))
    if request.cursor:
        began, text = read_cursor(request.cursor)
        last_run, passed = read_place(text)
        # A place after all results of a run: that run is not looked at again.
        runs = [run for run in runs if (run.began, run.id, passed) <= (began, last_run, WHOLE_RUN - 1)]
    artifacts: list[FoundArtifact] = []
    store = finding.open_store(context)
    for looked_at, run in enumerate(runs, 1):
        if tenant in ("", run.tenant) and run.makes(port):
            for number, artifact in enumerate(finding.find_artifacts(run, store)):
                if (run.id == last_run and number <= passed) or not artifact.matches(port, sha256):
                    continue
                artifacts.append(artifact)
                if len(artifacts) == request.limit:
                    return artifacts, write_cursor((run.began, f"{run.id}/{number}"))
        if looked_at == SCANNED_RUNS and looked_at < len(runs):
            return artifacts, write_cursor((run.began, f"{run.id}/{WHOLE_RUN}"))
    return artifacts, None


def read_place(text: str) -> tuple[str, int]:
    """Return the run and the number in it of a cursor. Raises `InvalidInput` (`E-PARAMETER`)."""
    run, _, number = text.rpartition("/")
    if not run or not number.isascii() or not number.isdigit() or len(number) > MOST_DIGITS:
        raise InvalidInput(
            f"The cursor names {text!r}, which is not a place in this list.",
            do="Give the `next` of the page before, or leave the cursor out.",
            code="E-PARAMETER",
        )
    return run, int(number)


def artifact_fields(artifact: FoundArtifact) -> dict[str, object]:
    reference = artifact.reference
    return {
        "run_id": artifact.run.id, "run_name": artifact.run.name, "tenant": artifact.run.tenant,
        "node": artifact.node, "node_type": artifact.run.node_type(artifact.node), "port": artifact.port,
        "key": artifact.key,
        "sha256": reference.sha256 if reference else "", "rows": artifact.rows,
        "bytes": reference.bytes if reference else 0, "ended": artifact.ended, "reused": artifact.reused,
        "available": reference is not None, "problem": artifact.problem,
    }  # fmt: skip


def show_artifact(request: ArtifactInput, context: Context) -> ArtifactDetail:
    """Raises what `find_artifact` raises, and `Corrupt` (`E-CORRUPT`) for a file that cannot be read."""
    artifact, folder = locate_artifact(request, context)
    reference = artifact.reference
    parts = contents.list_parts(folder)
    return ArtifactDetail(
        **artifact_fields(artifact),
        facts=reference.facts if reference else {},
        parts=tuple(
            ArtifactPart(name=name, rows=contents.count_rows(path), bytes=path.stat().st_size)
            for name, path in parts.items()
        ),
        files=tuple(list_artifact_files(artifact, folder, context)),
    )


def locate_artifact(request: ArtifactInput, context: Context) -> tuple[FoundArtifact, Path]:
    """Return a result that is stored, and the folder of its files. Raises `NotFound`, `Corrupt`."""
    store = finding.open_store(context)
    artifact = find_artifact(find_run(request.run, context), request.node, request.port, store)
    return artifact, artifact.folder(store)


def list_artifact_files(artifact: FoundArtifact, folder: Path, context: Context) -> Iterator[ArtifactFile]:
    """Yield the files of a result, as its manifest has them."""
    root = finding.open_store(context).folder(artifact.key)
    named = json.loads((root / MANIFEST).read_bytes())["files"]
    prefix = "" if folder == root else f"{folder.name}/"
    for name in sorted(name for name in named if name.startswith(prefix))[:MOST_FILES]:
        yield ArtifactFile(name=name.removeprefix(prefix), **{key: named[name][key] for key in ("bytes", "sha256")})


def read_rows(request: ArtifactRowsInput, context: Context) -> ArtifactRows:
    """Return a page of the rows of a part. Raises `NotFound` (`E-NOT-FOUND`), `Corrupt` (`E-CORRUPT`)."""
    artifact, folder = locate_artifact(request, context)
    parts = contents.list_parts(folder)
    if request.part not in parts:
        raise NotFound(
            f"The {artifact.port.value} of {artifact.node} has no part {request.part!r}.",
            why=f"It has {', '.join(parts) or 'no rows'}.",
            do="Name one of those." if parts else "Look at its files with `trainyard artifacts show`.",
            code="E-NOT-FOUND",
        )
    path = parts[request.part]
    page = contents.read_page(
        path,
        offset=request.offset,
        limit=request.limit,
        text_chars=request.text_chars,
        accepts=build_row_filter(request),
    )
    rows = tuple(ArtifactRow(index=row.index, values=row.values, cut=tuple(row.cut)) for row in page.rows)
    facts = artifact.reference.facts if artifact.reference else {}
    return ArtifactRows(
        run_id=artifact.run.id, node=artifact.node, port=artifact.port, part=request.part,
        total=contents.count_rows(path),
        offset=request.offset, next_offset=page.next_offset, rows=rows,
        columns=tuple(dict.fromkeys(name for row in rows for name in row.values)),
        reasons=dict(facts.get("dropped") or facts.get("rejected") or {}) if request.part == contents.DROPPED else {},
    )  # fmt: skip


def build_row_filter(request: ArtifactRowsInput) -> Callable[[contents.Values], bool] | None:
    """Return which rows a request wants; None for all."""
    if request.reason is None and request.text is None:
        return None
    text = (request.text or "").casefold()
    return lambda row: request.reason in (None, row.get("reason")) and contents.contains(row, text)
