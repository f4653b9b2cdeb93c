"""What a run would do, without doing it: the resolved chain, finished results, estimates, and refusals.

Imports neither Prefect nor torch, so that `trainyard check` and `trainyard plan` answer at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pydantic import Field

from trainyard.app.context import Context
from trainyard.app.plan.auto_method import MethodDecision
from trainyard.app.plan.estimate import (
    FinishedNodes,
    StoredResult,
    add_problem,
    build_facts,
    estimate_queue_s,
    find_results,
)
from trainyard.app.plan.machine import find_base_facts, find_base_folder, probe_backends
from trainyard.app.plan.money import estimate_costs
from trainyard.app.plan.parse import NAMES, parse_request
from trainyard.app.plan.refusals import check_chain
from trainyard.app.plan.resolve import resolve_with_decisions
from trainyard.app.plan.tenancy import keep_to_tenant
from trainyard.app.reach import require_template
from trainyard.app.responses import Response
from trainyard.backends.choices import decide_choices, decide_evaluation
from trainyard.backends.spending import find_price
from trainyard.callbacks import ignore
from trainyard.compute.gpus import list_devices
from trainyard.errors import Reason, Refused, TrainyardError
from trainyard.operations.chains import PlanInput
from trainyard.sandbox.service import find_confinement
from trainyard.settings import Settings
from trainyard.spec.chain import ChainSpec, ResolvedChain, ResolvedNode
from trainyard.spec.compat.advice import advice, step_advice, step_reasons
from trainyard.spec.compat.run import length_advice
from trainyard.spec.estimate.estimate import Estimate, estimate
from trainyard.spec.estimate.verdict import tiny_sets
from trainyard.spec.money import Cost, Dollars, Price, add_costs
from trainyard.spec.nodes import EvaluatorConfig
from trainyard.spec.training import TrainerConfig


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
    price: Price | None = None
    """Price of a training; None where no price is set, and of other nodes."""
    cost: Cost | None = None
    """Estimate of what a training would cost; None without a price, or while its time is not known."""


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
    cost: Cost | None = None
    """Sum of the estimates of its trainings, as far as they are known."""
    max_spend: Dollars | None = None
    """US dollars that a run may spend, as the chain says."""

    @property
    def exit_code(self) -> int:
        return Refused.exit_code if self.refusals else 0

    def _repr_markdown_(self) -> str:
        from trainyard.app.notebook_views import plan_markdown  # only a notebook asks for it

        return plan_markdown(self)


def plan(request: PlanInput, context: Context) -> ChainPlan:
    if context.caller.remote:
        require_template(request.target, NAMES)
    chain_request = parse_request(request.target, request.parameters, request.preset)
    tenant_request = keep_to_tenant(chain_request, context.caller)
    for note in tenant_request.notes:
        context.say(note)
    return plan_chain(tenant_request.spec, context.settings, measure=request.measure, say=context.say)


def plan_chain(
    spec: ChainSpec, settings: Settings, *, measure: bool = False, say: Callable[[str], None] = ignore
) -> ChainPlan:
    """Return everything that a run would do, node by node. Raises `Refused` for a chain that is not valid.

    With `measure`, ten steps of each training that is to be made are trained first, to know its time.
    """
    chain, decisions = resolve_with_decisions(spec, settings)
    settings = settings.for_tenant(chain.tenant)
    looks = find_results(chain, settings)
    reasons, _, sampled, _ = check_chain(chain, settings, {node_id: look.output for node_id, look in looks.items()})
    finished_nodes = FinishedNodes(
        chain,
        {node_id: look.output for node_id, look in looks.items()},
        {node_id: look.key for node_id, look in looks.items()},
    )
    problems: dict[str, str] = {}
    if measure and reasons:
        say("nothing is measured, because this machine would refuse the chain")
    elif measure:
        from trainyard.app.plan.measure import measure as measure_steps  # imports the readers of rows

        lengths = {node_id: node.tokens_per_row for node_id, node in sampled.items() if node.tokens_per_row}
        problems = measure_steps(finished_nodes, settings, say, lengths)
    inputs = replace(build_facts(chain, looks, sampled, settings), queue_s=estimate_queue_s(settings))
    estimates = {node_estimate.node: node_estimate for node_estimate in estimate(chain, inputs)}
    finished = frozenset(node_id for node_id, look in looks.items() if look.output is not None)
    costs = estimate_costs(chain, estimates, finished, settings)
    return ChainPlan(
        chain=chain.name,
        tenant=chain.tenant,
        digest=chain.digest,
        order=chain.order,
        nodes=tuple(
            plan_node(
                chain.node(node_id), looks[node_id], add_problem(estimates[node_id], problems), reasons, settings
            ).model_copy(update={"cost": costs.get(node_id)})
            for node_id in chain.order
        ),
        cost=add_costs(costs.values()),
        max_spend=chain.max_spend,
        decisions=decisions,
        backends={name.value: "available" if why is None else why for name, why in probe_backends(settings).items()},
        refusals=tuple({**reason.as_dict(), "line": reason.line()} for reason in reasons),
    )


def plan_node(
    node: ResolvedNode, look: StoredResult, estimated: Estimate, reasons: Sequence[Reason], settings: Settings
) -> PlanNode:
    advice = [*list_advice(node.config, settings), *list_step_advice(node.config, estimated.steps)]
    return PlanNode(
        id=node.id,
        type=node.type,
        needs=node.needs,
        takes={
            port.value: tuple(f"{s.node_id}.{s.port.value}" for s in sources) for port, sources in node.inputs.items()
        },
        gives=tuple(port.value for port in node.produces),
        config=node.config.model_dump(mode="json"),
        key=look.key,
        reused=look.output is not None,
        choices=list_choices(node.config, settings),
        problem="\n".join(reason.line() for reason in reasons if reason.node == node.id),
        price=find_price(node.config.backend, settings) if isinstance(node.config, TrainerConfig) else None,
        advice=(*advice, *tiny_sets(node.config, estimated.rows)),
        estimate=estimated,
    )


def list_advice(config: Any, settings: Settings) -> list[str]:
    """Return settings of a node that are allowed and rarely intended, as `check` and `plan` report it."""
    if not isinstance(config, TrainerConfig):
        return []
    base = find_base_facts(config.base_model, settings) if config.base_model else None
    return [*advice(config, list_devices()[0]), *(length_advice(config, base) if base else ())]


def list_step_advice(config: Any, steps: int | None) -> list[str]:
    """Return what a run of about so many steps would not be, where its number of steps is that of its rows."""
    if not isinstance(config, TrainerConfig) or config.hyperparameters.max_steps is not None or steps is None:
        return []
    refused = [f"With these rows: {reason.because}" for reason in step_reasons(config, steps, None)]
    return refused + step_advice(config, steps)


def list_choices(config: Any, settings: Settings) -> dict[str, str]:
    """Return what this machine decides for a trainer or an evaluator; {} for a base that is not here."""
    if isinstance(config, EvaluatorConfig):
        return decide_evaluation(settings).lines()
    folder = (
        find_base_folder(config.base_model, settings)
        if isinstance(config, TrainerConfig) and config.base_model
        else None
    )
    try:
        return decide_choices(config, folder, settings).lines() if folder is not None else {}
    except TrainyardError:
        return {}  # fp16 on a CPU, which is among the reasons of `list_refusals`


def list_confinement_notes(chain: ResolvedChain) -> list[str]:
    """Return a line for each trainer by which code of completions runs: how the operating system confines it here."""
    notes = []
    for node in chain.nodes:
        if isinstance(node.config, TrainerConfig) and node.config.stage.code_places:
            confinement = find_confinement()
            notes.append(f"{node.id}: code of completions runs under {confinement} ({confinement.detail})")
    return notes
