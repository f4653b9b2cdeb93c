"""Sweeps as their folders have them: trials, the best one, and its chain. No server is asked."""

from __future__ import annotations

from pathlib import Path

import yaml

from trainyard.app.context import Context
from trainyard.app.plan.resolve import resolve_chain
from trainyard.app.responses import Response
from trainyard.compute.lease import holder
from trainyard.errors import NotFound
from trainyard.operations.base import Nothing
from trainyard.operations.sweeps import ShowSweepInput
from trainyard.settings import Settings
from trainyard.sweeps.asha import Trial, find_best
from trainyard.sweeps.chains import apply_values
from trainyard.sweeps.study import SweepRecord, list_records, read_record, read_trials, sweep_folder


class SweepReport(Response):
    """A sweep."""

    name: str
    run_id: str
    folder: Path
    is_running: bool
    metric: str
    direction: str
    scheduler: str
    rungs: tuple[int, ...]
    num_trials: int
    """How many trials it has when it is done."""
    trials: tuple[Trial, ...]
    best: Trial | None = None
    num_steps: int
    """Steps that its trainings have taken."""
    num_whole_steps: int | None = None
    """Steps that whole trainings of these trials take; None where they are not of one length."""
    best_chain: str = ""
    """The chain with the values of the best trial, as YAML, where it was requested."""
    plot: bool = False
    """Draw the metrics of the trials by step."""


class SweepList(Response):
    sweeps: tuple[SweepReport, ...]


def show_sweep(request: ShowSweepInput, context: Context) -> SweepReport:
    """Return one sweep. Raises `NotFound` (`E-NOT-FOUND`), also for the best of none."""
    record = read_record(context.settings, request.name)
    report = read_report(record, context.settings)
    chain = best_chain(record, report, context.settings) if request.best else ""
    return report.model_copy(update={"best_chain": chain, "plot": request.plot})


def list_sweeps(_request: Nothing, context: Context) -> SweepList:
    return SweepList(sweeps=tuple(read_report(record, context.settings) for record in list_records(context.settings)))


def read_report(record: SweepRecord, settings: Settings) -> SweepReport:
    """Return the current state of a sweep's study; before its first trial there is none."""
    spec, folder = record.spec, sweep_folder(settings, record.spec.name)
    trials = tuple(read_trials(folder, spec))
    return SweepReport(
        name=spec.name, run_id=record.run_id, folder=folder, is_running=holder(folder / "lock") is not None,
        metric=spec.metric.value, direction=spec.direction, scheduler=spec.scheduler,
        rungs=spec.levels if spec.scheduler == "asha" else (), num_trials=spec.trials, trials=trials,
        best=find_best(trials, highest=spec.direction == "max"), num_steps=sum(trial.steps for trial in trials),
        num_whole_steps=len(trials) * spec.steps if spec.steps is not None else None,
    )  # fmt: skip


def best_chain(record: SweepRecord, report: SweepReport, settings: Settings) -> str:
    """Return the chain of the best finished trial as YAML. Raises `NotFound` (`E-NOT-FOUND`) before there is one."""
    if report.best is None:
        raise NotFound(
            f"No trial of the sweep {report.name} has finished yet.", do="Look again when one has.", code="E-NOT-FOUND"
        )
    written = record.spec.chain
    ids = tuple(node.id for node in resolve_chain(written, settings).nodes)
    chain = apply_values(written, ids, report.best.params)
    value = f"{report.metric} {report.best.value:.6g} at step {report.best.steps}"
    head = f"# Best of {len(report.trials)} trials of the sweep {report.name}: trial {report.best.number}, {value}.\n"
    body = chain.model_dump(mode="json", exclude_unset=True)
    return head + yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=110)
