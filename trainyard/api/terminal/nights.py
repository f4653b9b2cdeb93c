"""Nights, simulations and corpora as text."""

from __future__ import annotations

from trainyard.api.terminal.tables import table
from trainyard.api.verbs.night import Added, CorpusStatus, NightStatus, Simulated
from trainyard.night.report import NightReport, markdown
from trainyard.testing.simulation import violation_lines

REPLAY = "trainyard nightly simulate"


def night_text(report: NightReport) -> str:
    return markdown(report).rstrip()


def simulated_text(found: Simulated) -> str:
    """The seed first, the count of invariants last; between them each violation, and the line that replays it."""
    inject = f", with {found.inject} injected" if found.inject else ""
    rate = found.nights / found.seconds if found.seconds else 0.0
    head = f"seed {found.seed}: {found.nights:,} nights in {found.attempts:,} attempts, "
    head += f"{found.seconds:g} s ({rate:.0f} nights/s){inject}"
    lines = violation_lines(found.violations, found.failed, REPLAY, found.inject)
    return "\n".join([head, *lines, found.last_line])


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


def corpora_text(found: CorpusStatus) -> str:
    """A line for each bucket: what it has, and how many tuples are missing for a training."""
    rows = [
        (one.bucket, one.method, one.role, f"{one.valid:,}", f"{one.threshold:,}", f"{one.invalid:,}",
         f"{one.duplicates:,}", f"{max(0, one.threshold - one.valid):,}")
        for one in found.buckets
    ]  # fmt: skip
    return table(rows, ("bucket", "method", "role", "valid", "threshold", "invalid", "duplicates", "missing"))
