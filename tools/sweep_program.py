"""A sweep in one process, as small as its trainings: `python -m tools.sweep_program FOLDER` begins it or continues it.

The schedule, the study and the trainings are those of the product; between them is only this loop in place of a flow,
because the start of a server and of a child for each segment would take minutes. `TRAINYARD_FAULT` kills it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.small_jobs import Jobs, Ran, train_here
from trainyard.backends.job import TrainingJob
from trainyard.backends.results import RUNG
from trainyard.compute.child import EVENTS_FILE, Stopped
from trainyard.spec.axes.data import Port
from trainyard.spec.chain import ChainSpec
from trainyard.spec.graph import resolve
from trainyard.spec.training import TrainerConfig
from trainyard.sweeps.asha import TrialState
from trainyard.sweeps.chains import apply_values
from trainyard.sweeps.scheduling import Segment, SegmentEnd, TrialSchedule, read_metric, read_metric_at
from trainyard.sweeps.spec import SweepSpec, parse_range, rung_steps
from trainyard.sweeps.study import SweepStudy

STEPS, REDUCTION, TRIALS = 27, 3, 16
IDS = ("data-source", "trainer")
FIRST = -(-STEPS // REDUCTION**2)


def make_spec(model: Path, scheduler: str, trials: int = TRIALS) -> SweepSpec:
    """Sixteen learning rates over four decades and four ranks; most rates learn too slowly."""
    hyper = {"max_steps": STEPS, "batch_size": 4, "max_length": 40, "precision": "fp32", "save_steps": 5}
    eval_settings = {"share": 0.2, "steps": FIRST}
    trainer = {"base_model": str(model), "hyperparameters": hyper, "eval": eval_settings}
    nodes = [{"type": "data_source", "config": {"path": "d.jsonl"}}, {"type": "trainer", "config": trainer}]
    ranges = {"trainer.learning_rate": "loguniform(1e-6, 2e-2)", "trainer.method.rank": "choice(2, 4, 8)"}
    return SweepSpec(
        name="tiny", chain=ChainSpec.model_validate({"name": "tiny", "nodes": nodes}), trainer="trainer",
        parameters={path: parse_range(path, text) for path, text in ranges.items()},
        trials=trials, scheduler=scheduler, sampler="random", seed=3, reduction=REDUCTION, steps=STEPS,
        rungs=rung_steps(STEPS, REDUCTION) if scheduler == "asha" else (),
    )  # fmt: skip


def job_of(spec: SweepSpec, jobs: Jobs, segment: Segment) -> TrainingJob:
    """The job of a segment, with the trial's values as a flow applies them."""
    config = resolve(apply_values(spec.chain, IDS, segment.trial.params)).node("trainer").config
    assert isinstance(config, TrainerConfig)
    return jobs(Port.SFT).model_copy(update={"config": config, "until": segment.until})


def work_of(folder: Path, job: TrainingJob) -> Path:
    return folder / "work" / job.digest[:32]


def carry_out(segment: Segment, job: TrainingJob, spec: SweepSpec, work: Path) -> SegmentEnd:
    try:
        ran: Ran = train_here(job, work)
    except Stopped as stopped:
        if stopped.reason != RUNG or segment.until is None:
            raise
        value = read_metric_at(work, segment.until, spec.metric)
        return SegmentEnd(TrialState.PAUSED, steps=segment.until, value=value)
    return SegmentEnd(TrialState.COMPLETED, steps=ran.record["steps"], value=read_metric(ran.record, spec.metric))


def run_sweep(folder: Path, spec: SweepSpec, jobs: Jobs) -> SweepStudy:
    """Carry out every segment, one after the other."""
    folder.mkdir(parents=True, exist_ok=True)
    study = SweepStudy(folder, spec)
    schedule = TrialSchedule(spec, study)
    while (segment := schedule.take()) is not None:
        job = job_of(spec, jobs, segment)
        schedule.enter(segment, carry_out(segment, job, spec, work_of(folder, job)))
    study.stop_paused()
    return study


def trained_steps(folder: Path) -> int:
    """Every step that any process of the sweep has taken, those that were taken twice included."""
    lines = (line for path in folder.glob(f"work/*/{EVENTS_FILE}") for line in path.read_text().splitlines())
    return sum(json.loads(line)["event"] == "progress" for line in lines)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    inputs = json.loads((folder / "given.json").read_text())
    sets = {Port(port): Path(path) for port, path in inputs["data"].items()}
    run_sweep(
        folder,
        make_spec(Path(inputs["model"]), inputs["scheduler"]),
        Jobs(Path(inputs["model"]), sets, folder / "locks"),
    )
