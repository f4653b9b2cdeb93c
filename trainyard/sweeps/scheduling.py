"""Scheduling of a sweep: start a trial, continue one, or end. Every decision is made from the study alone.

The metric of a trial: at a rung from the events of its training, at the end from its result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainyard.compute.child import EVENTS_FILE, faultpoint
from trainyard.compute.events import read_events
from trainyard.errors import InvalidInput
from trainyard.json_types import JsonMapping
from trainyard.spec.axes.stages import EvalMetric
from trainyard.sweeps.asha import Trial, TrialState, find_promotion, rank_trials
from trainyard.sweeps.spec import SweepSpec
from trainyard.sweeps.study import SweepStudy

ATTEMPTS = 3
"""Starts of one segment whose training was killed from outside, before the trial counts as failed."""


@dataclass(frozen=True)
class Segment:
    """A part of one trial's training: from where it is to a rung, or to its end."""

    trial: Trial
    until: int | None


@dataclass
class SegmentEnd:
    """End of a segment: at a rung or complete with a metric, stopped, or not at all well."""

    state: TrialState | None
    """None: it was stopped from outside, and the same segment follows when the sweep continues."""
    steps: int = 0
    value: float = 0.0
    code: str = ""
    message: str = ""


@dataclass
class TrialSchedule:
    """The segments of a sweep, one after the other; those that were given out and have not ended are not repeated."""

    spec: SweepSpec
    study: SweepStudy
    running: set[int] = field(default_factory=set)

    def take(self) -> Segment | None:
        """The next segment; None while all that can be decided depends on those that are running, or at the end."""
        trials = self.study.trials()
        segment = (
            self.find_interrupted(trials)
            or self.promote_trial(trials)
            or self.begin_trial(trials)
            or self.finished(trials)
        )
        if segment is not None:
            self.running.add(segment.trial.number)
        return segment

    def find_interrupted(self, trials: list[Trial]) -> Segment | None:
        """Return a segment that an earlier process of this sweep did not finish."""
        left = (trial for trial in trials if trial.state is TrialState.RUNNING and trial.number not in self.running)
        return next((self.segment(trial) for trial in left), None)

    def promote_trial(self, trials: list[Trial]) -> Segment | None:
        promotion = find_promotion(trials, self.spec.levels, self.spec.reduction, highest=self.study.highest)
        return self.build_segment(*promotion) if promotion is not None else None

    def begin_trial(self, trials: list[Trial]) -> Segment | None:
        if len(trials) >= self.spec.trials:
            return None
        stops = self.spec.scheduler == "asha"
        return self.segment(self.study.add(self.spec.levels[0] if stops else self.spec.steps))

    def finished(self, trials: list[Trial]) -> Segment | None:
        """With few trials no rung may promote any: then the best that there is continues, so that one is finished."""
        paused = [trial for trial in trials if trial.state is TrialState.PAUSED]
        if self.running or not paused or any(trial.state is TrialState.COMPLETED for trial in trials):
            return None
        rung = max(trial.target or 0 for trial in paused)
        best = rank_trials((trial for trial in paused if trial.target == rung), rung, highest=self.study.highest)[0]
        target = self.spec.levels[self.spec.levels.index(rung) + 1]
        return self.build_segment(best, target)

    def build_segment(self, trial: Trial, target: int) -> Segment:
        self.study.aim(trial.number, target)
        return self.segment(trial.model_copy(update={"state": TrialState.RUNNING, "target": target}))

    def segment(self, trial: Trial) -> Segment:
        """Where the training of a trial stops: nowhere if its target is the end."""
        return Segment(trial, None if trial.target == self.spec.steps else trial.target)

    def enter(self, segment: Segment, ending: SegmentEnd) -> None:
        """Write the end of a segment into the study. One that was stopped from outside is left as it is: it stays among
        those that are running, and the next process of the sweep begins with it.
        """
        number = segment.trial.number
        faultpoint("sweep.segment")
        match ending.state:
            case None:
                return
            case TrialState.PAUSED:
                self.study.pause(number, ending.steps, ending.value)
            case TrialState.COMPLETED:
                self.study.complete(number, ending.steps, ending.value)
            case _:
                self.study.end(number, ending.state, ending.code, ending.message)
        self.running.discard(number)
        faultpoint("sweep.entered")


def read_metric(facts: JsonMapping, metric: EvalMetric) -> float:
    """Return the metric of a finished training, at the step whose weights are its result.

    Raises `InvalidInput` (`E-PARAMETER`) when it was not measured.
    """
    evaluation = facts.get("evaluation") or {}
    is_best = evaluation.get("result_step") == evaluation.get("best_step")
    metrics = evaluation.get("best" if is_best else "last") or {}
    return require_finite(metrics.get(metric.value), metric, "the end")


def read_metric_at(work: Path, step: int, metric: EvalMetric) -> float:
    """Return the metric that the training of a work folder found at a step.

    Raises `InvalidInput` (`E-PARAMETER`) when it was not measured there.
    """
    events = read_events(work / EVENTS_FILE)
    matches = [event for event in events if event["event"] == "evaluation" and event.get("step") == step]
    return require_finite(matches[-1].get(metric.value) if matches else None, metric, f"step {step}")


def require_finite(value: Any, metric: EvalMetric, where: str) -> float:
    """Return a number, or infinity on the bad side for one that is not finite: such a trial is the last of its rung."""
    if not isinstance(value, int | float):
        raise InvalidInput(
            f"The metric {metric.value} was not measured at {where}.",
            why="A trial is compared by what its evaluation found there.",
            do="Leave out eval.steps, so that the sweep chooses them, or name a metric of this stage.",
            code="E-PARAMETER",
        )
    worst = math.inf if metric.facts.best == "min" else -math.inf
    return float(value) if math.isfinite(value) else worst
