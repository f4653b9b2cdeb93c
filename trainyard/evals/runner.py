"""Evaluate a candidate against its baseline: score in a supervised child, judge and report here.

This side imports no torch. The child's folder is kept next to the report, so that its log explains a surprising metric.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from trainyard.callbacks import ignore
from trainyard.compute.child import SPEC_FILE
from trainyard.compute.supervise import DesiredState, Outcome, Status, keep_running, supervise
from trainyard.errors import Conflict, InvalidInput, from_fields
from trainyard.evals.benchmarks.table import benchmark
from trainyard.evals.cases import Case
from trainyard.evals.curves import CURVES_FILE, loss_curves
from trainyard.evals.gate import choose_primary
from trainyard.evals.job import SCORES_FILE, EvaluationJob, label, listed_benchmarks
from trainyard.evals.judging import judge_scores
from trainyard.evals.report import build_report, headline, markdown
from trainyard.evals.tasks import cases_of
from trainyard.json_types import JsonObject
from trainyard.settings import Settings, load_settings
from trainyard.spec.axes.data import Port
from trainyard.stores.artifacts import Produced, ProducedSet
from trainyard.stores.whole import write_json_durably

PROGRAM = "trainyard.evals.program:main"
CHILD_FOLDER, REPORT_FOLDER = "child", "report"
REPORT_FILE = "report.json"
CHILD_ENVIRONMENT = {"TOKENIZERS_PARALLELISM": "false", "DO_NOT_TRACK": "1", "OMP_WAIT_POLICY": "passive"}


def evaluate(
    job: EvaluationJob,
    folder: Path,
    *,
    desired_state: Callable[[], DesiredState] = keep_running,
    on_event: Callable[[JsonObject], None] = ignore,
    settings: Settings | None = None,
) -> Produced:
    """Run the job's benchmarks in a child and write `report/` {report.md, report.json, curves.svg} below `folder`.

    Task files and the primary metric are checked before the child is started. Raises what the child's `error.json`
    says, `Conflict` (`E-STOPPED`) when it was asked to stop, `InvalidInput` for a job that cannot run.
    """
    check(job)
    child = folder / CHILD_FOLDER
    child.mkdir(parents=True)
    (child / SPEC_FILE).write_text(job.model_dump_json(indent=1), encoding="utf-8")
    argv = [sys.executable, "-P", "-m", "trainyard.compute.launch", PROGRAM, str(child)]
    outcome = supervise(
        argv, child, env=CHILD_ENVIRONMENT, desired_state=desired_state, on_event=on_event, grace_s=30, poll_s=0.2
    )
    require_done(outcome)
    scores = json.loads((child / SCORES_FILE).read_text(encoding="utf-8"))
    require_not_stopped(desired_state)
    scores = judge_scores(job, scores, judged_cases(job), folder / REPORT_FOLDER, settings or load_settings())
    report = build_report(job, scores)
    write_report(report, folder / REPORT_FOLDER)
    rows = sum(line["rows"] for line in report["benchmarks"])
    facts = headline(report)
    return Produced(outputs={Port.REPORT: ProducedSet(folder=REPORT_FOLDER, rows=rows, facts=facts)}, facts=facts)


def check(job: EvaluationJob) -> None:
    """Find the problems of a job before a model is loaded: names, files, rows, the primary metric."""
    lines = listed_benchmarks(job)
    labels = [label(line) for line in lines]
    repeated = sorted({name for name in labels if labels.count(name) > 1})
    if repeated:
        raise InvalidInput(f"The benchmark {repeated[0]!r} is listed twice.", do="List it once.", code="E-BENCHMARK")
    choose_primary(labels, job.config.primary)
    for line in lines:
        cases_of(line, job)


def judged_cases(job: EvaluationJob) -> dict[str, list[Case]]:
    """Return the cases of each benchmark that a judge scores, by its label."""
    return {label(line): cases_of(line, job) for line in listed_benchmarks(job) if benchmark(line.name).score is None}


def require_not_stopped(desired_state: Callable[[], DesiredState]) -> None:
    """Raise `Conflict` (`E-STOPPED`) before a judge is called by a run that is to stop."""
    if (now := desired_state()) is not DesiredState.RUN:
        require_done(Outcome(Status.STOPPED, exit_code=0, reason=now.value, error=None, seconds=0.0))


def write_report(report: JsonObject, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.md").write_text(markdown(report), encoding="utf-8")
    (folder / CURVES_FILE).write_text(loss_curves(report["training"]), encoding="utf-8")
    write_json_durably(folder / REPORT_FILE, report)


def require_done(outcome: Outcome) -> None:
    """Turn a child that did not finish into the error that it reported."""
    if outcome.status is Status.DONE:
        return
    if outcome.status is Status.STOPPED:
        raise Conflict(
            f"The evaluation was stopped ({outcome.reason}).",
            why="An evaluation keeps no checkpoint.",
            do="Run the chain again; finished nodes are reused.",
            code="E-STOPPED",
        )
    raise from_fields({"what": "The evaluation failed.", "code": "E-CRASH", **(outcome.error or {})})
