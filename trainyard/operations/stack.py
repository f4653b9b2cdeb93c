"""Services, home and health of this machine. Requests, texts and rows."""

from __future__ import annotations

import json
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from trainyard.operations.adapters import record_text
from trainyard.operations.backends import ProveInput, proof_text
from trainyard.operations.base import Nothing, Request
from trainyard.operations.fields import Argument
from trainyard.operations.table import Operation, Scope
from trainyard.operations.tables import format_table

if TYPE_CHECKING:
    from trainyard.app.stack.api_service import DashboardLink
    from trainyard.app.stack.backup import BackedUp, Restored
    from trainyard.app.stack.demo import DemoResult
    from trainyard.app.stack.doctor import Diagnosis
    from trainyard.app.stack.gc import Collected
    from trainyard.app.stack.machine_settings import MachineSettingList
    from trainyard.app.stack.stack import DownOutput, EnvOutput, Migration, UpOutput


class UpInput(Request):
    port: int | None = Field(
        None, ge=1, le=65_535, description="Port of the API; default: the setting api_port, else the one it had."
    )
    no_auth: bool = Field(False, description="Start both servers without authentication: for a machine of one user.")
    expose: bool = Field(False, description="Listen beyond loopback, too, with TLS or behind a proxy that has it.")
    host: str | None = Field(None, description="With --expose: an address of this machine; default: all that it has.")
    tls_cert: Path | None = Field(None, description="With --expose: certificate, with those above it (PEM).")
    tls_key: Path | None = Field(None, description="With --expose: its key (PEM).")
    behind_proxy: str | None = Field(None, description="With --expose: address of the proxy that has the TLS.")
    allow_host: tuple[str, ...] = Field(
        (), description="With --expose: a name by which clients call it; may repeat. Those of the certificate count."
    )


class MigrateInput(Request):
    dry_run: bool = Field(False, description="Show what would change, and change nothing.")


class GcInput(Request):
    days: int = Field(30, ge=1, le=36_500, description="Days for which everything that was used is kept.")
    dry_run: bool = Field(False, description="Show what would be removed, and how much, and remove nothing.")


class BackupInput(Request):
    file: Annotated[Path, Argument("FILE")] = Field(description="File to write (.tar.gz); it must not exist.")
    with_models: bool = Field(False, description="Include models/, which can be downloaded or built again.")


class RestoreInput(Request):
    file: Annotated[Path, Argument("FILE")] = Field(description="A file that `trainyard backup` wrote.")


def env_text(result: EnvOutput) -> str:
    return "\n".join(f"export {key}={shlex.quote(value)}" for key, value in result.variables.items())


def up_text(result: UpOutput) -> str:
    rows = [
        ("Prefect server" if result.own_server else "Prefect server (attached)", result.ui_url),
        *([("login", f"the text in {result.auth_file}")] if result.auth_file else []),
        ("dashboard", f"{result.service_url}/dashboard; `trainyard dashboard` logs a browser in"),
        ("REST API", f"{result.service_url}/api/v1"),
        *(("beyond loopback", url) for url in result.exposed_urls),
        ("worker", f"pid {result.worker_pid}"),
        ("watchdog", f"pid {result.watchdog_pid}"),
        ("model server", result.embedded_url or "-"),
        *([("data worker", result.data_url)] if result.data_url else []),
        ("home", result.home),
    ]
    return format_table(rows, ("up", ""))


def dashboard_text(result: DashboardLink) -> str:
    return str(result.url)


def down_text(result: DownOutput) -> str:
    return f"stopped: {', '.join(result.stopped)}" if result.stopped else "nothing was running"


def doctor_text(result: Diagnosis) -> str:
    rows = [
        (("ok" if check.ok else "PROBLEM") if not check.note else "note", check.name, check.detail)
        for check in result.checks
    ]
    remedies = [f"{check.name}: {check.do}" for check in result.checks if not (check.ok or check.note)]
    return "\n".join([format_table(rows, ("", "what", "found")), *remedies])


