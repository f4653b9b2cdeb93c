"""The adapters of a restored home: their bytes are those of the backup, and here none of them was ever run.

The live version of each role is run once on its base, where that is here; every other one is marked, and is run before
it is made live. A home is restored in both cases: what is in it is what was backed up.
"""

from __future__ import annotations

from trainyard.errors import TrainyardError
from trainyard.serve.trial import TrialRun, try_version
from trainyard.settings import Settings
from trainyard.stores.adapters import AdapterRegistry, AdapterVersion


def run_restored(settings: Settings) -> tuple[str, ...]:
    """Run the live adapters of a restored home and keep the outcome with each version; returns a line for each."""
    registry, lines = AdapterRegistry(settings.adapters), []
    for version in registry.list():
        if version.kind != "adapter":
            continue
        restored = TrialRun("it was restored from a backup, and is run before it is made live")
        version = registry.record_run(version, restored.facts)
        if registry.live(version.tenant, version.role).version == version.version:
            lines.append(run_live(version, registry, settings))
    return tuple(lines)


def run_live(version: AdapterVersion, registry: AdapterRegistry, settings: Settings) -> str:
    """Run one version, and say what became of it."""
    try:
        facts = try_version(version, registry, settings).facts
    except TrainyardError as error:
        registry.record_run(version, TrialRun(f"{error.code}: {error.what} {error.why}".strip()).facts)
        return f"{version.name} is live and cannot be run: {error.code}: {error.what}"
    if facts["adapter_run"]:
        return f"{version.name} was run once on its base"
    return f"{version.name} was not run: {facts['adapter_run_because']}"
