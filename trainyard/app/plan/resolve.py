"""What a run would do, without doing it: the resolved chain, finished results, estimates, and refusals.

Imports neither Prefect nor torch, so that `trainyard check` and `trainyard plan` answer at once.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from trainyard.app.checkout import checkout
from trainyard.app.keys import content_key
from trainyard.app.plan import machine as acceptance
from trainyard.app.plan.auto_method import MethodDecision, decide_methods, take_recorded
from trainyard.app.plan.measurements import (
    FinishedNodes,
    counted_tokens,
    data_names,
    folder_of,
    known_timings,
    list_templated,
    reads_local_data,
    shape_of,
)
from trainyard.app.plan.queue import queue_seconds
from trainyard.app.responses import Response
from trainyard.backends.base import probe_all
from trainyard.backends.choices import decide_choices, decide_evaluation
from trainyard.backends.timings.records import slowdown_here
from trainyard.callbacks import ignore
from trainyard.compute.gpus import devices_here
from trainyard.data.paths import data_roots, resolve_inside
from trainyard.errors import InvalidInput, NotFound, Reason, Refused, TrainyardError
from trainyard.loading import load
from trainyard.sandbox.service import Confinement, find_confinement
from trainyard.serve.inference_server import vllm
from trainyard.settings import Settings
from trainyard.settings import settings as current_settings
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.data import Port
from trainyard.spec.axes.devices import Device
from trainyard.spec.axes.targets import TargetType
from trainyard.spec.chain import ChainSpec, ResolvedChain, ResolvedNode
from trainyard.spec.compat.advice import advice
from trainyard.spec.compat.context import RunFacts
from trainyard.spec.compat.run import length_advice
from trainyard.spec.compat.steps import step_advice, step_reasons
from trainyard.spec.compat.table import run_reasons
from trainyard.spec.estimate.bases import BaseFacts
from trainyard.spec.estimate.cascade import with_hyper
from trainyard.spec.estimate.estimate import Estimate, Known, SampledNode, estimate
from trainyard.spec.estimate.heldout import tiny_sets
from trainyard.spec.estimate.shape import ModelShape
from trainyard.spec.graph import check, resolve, with_method
from trainyard.spec.job import JobSpec
from trainyard.spec.load.files import load_value, read_chain
from trainyard.spec.migrate import list_deprecated, spell_out
from trainyard.spec.nodes import DeployerConfig, EvaluatorConfig
from trainyard.spec.roles import name_current_folder
from trainyard.spec.templates import TEMPLATES
from trainyard.spec.training import DEFAULT_MAX_LENGTH, TrainerConfig
from trainyard.stores.artifacts import ArtifactStore, NodeOutput, Reference
from trainyard.stores.models import base_facts

JOB = "training-job"
JOB_DEPLOYMENT = f"{JOB}/local"
NAMES = (*TEMPLATES, JOB)
"""What `plan` and `run` accept instead of a file."""
PRESETS = "deployments/presets"


class Asked(BaseModel):
    """What a user asked for: the chain, and the deployment with the parameters that carry it out."""

    model_config = ConfigDict(frozen=True)

    spec: ChainSpec
    deployment: str
    parameters: dict[str, Any]
    notes: tuple[str, ...] = ()
    """A line for each setting that is where an earlier version had it."""


class PlanNode(Response):
    """One node of the plan."""

    id: str
    type: str
    needs: tuple[str, ...]
    takes: dict[str, tuple[str, ...]]
    """Port -> `node.port` from which it comes."""
    gives: tuple[str, ...]
    config: dict[str, Any]
    """The complete config, every default written out."""
    key: str | None
    """Name of its result; None while an input is not made yet."""
    reused: bool
    choices: dict[str, str] = Field(default_factory=dict)
    """What a trainer leaves open and this machine decides, with the reason: a part of the key."""
    problem: str
    """Why it could not run now; empty if nothing is in the way."""
    advice: tuple[str, ...] = ()
    """Settings that are allowed but rarely intended."""
    estimate: Estimate


class ChainPlan(Response):
    """What a run would do."""

    chain: str
    tenant: str
    digest: str
    order: tuple[str, ...]
    nodes: tuple[PlanNode, ...]
    decisions: tuple[MethodDecision, ...] = ()
    """How each `method: auto` was decided here; the machine that runs the chain decides again."""
    backends: dict[str, str]
    """Backend -> `available …`, or why not."""
    refusals: tuple[dict[str, Any], ...]
    """Reasons why this machine would refuse the chain now."""

    @property
    def exit_code(self) -> int:
        return Refused.exit_code if self.refusals else 0

    def _repr_markdown_(self) -> str:
        return str(load("trainyard.app.notebook_views:plan_markdown")(self))


# What is asked for


def existing(target: str) -> Path:
    """The file of that name. Raises `NotFound` (`E-PARAMETER`)."""
    with suppress(OSError, ValueError):  # a name that no file can have, such as a very long one
        if Path(target).is_file():
            return Path(target)
    raise NotFound(
        f"There is neither a template nor a file {target!r}.",
        why=f"Templates are {', '.join(NAMES)}.",
        do="Correct the name or the path.",
        code="E-PARAMETER",
    )


def asked(
    target: str | Mapping[str, Any], parameters: Mapping[str, Any] | None = None, preset: str | None = None
) -> Asked:
    """What a template's name with parameters, a file, or the content of one asks for.

    Raises `NotFound` (`E-PARAMETER`), `Refused` with every reason.
    """
    given = dict(parameters or {})
    value = (
        given
        if isinstance(target, str) and target in NAMES
        else load_value(existing(target))
        if isinstance(target, str)
        else dict(target)
    )
    if isinstance(target, str) and target in NAMES:
        wanted = asked_by_name(target, merged(preset_parameters(target, preset), given) if preset else given)
    elif is_call(value):
        wanted = asked_by_name(str(value["template"]), merged(value.get("parameters") or {}, given))
    elif given or preset:
        raise InvalidInput(
            f"{target if isinstance(target, str) else 'What was given'} is a whole chain and takes no parameters.",
            do="Edit the file, or run a template with -p.",
            code="E-PARAMETER",
        )
    else:
        spec = accepted(value)
        wanted = Asked(spec=spec, deployment="chain/adhoc", parameters={"spec": spec.model_dump(mode="json")})
    return wanted.model_copy(update={"notes": tuple(list_deprecated(value))})


def is_call(value: Any) -> bool:
    """Whether a plain value is the call of a template that there is."""
    if not isinstance(value, Mapping) or "nodes" in value or not isinstance(value.get("template"), str):
        return False
    return value["template"] in NAMES and isinstance(value.get("parameters") or {}, Mapping)


def asked_by_name(name: str, given: dict[str, Any]) -> Asked:
    if name == JOB:
        spec = accepted({"dataset": {}, **given})
        job = JobSpec.model_validate(given).model_dump(mode="json", exclude_unset=True)
        return Asked(spec=spec, deployment=JOB_DEPLOYMENT, parameters={"job": job})  # the form knows our words only
    fields = TEMPLATES[name].model.model_fields
    folders = {field: "." for field, info in fields.items() if str(info.default) == "."}
    named = name_current_folder({**folders, **given}, current_settings().working_folder)
    spec = accepted({"template": name, "parameters": named})
    return Asked(spec=spec, deployment=f"{name}/local", parameters={key: named[key] for key in given})


def accepted(value: Any) -> ChainSpec:
    spec, _ = read_chain(value)
    if spec is None:
        raise Refused(check(value))  # the nodes that can be read are examined too
    return spec


def preset_parameters(name: str, preset: str) -> dict[str, Any]:
    """The parameters in `deployments/presets/<template>.<preset>.yaml`."""
    folder = checkout() / PRESETS
    path = folder / f"{name}.{preset}.yaml"
    if not path.is_file():
        known = sorted(found.stem.partition(".")[2] for found in folder.glob(f"{name}.*.yaml"))
        raise NotFound(
            f"{name} has no preset {preset!r}.",
            why=f"It has: {', '.join(known) or 'none'}.",
            do=f"Correct the name, or add {path.name} to {PRESETS}.",
            code="E-PARAMETER",
        )
    return dict(load_value(path))


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`, group by group; a stage or method of another type replaces the one below."""
    result = dict(below)
    for key, value in above.items():
        under: Any = spell_out({key: result[key]})[key] if key in result else None
        both = isinstance(value, Mapping) and isinstance(under, Mapping)
        same_type = both and value.get("type", under.get("type")) == under.get("type")
        result[key] = merged(under, value) if same_type else value
    return result