def settings_text(result: MachineSettingList) -> str:
    """Return what differs from its default first; the value as in JSON."""
    rows = [
        (setting.name, json.dumps(setting.value, ensure_ascii=False), setting.source)
        for setting in sorted(result.settings, key=lambda setting: setting.source == "default")
    ]
    return f"{format_table(rows, ('setting', 'value', 'from'))}\nfile: {result.file}"


def migration_text(result: Migration) -> str:
    verb = "would be renamed" if result.dry_run else "renamed"
    lines = [f"{verb}: {folder.before} -> {folder.now}" for folder in result.folders]
    lines += [
        f"read as written: {kind.files:,} of kind {kind.kind}, schema version {kind.version} (now {kind.now})"
        for kind in result.earlier
    ]
    return "\n".join(lines) or "nothing was written by an earlier version in another form"


def gc_text(result: Collected) -> str:
    """Return what goes, largest first within its kind, and a sum for each kind."""
    verb = "would be removed" if result.dry_run else "removed"
    items = sorted(result.items, key=lambda item: -item.bytes)
    kinds = dict.fromkeys(item.kind for item in result.items)
    rows = [
        (kind, str(item.path), f"{item.bytes:,}", f"{item.age_days:.0f}", item.because)
        for kind in kinds
        for item in items
        if item.kind is kind
    ]
    lines = [format_table(rows, ("kind", "path", "bytes", "days", "why"))] if rows else []
    counts = ", ".join(f"{sum(item.kind is kind for item in items)} {kind}" for kind in kinds)
    lines.append(f"{verb}: {result.bytes:,} bytes ({counts})" if rows else f"nothing is older than {result.days} days")
    if result.open_runs:
        names = ", ".join(name[:8] for name in result.open_runs)
        lines.append(f"kept: {len(result.open_runs)} old runs that have not ended, or no server says so: {names}")
    return "\n".join(lines)


def backup_text(result: BackedUp) -> str:
    sizes = f"{result.files:,} files, {result.bytes:,} bytes in {result.archive_bytes:,}"
    lines = [f"{result.file}: {sizes}"]
    lines += [] if result.database else ["without a database of Prefect: this home has none"]
    lines += [f"left out: {', '.join(result.left_out)}"] if result.left_out else []
    return "\n".join(lines)


def restored_text(result: Restored) -> str:
    when = datetime.fromtimestamp(result.made, UTC).strftime("%Y-%m-%d %H:%M UTC")
    origin = f"made {when} by Trainyard {result.version}"
    lines = [f"{result.home}: {result.files:,} files, {result.bytes:,} bytes, {origin}"]
    if result.tokens:
        lines.append(f"its {result.tokens:,} access tokens are valid here now: `trainyard tokens list`")
    if result.settings:
        lines.append(
            "its trainyard.toml is in effect, and may name programs that runs start: read it if others made it"
        )
    return "\n".join([*lines, *result.adapters, "next: trainyard up"])


def demo_text(result: DemoResult) -> str:
    """Return the table that ends the demo."""
    dropped = ", ".join(f"{count} {reason}" for reason, count in result.dropped.items() if count) or "none"
    lines = [
        f"documents  {result.documents}",
        f"rows       {result.pairs} read = {result.kept} kept + {result.heldout} held out + dropped ({dropped})",
        "",
        f"{'loss per answer token':<18}{'rows':>6}{'base':>8}{'control':>9}{'tuned':>8}"
        f"   {'base - tuned [95 %]':<26}control - tuned [95 %]",
    ]
    for row_set in result.sets:
        lines.append(
            f"{row_set.name.replace('_', ' '):<18}{row_set.rows:>6}{row_set.base:>8.3f}{row_set.control:>9.3f}"
            f"{row_set.tuned:>8.3f}"
            f"   {row_set.base_minus_tuned!s:<26}{row_set.control_minus_tuned!s}"
        )
    quotes = result.quotes
    lines += [
        "",
        f"{'right sentence quoted':<21}{quotes.questions:>3}{quotes.base:>8}{quotes.control:>9}{quotes.tuned:>8}"
        "   questions in unseen wording",
        "",
        f"prompt     {to_one_line(result.prompt)}",
        f"base       {to_one_line(result.base_answer)}",
        f"tuned      {to_one_line(result.tuned_answer)}",
        "",
        f"adapter    {result.adapter}",
        f"run        {result.urls.run}",
        f"UI         {result.urls.prefect}",
        f"dashboard  {result.urls.dashboard} (logs a browser in once, within an hour)",
        f"model      {result.urls.model}/v1 (OpenAI-compatible)",
        f"seconds    {result.seconds:.0f}",
        result.last_line,
    ]
    return "\n".join(lines)


