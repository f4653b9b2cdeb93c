"""The trials of a sweep in an Optuna study, which survives a kill at any point, and the folder of a sweep.

    sweeps/<name>/
        sweep.json      the requested sweep, and the run that carries it out
        study.db        its trials: an Optuna study in SQLite
        lock            one process at a time carries it out

The study is the truth about the trials; the scheduler decides from it alone, so a sweep that was killed continues with
the same decisions. Optuna knows no pause: a paused trial is one of its running trials whose target is reached.

The trainings themselves are where those of every run are: checkpoints in `runs/training`, results in the artifact
store. Losing the folder of a sweep loses no result.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as State
from pydantic import BaseModel, ConfigDict

from trainyard.compute.lease import Holder, device_lock
from trainyard.errors import Conflict, NotFound
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.settings import Settings
from trainyard.stores.live.job_ids import is_named
from trainyard.stores.schema import add_version, read_versioned
from trainyard.stores.whole import new_file, write_json_durably
from trainyard.sweeps.asha import Trial, TrialState
from trainyard.sweeps.spec import Choice, Range, Scalar, SweepSpec

SWEEP_FILE = "sweep.json"
LOCK_WAIT_S = 30.0
"""A process that was asked to end saves its trainings first."""


class SweepRecord(BaseModel):
    """A sweep as it is stored."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    spec: SweepSpec
    run_id: str = ""
    """The run that carries it out; a run that is continued keeps its id."""
    created: float


def dump_spec(spec: SweepSpec) -> dict[str, object]:
    """Return the sweep as JSON: only the written settings of its chain, as in the chain's file."""
    return {
        **spec.model_dump(mode="json"),
        "chain": spec.chain.model_dump(mode="json", exclude_unset=True),
    }


def sweep_folder(settings: Settings, name: str) -> Path:
    return settings.sweeps / name


def write_record(settings: Settings, record: SweepRecord) -> None:
    folder = sweep_folder(settings, record.spec.name)
    folder.mkdir(parents=True, exist_ok=True)
    value = {"spec": dump_spec(record.spec), "run_id": record.run_id, "created": record.created}
    write_json_durably(folder / SWEEP_FILE, add_version("sweep", value))


def find_record(settings: Settings, name: str) -> SweepRecord | None:
    path = sweep_folder(settings, name) / SWEEP_FILE
    return SweepRecord.model_validate(read_versioned("sweep", path.read_bytes(), path)) if path.is_file() else None


def read_record(settings: Settings, name: str) -> SweepRecord:
    """Return the sweep of that name, or of the chain of that name where it has only one sweep.

    Raises `NotFound` (`E-NOT-FOUND`).
    """
    record = find_record(settings, name)
    if record is None:
        records = list(list_records(settings))
        named = [entry for entry in records if is_named(name, entry.spec.name)]
        if len(named) == 1:
            return named[0]
        names = ", ".join(entry.spec.name for entry in records)
        why = f"There are: {names}." if names else "There is none yet."
        raise NotFound(f"There is no sweep {name!r}.", why=why, do="List them by `trainyard sweep list`.")
    return record


def list_records(settings: Settings) -> Iterator[SweepRecord]:
    """Yield every sweep, by name."""
    for path in sorted(settings.sweeps.glob(f"*/{SWEEP_FILE}")):
        record = find_record(settings, path.parent.name)
        if record is not None:
            yield record


def sweep_lock(settings: Settings, name: str, run_id: str) -> AbstractContextManager[Holder]:
    """Return the sweep for one process at a time. Raises `Conflict` (`E-DEVICE-BUSY`)."""
    return device_lock(sweep_folder(settings, name) / "lock", run=run_id, wait_s=LOCK_WAIT_S)


def require_same(record: SweepRecord, spec: SweepSpec) -> None:
    """Raise `Conflict` (`E-PARAMETER`) if the name belongs to another sweep."""
    if dump_spec(record.spec) != dump_spec(spec):
        raise Conflict(
            f"There is another sweep {spec.name!r}.",
            why="Its chain, ranges or options are not these, and trials of two sweeps cannot be compared.",
            do=f"Continue it by `trainyard sweep --continue {spec.name}`, or give this one a name by --name.",
            code="E-PARAMETER",
        )


STUDY_FILE = "study.db"
TARGET, STEPS, REFUSED, CODE, MESSAGE = "target", "steps", "refused", "code", "message"
STATES = {State.COMPLETE: TrialState.COMPLETED, State.PRUNED: TrialState.STOPPED, State.FAIL: TrialState.FAILED}

optuna.logging.set_verbosity(optuna.logging.WARNING)

COMPARED: set[tuple[str, int]] = set()
"""Path and inode of the files whose tables are those of this Optuna, as far as this process has seen."""


def build_distribution(parameter: Range | Choice) -> BaseDistribution:
    """Return a range in Optuna's words."""
    if isinstance(parameter, Choice):
        return CategoricalDistribution(parameter.options)
    if parameter.type == "int":
        return IntDistribution(
            int(parameter.low), int(parameter.high), log=parameter.log, step=int(parameter.step or 1)
        )
    return FloatDistribution(parameter.low, parameter.high, log=parameter.log, step=parameter.step)


def make_sampler(spec: SweepSpec, number: int) -> optuna.samplers.BaseSampler:
    """The sampler of one trial. Each trial has a seed of its own, so a sweep that continues draws no value twice."""
    seed = int(np.random.SeedSequence([spec.seed, number]).generate_state(1)[0])
    if spec.sampler == "tpe":
        return optuna.samplers.TPESampler(seed=seed)
    return optuna.samplers.RandomSampler(seed=seed)


