"""The metric of a trial: at a rung from the events of its training, at the end from its result."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from trainyard.compute.child import EVENTS_FILE
from trainyard.compute.events import read_events
from trainyard.errors import InvalidInput
from trainyard.json_types import JsonMapping
from trainyard.spec.axes.stages import EvalMetric


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
