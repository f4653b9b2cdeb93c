"""What keeps a chain from running here and now: files, models, templates, servers, data, and the table of refusals.

check, plan, run, jobs and the flows all call `check_chain`, so what `trainyard check` accepts, a run on the same
machine does not refuse. Nothing is started and nothing is written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from trainyard.app.plan.keys import Dependency, dependencies, model_digest
from trainyard.app.plan.machine import find_base_folder, is_local, list_trainers, read_machine_facts, read_memory_bytes
from trainyard.app.plan.money import list_spending_refusals
from trainyard.app.plan.tiers import list_limit_refusals
from trainyard.backends.base import probe
from trainyard.callbacks import ignore
from trainyard.compute.gpus import list_devices
from trainyard.data.paths import data_roots
from trainyard.data.renderers.choice import AUTO, FILE_ENDING, choose_template
from trainyard.errors import NotFound, Reason, Refused, TrainyardError, Unavailable, to_reason
from trainyard.serve.prompt_fields import check_chat_template
from trainyard.settings import Settings
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.data import GeneratorKind, Port
from trainyard.spec.axes.devices import Device
from trainyard.spec.axes.methods import find_rank
from trainyard.spec.chain import ResolvedChain, ResolvedNode
from trainyard.spec.compat.table import run_reasons
from trainyard.spec.estimate.estimate import SampledNode
from trainyard.spec.estimate.memory import GIB
from trainyard.spec.nodes import AiGeneratorConfig, DataSourceConfig, DeployerConfig, ValidatorConfig
from trainyard.spec.training import STARTER, TrainerConfig
from trainyard.stores.artifacts import NodeOutput
from trainyard.stores.files import lacking_space
from trainyard.stores.models import resolve_model

FLOAT32_BYTES = 4


HTTPS = 443


ROOT_CODE = "R-PATH-ROOT"
"""The row of the table refuses it with the same words."""
MISSING = "R-BACKEND-MISSING"


def refuse_all(_: Sequence[Reason]) -> bool:
    """Allow no run with too few rows."""
    return False


def refuse_or_wait(
    chain: ResolvedChain,
    settings: Settings,
    *,
    is_job: bool,
    allows: Callable[[Sequence[Reason]], bool] = refuse_all,
    read_data: bool = True,
    say: Callable[[str], None] = ignore,
) -> str:
    """Return why a job has to wait: no trainer, and the command that installs it; empty if it, or a chain, can run.

    `allows` is asked about a run on too few rows (`E-FEW-ROWS`); `say` gets what was not read. Raises `Refused` with
    every reason when something else prevents the run.
    """
    reasons, shortages, _, unread = check_chain(chain, settings, read_data=read_data)
    for text in unread:
        say(f"{text}: the run may still refuse what follows")
    if reasons and not (is_job and all(reason.code == MISSING for reason in reasons)):
        raise Refused(reasons)
    if shortages and not allows(shortages):
        raise Refused(shortages)
    trainers = [node.config.backend for node in chain.nodes if isinstance(node.config, TrainerConfig)]
    return describe_missing_backend(trainers, settings) if reasons else ""


class CheckedChain(NamedTuple):
    """Reasons against a chain, and the samples of its data."""

    reasons: list[Reason]
    shortages: list[Reason]
    """Fewer rows than were requested, or than a verdict needs: a run has to be requested all the same."""
    nodes: Mapping[str, SampledNode]
    unread: list[str]
    """Parts of the data that were not read in time."""


def list_refusals(chain: ResolvedChain, settings: Settings, *, read_data: bool = True) -> list[Reason]:
    """Return every reason why a valid chain cannot run here and now: the one answer of check, plan, run, jobs and the
    flows.

    Files and models that are not here, rows of the table that need the machine, chat templates, what the targets
    that answer now have against the adapter, and local data that no node could use. Node by node, in the chain's order.
    """
    return list(check_chain(chain, settings, read_data=read_data).reasons)


def check_chain(
    chain: ResolvedChain,
    settings: Settings,
    outputs: Mapping[str, NodeOutput | None] | None = None,
    *,
    read_data: bool = True,
) -> CheckedChain:
    """Return every reason, and the sample of each node; `outputs` are finished results."""
    tenant_settings = settings.for_tenant(chain.tenant)
    reasons = [*check_space(tenant_settings), *run_reasons(chain, read_machine_facts(chain, tenant_settings))]
    for ask in CHAIN_CHECKS:
        reasons += ask(chain, tenant_settings)
    reasons += (limits := list_limit_refusals(chain, tenant_settings))
    nodes: dict[str, SampledNode] = {}
    shortages: list[Reason] = []
    unread: list[str] = []
    if read_data:
        reasons += check_templates(
            chain, tenant_settings, list_templated(chain, tenant_settings, named=True) - list_refused_nodes(reasons)
        )
    if read_data and reads_local_data(chain):
        from trainyard.app.plan.samples import read_chain  # imports pyarrow, which a chain without local data spares

        sample = read_chain(chain, tenant_settings, outputs, list_refused_nodes(reasons))
        nodes, shortages, unread = sample.nodes, sample.shortages, sample.unread
        reasons += sample.reasons
    if read_data:  # of the others the rows have shown what a base's own template takes
        fitted = frozenset(name for name, node in nodes.items() if node.examples is not None)
        reasons += check_templates(
            chain,
            tenant_settings,
            list_templated(chain, tenant_settings, named=False) - fitted - list_refused_nodes(reasons),
        )
    if not limits and nodes:  # its rows are known now
        reasons += list_limit_refusals(chain, tenant_settings, nodes)
    reasons += [] if reasons else list_spending_refusals(chain, tenant_settings, nodes)
    return CheckedChain(sort_by_node(chain, reasons), shortages, nodes, unread)


def list_refused_nodes(reasons: Sequence[Reason]) -> frozenset[str]:
    return frozenset(reason.node or "" for reason in reasons)


def list_templated(chain: ResolvedChain, settings: Settings, *, named: bool) -> frozenset[str]:
    """Return the trainers of chats whose base is here: those that name a template, or those with the base's own.

    The starter's own template is known to render.
    """
    return frozenset(
        node.id
        for node, config in list_trainers(chain)
        if Port.TEXT not in config.stage.facts.ports
        and not any(port is Port.MODEL for port in node.inputs)
        and (config.engine.template != AUTO) is named
        and (named or (config.base_model or settings.default_base_model) != STARTER)
        and (base := find_base_folder(config.base_model or settings.default_base_model, settings)) is not None
        and (base / "tokenizer.json").is_file()
    )


def reads_local_data(chain: ResolvedChain) -> bool:
    """Return whether a data source of the chain is on this machine."""
    return any(isinstance(node.config, DataSourceConfig) and is_local(node.config) for node in chain.nodes)


def check_templates(chain: ResolvedChain, settings: Settings, nodes: frozenset[str]) -> list[Reason]:
    """Return why these trainers could not render a chat on the tokenizers of their bases."""
    if not nodes:
        return []
    from trainyard.app.plan.chat_templates import template_problems  # imports transformers

    return template_problems(chain, settings, nodes)


def describe_missing_backend(backends: list[BackendName], settings: Settings) -> str:
    """Return why the first of these trainers that cannot be used here is missing; empty if all can be used."""
    from trainyard.backends.manager import marker_only  # imports readers of rows; a check does without

    statuses = [probe(name, settings) for name in backends]
    return next((marker_only(status) for status in statuses if not status.available), "")


def require_trainer(name: str, backend: BackendName, settings: Settings) -> None:
    """Raise `Unavailable` (`R-BACKEND-MISSING`) while a job that waits for its trainer would wait on."""
    if why := describe_missing_backend([backend], settings):
        raise Unavailable(
            f"The job {name} still waits for its trainer.", why=why, do="Install it, then resume again.", code=MISSING
        )


def check_space(settings: Settings) -> list[Reason]:
    """Return whether the disk of the home has room for a run (`E-DISK-FULL`)."""
    lacking = lacking_space(settings.home, settings.min_free_mb << 20)
    return [] if lacking is None else [Reason(lacking.code, None, "", lacking.what, lacking.do)]


def check_inputs(chain: ResolvedChain, settings: Settings) -> list[Reason]:
    """Files and models that the nodes will read and that are not here or may not be loaded; each is reported once."""
    reasons: dict[tuple[str, str], Reason] = {}
    models: set[tuple[str, str]] = set()
    ordered = sorted(chain.nodes, key=lambda node: isinstance(node.config, ValidatorConfig))
    for node in ordered:  # a validator counts with its trainer's tokenizer: a missing base is reported at the trainer
        read, config = list(dependencies(node, settings, run_id="")), node.config
        if isinstance(config, AiGeneratorConfig) and config.engine in (GeneratorKind.LOCAL, GeneratorKind.VLLM):
            model = config.model or settings.default_base_model  # whose server is started here
            read.append(Dependency("model", "config.model", partial(model_digest, model, settings)))
        for dependency in read:
            if isinstance(dependency.digest, partial) and dependency.digest.func is model_digest:
                model_field = (dependency.field, dependency.digest.args[0])
                if model_field in models:
                    continue  # reported at the first node that asks for it
                models.add(model_field)
            for reason in check_dependency(dependency, node, settings):
                reasons.setdefault((reason.code, reason.because), reason)
    return list(reasons.values())


def check_dependency(dependency: Dependency, node: ResolvedNode, settings: Settings) -> list[Reason]:
    try:
        dependency.digest()
        require_reachable(dependency, node, settings)
    except Refused as refused:
        return [replace(reason, node=node.id) for reason in refused.reasons if reason.code != ROOT_CODE]
    except TrainyardError as error:
        return [to_reason(error, node.id, dependency.field)]
    return []


def require_reachable(dependency: Dependency, node: ResolvedNode, settings: Settings) -> None:
    """Raise `NotFound` (`E-MODEL-NOT-FOUND`) for a model of the Hub that is not here while the Hub is not asked."""
    named = {
        "config.base_model": lambda config: config.base_model,
        "config.tokenizer": lambda config: config.tokenizer,
        "config.stage.teacher": lambda config: config.stage.teacher_model,
    }
    name = named[dependency.field](node.config) if dependency.field in named else None
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    if name and offline and resolve_model(name, settings).path is None:
        raise NotFound(
            f"There is no model {name!r} on this machine.",
            why=f"It is not a folder (a relative path starts at {settings.working_folder}), it is not in the cache "
            "of the Hub, and HF_HUB_OFFLINE forbids a download.",
            do="Correct the path, or download the model first.",
            code="E-MODEL-NOT-FOUND",
        )


def check_teachers(
    chain: ResolvedChain, settings: Settings, memory_bytes: Callable[[], int] = read_memory_bytes
) -> list[Reason]:
    """Return which teachers do not fit the memory of this machine (`E-MEMORY-FIT`), where it computes on its CPU."""
    reasons: list[Reason] = []
    for node in chain.nodes:
        config = node.config
        if not isinstance(config, TrainerConfig) or (name := config.stage.teacher_model) is None:
            continue
        if Device.CPU not in (config.device, list_devices()[0]):
            continue
        try:
            parameters = resolve_model(name, settings).parameters or 0
        except TrainyardError:
            continue  # reported by `check_inputs`
        if (needed := FLOAT32_BYTES * parameters) > (there := memory_bytes()):
            because = f"The teacher {name!r} takes {needed / GIB:.1f} GiB, and this machine has {there / GIB:.1f} GiB."
            instead = "Use a smaller teacher, or a machine with more memory."
            reasons.append(Reason("E-MEMORY-FIT", node.id, "config.stage.teacher", because, instead))
    return reasons


def check_template_choices(chain: ResolvedChain, settings: Settings) -> list[Reason]:
    """Return the faults of the trainers' chat templates; a file is rendered in a limited child process."""
    reasons: list[Reason] = []
    for node in chain.nodes:
        name = node.config.engine.template if isinstance(node.config, TrainerConfig) else "auto"
        try:
            template = choose_template(name, roots=data_roots(settings))
            if name.endswith(FILE_ENDING):
                check_chat_template(template.text)
        except Refused as refused:
            reasons += [replace(reason, node=node.id) for reason in refused.reasons if reason.code != ROOT_CODE]
        except TrainyardError as error:
            reasons.append(to_reason(error, node.id, "config.engine.template"))
    return reasons


