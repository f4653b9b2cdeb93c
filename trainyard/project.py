"""Locations of the files on top of the library: `prefect.yaml`, flows, nodes, tasks, presets, profiles, samples.

In a checkout they are next to the package. A wheel contains a copy of them in `trainyard/shipped` (pyproject.toml,
`force-include`), so that `flows`, `nodes` and `tasks` take no names in `site-packages`: Prefect puts the folder of a
deployment on the path of its runs.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
SHIPPED = PACKAGE / "shipped"


def project_folder() -> Path:
    """The checkout that this package is part of, else the wheel's copy."""
    folder = PACKAGE.parent
    return folder if (folder / "prefect.yaml").is_file() else SHIPPED
