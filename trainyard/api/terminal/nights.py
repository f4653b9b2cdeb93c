"""Nights, simulations and corpora as text."""

from __future__ import annotations

from collections.abc import Iterator

from trainyard.api.verbs.night import Added, NightStatus, Simulated
from trainyard.night.report import NightReport, markdown

CAMPAIGNS_SHOWN = 20


def night_text(report: NightReport) -> str:
    return markdown(report).rstrip()


def simulated_text(found: Simulated) -> str:
    """The seed first, the count of invariants last; between them each violation, and the line that replays it."""
    inject = f", with {found.inject} injected" if found.inject else ""
    rate = found.nights / found.seconds if found.seconds else 0.0
    head = f"seed {found.seed}: {found.nights:,} nights in {found.attempts:,} attempts, "
    head += f"{found.seconds:g} s ({rate:.0f} nights/s){inject}"
    return "\n".join([head, *violation_lines(found), found.last_line])


def violation_lines(found: Simulated) -> Iterator[str]:
    """The violations of each campaign, and the command that carries out this campaign alone."""
    inject = f" --inject {found.inject}" if found.inject else ""
    for seed in found.failed[:CAMPAIGNS_SHOWN]:
        yield from (line for line in found.violations if line.startswith(f"seed {seed}: "))
        yield f"  replay: trainyard nightly simulate --campaign {seed}{inject}"
    if len(found.failed) > CAMPAIGNS_SHOWN:
        yield f"{len(found.failed) - CAMPAIGNS_SHOWN:,} more campaigns with violations; --json lists all of them"


def status_text(found: NightStatus) -> str:
    lines = [*found.nights] or ["No night yet."]
    return "\n".join([*lines, *(f"{state:<10} {name}" for name, state in found.markers.items())])


def added_text(found: Added) -> str:
    """What a corpus has got, and what was left out."""
    lines = [f"{found.bucket}: {found.added:,} added, {found.there:,} there already ({found.file})"]
    if found.skipped:
        reasons = ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in found.skipped.items())
        lines.append(f"{sum(found.skipped.values()):,} of {found.commits:,} commits skipped: {reasons}")
    return "\n".join(lines)
