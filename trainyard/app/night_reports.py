"""Reports of the nights of a home, of each tenant: the list, and one whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from trainyard.app.artifacts.contents import damaged_error
from trainyard.app.context import Context
from trainyard.app.responses import Response
from trainyard.app.run_folders import resolve_tenant
from trainyard.errors import NotFound
from trainyard.night.phases import BEGUN_FILE
from trainyard.night.report import REPORT_FILE, NightReport, next_steps, read_report
from trainyard.night.training import tenant_root
from trainyard.operations.nights import NightNameInput, NightsInput
from trainyard.spec.night import check_name
from trainyard.stores.files import DISK
from trainyard.stores.schema import read_versioned

BEGUN, UNREADABLE = "begun", "unreadable"
"""States of a night without a report that can be read."""


class NightLine(Response):
    """A night as a list shows it."""

    tenant: str
    night: str
    state: str
    """completed, failed or skipped; begun: it has no report yet; unreadable."""
    headline: str
    started: float | None = None
    """When it began (seconds of the epoch)."""
    seconds: float | None = None
    window_s: float | None = None
    published: tuple[str, ...] = ()
    """Adapter versions."""


class NightList(Response):
    nights: tuple[NightLine, ...]
    more: bool = False
    """Whether there are older ones."""


class NightDetail(NightLine):
    """A night, whole."""

    next_steps: tuple[str, ...] = ()
    """For each failure what happened and what to do."""
    report: NightReport | None = None


def list_night_reports(request: NightsInput, context: Context) -> NightList:
    """Return the newest nights, of the caller's tenant or of all."""
    tenant = resolve_tenant(request.tenant, context)
    if tenant is None:
        return NightList(nights=())
    folders = sorted(night_folders(tenant, context), key=lambda path: (path.name, parse_tenant(path)), reverse=True)
    lines = tuple(NightLine(**read_line(path).model_dump(include=set(NightLine.model_fields))) for path in
                  folders[: request.limit])  # fmt: skip
    return NightList(nights=lines, more=len(folders) > request.limit)


def night_folders(tenant: str, context: Context) -> Iterator[Path]:
    """Yield the folders of the nights of a tenant, or of all ("")."""
    for root in (context.settings.home / "tenants").glob("*"):
        if tenant in ("", root.name):
            yield from (path for path in (root / "nights").glob("*") if path.is_dir())


def parse_tenant(folder: Path) -> str:
    return folder.parent.parent.name


def show_night(request: NightNameInput, context: Context) -> NightDetail:
    """Return one night. Raises `NotFound` (`E-NOT-FOUND`), `InvalidInput` (`E-NAME`), `Corrupt` (`E-CORRUPT`)."""
    tenant, night = resolve_tenant(request.tenant, context), check_name(request.night, "night")
    if tenant is not None:
        tenant = check_name(tenant or context.settings.tenant, "tenant")
        folder = tenant_root(context.settings, tenant) / "nights" / night
    if tenant is None or not folder.is_dir():
        raise NotFound(
            f"There is no night {request.night!r}.", do="List them with `trainyard nightly list`.", code="E-NOT-FOUND"
        )
    detail = read_line(folder)
    if detail.state == UNREADABLE:
        raise damaged_error(folder / REPORT_FILE, detail.headline)
    return detail


def read_line(folder: Path) -> NightDetail:
    """Return a night by its files; one whose report cannot be read says why."""
    named = {"tenant": parse_tenant(folder), "night": folder.name}
    try:
        report = read_report(folder, DISK)
    except (ValidationError, ValueError, OSError) as error:
        return NightDetail(**named, state=UNREADABLE, headline=f"Its report cannot be read: {error}"[:500])
    if report is None:
        text = f"Night {folder.name} was begun and has no report."
        return NightDetail(**named, state=BEGUN, headline=text, started=read_start_time(folder))
    return NightDetail(
        **named, state=report.state, headline=report.headline, started=report.started or None, seconds=report.seconds,
        window_s=report.window_s, next_steps=tuple(next_steps(report.failures)), report=report,
        published=tuple(training.version for training in report.phase2.trainings if training.outcome == "published"),
    )  # fmt: skip


def read_start_time(folder: Path) -> float | None:
    """Return when a night was begun; None where its record cannot be read."""
    path = folder / BEGUN_FILE
    try:
        return float(read_versioned("night", path.read_bytes(), path)["started"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
