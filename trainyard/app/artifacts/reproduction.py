"""`trainyard reproduce`: carry out a recorded training again, and compare what it makes with what the ledger says.

Everything comes from the entry and from the recipe whose digest is in it. The training is a supervised child in a
scratch folder of the home, with the recorded seed, thread count and choices: nothing is registered, published,
mirrored or logged to a tracker, and a training that asks a service is refused, because that costs money.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from trainyard.app.artifacts.ledger import list_rows, match_entry, open_ledger
from trainyard.app.artifacts.recipe_inputs import (
    CheckedInput,
    InputStore,
    RowReader,
    digest_folder,
    find_base,
    missing_input,
)
from trainyard.app.context import Context
from trainyard.app.responses import Response
from trainyard.backends.base import run_training
from trainyard.backends.choices import decide_choices
from trainyard.backends.job import REPRODUCED_RUN, TrainingJob
from trainyard.backends.ledger_entry import read_training_record
from trainyard.backends.machine import code_digest
from trainyard.backends.recipe import (
    CHOSEN,
    CODE,
    ENDS,
    Recipe,
    RecipeInput,
    describe_machine,
    read_recipe,
    recipe_file,
    weights_sha256,
)
from trainyard.compute.events import Event
from trainyard.compute.gpus import device_numbers
from trainyard.compute.lease import device_folder
from trainyard.compute.supervise import DesiredState
from trainyard.data.functions import ENVIRONMENT
from trainyard.errors import Corrupt, InvalidInput, NotFound, Unavailable
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.operations.ledger import ReproduceInput
from trainyard.settings import Settings
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.data import Port
from trainyard.spec.axes.devices import Device
from trainyard.spec.training import TrainerConfig
from trainyard.stores.files import DISK
from trainyard.stores.ledger.checking import verify_ledger
from trainyard.stores.ledger.log import Ledger
from trainyard.stores.ledger.recording import TRAINED
from trainyard.stores.whole import move_folder

TOLERANCE = 0.01
"""Largest relative difference of a mean loss at which a training on other hardware counts as reproduced."""
BACKENDS = (BackendName.NATIVE, BackendName.TRL)
"""Backends that compute in this installation, in the precision and with the threads that a recipe names."""
LOSSES = ("loss_at_start", "loss_at_end")


class ReproducedWeights(Response):
    """A training that was carried out again."""

    entry: int
    node: str
    recorded: str
    """Digest of the weights without times and paths, as the ledger has it."""
    sha256: str
    losses: dict[str, tuple[float, float]]
    """`loss_at_start`, `loss_at_end` -> as recorded, and now."""
    seconds: float

    @property
    def divergence(self) -> float:
        """Return the largest relative difference of a loss."""
        return max((abs(now - then) / max(abs(then), 1e-12) for then, now in self.losses.values()), default=1.0)


class Reproduction(Response):
    """Verdict on a training that was carried out again."""

    entry: int
    run: str
    verdict: Literal["identical", "within tolerance", "different"]
    inputs: tuple[CheckedInput, ...]
    trainings: tuple[ReproducedWeights, ...]
    """The last one is that of the entry; those before it are earlier weights that were trained again."""
    differences: tuple[str, ...]
    """What is not as it was: versions, code, processor, choices, digests."""
    unchecked: tuple[str, ...]
    """What could not be checked, and why."""
    tolerance: float = TOLERANCE
    kept: Path | None = None

    @property
    def exit_code(self) -> int:
        return 1 if self.verdict == "different" else 0


@dataclass(frozen=True)
class Evidence:
    """A ledger with the recipes and inputs of its trainings: of this home, or of a bundle."""

    ledger: Ledger
    recipes: Path
    inputs: InputStore
    rows: Mapping[int, JsonObject]

    def recipe(self, entry: JsonMapping) -> Recipe:
        """Return the recipe of a training. Raises `NotFound`, `Corrupt`."""
        if not entry.get("recipe_sha256"):
            raise NotFound(
                f"Entry {entry['seq']} has no recipe.",
                why=f"It could not be written: {entry['recipe_missing']}." if entry.get("recipe_missing")
                else "It was trained by an earlier version, which kept none.",
                do="Run its chain again; from now on each training has one.",
                code="E-NOT-FOUND",
            )  # fmt: skip
        sha256 = str(entry["recipe_sha256"])
        return read_recipe(recipe_file(self.recipes, sha256), sha256)

    def find_training(self, sha256: str) -> JsonObject | None:
        """Return the entry of the training that made a result."""
        made = (row for row in self.rows.values() if row["kind"] == TRAINED and row.get("recipe_sha256"))
        return next((row for row in made if sha256 in list_outputs(row)), None)


def list_outputs(entry: JsonMapping) -> list[str]:
    return [str(output.get("sha256")) for output in (entry.get("outputs") or {}).values()]


@dataclass
class Attempt:
    """What a reproduction has found so far."""

    evidence: Evidence
    request: ReproduceInput
    context: Context
    work: Path
    inputs: list[CheckedInput] = field(default_factory=list)
    trainings: list[ReproducedWeights] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    @property
    def settings(self) -> Settings:
        return self.context.settings


def reproduce(request: ReproduceInput, context: Context) -> Reproduction:
    """Carry out a training again. Raises `NotFound` naming the digest that is missing, `Corrupt`, `InvalidInput`."""
    evidence = open_evidence(request, context)
    entry = find_training(request.entry, evidence, context)
    keep = request.keep.expanduser().absolute() if request.keep else None
    with open_scratch(context.settings) as work:
        attempt = Attempt(evidence, request, context, work)
        result, is_exact = train_again(entry, attempt)
        verdict = judge(attempt, is_exact)
        if keep is not None:
            move_folder(DISK, result, keep)
    return Reproduction(
        entry=int(entry["seq"]), run=str(entry.get("run", "")), verdict=verdict,
        inputs=tuple(dict.fromkeys(attempt.inputs)),
        trainings=tuple(attempt.trainings), differences=tuple(dict.fromkeys(attempt.differences)),
        unchecked=tuple(dict.fromkeys(attempt.unchecked)), kept=keep,
    )  # fmt: skip


def judge(attempt: Attempt, is_exact: bool) -> Literal["identical", "within tolerance", "different"]:
    """Return the verdict: equal digests; or where the hardware allows no equal bits, equal losses."""
    last = attempt.trainings[-1]
    if last.sha256 == last.recorded and all(item.matches for item in attempt.inputs):
        return "identical"
    return "within tolerance" if not is_exact and last.divergence <= TOLERANCE else "different"


@contextmanager
def open_scratch(settings: Settings) -> Iterator[Path]:
    """Yield a folder of the home that is removed at the end."""
    settings.home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=settings.home, prefix=".reproduce-") as name:
        yield Path(name)


def open_evidence(request: ReproduceInput, context: Context) -> Evidence:
    """Return the ledger that is asked, after a check of a bundle's. Raises `NotFound`, `Corrupt`."""
    if request.bundle is None:
        ledger, recipes = open_ledger(context), context.settings.home
    else:
        recipes = request.bundle.expanduser().absolute()
        ledger = Ledger(recipes, recipes / "no-key")
        ledger.head()
        if problems := verify_ledger(ledger).problems:
            raise Corrupt(
                f"The ledger of the bundle was changed: {problems[0].problem} ({problems[0].file})",
                do="Ask its owner for the bundle again.",
                code="E-CORRUPT",
            )
    rows = list_rows(ledger, "" if request.bundle else context.caller.tenant)
    return Evidence(ledger, recipes, InputStore(context.settings, recipes if request.bundle else None), rows)


