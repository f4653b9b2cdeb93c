"""Start a sweep, continue one wherever it was left, or stop it.

From a request to a complete sweep: its chain with an evaluation, its ranges, its rungs; checked before any trial.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from trainyard.app.chains.stored import show_chain
from trainyard.app.context import Context
from trainyard.app.plan.limits import require_free_worker
from trainyard.app.plan.locate import locate_request
from trainyard.app.plan.parse import parse_request
from trainyard.app.plan.refusals import refuse_or_wait
from trainyard.app.plan.resolve import resolve_chain
from trainyard.app.runs import connect_runs
from trainyard.app.sweeps import SweepReport, show_sweep
from trainyard.errors import Conflict, InvalidInput, NotFound, Reason, Refused
from trainyard.json_types import JsonObject
from trainyard.operations.chains import ShowChainInput
from trainyard.operations.sweeps import ShowSweepInput, SweepInput, SweepNameInput
from trainyard.settings import Settings
from trainyard.spec.axes.backends import STOP_AT_STEPS
from trainyard.spec.chain import ChainSpec, ResolvedChain, digest
from trainyard.spec.model_schema import flatten_settings
from trainyard.spec.training import EvalSettings, TrainerConfig
from trainyard.stores.live.job_ids import JOB_TAG, TENANT_TAG, draw_job_id
from trainyard.sweeps.chains import apply_values, check_parameters, find_trainer, split_path
from trainyard.sweeps.spec import Choice, Range, SweepSpec, is_range, parse_range, rung_steps
from trainyard.sweeps.study import SweepRecord, dump_spec, find_record, read_record, require_same, write_record

LENGTH = ("hyperparameters.max_steps", "hyperparameters.epochs", "eval.steps")
"""Settings of the trainer that have to be the same in every trial that stops at rungs."""
NAME_LENGTH = 54


def build_sweep(request: SweepInput, context: Context) -> SweepSpec:
    """Return the sweep that a request means.

    Raises `InvalidInput` (`E-PARAMETER`) for a range, a path or an option, `Refused` for a chain or a value.
    """
    settings = context.settings
    target = (
        str(request.file) if request.chain is None else show_chain(ShowChainInput(chain=request.chain), context).body
    )
    written = locate_request(parse_request(target), settings).spec
    chain = resolve_chain(written, settings)
    trainer, ids = find_trainer(chain, request.trainer), tuple(node.id for node in chain.nodes)
    ranges, fixed = read_parameters(request, ids, written)
    require_one_length(request, ids, written, trainer, ranges)
    written = add_evaluation(apply_values(written, ids, fixed), ids, trainer, request, context)
    config = require_trainer(resolve_chain(written, settings), trainer)
    metric = request.asked_metric or (config.eval.metric if config.eval else config.stage.facts.eval_metrics[0])
    rungs = choose_rungs(request, config)
    combinations = math.prod(len(values.values) if values.values else math.inf for values in ranges.values())
    body: JsonObject = {
        "chain": written, "trainer": trainer, "parameters": ranges, "metric": metric,
        "direction": request.direction or metric.facts.best, "rungs": rungs,
        "steps": config.hyperparameters.max_steps,
        "trials": int(min(request.trials, combinations)) if request.sampler == "grid" else request.trials,
        **request.model_dump(include={"scheduler", "sampler", "seed", "reduction", "parallel"}),
    }  # fmt: skip
    spec = build_spec(body, request.name, chain.name)
    check_parameters(spec.chain, ids, ranges, lambda config: resolve_pausable_chain(config, spec, settings))
    refuse_or_wait(resolve_chain(spec.chain, settings), settings, is_job=False, allows=bool)
    return spec


def build_spec(body: Mapping[str, object], name: str | None, chain: str) -> SweepSpec:
    """Return the sweep under its name: by default its chain's, with a digest of all that it is."""
    try:
        spec = SweepSpec(name=name or "sweep", **body)
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise InvalidInput(f"The sweep is not valid: {reason}.", do="Correct it.", code="E-PARAMETER") from error
    if name is not None:
        return spec
    return spec.model_copy(update={"name": f"{chain[:NAME_LENGTH]}-{digest(dump_spec(spec))[:8]}"})


