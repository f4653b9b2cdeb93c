"""`python -m trainyard.backends.unsloth.worker FOLDER`, in unsloth's own interpreter."""

from __future__ import annotations

import sys
from pathlib import Path

from trainyard.backends.foreign.worker import train_with

if __name__ == "__main__":
    train_with("trainyard.backends.unsloth.engine", Path(sys.argv[-1]))