def find_training(word: str, evidence: Evidence, context: Context) -> JsonObject:
    """Return the entry of the training that a word names; of one that was reused, that which trained."""
    seq = match_entry(word, evidence.rows)
    if seq is None:
        raise NotFound(
            f"The ledger has no entry {word!r}.",
            why=f"It has {len(evidence.rows)} entries.",
            do="Copy a number from `trainyard ledger log --kind trained`, or name a run or a job.",
        )
    entry = evidence.rows[seq]
    if entry["kind"] != TRAINED:
        raise InvalidInput(
            f"Entry {seq} is of the kind {entry['kind']}; only trainings are carried out again.",
            do="Copy a number from `trainyard ledger log --kind trained`.",
        )
    made = next((found for sha in list_outputs(entry) if (found := evidence.find_training(sha))), None)
    return made if entry.get("reused") and made is not None else entry


def train_again(entry: JsonObject, attempt: Attempt) -> tuple[Path, bool]:
    """Train an entry's recipe in the scratch folder; return the result, and whether equal bits were to be expected."""
    recipe = attempt.evidence.recipe(entry)
    settings = attempt.settings.for_tenant(str(entry.get("tenant") or ""))
    config = TrainerConfig.model_validate(recipe.job["config"])
    refuse_services(config)
    config = config.model_copy(update={"engine": config.engine.model_copy(update={"mirror": None, "trackers": ()})})
    folder = attempt.work / str(entry["seq"])
    base = find_inputs_base(recipe, attempt, settings)
    job = TrainingJob.model_validate(
        {
            **recipe.job,
            **find_others(config, recipe, attempt, settings),
            "config": config,
            "base": str(base),
            "data": {port.value: str(path) for port, path in find_rows(recipe, base, attempt, settings)},
            "locks": str(device_folder(settings)),
            "devices": device_numbers()[: config.launch.local_processes],
            "run": f"{REPRODUCED_RUN}{entry['key'][:12]}",
            "tenant": str(entry.get("tenant") or ""),
        }
    )
    job, is_exact = settle_machine(job, base, recipe, attempt, settings)
    started = time.monotonic()
    run_training(
        job, folder, desired_state=lambda: watch(attempt.context), on_event=lambda event: say(event, attempt.context),
        settings=settings.model_copy(update={"home": attempt.work / "home"}),
    )  # fmt: skip
    result = folder / job.output.value
    record = read_training_record(result)
    attempt.trainings.append(
        ReproducedWeights(
            entry=int(entry["seq"]), node=recipe.node, recorded=recipe.weights_sha256, sha256=weights_sha256(result),
            losses={n: (recipe.ends[n], record[n]) for n in LOSSES if n in recipe.ends and n in record},
            seconds=round(time.monotonic() - started, 1),
        )
    )  # fmt: skip
    attempt.differences += compare_records(recipe, record)
    return result, is_exact


