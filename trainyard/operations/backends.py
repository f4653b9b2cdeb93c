"""Trainers of this machine and training scripts. Requests, texts and rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from trainyard.operations.base import Nothing, Parameters, Request
from trainyard.operations.chains import PARAMETERS, ChainText, run_text
from trainyard.operations.fields import Argument, Option
from trainyard.operations.table import Operation, Scope
from trainyard.operations.tables import format_table
from trainyard.spec.axes.backends import BackendName, Installable
from trainyard.spec.axes.methods import Method
from trainyard.spec.axes.stages import Stage

if TYPE_CHECKING:
    from trainyard.app.backends import BackendTable
    from trainyard.app.scripts import ScriptDraft, TrainingScriptList, TrainingScriptText


class BackendsInput(Request):
    imports: Annotated[bool, Option("--imports/--no-imports")] = Field(
        True, description="Run import tests that are due."
    )


class InstallInput(Request):
    names: Annotated[tuple[Installable, ...], Argument("NAME")] = Field(
        (), description="Trainers, or vllm; default: all trainers that need one."
    )
    background: bool = Field(False, description="Return at once; `backends` says how far it is.")


class CancelInstallInput(Request):
    name: Annotated[Installable, Argument("NAME")] = Field(description="The backend being installed.")


class BackendTestInput(Request):
    name: Annotated[BackendName, Argument("NAME")] = Field(description="A trainer.")
    watch: Annotated[bool, Option("-w", "--watch", local=True)] = Field(False, description="Follow it to its end.")


class ProveInput(Request):
    everything: Annotated[bool, Option("--all")] = Field(
        False, description="All combinations of stage, method and options."
    )
    stages: Annotated[tuple[Stage, ...], Option("--stage")] = Field((), description="Only this stage; may be repeated.")
    methods: Annotated[tuple[Method, ...], Option("--method")] = Field(
        (), description="Only this method; may be repeated."
    )
    jobs: int = Field(2, ge=1, le=64, description="Combinations at a time.")


class RenderersInput(Request):
    names: Annotated[tuple[str, ...], Argument("NAME", is_file=True)] = Field(
        (), description="Renderers, templates or .jinja files; default: all."
    )


# Training scripts

SCRIPT_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"


class ScriptNameInput(Request):
    name: Annotated[str, Argument("NAME")] = Field(
        pattern=SCRIPT_NAME, description="Name of a training script of this home, or built-in."
    )


class SaveScriptInput(ScriptNameInput):
    file: Annotated[Path | None, Argument("FILE", local=True)] = Field(None, description="The script as it shall be.")
    text: str = Field("", max_length=1 << 20, description="Its text, in place of a file.")
    if_match: str = Field("", max_length=200, description="ETag of the script that was edited; empty for a new one.")


class DraftScriptInput(Request):
    target: Annotated[str | ChainText, Argument("TEMPLATE|FILE", is_file=True, completes="template")] = Field(
        description="A template's name, or a chain or job."
    )
    parameters: Parameters = Field({}, description=PARAMETERS)
    node: str | None = Field(None, max_length=200, description="Which trainer, if there are several.")


def renderers_text(result: Any) -> str:
    """Return the table, then one line for each problem."""
    kinds = list(result.rows[0].kinds) if result.rows else []
    header = ("renderer", "template", "extends", *kinds, "stop tokens", "sha256")
    rows = [
        (row.renderer, row.template, "yes" if row.extension else "no", *row.kinds.values(), " ".join(row.stops),
         row.sha256[:12])
        for row in result.rows
    ]  # fmt: skip
    return "\n".join(
        [format_table(rows, header), *(f"{row.template}: {row.problem}" for row in result.rows if row.problem)]
    )


def proof_text(result: Any) -> str:
    header = ("stage", "loss", "method", "mode", "verdict", "weights", "seconds")
    rows = [
        (cell.stage, cell.loss or "", cell.method, cell.mode,
         "identical" if cell.identical else f"DIFFERS: {', '.join(cell.differs)}", cell.sha256["weights"][:12],
         f"{cell.seconds:.1f}")
        for cell in result.cells
    ]  # fmt: skip
    identical = sum(cell.identical for cell in result.cells)
    return f"{format_table(rows, header)}\n{identical} of {len(result.cells)} identical in {result.seconds:.0f} s"


def backends_text(result: BackendTable) -> str:
    """Return the table, then a line for each backend that cannot be used."""
    rows = []
    for row in result.rows:
        state = "absent" if not row.available else "ready" if row.fits else "no device"
        rows.append((row.name.value, state, row.version or "-", row.imports, ", ".join(row.devices)))
    notes = [f"{row.name.value}: {row.why} {row.fix}".rstrip() for row in result.rows if row.why]
    notes += [
        f"{row.name.value}: installation {row.installation.state}: {row.installation.lines[-1]}"
        for row in result.rows if row.installation and row.installation.lines
    ]  # fmt: skip
    return "\n".join([format_table(rows, ("backend", "state", "version", "imports", "computes on")), *notes])


def scripts_text(result: TrainingScriptList) -> str:
    rows = [(script.name, f"{script.bytes:,}", script.sha256[:12]) for script in result.scripts]
    state = "chains may run them" if result.can_run else "switched off: set allow_scripts = true in trainyard.toml"
    return f"{format_table(rows, ('script', 'bytes', 'sha256'))}\n{result.folder}: {state}"


def script_text(result: TrainingScriptText) -> str:
    return str(result.text).rstrip("\n")


def saved_script_text(result: TrainingScriptText) -> str:
    return f"saved {result.name}: {result.bytes:,} bytes, sha256 {result.sha256[:12]}"


def draft_text(result: ScriptDraft) -> str:
    """Return the spec; the script is that of `scripts show`."""
    return f"{result.node}: script {result.script}\n{json.dumps(result.spec, indent=2, ensure_ascii=False)}"


READ, RUN, ADMIN = Scope

ROWS: dict[str, Operation] = {
    "backends": Operation(
        "Show every trainer: version, import, device, why it is not available and what fixes it.",
        request=BackendsInput, run="app.backends:show_backends", text=backends_text, scope=READ,
        route="GET /api/v1/backends", tenants=True,
    ),
    "backends install": Operation(
        "Make the environment of a trainer that cannot share ours; whole, or not at all.",
        request=InstallInput, run="app.backends:install_backends", text=backends_text, scope=ADMIN,
        route="POST /api/v1/backends/install",
    ),
    "backends cancel": Operation(
        "Stop an installation in the background, and remove its unfinished environment.",
        request=CancelInstallInput, run="app.backends:cancel_install", text=backends_text, scope=ADMIN,
        route="POST /api/v1/backends/cancel",
    ),
    "backends test": Operation(
        "Train two steps on a trainer, as a job: whether it works here, from its data to its adapter.",
        request=BackendTestInput, run="app.backends:try_backend", text=run_text, scope=RUN,
        example="trainyard backends test native --watch",
        route="POST /api/v1/backends/test", status=202, tenants=True,
    ),
    "scripts list": Operation(
        "The training scripts of this home, and whether chains may run them.",
        request=Nothing, run="app.scripts:list_scripts", text=scripts_text, scope=READ,
        route="GET /api/v1/scripts",
    ),
    "scripts show": Operation(
        "A training script of this home; `built-in` is the one that needs none.",
        request=ScriptNameInput, run="app.scripts:show_script", text=script_text, scope=READ,
        route="GET /api/v1/scripts/{name}",
    ),
    "scripts save": Operation(
        "Write a training script of this home, if it is valid Python and was not changed meanwhile.",
        request=SaveScriptInput, run="app.scripts:save_script", text=saved_script_text, scope=ADMIN,
        example="trainyard scripts save mine train.py",
        route="PUT /api/v1/scripts/{name}",
    ),
    "scripts draft": Operation(
        "The script that would carry out a trainer of a chain, with its resolved spec; nothing is written.",
        request=DraftScriptInput, run="app.scripts:draft_script", text=draft_text, scope=READ,
        route="POST /api/v1/scripts/draft", heavy=True, confined=True,
    ),
}  # fmt: skip
"""Name -> row, in the order of the help."""
