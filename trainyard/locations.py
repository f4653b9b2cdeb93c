"""Locations on this machine: Trainyard's data, and the files on top of the library. Imports no settings.

The data are in `TRAINYARD_HOME`, or the default. `prefect.yaml`, flows, nodes, tasks, presets, profiles and samples are
next to the package in a checkout. A wheel contains a copy of them in `trainyard/shipped` (pyproject.toml,
`force-include`), so that `flows`, `nodes` and `tasks` take no names in `site-packages`: Prefect puts the folder of a
deployment on the path of its runs.
"""

from __future__ import annotations

import os
from pathlib import Path

from trainyard.errors import NotFound

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


PACKAGE = Path(__file__).resolve().parent
SHIPPED = PACKAGE / "shipped"


def project_folder() -> Path:
    """The checkout that this package is part of, else the wheel's copy."""
    folder = PACKAGE.parent
    return folder if (folder / "prefect.yaml").is_file() else SHIPPED


def checkout() -> Path:
    """Return the folder that contains `prefect.yaml`, `flows/` and `nodes/`: the checkout, or the copy in an installed
    wheel.

    Raises `NotFound` (`E-CHECKOUT`) when the installation is incomplete.
    """
    folder = project_folder()
    if not (folder / "prefect.yaml").is_file():
        raise NotFound(
            f"There is no prefect.yaml in {folder}.",
            why="The package was copied without its flows and deployments.",
            do="Install the wheel, or clone the repository and run `make setup` there.",
            code="E-CHECKOUT",
        )
    return folder
