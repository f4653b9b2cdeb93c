"""The services of one machine as text."""

from __future__ import annotations

import json
import shlex
from datetime import UTC, datetime
from typing import Any

from trainyard.api.terminal.tables import table


def env_text(result: Any) -> str:
    return "\n".join(f"export {key}={shlex.quote(value)}" for key, value in result.variables.items())


def up_text(result: Any) -> str:
    rows = [
        ("Prefect server" if result.own_server else "Prefect server (attached)", result.ui_url),
        *([("login", f"the text in {result.auth_file}")] if result.auth_file else []),
        ("dashboard", f"{result.service_url}/dashboard; `trainyard dashboard` logs a browser in"),
        ("REST API", f"{result.service_url}/api/v1"),
        *(("beyond loopback", one) for one in result.exposed_urls),
        ("worker", f"pid {result.worker_pid}"),
        ("watchdog", f"pid {result.watchdog_pid}"),
        ("model server", result.embedded_url or "-"),
        ("home", result.home),
    ]
    return table(rows, ("up", ""))


def dashboard_text(result: Any) -> str:
    return result.url  # type: ignore[no-any-return]


def down_text(result: Any) -> str:
    return f"stopped: {', '.join(result.stopped)}" if result.stopped else "nothing was running"


def doctor_text(result: Any) -> str:
    rows = [
        (("ok" if one.ok else "PROBLEM") if not one.note else "note", one.name, one.detail) for one in result.checks
    ]
    remedies = [f"{one.name}: {one.do}" for one in result.checks if not (one.ok or one.note)]
    return "\n".join([table(rows, ("", "what", "found")), *remedies])


def settings_text(result: Any) -> str:
    """What differs from its default first; the value as in JSON."""
    rows = [
        (one.name, json.dumps(one.value, ensure_ascii=False), one.source)
        for one in sorted(result.settings, key=lambda one: one.source == "default")
    ]
    return f"{table(rows, ('setting', 'value', 'from'))}\nfile: {result.file}"


def migration_text(result: Any) -> str:
    verb = "would be renamed" if result.dry_run else "renamed"
    lines = [f"{verb}: {one.before} -> {one.now}" for one in result.folders]
    lines += [
        f"read as written: {one.files:,} of kind {one.kind}, schema version {one.version} (now {one.now})"
        for one in result.earlier
    ]
    return "\n".join(lines) or "nothing was written by an earlier version in another form"


def gc_text(result: Any) -> str:
    """What goes, largest first within its kind, and a sum for each kind."""
    verb = "would be removed" if result.dry_run else "removed"
    items = sorted(result.items, key=lambda one: -one.bytes)
    kinds = dict.fromkeys(one.kind for one in result.items)
    rows = [
        (kind, str(one.path), f"{one.bytes:,}", f"{one.age_days:.0f}", one.because)
        for kind in kinds
        for one in items
        if one.kind is kind
    ]
    lines = [table(rows, ("kind", "path", "bytes", "days", "why"))] if rows else []
    counts = ", ".join(f"{sum(one.kind is kind for one in items)} {kind}" for kind in kinds)
    lines.append(f"{verb}: {result.bytes:,} bytes ({counts})" if rows else f"nothing is older than {result.days} days")
    if result.open_runs:
        names = ", ".join(name[:8] for name in result.open_runs)
        lines.append(f"kept: {len(result.open_runs)} old runs that have not ended, or no server says so: {names}")
    return "\n".join(lines)


def backup_text(result: Any) -> str:
    sizes = f"{result.files:,} files, {result.bytes:,} bytes in {result.archive_bytes:,}"
    lines = [f"{result.file}: {sizes}"]
    lines += [] if result.database else ["without a database of Prefect: this home has none"]
    lines += [f"left out: {', '.join(result.left_out)}"] if result.left_out else []
    return "\n".join(lines)


def restored_text(result: Any) -> str:
    when = datetime.fromtimestamp(result.made, UTC).strftime("%Y-%m-%d %H:%M UTC")
    made = f"made {when} by Trainyard {result.version}"
    lines = [f"{result.home}: {result.files:,} files, {result.bytes:,} bytes, {made}"]
    if result.tokens:
        lines.append(f"its {result.tokens:,} access tokens are valid here now: `trainyard tokens list`")
    if result.settings:
        lines.append(
            "its trainyard.toml is in effect, and may name programs that runs start: read it if others made it"
        )
    return "\n".join([*lines, *result.adapters, "next: trainyard up"])