def located(wanted: Asked, settings: Settings) -> Asked:
    """The same with whole paths of its models, in the chain and in what the deployment is given."""
    spec = acceptance.locate_models(wanted.spec, settings)
    if "spec" in wanted.parameters:
        parameters: dict[str, Any] = {"spec": spec.model_dump(mode="json")}
    elif "job" in wanted.parameters:
        parameters = {"job": acceptance.locate_parameters(wanted.parameters["job"], settings)}
    else:
        parameters = acceptance.locate_parameters(wanted.parameters, settings)
    return wanted.model_copy(update={"spec": spec, "parameters": parameters})


def resolved(spec: ChainSpec, settings: Settings, recorded: ResolvedChain | None = None) -> ResolvedChain:
    """The complete chain, its models with their whole paths. Raises `Refused` with every reason.

    `recorded` is what an earlier start of the same run resolved it to: what `method: auto` became then stays.
    """
    return decided(spec, settings, recorded)[0]


def decided(
    spec: ChainSpec, settings: Settings, recorded: ResolvedChain | None = None
) -> tuple[ResolvedChain, tuple[MethodDecision, ...]]:
    """The complete chain, and how each `method: auto` was decided here."""
    default = acceptance.locate_model(settings.default_base_model, settings)
    located_spec = take_recorded(acceptance.locate_models(spec, settings.for_tenant(spec.tenant)), recorded)
    located_spec = fit_lengths(located_spec, default, settings.for_tenant(spec.tenant))
    known: list[RunFacts] = []

    def refused(chain: ResolvedChain) -> list[Reason]:
        known[:] = known or [run_facts(chain, settings.for_tenant(chain.tenant))]
        return run_reasons(chain, known[0])

    chosen, decisions = decide_methods(located_spec, settings, default, refused)
    return resolve(chosen, default), decisions


