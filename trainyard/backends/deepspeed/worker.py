"""`torchrun -m trainyard.backends.deepspeed.worker FOLDER`: one of the processes that train together."""

from __future__ import annotations

import sys
from pathlib import Path

from trainyard.backends.foreign.worker import train_with

if __name__ == "__main__":
    train_with("trainyard.backends.deepspeed.engine", Path(sys.argv[-1]))