def to_one_line(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 160 else flat[:159] + "…"


READ, RUN, ADMIN = Scope

ROWS: dict[str, Operation] = {
    "up": Operation(
        "Start, or find running, the Prefect server, its pool and deployments, a worker and the embedded model server.",
        request=UpInput, run="app.stack.stack:up", text=up_text, scope=ADMIN,
        local="It starts the services of this machine.",
    ),
    "down": Operation(
        "End the processes that `up` started on this home, the worker first so that its runs can save.",
        request=Nothing, run="app.stack.stack:down", text=down_text, scope=ADMIN,
        local="It ends the services of this machine, the API with them.",
    ),
    "demo": Operation(
        "Documents in, a served adapter out: the qa-pipeline on the sample handbook, with a control for comparison.",
        request=Nothing, run="app.stack.demo:run_demo", text=demo_text, scope=ADMIN,
        local="It starts the services of this machine, and takes minutes.",
    ),
    "dashboard": Operation(
        "A link that opens the dashboard and logs a browser in: once, within an hour.",
        request=Nothing, run="app.stack.api_service:show_dashboard", text=dashboard_text, scope=ADMIN,
        local="It prints a secret.",
    ),
    "env": Operation(
        "The variables that make `prefect` commands talk to this stack.",
        request=Nothing, run="app.stack.stack:env", text=env_text, scope=ADMIN,
        example='eval "$(trainyard env)"',
        local="It prints the string that opens this machine's Prefect server.",
    ),
    "settings": Operation(
        "The settings of this machine: value, default, and whether it is from the environment or trainyard.toml.",
        request=Nothing, run="app.stack.machine_settings:show_settings", text=settings_text, scope=ADMIN,
        route="GET /api/v1/settings",
    ),
    "doctor": Operation(
        "Check versions, server, worker, models, disk and devices, and suggest fixes.",
        request=Nothing, run="app.stack.doctor:examine", text=doctor_text, scope=READ,
        route="GET /api/v1/doctor",
    ),
    "migrate": Operation(
        "Bring what earlier versions wrote below TRAINYARD_HOME into the form of this one.",
        request=MigrateInput, run="app.stack.stack:migrate", text=migration_text, scope=RUN,
        local="It rewrites files below TRAINYARD_HOME.",
    ),
    "gc": Operation(
        "Remove unused runs, results, logs and environments; with --dry-run, list them.",
        request=GcInput, run="app.stack.gc:collect", text=gc_text, scope=ADMIN,
        example="trainyard gc --days 14 --dry-run",
    ),
    "backup": Operation(
        "Write a home with its Prefect database into one file, also while the stack is running.",
        request=BackupInput, run="app.stack.backup:back_up", text=backup_text, scope=ADMIN,
        example="trainyard backup /mnt/backups/trainyard.tar.gz",
        local="It writes a file anywhere on this machine.",
    ),
    "restore": Operation(
        "Make the home of a backup again, at the same place, whole or not at all.",
        request=RestoreInput, run="app.stack.backup:restore", text=restored_text, scope=ADMIN,
        local="It replaces files below TRAINYARD_HOME.",
    ),
    "prove-resume": Operation(
        "Show that a training that was stopped or killed ends in the same bits as one that was not.",
        request=ProveInput, run="app.stack.proof:prove_resume", text=proof_text, scope=RUN,
        local="It trains for minutes on all cores of this machine.",
    ),
    "starter build": Operation(
        "Train the starter model again, from the recipe and corpus of the shipped weights, and compare the two.",
        request=Nothing, run="app.stack.starter:build", text=record_text, scope=ADMIN,
        local="It trains for minutes on all cores of this machine.",
    ),
}  # fmt: skip
"""Name -> row, in the order of the help."""