def read_parameters(
    request: SweepInput, ids: tuple[str, ...], written: ChainSpec
) -> tuple[dict[str, Range | Choice], dict[str, Any]]:
    """(path -> range, path -> value of all trials). Raises `InvalidInput` (`E-PARAMETER`) naming the path."""
    ranges: dict[str, Range | Choice] = {}
    fixed: dict[str, Any] = {}
    whole = written.model_dump(mode="json")
    for path, value in flatten_settings(request.parameters).items():
        split_path(path, ids, whole)
        if is_range(value):
            ranges[path] = parse_range(path, value)
        else:
            fixed[path] = value
    if not ranges:
        raise InvalidInput(
            "No setting is varied.",
            do="Give at least one range: -p 'trainer.learning_rate=loguniform(1e-5, 1e-3)'.",
            code="E-PARAMETER",
        )
    return ranges, fixed


def require_one_length(
    request: SweepInput, ids: tuple[str, ...], written: ChainSpec, trainer: str, ranges: dict[str, Range | Choice]
) -> None:
    """Raise `InvalidInput` (`E-PARAMETER`) for a varied length where trials are compared at the same steps."""
    whole = written.model_dump(mode="json")
    for path in ranges if request.scheduler == "asha" else ():
        node, keys = split_path(path, ids, whole)
        if ids[node] == trainer and ".".join(keys) in LENGTH:
            raise InvalidInput(
                f"{path} cannot be varied by a sweep that stops trials at rungs.",
                why="Trials are compared at the same steps of trainings of one length.",
                do="Give it one value, or add --scheduler none.",
                code="E-PARAMETER",
            )


def add_evaluation(
    written: ChainSpec, ids: tuple[str, ...], trainer: str, request: SweepInput, context: Context
) -> ChainSpec:
    """Return the chain whose trainer measures the metric at every rung."""
    config = require_trainer(resolve_chain(written, context.settings), trainer)
    evaluation = config.eval
    if evaluation is None:
        context.say(f"{trainer}: {EvalSettings().held_out_share:.0%} of its rows are held out to compare the trials")
    values: JsonObject = {}
    metric = request.asked_metric
    if evaluation is None or (metric is not None and evaluation.metric is not metric):
        values[f"{trainer}.eval.metric"] = (metric or config.stage.facts.eval_metrics[0]).value
    steps = config.hyperparameters.max_steps
    if request.scheduler == "asha" and (evaluation is None or evaluation.steps is None):
        if steps is None:
            raise InvalidInput(
                "The trials have no common number of steps.",
                why="Rungs are steps, and the trainer has epochs.",
                do=f"Add -p {trainer}.max_steps=N, or --scheduler none.",
                code="E-PARAMETER",
            )
        first = first_rung(request, config, steps)
        if request.first_rung is None and first > math.ceil(steps / request.reduction**2):
            context.say(f"{trainer}: the first rung is step {first}, behind the warm-up")
        values[f"{trainer}.eval.steps"] = min(first, steps)
    return apply_values(written, ids, values)


def first_rung(request: SweepInput, config: TrainerConfig, steps: int) -> int:
    """Return the step of the first rung, behind the warm-up of the trainer: in it a rate is not yet what it is called.

    Raises `InvalidInput` (`E-PARAMETER`) for a `first_rung` inside the warm-up.
    """
    warmup = config.hyperparameters.warmup(steps) if config.hyperparameters.schedule.facts.warms_up else 0
    if request.first_rung is not None and request.first_rung <= warmup:
        raise InvalidInput(
            f"The first rung is step {request.first_rung}, inside the warm-up of {warmup} steps.",
            why="Trials would be compared at rates that they have not reached.",
            do=f"Use a first rung of at least {warmup + 1}, or a shorter warm-up.",
            code="E-PARAMETER",
        )
    return request.first_rung or max(math.ceil(steps / request.reduction**2), warmup + 1)


