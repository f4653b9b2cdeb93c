"""The settings of this machine with the source of each value. No secret is a setting: they name variables."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any, Literal

from trainyard.app.context import Context
from trainyard.app.responses import Response
from trainyard.app.secrets import redact_value
from trainyard.operations.base import Nothing
from trainyard.settings import Settings, settings_file

Source = Literal["environment", "file", "argument", "default"]
PREFIX, NESTED = "TRAINYARD_", "__"


class MachineSetting(Response):
    """A setting as it is in force."""

    name: str
    value: Any
    """Without logins in addresses."""
    default: Any
    source: Source
    variable: str
    """The environment variable that sets it."""
    text: str


class MachineSettingList(Response):
    home: Path
    file: Path
    """The operator's file; it need not exist."""
    settings: tuple[MachineSetting, ...]


def show_settings(request: Nothing, context: Context) -> MachineSettingList:
    """Return every setting. An environment variable wins over the file, and the file over the default."""
    settings, file = context.settings, settings_file()
    in_file = set(tomllib.loads(file.read_text(encoding="utf-8"))) if file.is_file() else set[str]()
    values, defaults = settings.model_dump(mode="json"), default_values()
    return MachineSettingList(
        home=settings.home,
        file=file,
        settings=tuple(
            MachineSetting(
                name=name,
                value=redact_value(values[name]),
                default=defaults[name],
                source=find_source(name, settings, in_file),
                variable=PREFIX + name.upper(),
                text=field.description or "",
            )
            for name, field in Settings.model_fields.items()
        ),
    )


def default_values() -> dict[str, object]:
    """Return what each setting is where it is not given; None for a folder that depends on the machine."""
    fields = Settings.model_fields.items()
    defaults = {name: None if field.default_factory else field.default for name, field in fields}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in defaults.items()}


def find_source(name: str, settings: Settings, in_file: set[str]) -> Source:
    """Return where a value comes from."""
    variable = PREFIX + name.upper()
    if any(key.upper() == variable or key.upper().startswith(variable + NESTED) for key in os.environ):
        return "environment"
    if name in in_file:
        return "file"
    return "argument" if name in settings.model_fields_set else "default"
