"""`python -m trainyard.backends.mlx.worker FOLDER`, in the interpreter of the mlx environment."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from trainyard.backends.foreign.worker import StopFlag, guarded, tie_to_parent


def load() -> Callable[[Path, StopFlag], None]:
    """The engine; a SIGTERM during its imports is a stop request like any other."""
    train: Callable[[Path, StopFlag], None] = import_module("trainyard.backends.mlx.engine").train
    return train


def main(folder: Path) -> None:
    tie_to_parent()
    stop = StopFlag()
    guarded(folder, lambda: load()(folder, stop))


if __name__ == "__main__":
    main(Path(sys.argv[-1]))
