"""Adapter versions for an operator: list them, show one, and write one in the layout of another tool."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainyard.api.context import Context
from trainyard.api.requests.adapters import AdapterName, AdaptersInput, ConvertInput
from trainyard.api.responses import Record, Response
from trainyard.serve.conversion.adapters import CONFIG_FILE
from trainyard.serve.conversion.architectures import Layout
from trainyard.serve.conversion.between import convert, layout_of
from trainyard.serve.trial import try_adapter_folder
from trainyard.settings import Settings
from trainyard.stores.adapters import RUN, AdapterRegistry, AdapterVersion, parse_name
from trainyard.stores.models import resolve_model

OTHERS = ".others"
"""A folder of the registry that is never there."""


class AdapterRows(Response):
    rows: tuple[dict[str, Any], ...]


class Converted(Response):
    source: Path
    target: Path
    was: Layout
    to: Layout
    adapter_run: bool = False
    """Whether the written adapter was loaded and run once on its base."""
    adapter_run_because: str = ""
    """Why it was not."""


def list_adapters(given: AdaptersInput, context: Context) -> AdapterRows:
    registry, own = AdapterRegistry(context.settings.adapters), context.caller.tenant
    if own and given.tenant not in (None, own):
        return AdapterRows(rows=())  # what another tenant has is not there
    return AdapterRows(rows=tuple(adapter_row(registry, version) for version in registry.list(own or given.tenant)))


def registry_of(context: Context, name: str) -> AdapterRegistry:
    """The registry in which a caller may look a name up: for the name of another tenant, one without any version."""
    root, tenant = context.settings.adapters, context.caller.tenant
    return AdapterRegistry(root if tenant in ("", parse_name(name)[0]) else root / OTHERS)


def adapter_row(registry: AdapterRegistry, version: AdapterVersion) -> dict[str, Any]:
    return {
        "name": version.name,
        "live": registry.live(version.tenant, version.role).version == version.version,
        "kind": version.kind,
        "base": version.facts.get("base_model", ""),
        "evaluated": version.facts.get("evaluated", False),
        "run": run_word(version),
        "created": datetime.fromtimestamp(version.created, UTC).isoformat(timespec="seconds"),
        "sha256": version.sha256[:12],
    }


def run_word(version: AdapterVersion) -> str:
    """Whether a version was run once on its base here, in a word; a whole model has none."""
    if version.kind != "adapter":
        return ""
    return {True: "yes", False: "no"}.get(version.facts.get(RUN), "not recorded")


def show_adapter(given: AdapterName, context: Context) -> Record:
    registry = registry_of(context, given.name)
    version = registry.show(given.name)
    live = registry.live(version.tenant, version.role)
    own = {"path": str(registry.path(version)), "live": live.version == version.version, "history": list(live.history)}
    return Record(record={**version.model_dump(mode="json"), **own})


def convert_adapter(given: ConvertInput, context: Context) -> Converted:
    source, target = Path(given.source).expanduser().absolute(), given.target.absolute()
    if not source.exists():  # what is there under this name comes before a version of the registry
        registry = AdapterRegistry(context.settings.adapters)
        source = registry.path(registry.show(given.source))
    base, runs = base_of(given, source, context.settings), []

    def try_run(folder: Path) -> None:
        runs.append(try_adapter_folder(folder, context.settings, base))

    was = convert(source, target, given.to, base, try_run)
    return Converted(source=source, target=target, was=was, to=given.to, **runs[0].facts)


def base_of(given: ConvertInput, source: Path, settings: Settings) -> Path | None:
    """The folder of the base, where one is named and on this machine."""
    if given.base is not None:
        return resolve_model(given.base, settings).path
    if layout_of(source) is not Layout.PEFT:
        return None
    named = json.loads((source / CONFIG_FILE).read_text(encoding="utf-8")).get("base_model_name_or_path")
    folder = Path(str(named))
    return folder if named and folder.is_dir() else None