def fit_lengths(spec: ChainSpec, default: str, settings: Settings) -> ChainSpec:
    """The chain whose trainers with the default `max_length` have that of their base, where it has fewer positions."""
    for at, node in enumerate(spec.nodes):
        config = node.config
        if not isinstance(config, TrainerConfig) or config.hyperparameters.max_length != DEFAULT_MAX_LENGTH:
            continue
        found = facts_of(config.base_model or default, settings)
        if found is not None and (most := found.context.most_tokens(config.stage.drawn_tokens)) is not None:
            spec = with_method(spec, at, with_hyper(config, max_length=min(DEFAULT_MAX_LENGTH, most)))
    return spec


def list_advice(config: Any, settings: Settings) -> list[str]:
    """What is allowed and rarely intended about a node, as `check` and `plan` report it."""
    if not isinstance(config, TrainerConfig):
        return []
    base = facts_of(config.base_model, settings) if config.base_model else None
    return [*advice(config, devices_here()[0]), *(length_advice(config, base) if base else ())]


def list_step_advice(config: Any, steps: int | None) -> list[str]:
    """What a run of about so many steps would not be, where its number of steps is that of its rows."""
    if not isinstance(config, TrainerConfig) or config.hyperparameters.max_steps is not None or steps is None:
        return []
    refused = [f"With these rows: {reason.because}" for reason in step_reasons(config, steps, None)]
    return refused + step_advice(config, steps)


def list_choices(config: Any, settings: Settings) -> dict[str, str]:
    """Return what this machine decides for a trainer or an evaluator; {} for a base that is not here."""
    if isinstance(config, EvaluatorConfig):
        return decide_evaluation(settings).lines()
    folder = folder_of(config.base_model, settings) if isinstance(config, TrainerConfig) and config.base_model else None
    try:
        return decide_choices(config, folder, settings).lines() if folder is not None else {}
    except TrainyardError:
        return {}  # fp16 on a CPU, which is among the reasons of `examine`


# What refuses here and now


CHAIN_REASONS = (
    acceptance.missing_inputs, acceptance.teacher_reasons, acceptance.template_reasons, acceptance.server_reasons,
    acceptance.deployment_reasons,
)  # fmt: skip


def examine(chain: ResolvedChain, settings: Settings, *, read_data: bool = True) -> list[Reason]:
    """Every reason why a valid chain cannot run here and now: the one answer of check, plan, run, jobs and the flows.

    Files and models that are not here, rows of the table that need the machine, chat templates, what the targets
    that answer now have against the adapter, and local data that no node could use. Node by node, in the chain's order.
    """
    return list(examine_data(chain, settings, read_data=read_data).reasons)


class Examined(NamedTuple):
    """What keeps a chain from running, and what was read of it."""

    reasons: list[Reason]
    shortages: list[Reason]
    """Fewer rows than were asked for, or than a verdict needs: a run has to be asked for all the same."""
    nodes: Mapping[str, SampledNode]
    unread: list[str]
    """Parts of the data that were not read in time."""