def check_servers(chain: ResolvedChain, settings: Settings) -> list[Reason]:
    """Return why a run would not connect to a generator's or a judge's own address; a name unknown now may be later."""
    addresses = [
        (node.id, field, url)
        for node in chain.nodes
        for field, url in list_addresses(node.config.model_dump(mode="json"), "config")
    ]
    if not addresses:
        return []
    from trainyard.serve.client import judging  # imports the parts of an HTTP client, which few chains need

    reasons: list[Reason] = []
    for node_id, field, url in addresses:
        try:
            host = urlsplit(url).hostname or ""
            if host and not judging.is_numeric(host):
                judging.JudgedHosts(settings.private_hosts).addresses(host, HTTPS)
        except Refused as refused:
            reasons += [replace(one, node=node_id, field=field) for one in refused.reasons]
        except (OSError, ValueError):
            continue  # not known now, or no address: the node says so
    return reasons


def list_addresses(value: Any, field: str) -> Iterator[tuple[str, str]]:
    """(field, address) of every `base_url` in a config; targets are asked by `check_deployments`."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, member in pairs:
        if name == "base_url" and isinstance(member, str):
            yield f"{field}.{name}", member
        yield from list_addresses(member, f"{field}.{name}")


def check_deployments(chain: ResolvedChain, settings: Settings) -> list[Reason]:
    """Return why the deployers' targets would refuse the adapters of this chain."""
    reasons: list[Reason] = []
    if not any(isinstance(node.config, DeployerConfig) for node in chain.nodes):
        return reasons
    from trainyard.serve.expected import expect_candidate, target_reasons  # imports the clients of every target

    for node in chain.nodes:
        trainer = find_source_trainer(chain, node) if isinstance(node.config, DeployerConfig) else None
        if trainer is None or find_source_trainer(chain, trainer, Port.MODEL):
            continue  # the base of an adapter on a whole model of this chain is made by the chain itself
        assert isinstance(trainer.config, TrainerConfig)
        assert isinstance(node.config, DeployerConfig)
        try:
            candidate = expect_candidate(trainer.config, settings, rank=sum_ranks_below(chain, trainer))
        except TrainyardError:
            continue  # what is wrong with its base or its template is reported at the trainer
        reasons += [replace(reason, node=node.id) for reason in target_reasons(node.config, candidate, settings)]
    return reasons


