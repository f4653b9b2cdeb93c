"""`python -m trainyard_worker.run ENGINE FOLDER`: train the job that is planned in FOLDER, in a tool's own interpreter.

Of a distributed training every process runs this, started by the tool's launcher.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import orjson

from . import names
from .contract import PR_SET_PDEATHSIG, prctl
from .failures import LOST_CODE, describe_error
from .files import StopFlag, write_whole

ENGINES = {name: f"{__package__}.{name}_engine" for name in ("mlx", "unsloth", "deepspeed")}


def load_engine(engine: str) -> Callable[[Path, StopFlag], None]:
    """The `train` of an engine, whose imports take up to ten seconds."""
    train: Callable[[Path, StopFlag], None] = importlib.import_module(ENGINES[engine]).train
    return train


def report_failure(folder: Path, error: Exception) -> None:
    """Leave the error in `failure.json` for the runner.

    The first process that fails reports the cause; that another one is gone is only reported where nobody knows more.
    """
    path = folder / names.FAILURE_FILE
    if not path.exists() or orjson.loads(path.read_bytes())["code"] == LOST_CODE:
        write_whole(path, describe_error(error))


def main(engine: str, where: str) -> None:
    """Train to the end; a SIGTERM during the slow imports is a stop request like any other."""
    folder = Path(where)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # nobody else would free the device
    stop = StopFlag()
    try:
        load_engine(engine)(folder, stop)
    except Exception as error:
        traceback.print_exc()
        report_failure(folder, error)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # other ranks may wait in a collective operation; an orderly exit would wait for them


if __name__ == "__main__":
    main(*sys.argv[1:])
