"""Retention of checkpoints: the newest ones, and the best by their metric."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from trainyard.json_types import JsonObject
from trainyard.stores.whole import MANIFEST

Best = Callable[[Iterable[float]], float]
"""`min` for a loss, `max` for an accuracy."""


def list_prunable(metrics: Mapping[int, float | None], keep: int, best: Best, keep_best: int = 1) -> list[int]:
    """Of step -> metric: the steps that are neither among the newest `keep` nor among the best `keep_best`."""
    measured = {step: metric for step, metric in metrics.items() if metric is not None}
    best_steps = list_best(measured, best)[:keep_best]
    return [step for step in sorted(metrics, reverse=True)[keep:] if step not in best_steps]


def list_best(metrics: Mapping[int, float], best: Best) -> list[int]:
    """Return the steps, the best one first; of equal ones the earliest, which has learned no less from less."""
    falling = best((0.0, 1.0)) > 0
    return sorted(metrics, key=lambda step: (-metrics[step] if falling else metrics[step], step))


def read_metric(folder: Path) -> float | None:
    """Return the metric in a checkpoint's manifest; None without one, if it cannot be compared, or cannot be read.

    A damaged manifest is found, reported and quarantined at the next start; it must not end a running training.
    """
    try:
        manifest: JsonObject = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        metric = manifest.get("metric")
    except (OSError, ValueError, AttributeError):
        return None
    return float(metric) if isinstance(metric, int | float) and math.isfinite(metric) else None