def examine_data(
    chain: ResolvedChain,
    settings: Settings,
    outputs: Mapping[str, NodeOutput | None] | None = None,
    *,
    read_data: bool = True,
) -> Examined:
    """Return every reason, and what was read of each node; `outputs` are results that are finished already."""
    own = settings.for_tenant(chain.tenant)
    found = [*acceptance.space_reasons(own), *run_reasons(chain, run_facts(chain, own))]
    for ask in CHAIN_REASONS:
        found += ask(chain, own)
    nodes: dict[str, SampledNode] = {}
    shortages: list[Reason] = []
    unread: list[str] = []
    if read_data:
        found += try_templates(chain, own, list_templated(chain, own, named=True) - refused_nodes(found))
    if read_data and reads_local_data(chain):
        # Readers import pyarrow: a chain without local data is checked without them.
        sample = load("trainyard.app.plan.samples:read_chain")(chain, own, outputs, refused_nodes(found))
        nodes, shortages, unread = sample.nodes, sample.shortages, sample.unread
        found += sample.reasons
    if read_data:  # of the others the rows have shown what a base's own template takes
        fitted = frozenset(name for name, node in nodes.items() if node.examples is not None)
        found += try_templates(chain, own, list_templated(chain, own, named=False) - fitted - refused_nodes(found))
    return Examined(acceptance.in_chain_order(chain, found), shortages, nodes, unread)


def refused_nodes(reasons: Sequence[Reason]) -> frozenset[str]:
    return frozenset(reason.node or "" for reason in reasons)


def try_templates(chain: ResolvedChain, settings: Settings, nodes: frozenset[str]) -> list[Reason]:
    """Return why these trainers could not render a chat on the tokenizers of their bases; imports transformers."""
    return load("trainyard.app.plan.templates:template_problems")(chain, settings, nodes) if nodes else []


def run_facts(chain: ResolvedChain, settings: Settings) -> RunFacts:
    """Return the facts of the machine and the settings; the embedded server is asked only if a node needs it."""
    roots = data_roots(settings, chain.tenant)
    deployers = (node.config for node in chain.nodes if isinstance(node.config, DeployerConfig))
    # Imports the clients of servers.
    asks_embedded = any(target.type is TargetType.EMBEDDED for one in deployers for target in one.targets)

    def path_problem(path: str) -> Reason | None:
        try:
            resolve_inside(path, roots)
        except Refused as refused:
            return refused.reasons[0]
        except TrainyardError:
            return None  # it is inside a root and missing: `missing_inputs` reports that
        return None

    return RunFacts(
        endpoints=frozenset(settings.endpoints),
        may_mirror=settings.may_mirror,
        may_read=settings.may_read,
        path_problem=path_problem,
        backends=backends(settings),
        base=lambda name: facts_of(name, settings),
        devices=frozenset(devices_here()),
        vllm_install=None if vllm.executable(settings) else vllm.install_line(),
        embedded=load("trainyard.serve.embedded:find_running")(settings) is not None if asks_embedded else None,
        has_module=has_module,
        confines_code=lambda: settings.allow_unconfined_code or find_confinement() is not Confinement.NONE,
    )


def confinement_notes(chain: ResolvedChain) -> list[str]:
    """A line for each trainer by which code of completions runs: how the operating system confines it here."""
    notes = []
    for node in chain.nodes:
        if isinstance(node.config, TrainerConfig) and node.config.stage.code_places:
            confinement = find_confinement()
            notes.append(f"{node.id}: code of completions runs under {confinement} ({confinement.detail})")
    return notes


def facts_of(name: str, settings: Settings) -> BaseFacts | None:
    """Return the facts in a base model's files; None if it is not here, or cannot be read."""
    folder = folder_of(name, settings)
    try:
        return base_facts(folder) if folder else None
    except TrainyardError:
        return None


def has_module(name: str) -> bool:
    """Whether a package can be imported here; the packages that its name is below are looked for first."""
    parts = name.split(".")
    parents = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
    return all(importlib.util.find_spec(parent) is not None for parent in parents)


def backends(settings: Settings) -> dict[BackendName, str | None]:
    """Backend -> why it cannot be used here; None if it can."""
    found = probe_all(settings)
    return {name: None if one.available else f"{one.why} {one.fix}".strip() for name, one in found.items()}


# The plan


