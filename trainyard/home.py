"""Location of Trainyard's data: `TRAINYARD_HOME`, or the default. Imports no settings: reading processes ask, too."""

from __future__ import annotations

import os
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
"""The folder around the package: the checkout, if Trainyard was installed from one in editable mode."""


def default_home() -> Path:
    """`.trainyard` in the checkout, which `make` uses too; without a checkout `$XDG_DATA_HOME/trainyard`.

    The default of the latter is `~/.local/share/trainyard` (XDG base directory specification).
    """
    if (CHECKOUT / "Makefile").is_file() and (CHECKOUT / "prefect.yaml").is_file():
        return CHECKOUT / ".trainyard"
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "trainyard"


def home_from_environment() -> Path:
    return Path(os.environ.get("TRAINYARD_HOME") or default_home()).expanduser().absolute()