def find_source_trainer(chain: ResolvedChain, node: ResolvedNode, *ports: Port) -> ResolvedNode | None:
    """Return the trainer whose adapter or model a node takes, controls left out."""
    inputs = (source for port in ports or (Port.ADAPTER, Port.MODEL) for source in node.inputs.get(port, ()))
    sources = (chain.node(source.node_id) for source in inputs if not source.control)
    return next((source for source in sources if isinstance(source.config, TrainerConfig)), None)


def sum_ranks_below(chain: ResolvedChain, trainer: ResolvedNode) -> int:
    """Rank of the adapters that are stacked below or merged into the one that a trainer writes."""
    config, before = trainer.config, find_source_trainer(chain, trainer, Port.ADAPTER)
    assert isinstance(config, TrainerConfig)
    if before is None or config.adapter == "continue":
        return 0
    assert isinstance(before.config, TrainerConfig)
    return find_rank(before.config.method) + sum_ranks_below(chain, before)


def sort_by_node(chain: ResolvedChain, reasons: Iterable[Reason]) -> list[Reason]:
    """Reasons node by node, as the chain lists them."""
    positions = {node.id: number for number, node in enumerate(chain.nodes)}
    return sorted(reasons, key=lambda reason: positions.get(reason.node or "", -1))


CHAIN_CHECKS = (check_inputs, check_teachers, check_template_choices, check_servers, check_deployments)
