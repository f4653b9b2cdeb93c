"""TensorBoard, Weights & Biases, MLflow and Trackio: what they are given, and where it goes without a network.

Nothing leaves the machine unless the user's own environment says so (`WANDB_API_KEY` or `WANDB_MODE`,
`MLFLOW_TRACKING_URI`, `TRACKIO_SPACE_ID`): by default each writes below the run's folder. A run that continues is found
again by its name. Add a tracker: a class with `log` and `close`, and a row in `TRACKERS`.

Sources: https://docs.pytorch.org/docs/stable/tensorboard.html, https://docs.wandb.ai/models/ref/python,
https://mlflow.org/docs/latest/api_reference/python_api/mlflow.client.html, https://huggingface.co/docs/trackio.

Trackers are fed from a thread of their own, so that a slow network costs training nothing.

What waits is bounded: when a tracker is that far behind, records are left out and counted, and the count is reported.
"""

from __future__ import annotations

import importlib.util
import os
import queue
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from trainyard.errors import Unavailable
from trainyard.json_types import JsonMapping
from trainyard.loading import load_object
from trainyard.spec.model_schema import flatten_settings


@dataclass(frozen=True)
class TrackedRun:
    """Location and name of a run in a tracker."""

    folder: Path
    project: str
    run: str
    config: JsonMapping = field(default_factory=dict)
    """Shown next to the curves; nested mappings and plain values."""

    @property
    def name(self) -> str:
        """Return the run as a word that is fit for a folder and an address."""
        return re.sub(r"[^A-Za-z0-9_-]+", "-", self.run)


class Tracker(Protocol):
    """A run in somebody's charts."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files below `<folder>/tensorboard`; `tensorboard --logdir` shows them."""

    def __init__(self, module: ModuleType, tracked: TrackedRun) -> None:
        self.module, self.folder = module, str(tracked.folder / "tensorboard" / tracked.name)
        self.config = tracked.config
        self.writer: Any = None

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if self.writer is None:
            # What an earlier process wrote of this step and later ones is overtaken by what comes now.
            self.writer = self.module.SummaryWriter(self.folder, purge_step=step)
            self.writer.add_text(
                "config", "\n".join(f"    {k}: {v}" for k, v in flatten_settings(self.config).items()), step
            )
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


