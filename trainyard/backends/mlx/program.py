"""The supervised child of the `mlx` backend: it leads mlx-lm, in its own interpreter, through a job.

Adapters cross the border in mlx-lm's own layout and are PEFT's on both sides of it: what a continued training starts
from is converted before mlx-lm starts, what it made afterwards, bit for bit (`trainyard.serve.conversion`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import psutil

from trainyard.backends import environments
from trainyard.backends.external import result
from trainyard.backends.external.runner import ExternalRun, ExternalTool, run_external
from trainyard.compute.child import Events
from trainyard.errors import TrainyardError
from trainyard.serve.conversion.adapters import WEIGHTS_FILE
from trainyard.serve.conversion.mlx import mlx_to_peft, peft_to_mlx
from trainyard.spec.axes.backends import BackendName
from trainyard.workers.trainyard_worker import names

START_FOLDER = "start"
"""In the plan: the adapter that the training continues from, in mlx-lm's layout."""
OWN_FOLDER = "mlx"
"""Next to the weights: the adapter as mlx-lm wrote it."""


def train(folder: Path, events: Events) -> None:
    """Run the job of `folder/spec.json` to its end."""
    run_external(folder, events, ExternalTool(argv, variables, ask, check=prepare), finish)


def prepare(run: ExternalRun) -> None:
    """Bring an earlier adapter into mlx-lm's layout. Raises `InvalidInput` (`E-ADAPTER-INVALID`)."""
    if run.job.adapter is not None:
        peft_to_mlx(Path(run.job.adapter), run.place / START_FOLDER)


def argv(run: ExternalRun) -> list[str]:
    return [str(environments.python_of(BackendName.MLX)), *environments.WORKER, "mlx", str(run.folder)]


def variables(_run: ExternalRun) -> Mapping[str, str]:
    """Return the additional environment variables of mlx-lm's process: no import of torch, no download."""
    return {**environments.variables(), "USE_TORCH": "0", "TRANSFORMERS_VERBOSITY": "error", "TERM": "dumb"}


def ask(_run: ExternalRun, process: psutil.Process) -> bool:
    """A stop request goes to the one process that trains: it saves after its step and ends."""
    process.terminate()
    return True


def finish(run: ExternalRun, log_at: int) -> None:
    """Make a PEFT adapter of what mlx-lm left, then hand it over like any result."""
    weights = run.folder / names.MADE_FOLDER / "weights"
    if run.job.config.method.facts.adapter:
        own = run.folder / names.MADE_FOLDER / OWN_FOLDER
        mlx_to_peft(own, weights, run.job.base)
        if not (weights / WEIGHTS_FILE).is_file():
            raise TrainyardError("mlx-lm ended without an adapter.", do="Read child.log.", code="E-PROGRAM")
    result.finish_result(run, log_at)
