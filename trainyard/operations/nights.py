"""Nights and the corpora that they train on. Requests, texts and rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from trainyard.night.report import NightReport, markdown
from trainyard.operations.base import TENANT, Request, Tenant
from trainyard.operations.fields import Argument, Option
from trainyard.operations.table import Operation, Scope
from trainyard.operations.tables import format_table, json_text
from trainyard.testing.simulation import violation_lines

if TYPE_CHECKING:
    from trainyard.app.nights import Added, CorpusStatus, NightDetail, NightList, NightStatus, Simulated

CONFIG = "YAML; default: nightly.yaml of the home."
BUCKET = "A bucket of the config; default: the first of its kind."


class NightInput(Request):
    """Source of the config: a file, a preset, or TRAINYARD_HOME/nightly.yaml; else the defaults."""

    config: Annotated[Path | None, Option(local=True)] = Field(None, description=CONFIG)
    preset: Annotated[str | None, Option(completes="night preset")] = Field(
        None, description="A night's preset of deployments/presets, such as nightly-l4."
    )


class RunNightInput(NightInput):
    run: str | None = Field(None, description="The night's name; default: its date.")
    again: bool = Field(False, description="Run a night that is done once more, as NAME-2, NAME-3, …")


class WorkerInput(NightInput):
    once: bool = Field(False, description="Look once and end.")


class SimulateInput(Request):
    nights: int = Field(1_000, ge=1, le=10_000_000, description="Minimum number of nights.")
    seed: int = Field(0, ge=0, description="The same seed gives the same nights.")
    inject: str | None = Field(None, description="A mistake to put in, which has to be found.")
    processes: int | None = Field(None, ge=1, le=256, description="Default: one per core.")
    campaign: int | None = Field(None, ge=0, description="Replay the one campaign that has this seed.")
    """`nights` and `seed` choose nothing then."""


class EngineeringInput(Request):
    repo: Path = Field(description="A git repository.")
    bucket: str | None = Field(None, description=BUCKET)
    briefs: Path | None = Field(None, description="JSON object: commit -> brief of its review.")
    config: Annotated[Path | None, Option(local=True)] = Field(None, description=CONFIG)


class AddInput(Request):
    action: Annotated[Literal["add"], Argument("add")] = Field("add", description="What to do: add.")
    file: Annotated[Path | None, Option(local=True)] = Field(None, description="JSON lines {prompt, shadow, verdict}.")
    prompt: str | None = Field(None, description="The question.")
    shadow: str | None = Field(None, description="The model's answer.")
    verdict: str | None = Field(None, description="What a person vouches for.")
    bucket: str | None = Field(None, description=BUCKET)
    config: Annotated[Path | None, Option(local=True)] = Field(None, description=CONFIG)


class NightsInput(Request):
    tenant: Tenant = Field(None, description=TENANT)
    limit: int = Field(30, ge=1, le=200, description="Maximum number of results.")


class NightNameInput(Request):
    night: Annotated[str, Argument("NIGHT", completes="night")] = Field(
        min_length=1, max_length=63, description="Its name: a date."
    )
    tenant: Tenant = Field(None, description="Whose night it is; default: this home's tenant.")


REPLAY = "trainyard nightly simulate"


def night_text(report: NightReport) -> str:
    return markdown(report).rstrip()


def simulated_text(simulated: Simulated) -> str:
    """Return the seed first, the count of invariants last; between them each violation, and the line that replays
    it.
    """
    inject = f", with {simulated.inject} injected" if simulated.inject else ""
    rate = simulated.nights / simulated.seconds if simulated.seconds else 0.0
    head = f"seed {simulated.seed}: {simulated.nights:,} nights in {simulated.attempts:,} attempts, "
    head += f"{simulated.seconds:g} s ({rate:.0f} nights/s){inject}"
    lines = violation_lines(simulated.violations, simulated.failed, REPLAY, simulated.inject)
    return "\n".join([head, *lines, simulated.last_line])


def status_text(night_status: NightStatus) -> str:
    lines = [*night_status.nights] or ["No night yet."]
    return "\n".join([*lines, *(f"{state:<10} {name}" for name, state in night_status.markers.items())])


def added_text(added: Added) -> str:
    """Return the added tuples of a corpus, and the refused ones."""
    lines = [f"{added.bucket}: {added.added:,} added, {added.there:,} there already ({added.file})"]
    if added.skipped:
        reasons = ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in added.skipped.items())
        lines.append(f"{sum(added.skipped.values()):,} of {added.commits:,} commits skipped: {reasons}")
    return "\n".join(lines)


def corpora_text(corpus_status: CorpusStatus) -> str:
    """Return a line for each bucket: what it has, and how many tuples are missing for a training."""
    rows = [
        (bucket.bucket, bucket.method, bucket.role, f"{bucket.valid:,}", f"{bucket.threshold:,}", f"{bucket.invalid:,}",
         f"{bucket.duplicates:,}", f"{max(0, bucket.threshold - bucket.valid):,}")
        for bucket in corpus_status.buckets
    ]  # fmt: skip
    return format_table(rows, ("bucket", "method", "role", "valid", "threshold", "invalid", "duplicates", "missing"))


def nights_text(result: NightList) -> str:
    """Return a line for each night."""
    if not result.nights:
        return "no night yet"
    return "\n".join(f"{night.tenant}/{night.night}  {night.state:<10} {night.headline}" for night in result.nights)


def night_detail_text(result: NightDetail) -> str:
    return markdown(result.report).rstrip() if result.report else str(result.headline)


READ, RUN, ADMIN = Scope

ROWS: dict[str, Operation] = {
    "nightly run": Operation(
        "Run one night: documents into the graph, full corpora into adapters; finished parts are not repeated.",
        request=RunNightInput, run="app.nights:run_once", text=night_text, scope=RUN,
        local="A night takes up to two hours; over a network, run its deployment: POST /api/v1/runs.",
    ),
    "nightly simulate": Operation(
        "Simulate nights in which everything goes wrong, and check that nothing is lost, doubled or half done.",
        request=SimulateInput, run="app.nights:simulate_nights", text=simulated_text, scope=RUN,
        local="It computes for minutes on all cores of this machine.",
    ),
    "nightly worker": Operation(
        "Poll for markers and train them on this machine, until it is stopped.",
        request=WorkerInput, run="app.nights:run_worker", text=json_text, scope=ADMIN,
        local="It runs until it is stopped.", endless=True,
    ),
    "nightly status": Operation(
        "The last nights and the state of every marker.",
        request=NightInput, run="app.nights:show_nights", text=status_text, scope=READ,
        route="GET /api/v1/nightly",
    ),
    "nightly list": Operation(
        "The nights that were, the newest first: state, headline, times.",
        request=NightsInput, run="app.nights:list_night_reports", text=nights_text, scope=READ,
        route="GET /api/v1/nightly/nights", tenants=True,
    ),
    "nightly show": Operation(
        "One night: phases against their budgets, corpora against their thresholds, what failed and what to do.",
        request=NightNameInput, run="app.nights:show_night", text=night_detail_text, scope=READ,
        route="GET /api/v1/nightly/nights/{night}", tenants=True,
    ),
    "corpus engineering": Operation(
        "Add the commits of a repository to a corpus: diff, message, review brief.",
        request=EngineeringInput, run="app.nights:add_commits", text=added_text, scope=RUN,
        local="It reads a repository anywhere on this machine.",
    ),
    "corpus apprenticeship": Operation(
        "Add corrections to a corpus: the model's answer (shadow), and a person's correction (verdict).",
        request=AddInput, run="app.nights:add_corrections", text=added_text, scope=RUN,
        route="POST /api/v1/corpus/apprenticeship",
    ),
    "corpus status": Operation(
        "How many valid tuples each corpus contains, and how many make a training.",
        request=NightInput, run="app.nights:show_corpora", text=corpora_text, scope=READ,
        route="GET /api/v1/corpus",
    ),
}  # fmt: skip
"""Name -> row, in the order of the help."""
