"""`python -m trainyard.backends.mlx.worker FOLDER`, in the interpreter of the mlx environment."""

from __future__ import annotations

import sys
from pathlib import Path

from trainyard.backends.foreign.worker import train_with

if __name__ == "__main__":
    train_with("trainyard.backends.mlx.engine", Path(sys.argv[-1]))