class Wandb:
    """Online only with a key; else offline files that `wandb sync` uploads later.

    It ignores a step that it has seen; a run that continues repeats steps with the same numbers, so nothing is lost.
    """

    def __init__(self, module: ModuleType, tracked: TrackedRun) -> None:
        self.run = module.init(
            project=tracked.project,
            name=tracked.run,
            id=tracked.name,
            resume="allow",
            dir=str(tracked.folder),
            config=dict(tracked.config),
            settings=module.Settings(silent=True, console="off"),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def close(self) -> None:
        self.run.finish()


class MLflow:
    """A run in the tracking server of `MLFLOW_TRACKING_URI`, or in a local database, `<folder>/mlflow.db`."""

    MOST_PARAMS, LONGEST_PARAM = 100, 500
    """What every server takes in one request."""

    def __init__(self, module: ModuleType, tracked: TrackedRun) -> None:
        self.module = module
        self.client = module.MlflowClient()
        experiment = self.client.get_experiment_by_name(tracked.project)
        self.experiment = experiment.experiment_id if experiment else self.client.create_experiment(tracked.project)
        self.run = self.find(tracked.run)
        if self.run is None:
            self.run = self.client.create_run(self.experiment, run_name=tracked.run).info.run_id
            entities = module.entities
            params = [
                entities.Param(k, str(v)[: self.LONGEST_PARAM]) for k, v in flatten_settings(tracked.config).items()
            ]
            for start in range(0, len(params), self.MOST_PARAMS):
                self.client.log_batch(self.run, params=params[start : start + self.MOST_PARAMS])
        self.client.update_run(self.run, status="RUNNING")

    def find(self, name: str) -> str | None:
        """Id of the run that an earlier process began."""
        quoted = name.replace("'", "")
        runs = self.client.search_runs([self.experiment], f"attributes.run_name = '{quoted}'", max_results=1)
        return runs[0].info.run_id if runs else None

    def log(self, step: int, values: Mapping[str, float]) -> None:
        now_ms, metric = int(time.time() * 1000), self.module.entities.Metric
        self.client.log_batch(self.run, metrics=[metric(name, value, now_ms, step) for name, value in values.items()])

    def close(self) -> None:
        self.client.set_terminated(self.run)


class Trackio:
    """A local database below `<folder>/trackio`; `trackio show` draws it."""

    def __init__(self, module: ModuleType, tracked: TrackedRun) -> None:
        self.run = module.init(
            project=tracked.project,
            name=tracked.run,
            config=dict(tracked.config),
            resume="allow",
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def close(self) -> None:
        self.run.finish()


@dataclass(frozen=True)
class TrackerRow:
    """Start of a tracker."""

    package: str
    """What `pip install` brings it."""
    module: str
    begin: Callable[[ModuleType, TrackedRun], Tracker]
    defaults: Callable[[TrackedRun], dict[str, str]]
    """Environment variables that keep it on this machine; those of the user win."""


def no_defaults(_run: TrackedRun) -> dict[str, str]:
    return {}


def wandb_defaults(_run: TrackedRun) -> dict[str, str]:
    return {} if os.environ.get("WANDB_API_KEY") else {"WANDB_MODE": "offline"}


def mlflow_defaults(run: TrackedRun) -> dict[str, str]:
    return {"MLFLOW_TRACKING_URI": f"sqlite:///{run.folder.absolute() / 'mlflow.db'}"}


def trackio_defaults(run: TrackedRun) -> dict[str, str]:
    return {"TRACKIO_DIR": str(run.folder.absolute() / "trackio")}


TRACKERS: dict[str, TrackerRow] = {
    "tensorboard": TrackerRow("tensorboard", "torch.utils.tensorboard", TensorBoard, no_defaults),
    "wandb": TrackerRow("wandb", "wandb", Wandb, wandb_defaults),
    "mlflow": TrackerRow("mlflow", "mlflow", MLflow, mlflow_defaults),
    "trackio": TrackerRow("trackio", "trackio", Trackio, trackio_defaults),
}


def is_installed(name: str) -> bool:
    return importlib.util.find_spec(TRACKERS[name].package) is not None


def open_tracker(name: str, run: TrackedRun) -> Tracker:
    """Begin (or continue) the run in a tracker. Raises `Unavailable`: `E-PACKAGE-MISSING`, `E-TRACKER`."""
    row = TRACKERS[name]
    if not is_installed(name):
        raise Unavailable(
            f"The tracker {name} is not installed.",
            why=f"There is no package {row.package} here.",
            do=f"pip install {row.package}, or leave {name} out of engine.trackers.",
            code="E-PACKAGE-MISSING",
        )
    run.folder.mkdir(parents=True, exist_ok=True)
    for variable, value in row.defaults(run).items():
        os.environ.setdefault(variable, value)
    try:
        return row.begin(load_object(row.module), run)
    except Exception as error:
        raise Unavailable(
            f"The tracker {name} could not begin the run {run.run!r}.",
            why=f"{type(error).__name__}: {error}",
            do=f"Correct its settings, or leave {name} out of engine.trackers.",
            code="E-TRACKER",
        ) from error


WAITING = 4096
"""Records that may wait; at ten steps a second almost seven minutes of a tracker's silence."""
CLOSE_S = 30.0
"""How long the end of a run waits for the trackers to take what is left."""


class TrackerFeed:
    """Send every record to every tracker; `warn` gets a warning {code, text} when something is lost."""

    def __init__(
        self,
        trackers: Mapping[str, Tracker],
        warn: Callable[[dict[str, str]], None],
        *,
        waiting: int = WAITING,
        close_s: float = CLOSE_S,
    ) -> None:
        self.trackers, self.close_s = dict(trackers), close_s
        self.left_out, self.failures = 0, Counter[str]()
        self._report = warn
        self._queue: queue.Queue[tuple[int, dict[str, float]]] = queue.Queue(waiting)
        self._ended = threading.Event()
        # A daemon: a tracker that hangs must not keep the process alive.
        self._thread = threading.Thread(target=self._deliver, name="trackers", daemon=True)
        self._thread.start()

    def on_step(self, record: JsonMapping) -> None:
        try:
            self._queue.put_nowait((int(record["step"]), numbers(record)))
        except queue.Full:
            self.left_out += 1

    def close(self) -> None:
        """Deliver waiting metrics, for a limited time, and report losses."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._thread.join(self.close_s)
        if self._thread.is_alive():
            self._warn(f"The trackers did not take the last {self._queue.qsize()} records in {self.close_s:g} s.")
        if self.left_out:
            self._warn(f"The trackers were too slow: {self.left_out} records were left out.")
        for name, count in self.failures.items():
            self._warn(f"{name} did not take {count} records.")

    def _deliver(self) -> None:
        while not (self._ended.is_set() and self._queue.empty()):
            try:
                step, values = self._queue.get(timeout=0.1)
            except queue.Empty:
                continue
            for name, tracker in self.trackers.items():
                self._attempt(name, tracker.log, step, values)
        for name, tracker in self.trackers.items():
            self._attempt(name, tracker.close)

    def _attempt(self, name: str, act: Callable[..., None], *arguments: Any) -> None:
        """Call a tracker, which is external code: its first error is reported, every further one is counted."""
        try:
            act(*arguments)
        except Exception as error:
            self.failures[name] += 1
            if self.failures[name] == 1:
                self._warn(f"{name} failed: {type(error).__name__}: {error}. The training continues.")

    def _warn(self, text: str) -> None:
        self._report({"code": "E-TRACKER", "text": text})


def numbers(record: JsonMapping) -> dict[str, float]:
    """Return the fields that a chart can show, under the names that trackers group by: train/loss, eval/loss."""
    return {
        f"eval/{name.removeprefix('eval_')}" if name.startswith("eval_") else f"train/{name}": float(value)
        for name, value in record.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name not in ("step", "total_steps")
    }
