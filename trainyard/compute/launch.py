"""`python -m trainyard.compute.launch package.module:function FOLDER` runs `function(folder, events)`, supervised.

The contract is entered before the program is imported: a SIGTERM during eight seconds of importing torch is a stop
request, and an import that fails leaves an `error.json` like any other error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from trainyard.compute.child import Events, Stopped, child_contract
from trainyard.loading import load

Program = Callable[[Path, Events], None]


def main(target: str, folder: str) -> None:
    with child_contract(Path(folder)) as events:
        program: Program = load(target)
        if events.stop_requested():
            raise Stopped("asked to stop before the start")
        program(Path(folder), events)


if __name__ == "__main__":
    main(*sys.argv[1:3])
