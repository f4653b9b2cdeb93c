"""The supervised child of the `mlx` backend: it leads mlx-lm, in its own interpreter, through a job.

Adapters cross the border in mlx-lm's own layout and are PEFT's on both sides of it: what a continued training starts
from is converted before mlx-lm starts, what it made afterwards, bit for bit (`trainyard.serve.conversion`).
"""

from __future__ import annotations

from pathlib import Path

from trainyard.backends.external.runner import ExternalRun, ExternalTool, finish_result, run_external
from trainyard.compute.child import Events
from trainyard.errors import TrainyardError
from trainyard.serve.conversion.adapters import WEIGHTS_FILE
from trainyard.serve.conversion.mlx import mlx_to_peft, peft_to_mlx
from trainyard.workers.trainyard_worker import names

START_FOLDER = "start"
"""In the plan: the adapter that the training continues from, in mlx-lm's layout."""
OWN_FOLDER = "mlx"
"""Next to the weights: the adapter as mlx-lm wrote it."""
VARIABLES = {"USE_TORCH": "0", "TRANSFORMERS_VERBOSITY": "error", "TERM": "dumb"}
"""Of mlx-lm's process: no import of torch, no download."""


def train(folder: Path, events: Events) -> None:
    """Run the job of `folder/spec.json` to its end."""
    run_external(folder, events, ExternalTool(environment=lambda _: VARIABLES, check=prepare, finish=finish))


def prepare(run: ExternalRun) -> None:
    """Bring an earlier adapter into mlx-lm's layout. Raises `InvalidInput` (`E-ADAPTER-INVALID`)."""
    if run.job.adapter is not None:
        peft_to_mlx(Path(run.job.adapter), run.plan_folder / START_FOLDER)


def finish(run: ExternalRun, log_at: int) -> None:
    """Make a PEFT adapter of what mlx-lm left, then hand it over like any result."""
    if run.job.config.method.facts.adapter:
        output = run.folder / names.MADE_FOLDER
        mlx_to_peft(output / OWN_FOLDER, output / "weights", run.job.base)
        if not (output / "weights" / WEIGHTS_FILE).is_file():
            raise TrainyardError("mlx-lm ended without an adapter.", do="Read child.log.", code="E-PROGRAM")
    finish_result(run, log_at)
