"""Supervised children of this room: torch is imported there, never in the process that asks."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from trainyard.compute.child import SPEC_FILE
from trainyard.compute.gpus import training_threads
from trainyard.compute.supervise import Status, supervise
from trainyard.errors import from_fields
from trainyard.settings import Settings

CHILD_ENVIRONMENT = {"TOKENIZERS_PARALLELISM": "false", "DO_NOT_TRACK": "1", "OMP_WAIT_POLICY": "passive"}


def run_child(program: str, folder: Path, spec: Mapping[str, object], result: str, failure: str) -> dict[str, object]:
    """Run a program in a supervised process; returns what it left in the file `result` of `folder`.

    Raises the error that it left, else `TrainyardError` (`E-CRASH`) with the text `failure`.
    """
    folder.mkdir(parents=True)
    (folder / SPEC_FILE).write_text(json.dumps(spec), encoding="utf-8")
    argv = [sys.executable, "-P", "-m", "trainyard.compute.launch", program, str(folder)]
    outcome = supervise(argv, folder, env=CHILD_ENVIRONMENT, grace_s=30, poll_s=0.1)
    if outcome.status is not Status.DONE:
        raise from_fields({"what": failure, "code": "E-CRASH", **(outcome.error or {})})
    left: dict[str, object] = json.loads((folder / result).read_text(encoding="utf-8"))
    return left


def child_threads(settings: Settings) -> int:
    """Threads for a child: those of a training here."""
    return max(1, training_threads(settings.threads))