def read_trials(folder: Path, spec: SweepSpec) -> list[Trial]:
    """Return the trials of a sweep for who only looks at them; none before it has begun."""
    path = folder / STUDY_FILE
    if not path.is_file():
        return []
    key = str(path), path.stat().st_ino
    # To compare the tables with this Optuna's takes three fifths of a look, and a page looks every few seconds.
    storage = optuna.storages.RDBStorage(database_url(path), skip_compatibility_check=key in COMPARED)
    COMPARED.add(key)
    try:
        study = optuna.load_study(study_name=spec.name, storage=storage)
    except KeyError:
        # An earlier version was killed before the study was in its file; the sweep makes it when it continues.
        return []
    return [read_trial(trial) for trial in study.get_trials(deepcopy=False)]


def database_url(path: Path) -> str:
    return f"sqlite:///{path}"


class SweepStudy:
    """The trials of one sweep; one process at a time writes them."""

    def __init__(self, folder: Path, spec: SweepSpec) -> None:
        self.spec = spec
        self.highest = spec.direction == "max"
        self.direction: Literal["minimize", "maximize"] = "maximize" if self.highest else "minimize"
        self.distributions = {path: build_distribution(parameter) for path, parameter in spec.parameters.items()}
        path = folder / STUDY_FILE
        if not path.exists():
            # Under its name the file is a whole study: Optuna makes its tables one by one, and both a reader in between
            # and this process would find half of them.
            with new_file(path) as temporary:
                self.open(temporary)
        self.study = self.open(path)

    def open(self, path: Path) -> optuna.Study:
        return optuna.create_study(
            storage=database_url(path), study_name=self.spec.name, direction=self.direction, load_if_exists=True
        )

    def trials(self) -> list[Trial]:
        return [read_trial(trial) for trial in self.study.get_trials(deepcopy=False)]

    def add(self, target: int | None) -> Trial:
        """Draw the values of the next trial and record it; nothing is recorded if this process dies before."""
        before = self.study.get_trials(deepcopy=False)
        params = self.draw(before)
        self.study.add_trial(
            optuna.trial.create_trial(
                state=State.RUNNING, params=params, distributions=self.distributions, user_attrs={TARGET: target}
            )
        )
        return self.trials()[-1]

    def draw(self, before: list[FrozenTrial]) -> JsonObject:
        """Return the values of the next trial.

        The sampler sees a copy of the study in which paused trials are pruned ones: Optuna learns nothing from a
        running trial, and everything that is known of a pruned one.
        """
        number = len(before)
        if self.spec.sampler == "grid":
            return self.draw_of_grid(number)
        seen = optuna.create_study(direction=self.direction, sampler=make_sampler(self.spec, number))
        seen.add_trials(
            [mark_pruned(trial) for trial in before if trial.intermediate_values or trial.state is State.COMPLETE]
        )
        return dict(seen.ask(self.distributions).params)

    def draw_of_grid(self, number: int) -> dict[str, Scalar]:
        """Return the combination of that number, in an order that the seed shuffles."""
        grid = list(self.spec.grid())
        random.Random(self.spec.seed).shuffle(grid)
        return next(itertools.islice(grid, number, None))

    def aim(self, number: int, target: int | None) -> None:
        """Record that a paused trial continues to a step."""
        self.handle(number).set_user_attr(TARGET, target)

    def pause(self, number: int, step: int, value: float) -> None:
        """Record the metric of a trial at its rung."""
        trial = self.handle(number)
        trial.set_user_attr(STEPS, step)
        trial.report(value, step)

    def complete(self, number: int, steps: int, value: float) -> None:
        self.handle(number).set_user_attr(STEPS, steps)
        self.study.tell(number, value)

    def end(self, number: int, state: TrialState, code: str, message: str) -> None:
        """Record a trial that was refused or failed."""
        trial = self.handle(number)
        trial.set_user_attr(REFUSED, state is TrialState.REFUSED)
        trial.set_user_attr(CODE, code)
        trial.set_user_attr(MESSAGE, message)
        self.study.tell(number, state=State.FAIL)

    def stop_paused(self) -> None:
        """End the trials that were never promoted. Optuna counts them as pruned."""
        for trial in self.trials():
            if trial.state is TrialState.PAUSED:
                self.study.tell(trial.number, state=State.PRUNED)

    def handle(self, number: int) -> optuna.trial.Trial:
        """Return a trial that can be written, also one that an earlier process began."""
        trial = self.study.get_trials(deepcopy=False)[number]
        return optuna.trial.Trial(self.study, trial._trial_id)


def mark_pruned(trial: FrozenTrial) -> FrozenTrial:
    """Return a trial for the sampler: a paused one as pruned."""
    state = State.COMPLETE if trial.state is State.COMPLETE else State.PRUNED
    return optuna.trial.create_trial(
        state=state, value=trial.value if state is State.COMPLETE else None, params=trial.params,
        distributions=trial.distributions, intermediate_values=trial.intermediate_values,
    )  # fmt: skip


def read_trial(trial: FrozenTrial) -> Trial:
    """Optuna's trial in our words."""
    attributes: JsonMapping = trial.user_attrs
    target, code = attributes.get(TARGET), str(attributes.get(CODE, ""))
    state = STATES.get(trial.state, TrialState.RUNNING)
    if state is TrialState.RUNNING and target in trial.intermediate_values:
        state = TrialState.PAUSED
    if state is TrialState.FAILED and attributes.get(REFUSED):
        state = TrialState.REFUSED
    return Trial(
        number=trial.number, params=trial.params, state=state, found=trial.intermediate_values,
        value=trial.value if state is TrialState.COMPLETED else None,
        target=target, steps=int(attributes.get(STEPS, 0)), code=code, message=str(attributes.get(MESSAGE, "")),
    )  # fmt: skip
