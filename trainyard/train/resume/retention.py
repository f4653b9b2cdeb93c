"""Which checkpoints stay: the newest ones, and the best by its metric."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from trainyard.stores.whole import MANIFEST

Best = Callable[[Iterable[float]], float]
"""`min` for a loss, `max` for an accuracy."""


def list_prunable(metrics: Mapping[int, float | None], keep: int, best: Best) -> list[int]:
    """Of step -> metric: the steps that are neither among the newest `keep` nor the best one (the newest of equals)."""
    steps = sorted(metrics, reverse=True)
    measured = {step: metric for step in steps if (metric := metrics[step]) is not None}
    chosen = best(measured.values()) if measured else None
    kept = next((step for step, metric in measured.items() if metric == chosen), None)
    return [step for step in steps[keep:] if step != kept]


def metric_of(folder: Path) -> float | None:
    """The metric in a checkpoint's manifest; None without one, if it cannot be compared, or cannot be read.

    A damaged manifest is found, reported and quarantined at the next start; it must not end a running training.
    """
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        metric = manifest.get("metric")
    except (OSError, ValueError, AttributeError):
        return None
    return float(metric) if isinstance(metric, int | float) and math.isfinite(metric) else None