def plan(
    spec: ChainSpec, settings: Settings, *, measure: bool = False, say: Callable[[str], None] = ignore
) -> ChainPlan:
    """Everything that a run would do, node by node. Raises `Refused` for a chain that is not valid.

    With `measure`, ten steps of each training that is to be made are trained first, to know its time.
    """
    chain, decisions = decided(spec, settings)
    settings = settings.for_tenant(chain.tenant)
    looks = look_up(chain, settings)
    reasons, _, sampled, _ = examine_data(chain, settings, {one: look.output for one, look in looks.items()})
    found = FinishedNodes(
        chain, {one: look.output for one, look in looks.items()}, {one: look.key for one, look in looks.items()}
    )
    problems: dict[str, str] = {}
    if measure and reasons:
        say("nothing is measured, because this machine would refuse the chain")
    elif measure:
        problems = load("trainyard.app.plan.measure:measure")(found, settings, say)
    here = devices_here()[0]
    known = Known(
        rows={one: look.rows for one, look in looks.items() if look.rows},
        shapes=shapes(chain, settings),
        device=here,
        timings=known_timings(chain, settings, here, slowdown_here(Device.CPU)),
        data=data_names(found),
        tokens_per_row=counted_tokens(found),
        queue_s=queue_seconds(settings),
        sampled=sampled,
    )
    estimates = {one.node: one for one in estimate(chain, known)}
    return ChainPlan(
        chain=chain.name,
        tenant=chain.tenant,
        digest=chain.digest,
        order=chain.order,
        nodes=tuple(
            plan_node(chain.node(one), looks[one], noted(estimates[one], problems), reasons, settings)
            for one in chain.order
        ),
        decisions=decisions,
        backends={name.value: "available" if why is None else why for name, why in backends(settings).items()},
        refusals=tuple({**reason.as_dict(), "line": reason.line()} for reason in reasons),
    )


def noted(estimated: Estimate, problems: Mapping[str, str]) -> Estimate:
    """The estimate, with why it was not measured."""
    problem = problems.get(estimated.node)
    return estimated.model_copy(update={"basis": (*estimated.basis, problem)}) if problem else estimated


class Look(BaseModel):
    """What was found about one node's result."""

    key: str | None = None
    output: NodeOutput | None = None

    @property
    def rows(self) -> dict[Port, int]:
        outputs = self.output.outputs if self.output else {}
        return {port: given.rows for port, given in outputs.items() if given.rows is not None}


def look_up(chain: ResolvedChain, settings: Settings) -> dict[str, Look]:
    """Which results are finished: a key is known as soon as all inputs are."""
    looks: dict[str, Look] = {}
    for node_id in chain.order:
        node = chain.node(node_id)
        made = {one.node_id: looks[one.node_id].output for sources in node.inputs.values() for one in sources}
        finished = {name: output.outputs for name, output in made.items() if output is not None}
        looks[node_id] = look_at(node, inputs_of(node, finished), settings) if len(finished) == len(made) else Look()
    return looks


def inputs_of(node: ResolvedNode, made: Mapping[str, Mapping[Port, Reference]]) -> dict[Port, list[Reference]]:
    """The node's inputs out of what the nodes before it have made."""
    return {
        port: [made[one.node_id][one.port] for one in sources if one.port in made[one.node_id]]
        for port, sources in node.inputs.items()
    }


def look_at(node: ResolvedNode, inputs: dict[Port, list[Reference]], settings: Settings) -> Look:
    try:
        key = content_key(node, inputs, settings, run_id="")
        return Look(key=key, output=ArtifactStore(settings.artifacts).find(key))
    except TrainyardError:
        return Look()  # what is missing is among the reasons of `examine`


def plan_node(
    node: ResolvedNode, look: Look, estimated: Estimate, reasons: Sequence[Reason], settings: Settings
) -> PlanNode:
    own = [*list_advice(node.config, settings), *list_step_advice(node.config, estimated.steps)]
    return PlanNode(
        id=node.id,
        type=node.type,
        needs=node.needs,
        takes={port.value: tuple(f"{s.node_id}.{s.port.value}" for s in given) for port, given in node.inputs.items()},
        gives=tuple(port.value for port in node.produces),
        config=node.config.model_dump(mode="json"),
        key=look.key,
        reused=look.output is not None,
        choices=list_choices(node.config, settings),
        problem="\n".join(reason.line() for reason in reasons if reason.node == node.id),
        advice=(*own, *tiny_sets(node.config, estimated.rows)),
        estimate=estimated,
    )


def shapes(chain: ResolvedChain, settings: Settings) -> dict[str, ModelShape]:
    """Shapes of the base models that are on this machine."""
    trainers = [node.config for node in chain.nodes if isinstance(node.config, TrainerConfig)]
    names = {name for one in trainers for name in (one.base_model, one.stage.teacher_model)}
    return {name: shape for name in names if name and (shape := shape_of(name, settings)) is not None}
