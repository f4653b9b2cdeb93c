"""What a foreign tool left, as a result of ours: whole, sealed, with a `training.json` like that of every backend."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import orjson

from trainyard.backends.foreign import names
from trainyard.backends.foreign.conductor import BEGUN_FILE, ExternalRun, log_head
from trainyard.backends.results import RESULT_FOLDER, TRAINING_FILE
from trainyard.backends.rows import LEDGER_FILE, TOKENS_FILE
from trainyard.compute.child import faultpoint
from trainyard.errors import TrainyardError
from trainyard.spec.axes.methods import ADAPTER_METHODS
from trainyard.stores.artifacts import write_json_durably
from trainyard.train.checkpoints import seal, whole_or_nothing

NEEDED = {True: ("adapter_config.json", "adapter_model.safetensors"), False: ("config.json",)}
"""Is it an adapter -> files without which it is no result."""


def finish(run: ExternalRun, log_at: int) -> None:
    """Move what the tool made to `result/`, with its record."""
    made = run.folder / names.MADE_FOLDER
    report: dict[str, Any] = orjson.loads((made / names.REPORT_FILE).read_bytes())
    record = training_record(run, report, log_head(run, log_at))
    weights = made / "weights"
    require_whole(run, weights)
    final = run.folder / RESULT_FOLDER
    temporary = run.folder / f".{RESULT_FOLDER}.tmp"
    for leftover in (temporary, final):  # of a start that died while saving
        shutil.rmtree(leftover, ignore_errors=True)
    with whole_or_nothing(temporary):
        target = temporary / run.job.output.value
        shutil.copytree(weights, target)
        (target / "README.md").unlink(missing_ok=True)
        adapter = run.job.config.method in ADAPTER_METHODS
        if adapter:
            name_base(target / "adapter_config.json", run.job.base)
        shutil.copytree(
            run.place / names.TOKENIZER_FOLDER, target / "tokenizer" if adapter else target, dirs_exist_ok=True
        )
        write_json_durably(target / TRAINING_FILE, record)
        faultpoint("result.written")
        seal(temporary)
        temporary.rename(final)
    for leftover in (made, run.place):
        shutil.rmtree(leftover, ignore_errors=True)
    for name in (TOKENS_FILE, LEDGER_FILE, BEGUN_FILE):
        (run.folder / name).unlink(missing_ok=True)
    run.events.emit("metrics", **{name: record[name] for name in ("steps", "first_loss", "final_loss", "seconds")})


def require_whole(run: ExternalRun, weights: Path) -> None:
    """Raise `TrainyardError` (`E-PROGRAM`) when the tool ended well and left no weights."""
    missing = [name for name in NEEDED[run.job.config.method in ADAPTER_METHODS] if not (weights / name).is_file()]
    if missing:
        raise TrainyardError(
            f"{run.job.config.backend.value} ended without {missing[0]}.",
            do="Read child.log; the tool says there what it did.",
            code="E-PROGRAM",
        )


def name_base(path: Path, base: str) -> None:
    """The adapter's config names the base as the job does, not a copy or a quantised stand-in of the tool's own."""
    config = orjson.loads(path.read_bytes())
    write_json_durably(path, {**config, "base_model_name_or_path": base})


def training_record(run: ExternalRun, report: dict[str, Any], head: str) -> dict[str, Any]:
    """`training.json`: what was done, to the token, and which tool did it."""
    job, config = run.job, run.job.config
    losses = report["losses"]
    common = {
        "stage": config.stage.value,
        "method": config.method.value,
        "backend": config.backend.value,
        "base_model": config.base_model,
        "base_path": job.base,
        "base_sha256": job.base_sha256,
        "chat_template_sha256": run.plan["ledger"]["chat_template_sha256"],
        "hyperparameters": config.hyperparameters.model_dump(mode="json"),
        "preference": config.preference.model_dump(mode="json") if config.stage.facts.preference else None,
        "lora": run.plan["lora"],
        "control": config.control,
        "parents": list(job.parents),
        **run.plan["account"],
        "data": {name: run.plan["ledger"][name] for name in ("tokens", "rows")},
        "steps": run.plan["total_steps"],
        "epochs": run.plan["total_steps"] / run.plan["steps_per_epoch"],
        "first_loss": losses[0][1],
        "final_loss": losses[-1][1],
        "device": run.device,
        "threads": job.threads,
        "seconds": round(time.monotonic() - run.started, 3),
    }
    # What is not asked of the tool is known better here; what it reports of itself is its own word.
    return {**common, **report, "tool": {**report["tool"], "log_head": head}}
