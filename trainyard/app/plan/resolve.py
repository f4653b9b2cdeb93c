"""From a located chain to the complete one, every default written out and every automatic choice made."""

from __future__ import annotations

from trainyard.app.plan.auto_method import MethodDecision, resolve_auto_methods, take_recorded
from trainyard.app.plan.locate import locate_model, locate_models
from trainyard.app.plan.machine import find_base_facts, read_machine_facts
from trainyard.settings import Settings
from trainyard.spec.chain import ChainSpec, ResolvedChain
from trainyard.spec.compat.context import RunFacts
from trainyard.spec.estimate.cascade import with_hyper
from trainyard.spec.graph import auto_trainers, resolve, with_method
from trainyard.spec.training import DEFAULT_MAX_LENGTH, TrainerConfig


def resolve_chain(spec: ChainSpec, settings: Settings, recorded: ResolvedChain | None = None) -> ResolvedChain:
    """Return the complete chain, its models with their whole paths. Raises `Refused` with every reason.

    `recorded` is what an earlier start of the same run resolved it to: what `method: auto` became then stays.
    """
    return resolve_with_decisions(spec, settings, recorded)[0]


def resolve_with_decisions(
    spec: ChainSpec, settings: Settings, recorded: ResolvedChain | None = None
) -> tuple[ResolvedChain, tuple[MethodDecision, ...]]:
    """Return the complete chain, and how each `method: auto` was decided here."""
    tenant_settings, default = settings.for_tenant(spec.tenant), locate_model(settings.default_base_model, settings)
    spec = fit_lengths(take_recorded(locate_models(spec, tenant_settings), recorded), default, tenant_settings)
    facts = read_machine_facts(spec, tenant_settings) if auto_trainers(spec) else RunFacts()
    spec, decisions = resolve_auto_methods(spec, settings, default, facts)
    return resolve(spec, default), decisions


def fit_lengths(spec: ChainSpec, default: str, settings: Settings) -> ChainSpec:
    """Lower the default `max_length` of trainers to the positions of their bases, where these have fewer."""
    for at, node in enumerate(spec.nodes):
        config = node.config
        if not isinstance(config, TrainerConfig) or config.hyperparameters.max_length != DEFAULT_MAX_LENGTH:
            continue
        base = find_base_facts(config.base_model or default, settings)
        if base is not None and (most := base.context.most_tokens(config.stage.drawn_tokens)) is not None:
            spec = with_method(spec, at, with_hyper(config, max_length=min(DEFAULT_MAX_LENGTH, most)))
    return spec
