"""Commit what an external tool left as a result: complete, sealed, with a `training.json` like every backend's."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import orjson

from trainyard.backends import frame
from trainyard.backends.external.runner import BEGUN_FILE, ExternalRun
from trainyard.backends.results import log_head
from trainyard.backends.rows import TOKENS_FILE
from trainyard.compute.child import LOG_FILE
from trainyard.errors import TrainyardError
from trainyard.spec.axes.data import Port
from trainyard.workers.trainyard_worker import names


def finish_result(run: ExternalRun, log_at: int) -> None:
    """Move what the tool made to `result/`, with its record."""
    made = run.folder / names.MADE_FOLDER
    report: dict[str, Any] = orjson.loads((made / names.REPORT_FILE).read_bytes())
    record = training_record(run, report, log_head(run.folder / LOG_FILE, log_at))
    weights = made / "weights"
    require_whole(run, weights)

    def write(target: Path) -> None:
        shutil.copytree(weights, target, ignore=shutil.ignore_patterns("README.md"))
        frame.name_base(run.job, target)
        place = target / "tokenizer" if run.job.output is Port.ADAPTER else target
        shutil.copytree(run.place / names.TOKENIZER_FOLDER, place, dirs_exist_ok=True)

    frame.save_result(run.job, run.folder, record, write)
    for leftover in (made, run.place):
        shutil.rmtree(leftover, ignore_errors=True)
    for name in (TOKENS_FILE, BEGUN_FILE):
        (run.folder / name).unlink(missing_ok=True)
    frame.report_metrics(run.events, record)


def require_whole(run: ExternalRun, weights: Path) -> None:
    """Raise `TrainyardError` (`E-PROGRAM`) when the tool ended well and left no weights."""
    if missing := frame.missing_weights(run.job, weights):
        raise TrainyardError(
            f"{run.job.config.backend.value} ended without {missing[0]}.",
            do="Read child.log; the tool says there what it did.",
            code="E-PROGRAM",
        )


def training_record(run: ExternalRun, report: dict[str, Any], head: str) -> dict[str, Any]:
    """`training.json`: what was done, to the token, and which tool did it."""
    losses = report["losses"]
    common = {
        **frame.job_facts(run.job),
        "chat_template_sha256": run.plan["ledger"]["chat_template_sha256"],
        "lora": run.plan["lora"],
        **run.plan["account"],
        "data": {name: run.plan["ledger"][name] for name in ("tokens", "rows")},
        "steps": run.plan["total_steps"],
        "epochs": run.plan["total_steps"] / run.plan["steps_per_epoch"],
        "first_loss": losses[0][1],
        "final_loss": losses[-1][1],
        "device": run.device,
        "threads": run.job.threads,
        "seconds": round(time.monotonic() - run.started, 3),
    }
    # What is not asked of the tool is known better here; what it reports of itself is its own word.
    return {**common, **report, "tool": {**report["tool"], "log_head": head}}
