"""Backends of this machine: their state, their installation, and a short test training on one of them.

    POST /api/v1/backends/install {"names": ["unsloth"], "background": true}
      -> process: `trainyard backends install unsloth`, its record and log below services/
    GET  /api/v1/backends          `installation` of a row: running, installed or failed, with its last lines
    POST /api/v1/backends/cancel {"name": "unsloth"}      ends the process, which removes what is half made

An installation in the background can be shown and stopped by any process of this home. It is the command's own, with
its lock and its all-or-nothing folder: this module does not install.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Literal

from trainyard.app import services as stack
from trainyard.app.context import Context
from trainyard.app.responses import Response
from trainyard.app.run_records import RunResult
from trainyard.app.secrets import redact_lines
from trainyard.backends import environments, installing
from trainyard.backends.base import probe
from trainyard.backends.install_steps import LOG_FILE
from trainyard.backends.installing import require_installable
from trainyard.compute.events import read_end
from trainyard.compute.gpus import list_devices
from trainyard.compute.services import Service, read_record, reap_launched, record_path, stop_service
from trainyard.errors import Conflict
from trainyard.inherited import installer_environment
from trainyard.operations.backends import BackendsInput, BackendTestInput, CancelInstallInput, InstallInput
from trainyard.settings import Settings
from trainyard.spec.axes.backends import BackendName, Installable
from trainyard.spec.axes.devices import Device
from trainyard.spec.axes.methods import Method
from trainyard.spec.axes.optimizers import Optimizer
from trainyard.spec.axes.schedules import Schedule
from trainyard.spec.axes.stages import Stage
from trainyard.spec.axes.strategies import Strategy

LAST_LINES, LINE_CHARS, LAST_BYTES = 12, 300, 16 << 10
COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
STOP_S = 20.0
"""Time for pip to end, and for its half-made folder to be removed."""


class Installation(Response):
    """The last installation of one trainer that was started in the background."""

    state: Literal["running", "installed", "failed"]
    started: float
    """Seconds of the epoch."""
    seconds: float | None = None
    """So far, while it is running."""
    lines: tuple[str, ...] = ()
    """The last lines of its log, then of pip's."""


def service_name(name: Installable) -> str:
    return f"install-{name.value}"


def begin_installation(name: Installable, settings: Settings) -> None:
    """Start an installation, unless it is running. Raises what `require_installable` raises."""
    require_installable(name, settings)
    with stack.exclusive(settings):
        if stack.running(settings, service_name(name)) is not None:
            return
        argv = [sys.executable, "-P", "-m", "trainyard", "backends", "install", name.value]
        stack.spawn(
            settings, service_name(name), argv, installer_environment({"TRAINYARD_HOME": str(settings.home)}), ""
        )


def read_installation(name: BackendName, settings: Settings, *, available: bool) -> Installation | None:
    """Return how the last installation in the background is, or ended; None without one."""
    record = read_record(record_path(settings, service_name(name)))
    if record is None:
        return None
    reap_launched()
    running = record.process() is not None
    return Installation(
        state="running" if running else "installed" if available else "failed",
        started=record.started,
        seconds=round(time.time() - record.started, 1) if running else None,
        lines=() if available and not running else (*last_lines(Path(record.log)), *pip_lines(name, settings, record)),
    )


def pip_lines(name: BackendName, settings: Settings, record: Service) -> tuple[str, ...]:
    """Return the last lines of pip's log in the unfinished folder, or from before its removal."""
    root = environments.envs(settings)
    logs = [*root.glob(f".{name.value}-*/{LOG_FILE}"), root / f"{name.value}.{LOG_FILE}"]
    dated = [(path.stat().st_mtime, path) for path in logs if path.is_file()]
    since = [(when, path) for when, path in dated if when >= record.started]
    return last_lines(max(since)[1])[-3:] if since else ()


def last_lines(path: Path) -> tuple[str, ...]:
    """Return the last lines of a log as plain text; of a line that a program writes again and again, its last form."""
    text = read_end(path, LAST_BYTES)[0].decode("utf-8", errors="replace")
    lines = (line.rpartition("\r")[2] for line in COLOURS.sub("", text).split("\n"))
    return tuple(line[:LINE_CHARS] for line in redact_lines([line for line in lines if line.strip()][-LAST_LINES:]))


def cancel_installation(name: Installable, settings: Settings) -> None:
    """End an installation; what is half made is removed. Raises `Conflict` (`E-INSTALL`) if none is running."""
    if stack.running(settings, service_name(name)) is None:
        raise Conflict(
            f"No installation of {name.value} is running in the background.",
            do="Look at `trainyard backends`.",
            code="E-INSTALL",
        )
    stop_service(record_path(settings, service_name(name)), STOP_S)


