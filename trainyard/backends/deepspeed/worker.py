"""`torchrun -m trainyard.backends.deepspeed.worker FOLDER`: one of the processes that train together.

The stop flag is set up before the slow imports: a SIGTERM during them is a stop request like any other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from trainyard.backends.foreign.worker import StopFlag, guarded, tie_to_parent


def load() -> Callable[[Path, StopFlag], None]:
    """The engine, whose imports take ten seconds."""
    train: Callable[[Path, StopFlag], None] = import_module("trainyard.backends.deepspeed.engine").train
    return train


def main(folder: Path) -> None:
    tie_to_parent()
    stop = StopFlag()
    guarded(folder, lambda: load()(folder, stop))


if __name__ == "__main__":
    main(Path(sys.argv[-1]))