def choose_rungs(request: SweepInput, config: TrainerConfig) -> tuple[int, ...]:
    """Return the rungs, at steps that are evaluated. Raises `InvalidInput` (`E-PARAMETER`)."""
    steps, every = config.hyperparameters.max_steps, (config.eval or EvalSettings()).steps
    if request.scheduler == "none":
        return ()
    if steps is None or not isinstance(every, int):
        raise InvalidInput(
            "Trials stop at steps, and the trainer is evaluated at the end of epochs.",
            do="Give max_steps, and a number in eval.steps or none.",
            code="E-PARAMETER",
        )
    first = first_rung(request, config, steps)
    return rung_steps(steps, request.reduction, math.ceil(first / every) * every)


def resolve_pausable_chain(written: ChainSpec, spec: SweepSpec, settings: Settings) -> ResolvedChain:
    """Return the resolved chain of a trial. Raises `Refused`, also for a backend that cannot stop at a rung."""
    chain = resolve_chain(written, settings)
    backend = require_trainer(chain, spec.trainer).backend
    if spec.scheduler == "asha" and backend not in STOP_AT_STEPS:
        because = f"The backend {backend.value} cannot stop a training after a step that is named."
        instead = "Use --scheduler none, or the backend native."
        raise Refused([Reason("R-BACKEND-SETTING", spec.trainer, "config.backend", because, instead)])
    return chain


def require_trainer(chain: ResolvedChain, trainer: str) -> TrainerConfig:
    config = chain.node(trainer).config
    assert isinstance(config, TrainerConfig), "found by its type"
    return config


DEPLOYMENT = "sweep/local"


def sweep(request: SweepInput, context: Context) -> SweepReport:
    """Start or continue a sweep. The same command again continues it, too.

    Raises what `build_sweep` raises, `Conflict` (`E-PARAMETER`) for a name that is taken, `NotFound` (`E-NOT-FOUND`).
    """
    since = time.time()
    record = find_or_build_record(request, context)
    run_id, progress = continue_or_start(record, context.settings)
    context.say(f"sweep {record.spec.name}: {progress}, run {run_id}")
    if request.watch:
        connect_runs(context.settings).watch_run(run_id, on_progress=context.on_progress, since=since)
    return show_sweep(ShowSweepInput(name=record.spec.name), context)


def find_or_build_record(request: SweepInput, context: Context) -> SweepRecord:
    """Return the sweep that is there already, or a new record. Raises `InvalidInput` (`E-PARAMETER`)."""
    named = [source for source in (request.file, request.chain, request.continued) if source is not None]
    if len(named) != 1 or (request.continued and request.parameters):
        raise InvalidInput(
            "A sweep is begun from a file or a stored chain, or continued by its name.",
            why="One that is continued has its ranges and options already.",
            do="Give FILE or --chain NAME with -p, or --continue NAME alone.",
            code="E-PARAMETER",
        )
    if request.continued is not None:
        return read_record(context.settings, request.continued)
    spec = build_sweep(request, context)
    record = find_record(context.settings, spec.name)
    if record is not None:
        require_same(record, spec)
        return record
    require_free_worker(spec.chain.tenant, context, request.parallel)
    return SweepRecord(spec=spec, created=time.time())


def continue_or_start(record: SweepRecord, settings: Settings) -> tuple[str, str]:
    """(run, what it is doing): the run of the sweep continued, or a new one where there is none any more."""
    if record.run_id:
        try:
            progress = connect_runs(settings).continue_unless_running(record.run_id)
        except NotFound:
            progress = ""
        if progress:
            return record.run_id, progress
    runs, spec = connect_runs(settings), record.spec
    write_record(settings, record)
    tags = (JOB_TAG, draw_job_id(), f"{TENANT_TAG}{spec.chain.tenant}")
    parameters = {"spec": dump_spec(spec)}
    started = runs.start_run(DEPLOYMENT, parameters, tags=tags, called=spec.name)
    write_record(settings, record.model_copy(update={"run_id": started.run_id}))
    return started.run_id, "started"


def stop_sweep(request: SweepNameInput, context: Context) -> SweepReport:
    """Cancel the run of a sweep. Raises `NotFound`, `Conflict` (`E-JOB-STATE`) if it has ended."""
    record = read_record(context.settings, request.name)
    if not record.run_id:
        raise Conflict(f"The sweep {request.name} has no run yet.", do="Start it.", code="E-JOB-STATE")
    connect_runs(context.settings).cancel_run(record.run_id)
    return show_sweep(ShowSweepInput(name=request.name), context)