def watch(context: Context) -> DesiredState:
    return DesiredState.CANCEL if context.departure.has_left else DesiredState.RUN


def say(event: Event, context: Context) -> None:
    if event["event"] == "progress" and event.get("step") == event.get("total_steps"):
        context.say(f"step {event['step']} of {event['total_steps']}, loss {event.get('loss')}")


def refuse_services(config: TrainerConfig) -> None:
    """Raise `Unavailable` for a training that money or another machine would be needed for."""
    stage = config.stage
    reasons = {
        f"it was trained by the service {config.backend.value}, which is paid": config.backend.facts.remote,
        f"its backend {config.backend.value} computes in an environment of its own": config.backend not in BACKENDS,
        "a judge on a server scores its answers": bool(stage.judges),
        "its teacher answers on a server": stage.teacher_server is not None,
        "it was trained on several machines": config.launch.node_count > 1 or config.launch.diloco is not None,
    }
    if reason := next((text for text, applies in reasons.items() if applies), ""):
        raise Unavailable(
            f"This training is not carried out again: {reason}.",
            why="The same bits are not to be expected of it, and nothing is spent or asked elsewhere by this command.",
            do="Run its chain again, with --refresh, and compare the two: trainyard compare RUN RUN.",
        )


def find_inputs_base(recipe: Recipe, attempt: Attempt, settings: Settings) -> Path:
    """Return the folder of the base, whose digest is checked; it may be a model that another training made."""
    model = recipe.input(Port.MODEL.value)
    if model is not None:
        return find_weights(model, attempt)
    item = recipe.input("base")
    assert item is not None, "every recipe has a base"
    source = find_base(item, attempt.request.base or item.name, settings)
    attempt.inputs.append(CheckedInput(role="base", recorded=item.sha256, sha256=source.sha256, how="by its name"))
    assert source.path is not None, "checked by find_base"
    return source.path


def find_others(config: TrainerConfig, recipe: Recipe, attempt: Attempt, settings: Settings) -> JsonObject:
    """Return the fields of the job about earlier weights, a teacher, a reward model and an environment."""
    fields: JsonObject = {}
    for role, name in ((Port.ADAPTER, "adapter"), (Port.REWARD, "reward_model")):
        if (item := recipe.input(role.value)) is not None:
            fields[name] = str(find_weights(item, attempt))
    if (teacher := config.stage.teacher_model) is not None:
        item = RecipeInput(role="teacher", sha256=str(recipe.job.get("teacher_sha256")), name=teacher)
        fields["teacher"] = str(find_base(item, teacher, settings).path)
    if (function := config.stage.environment_function) is not None:
        recorded, now = str(recipe.job["environment_sha256"]), ENVIRONMENT.digest(function, settings.environments)
        attempt.inputs.append(CheckedInput(role="environment", recorded=recorded, sha256=now, how="of the settings"))
        fields["environment"] = ENVIRONMENT.find_reference(function, settings.environments)
    return fields


