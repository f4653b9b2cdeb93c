"""`python -m trainyard.backends.external.reload FOLDER`: put a tool's adapter onto its base, and run it once.

A process of its own after the tool has ended, because it imports torch. Leaves `plan/reloaded.json`: why the adapter
could not be run, or an empty text; an error is left as `plan/error.json`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from trainyard.backends import frame
from trainyard.backends.external.runner import RELOADED_FILE, record_plan_errors
from trainyard.backends.trl.loading import find_head
from trainyard.stores.whole import write_json_durably
from trainyard.train.methods.reloading import try_adapter
from trainyard.workers.trainyard_worker import names


def reload_adapter(folder: Path) -> None:
    """Write into `plan/reloaded.json` why the adapter was not run; empty if it was. Raises as `try_adapter`."""
    job = frame.read_job(folder)
    reason = try_adapter(folder / names.MADE_FOLDER / "weights", job.base, find_head(job))
    write_json_durably(folder / names.PLAN_FOLDER / RELOADED_FILE, {"reason": reason})


if __name__ == "__main__":
    with record_plan_errors(Path(sys.argv[1])):
        reload_adapter(Path(sys.argv[1]))
