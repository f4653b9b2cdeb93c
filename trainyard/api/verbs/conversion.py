"""Adapters for an operator: one of this product or of another tool, in the layout of another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ConfigDict

from trainyard.serve.conversion.adapters import CONFIG_FILE
from trainyard.serve.conversion.between import Layout, convert, layout_of
from trainyard.settings import Settings
from trainyard.stores.adapters import AdapterRegistry
from trainyard.stores.models import resolve_model


class HasSettings(Protocol):
    """What of an operation's context is read here."""

    @property
    def settings(self) -> Settings: ...


class ConvertInput(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    """A folder or a .gguf file, or an adapter version `<tenant>/<role>[/v<N>]`."""
    target: Path
    to: Layout
    base: str | None = None
    """Its base model; default: the one that the adapter names."""


class Converted(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    source: Path
    target: Path
    was: Layout
    to: Layout


def adapters_convert(given: ConvertInput, context: HasSettings) -> Converted:
    """Write an adapter in the layout of PEFT, mlx-lm or llama.cpp (gguf), without changing a bit of its weights."""
    source, target = source_of(given.source, context.settings), given.target.absolute()
    base = base_of(given, source, context.settings)
    return Converted(source=source, target=target, was=convert(source, target, given.to, base), to=given.to)


def source_of(name: str, settings: Settings) -> Path:
    """What is there under this name, before a version of the registry."""
    path = Path(name).expanduser().absolute()
    if path.exists():
        return path
    registry = AdapterRegistry(settings.adapters)
    return registry.path(registry.show(name))


def base_of(given: ConvertInput, source: Path, settings: Settings) -> Path | None:
    """The folder of the base, where one is named and on this machine."""
    if given.base is not None:
        return resolve_model(given.base, settings).path
    if layout_of(source) is not Layout.PEFT:
        return None
    named = json.loads((source / CONFIG_FILE).read_text(encoding="utf-8")).get("base_model_name_or_path")
    folder = Path(str(named))
    return folder if named and folder.is_dir() else None
