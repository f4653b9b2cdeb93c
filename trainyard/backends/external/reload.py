"""`python -m trainyard.backends.external.reload FOLDER`: put a tool's adapter onto its base, and run it once.

A process of its own after the tool has ended, because it imports torch. The base is loaded on the CPU, in the dtype of
its files. Leaves `plan/reloaded.json`: why the adapter could not be run, or an empty text; an error is left as
`plan/error.json`. What cannot be run is still compared: the names and shapes of its tensors with the base's modules.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoConfig

from trainyard.backends import frame
from trainyard.backends.external.runner import RELOADED_FILE, errors_left_in_plan
from trainyard.backends.job import TrainingJob
from trainyard.backends.trl.loading import head_of
from trainyard.errors import LimitExceeded, TrainyardError
from trainyard.spec.estimate.bases import is_of_mlx
from trainyard.stores.models import base_modules, check_adapter_folder
from trainyard.stores.whole import write_json_durably
from trainyard.train.methods.adapters import NEW, load_adapter, probe_logits, read_config
from trainyard.train.methods.loading import load_model, require_memory
from trainyard.train.methods.reloading import SHAPE
from trainyard.workers.trainyard_worker import names


def reload_adapter(folder: Path) -> None:
    """Write into `plan/reloaded.json` why the adapter was not run; empty if it was.

    Raises `Corrupt` (`E-ADAPTER-INVALID`) for an adapter that does not fit its config or base, and `TrainyardError`
    (`E-ADAPTER-INVALID`) for logits that are not finite.
    """
    job, weights = frame.read_job(folder), folder / names.MADE_FOLDER / "weights"
    check_adapter_folder(weights, base_modules(Path(job.base)))
    reason = why_not(job)
    if not reason:
        run_adapter(job, weights)
    write_json_durably(folder / names.PLAN_FOLDER / RELOADED_FILE, {"reason": reason})


def why_not(job: TrainingJob) -> str:
    """Return why the base cannot be loaded here; empty if it can."""
    config = AutoConfig.from_pretrained(job.base, trust_remote_code=False)
    if is_of_mlx(config.to_dict()):
        return "its base is packed for MLX, and PyTorch cannot read that"
    try:
        require_memory(job.base, getattr(config, "dtype", None) or torch.float32)
    except LimitExceeded as error:
        return f"{error.what} {error.why}"
    return ""


def run_adapter(job: TrainingJob, weights: Path) -> None:
    """Run the base with the adapter once."""
    head = head_of(job)
    options = {"trust_remote_code": False, "use_safetensors": True, "dtype": "auto"}
    model = load_model(job.base, head, options).eval()
    adapted = load_adapter(model, weights, read_config(weights, head, trainable=False), NEW, "cpu").eval()
    if not probe_logits(adapted, SHAPE).isfinite().all():
        raise TrainyardError(
            "The adapter was written, and with it the base answers with numbers that are not finite.",
            why="A weight of it is infinite, not a number, or far too large.",
            do="Train again with a lower learning_rate; child.log has the losses.",
            code="E-ADAPTER-INVALID",
        )


if __name__ == "__main__":
    with errors_left_in_plan(Path(sys.argv[1])):
        reload_adapter(Path(sys.argv[1]))
