"""Live output of a watched run in a notebook. Outside of one nothing is shown, and nothing is imported for it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from trainyard.loading import load_object

WATCHED = ("run", "chains run", "jobs create", "jobs resume", "jobs retry")
"""Operations that follow one run, if they are asked to."""


def open_live(name: str, fields: Mapping[str, object]) -> Any:
    """Return what shows the run of a call (`live_runs.LiveRun`); None where it is not watched, and outside of a
    notebook.
    """
    if name not in WATCHED or not fields.get("watch") or not is_notebook():
        return None
    from trainyard.surfaces.sdk.live_runs import LiveRun  # only notebooks need it

    return LiveRun(open_output())


def is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook: a terminal would print each picture below the other."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return getattr(shell, "kernel", None) is not None


def open_output() -> Any:
    """Return an output of the cell that is running, which can be changed."""
    return load_object("IPython.display:display")({"text/markdown": "starting"}, raw=True, display_id=True)
