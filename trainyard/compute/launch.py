"""`python -m trainyard.compute.launch package.module:function FOLDER` runs `function(folder, events)`, supervised.

The contract is entered before the program is imported: a SIGTERM during eight seconds of importing torch is a stop
request, and an import that fails leaves an `error.json` like any other error.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

from trainyard.compute.child import Events, Stopped, child_contract

Program = Callable[[Path, Events], None]


def load(target: str) -> Program:
    """The function that `package.module:function` names."""
    module, _, function = target.partition(":")
    program: Program = getattr(importlib.import_module(module), function)
    return program


def main(target: str, folder: str) -> None:
    with child_contract(Path(folder)) as events:
        program = load(target)
        if events.stop_requested():
            raise Stopped("asked to stop before the start")
        program(Path(folder), events)


if __name__ == "__main__":
    main(*sys.argv[1:3])