class BackendOptions(Response):
    """Options that a chain may set for a backend; `check` refuses the rest."""

    stages: tuple[Stage, ...]
    methods: tuple[Method, ...]
    optimizers: tuple[Optimizer, ...]
    schedules: tuple[Schedule, ...]
    strategies: tuple[Strategy, ...]
    settings: dict[str, tuple[str, ...]]
    """Setting -> the values that it supports; one that is not named is supported with every value."""


class BackendRow(Response):
    """A trainer as this machine sees it."""

    name: BackendName
    available: bool
    version: str
    imports: str
    """`with trainyard`, `ok (4.2 s)`, `broken`, `not tested` or `-`."""
    devices: tuple[Device, ...]
    """What it computes on."""
    fits: bool
    """Whether this machine has one of these."""
    why: str
    fix: str
    installable: bool = False
    """Whether it has an environment of its own, which `backends install` makes."""
    options: BackendOptions
    installation: Installation | None = None
    """The last one that was started in the background."""


class BackendTable(Response):
    rows: tuple[BackendRow, ...]


def show_backends(request: BackendsInput, context: Context) -> BackendTable:
    return backend_table(context.settings, imports=request.imports)


def backend_table(settings: Settings, *, imports: bool) -> BackendTable:
    """Return every backend: version, whether it imports, whether a device fits, why it is not available, what fixes
    it.
    """
    here = frozenset(list_devices())
    return BackendTable(rows=tuple(build_row(name, settings, here, imports=imports) for name in BackendName))


def build_row(name: BackendName, settings: Settings, here: frozenset[Device], *, imports: bool) -> BackendRow:
    import_result, availability, devices = (
        read_import_result(name, settings, imports=imports),
        probe(name, settings),
        name.facts.devices,
    )
    fits, why = name.facts.remote or bool(here & set(devices)), availability.why
    if availability.available and not fits:
        why = f"It computes on {' or '.join(devices)}, and this machine has {' and '.join(sorted(here))}."
    return BackendRow(
        name=name,
        available=availability.available,
        version=availability.version,
        imports=import_result,
        devices=devices,
        fits=fits,
        why=why,
        fix=availability.fix,
        installable=name in environments.ENVIRONMENTS and not environments.is_named(name, settings),
        options=describe_options(name),
        installation=read_installation(name, settings, available=availability.available),
    )


def describe_options(name: BackendName) -> BackendOptions:
    facts = name.facts
    return BackendOptions(
        stages=facts.stages,
        methods=facts.methods,
        optimizers=tuple(facts.optimizers),
        schedules=tuple(facts.schedules),
        strategies=facts.strategies,
        settings={setting: tuple(map(str, values)) for setting, values in facts.settings.items()},
    )


def read_import_result(name: BackendName, settings: Settings, *, imports: bool) -> str:
    """Return the state of a backend's import; its test is run if that is wanted and it is installed."""
    if name not in environments.ENVIRONMENTS:
        return "with trainyard"
    if not (environments.find_folder(name, settings) / "bin" / "python").exists():
        return "-"
    health = environments.health(name, settings) if imports else environments.read_last_health(name, settings)
    if health is None:
        return "not tested"
    return f"ok ({health.seconds:.1f} s)" if health.ok else "broken"


def install_backends(request: InstallInput, context: Context) -> BackendTable:
    """Make environments, one after another. Raises what the first that fails raises; those before it stay."""
    for name in request.names or environments.ENVIRONMENTS:
        if request.background:
            begin_installation(name, context.settings)
        else:
            installing.install(name, context.settings, context.say)
    return backend_table(context.settings, imports=False)


def cancel_install(request: CancelInstallInput, context: Context) -> BackendTable:
    """Stop an installation in the background. Raises `Conflict` (`E-INSTALL`) if none is running."""
    cancel_installation(request.name, context.settings)
    return backend_table(context.settings, imports=False)


ROWS, STEPS, FOLDER = 16, 2, "smoke-test"


def try_backend(request: BackendTestInput, context: Context) -> RunResult:
    """Start a training of two steps on a backend. Raises what `jobs create` raises for it."""
    tenant = context.caller.tenant or context.settings.tenant
    settings = {
        "name": f"smoke-test-{request.name.value}",
        "tenant": tenant,
        "backend": request.name.value,
        "dataset": {"path": write_rows(context.settings, tenant)},
        "hyperparameters": {"max_steps": STEPS, "batch_size": 2},
    }
    from trainyard.app.chains.run import run  # plans a chain; only a test of a backend needs it
    from trainyard.app.plan.parse import JOB  # as above
    from trainyard.operations.chains import RunInput  # as above

    return run(RunInput(target=JOB, parameters=settings, refresh=True, watch=request.watch, yes=True), context)


def write_rows(settings: Settings, tenant: str) -> str:
    """Return the rows of the test, in the tenant's own data root."""
    folder = settings.home / "tenants" / tenant / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"instruction": f"What is twice {n}?", "output": f"Twice {n} is {2 * n}."} for n in range(ROWS)]
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)
