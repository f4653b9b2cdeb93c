"""From the body of a session to its record: every reason against it at once, before anything is started."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from pydantic import ValidationError

from trainyard.app.context import Caller
from trainyard.app.plan.locate import locate_model
from trainyard.app.plan.machine import read_machine_facts
from trainyard.app.plan.refusals import check_inputs, check_space
from trainyard.backends.sessions.records import SessionRecord, new_session_id
from trainyard.errors import Denied, Reason, Refused
from trainyard.settings import Settings
from trainyard.spec.chain import ChainSpec, ResolvedChain, ResolvedNode
from trainyard.spec.compat.table import run_reasons, session_reasons
from trainyard.spec.graph import check
from trainyard.spec.job import SessionSpec, resolve_session, trainer_of_session
from trainyard.spec.load.parse import build_reasons, validate
from trainyard.spec.nodes import TrainerNode
from trainyard.spec.training import TrainerConfig

TRAINER = "trainer"
WITHOUT_ROWS = "R-PORT"
"""A chain's trainer needs a node that gives it rows; a session gets them with its calls."""
DATA_KEYS = ("dataset", "data", "path")


def accept_session(
    settings_given: Mapping[str, object], settings: Settings, caller: Caller, trace: str = ""
) -> SessionRecord:
    """Return the record of a new session. Raises `Refused` with every reason, `Denied` (`E-SCOPE`) for another
    tenant.
    """
    spec = keep_own_tenant(read_spec(settings_given), settings_given, caller)
    config = trainer_of_session(spec)
    resolved = resolve_session(locate_base(config, settings), settings.default_base_model)
    reasons = list_reasons(spec, config, resolved, settings)
    if reasons:
        raise Refused(reasons, what=f"The session was refused for {len(reasons)} reason{'s'[: len(reasons) > 1]}.")
    return SessionRecord(
        id=new_session_id(), name=spec.name, tenant=spec.tenant, created=time.time(), config=resolved,
        idle_s=spec.idle_s, autosave_s=spec.autosave_s, budget_s=spec.budget_s, trace=trace,
    )  # fmt: skip


def read_spec(fields: Mapping[str, object]) -> SessionSpec:
    """Raises `Refused` for keys and values that no session has."""
    if named := [key for key in DATA_KEYS if key in fields]:
        because = "A session has no data set: its rows come with each call of forward."
        raise Refused([Reason("R-SOURCE", None, named[0], because, f"Remove {named[0]}, or start a job with it.")])
    try:
        return validate(SessionSpec, dict(fields))
    except ValidationError as error:
        raise Refused(build_reasons(error, SessionSpec)) from error


def keep_own_tenant(spec: SessionSpec, fields: Mapping[str, object], caller: Caller) -> SessionSpec:
    """Return the session as the caller's tenant's. Raises `Denied` (`E-SCOPE`) where it names another one."""
    if not caller.tenant:
        return spec
    if "tenant" in fields and spec.tenant != caller.tenant:
        raise Denied(
            f"The token of {caller.name} is for the tenant {caller.tenant}, and this is for {spec.tenant}.",
            do="Leave the tenant out, or use a token that is for it.", code="E-SCOPE",
        )  # fmt: skip
    return spec.model_copy(update={"tenant": caller.tenant})


def locate_base(config: TrainerConfig, settings: Settings) -> TrainerConfig:
    """Return the config with the whole path of its base: a worker has another working folder than its caller."""
    if config.base_model is None:
        return config
    return config.model_copy(update={"base_model": locate_model(config.base_model, settings)})


def list_reasons(spec: SessionSpec, config: TrainerConfig, resolved: TrainerConfig, settings: Settings) -> list[Reason]:
    """Return the reasons of the rows of a trainer, of a session, and of this machine."""
    chain = ChainSpec(name=spec.name, tenant=spec.tenant, nodes=(TrainerNode(type=TRAINER, config=config),))
    reasons = [reason for reason in check(chain) if reason.code != WITHOUT_ROWS]
    reasons += session_reasons(build_chain(spec, config))
    if not reasons:
        whole = build_chain(spec, resolved)
        reasons = run_reasons(whole, read_machine_facts(whole, settings))
        reasons += [] if reasons else check_inputs(whole, settings)
        reasons += check_space(settings)
    return [replace(reason, node=None, field=reason.field.removeprefix("config.")) for reason in reasons]


def build_chain(spec: SessionSpec, config: TrainerConfig) -> ResolvedChain:
    """Return a trainer alone, as the rows look at it."""
    node = ResolvedNode(id=TRAINER, type=TRAINER, config=config)
    return ResolvedChain(name=spec.name, tenant=spec.tenant, nodes=(node,), order=(TRAINER,), digest="")