def find_weights(item: RecipeInput, attempt: Attempt) -> Path:
    """Return earlier weights: the stored copy, else trained again from their own entry."""
    stored = None if attempt.request.from_base else attempt.evidence.inputs.find(item)
    if stored is not None:
        found = CheckedInput(role=item.role, recorded=item.sha256, sha256=item.sha256, how="a stored copy")
        attempt.inputs.append(found)
        return stored
    entry = attempt.evidence.find_training(item.sha256)
    if entry is None:
        raise missing_input(item, "No stored copy has this digest, and the ledger has no training that made it.")
    result, _ = train_again(entry, attempt)
    made = attempt.trainings[-1]
    attempt.inputs.append(
        CheckedInput(
            role=item.role, recorded=made.recorded, sha256=made.sha256, how=f"trained again, entry {made.entry}"
        )
    )
    return result


def find_rows(recipe: Recipe, base: Path, attempt: Attempt, settings: Settings) -> Iterator[tuple[Port, Path]]:
    """Yield the rows of each port: a stored copy, and read again where their source is here.

    Raises `NotFound` naming the digest that nothing here has.
    """
    for item in recipe.inputs:
        kind, _, port = item.role.partition("/")
        if kind != "data":
            continue
        stored = attempt.evidence.inputs.find(item)
        reader = RowReader(recipe, settings, base, attempt.work / "rows" / recipe.node)
        again, why = reader.read(Port(port))
        if again is not None:
            found = CheckedInput(
                role=item.role, recorded=item.sha256, sha256=digest_folder(again), how="read again from its source"
            )
            attempt.inputs.append(found)
            if not found.matches:
                attempt.differences.append(
                    f"{item.role}: its source now gives the digest {found.sha256}, not {item.sha256}; "
                    + ("the stored copy was trained on" if stored else "these rows were trained on")
                )
        else:
            attempt.unchecked.append(f"{item.role} was not read again from its source: {why}")
        if stored is not None and again is None:
            found = CheckedInput(role=item.role, recorded=item.sha256, sha256=item.sha256, how="a stored copy")
            attempt.inputs.append(found)
        path = stored or again
        if path is None:
            raise missing_input(item, f"No stored copy has this digest, and {why}.")
        yield Port(port), path


def settle_machine(
    job: TrainingJob, base: Path, recipe: Recipe, attempt: Attempt, settings: Settings
) -> tuple[TrainingJob, bool]:
    """Note what is not as it was; return the job for this machine, and whether equal bits are to be expected."""
    now = decide_choices(job.config, base, settings)
    choices, is_exact = job.choices or now, True
    if choices.device is not now.device:
        attempt.differences.append(f"device: {choices.device.value} recorded, {now.device.value} here")
        choices, is_exact = now, False
    elif choices.precision is not now.precision:
        attempt.differences.append(
            f"precision: {choices.precision.value} recorded and used, this machine would choose {now.precision.value}"
        )
    if now.threads and job.threads != now.threads:
        attempt.differences.append(f"threads: {job.threads} recorded and used, this machine has {now.threads}")
    is_exact = is_exact and choices.device is Device.CPU
    for name, recorded in recipe.versions.items():
        if (here := read_version(name)) != recorded:
            attempt.differences.append(f"version of {name}: {recorded} recorded, {here or 'not installed'} here")
            is_exact = False
    machine = describe_machine()
    for name, recorded in recipe.machine.items():
        if machine.get(name) != recorded:
            attempt.differences.append(f"{name}: {recorded} recorded, {machine.get(name)} here")
            is_exact = is_exact and name == "python"
    if (code := code_digest(CODE)) != recipe.code_sha256:
        attempt.differences.append(f"code of Trainyard: digest {recipe.code_sha256[:16]} recorded, {code[:16]} here")
    return job.model_copy(update={"choices": choices}), is_exact


def read_version(name: str) -> str:
    """Return the installed version of a package; empty without it."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def compare_records(recipe: Recipe, record: JsonMapping) -> Iterator[str]:
    """Yield each automatic choice and each count that is not as recorded."""
    for name in (name for name in CHOSEN if not name.endswith("_why")):
        then, now = recipe.choices.get(name), record.get(name)
        if then != now and not (then is None and now in (None, "")):
            yield f"{name}: {then} recorded, {now} here"
    for name in (name for name in ENDS if name not in LOSSES):
        if recipe.ends.get(name) != record.get(name):
            yield f"{name}: {recipe.ends.get(name)} recorded, {record.get(name)} here"
