"""Locations of flows, nodes and deployments. Apart from the stack, so that a check imports no server."""

from __future__ import annotations

from pathlib import Path

from trainyard.errors import NotFound
from trainyard.project import project_folder


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
