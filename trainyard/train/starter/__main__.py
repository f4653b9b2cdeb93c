"""The child of the starter's build: `python -m trainyard.train.starter FOLDER`. Imports torch; the parent does not."""

from __future__ import annotations

import sys
from pathlib import Path

from trainyard.train.starter.pretrain import main

sys.exit(main(Path(sys.argv[1])))
