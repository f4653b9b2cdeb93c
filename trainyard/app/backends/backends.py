"""Backends of this machine, and what makes the others available."""

from __future__ import annotations

from trainyard.app.backends.installations import (
    Installation,
    begin_installation,
    cancel_installation,
    read_installation,
)
from trainyard.app.context import Context
from trainyard.app.responses import Response
from trainyard.backends import environments, installing
from trainyard.backends.base import probe
from trainyard.compute.gpus import list_devices
from trainyard.operations.backends import BackendsInput, CancelInstallInput, InstallInput
from trainyard.settings import Settings
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.devices import Device
from trainyard.spec.axes.methods import Method
from trainyard.spec.axes.optimizers import Optimizer
from trainyard.spec.axes.schedules import Schedule
from trainyard.spec.axes.stages import Stage
from trainyard.spec.axes.strategies import Strategy


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
    fits, why = bool(here & set(devices)), availability.why
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
