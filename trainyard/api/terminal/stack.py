"""The services of one machine as text."""

from __future__ import annotations

import shlex
from typing import Any

from trainyard.api.terminal.text import table


def env_text(result: Any) -> str:
    return "\n".join(f"export {key}={shlex.quote(value)}" for key, value in result.variables.items())


def up_text(result: Any) -> str:
    rows = [
        ("Prefect server" if result.own_server else "Prefect server (attached)", result.ui_url),
        *([("login", f"the text in {result.auth_file}")] if result.auth_file else []),
        ("worker", f"pid {result.worker_pid}"),
        ("watchdog", f"pid {result.watchdog_pid}"),
        ("model server", result.embedded_url or "-"),
        ("home", result.home),
    ]
    return table(rows, ("up", ""))


def down_text(result: Any) -> str:
    return f"stopped: {', '.join(result.stopped)}" if result.stopped else "nothing was running"


def doctor_text(result: Any) -> str:
    rows = [
        (("ok" if one.ok else "PROBLEM") if not one.note else "note", one.name, one.detail) for one in result.checks
    ]
    remedies = [f"{one.name}: {one.do}" for one in result.checks if not (one.ok or one.note)]
    return "\n".join([table(rows, ("", "what", "found")), *remedies])


def migration_text(result: Any) -> str:
    verb = "would be renamed" if result.dry_run else "renamed"
    lines = [f"{verb}: {one.before} -> {one.now}" for one in result.folders]
    lines += [
        f"read as written: {one.files:,} of kind {one.kind}, schema version {one.version} (now {one.now})"
        for one in result.earlier
    ]
    return "\n".join(lines) or "nothing was written by an earlier version in another form"
