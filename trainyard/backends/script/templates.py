"""The scripts that a job may name: those of the home, and the built-in one. Reads no rows."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from trainyard.backends.environments import WORKERS
from trainyard.backends.job import TrainingJob
from trainyard.errors import InvalidInput, NotFound, Reason
from trainyard.settings import Settings
from trainyard.settings import settings as current_settings

FOLDER = "script"
"""Below the work folder of a job."""
BUILT_IN = WORKERS / "trainyard_worker" / "standalone.py"
TEMPLATES_FOLDER = "script_templates"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def template_path(name: str | None, settings: Settings | None = None) -> Path:
    """Return the script of a name, or the built-in one for None.

    Raises `InvalidInput` (`E-SCRIPT`) for a name that is none, `NotFound` (`E-SCRIPT`).
    """
    if name is None:
        return BUILT_IN
    if not NAME.fullmatch(name):
        raise InvalidInput(
            f"{name!r} is not the name of a script template.",
            why="A name has letters, digits, `-` and `_`; it is not a path.",
            do="Put the script into TRAINYARD_HOME/script_templates and name it without `.py`.",
            code="E-SCRIPT",
        )
    folder = (settings or current_settings()).home / TEMPLATES_FOLDER
    path = folder / f"{name}.py"
    if not path.is_file():
        here = ", ".join(sorted(path.stem for path in folder.glob("*.py"))) or "none"
        raise NotFound(
            f"There is no script template {name!r}.",
            why=f"In {folder} there are: {here}.",
            do=f"Write {path}, or start from the one of `trainyard eject`.",
            code="E-SCRIPT",
        )
    return path


def template_reasons(job: TrainingJob) -> list[Reason]:
    """Why the script that a job names cannot be run."""
    try:
        template_path(job.config.launch.script)
    except (InvalidInput, NotFound) as error:
        return [Reason(error.code, job.node or None, "config.launch.script", f"{error.what} {error.why}", error.do)]
    return []


def template_digest(name: str | None, settings: Settings | None = None) -> str:
    """Names the text of a script: an edited one makes other results."""
    return hashlib.sha256(template_path(name, settings).read_bytes()).hexdigest()
