"""What keeps a chain from running on this machine, next to the rows of the table: files, models, templates, servers.

`planning.examine` joins this with the table. It is the one function that check, plan, run, jobs and the flows ask, so
what `trainyard check` accepts, a run on the same machine does not refuse. Nothing is started and nothing is written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trainyard.app.plan.keys import Dependency, dependencies, model_digest
from trainyard.compute.gpus import devices_here
from trainyard.data.paths import data_roots
from trainyard.data.renderers.choice import FILE_ENDING, choose_template
from trainyard.errors import NotFound, Reason, Refused, TrainyardError
from trainyard.loading import load
from trainyard.serve.chat_templates import check_chat_template
from trainyard.settings import Settings
from trainyard.spec.axes.data import GeneratorKind, Port
from trainyard.spec.axes.devices import Device
from trainyard.spec.axes.methods import rank_of
from trainyard.spec.chain import ChainSpec, ResolvedChain, ResolvedNode
from trainyard.spec.estimate.memory import GIB
from trainyard.spec.nodes import AiGeneratorConfig, DeployerConfig, ValidatorConfig
from trainyard.spec.training import TrainerConfig
from trainyard.stores.files import lacking_space
from trainyard.stores.models import model_folder, resolve_model

FLOAT32_BYTES = 4
HTTPS = 443


def physical_bytes() -> int:
    """The memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


ROOT_CODE = "R-PATH-ROOT"
"""The row of the table refuses it with the same words."""


# Models, named for the one who runs the chain


def locate_model(name: str, settings: Settings) -> str:
    """The whole path of a model's folder that is named relative to the caller's folder; any other name as it is."""
    folder = None if Path(name).is_absolute() else model_folder(name, settings)
    return name if folder is None else str(folder)


def locate_models(spec: ChainSpec, settings: Settings) -> ChainSpec:
    """The chain with whole paths of its models: a worker has another working folder than its caller."""
    nodes = []
    for node in spec.nodes:
        updates = located_fields(node.config, settings)
        nodes.append(node.model_copy(update={"config": node.config.model_copy(update=updates)}) if updates else node)
    return spec.model_copy(update={"nodes": tuple(nodes)})


def located_fields(config: Any, settings: Settings) -> dict[str, Any]:
    """The fields of a node's config that name a model by a relative folder, with its whole path."""
    updates: dict[str, Any] = {}
    if isinstance(config, DeployerConfig):
        places = (one.base_model and locate_model(one.base_model, settings) for one in config.targets)
        located = (
            one.model_copy(update={"base_model": place}) for one, place in zip(config.targets, places, strict=True)
        )
        updates = {"targets": tuple(located)}
    elif isinstance(config, TrainerConfig):
        teacher = config.stage.teacher_model
        updates = {"base_model": locate_model(config.base_model, settings)} if config.base_model else {}
        if teacher:
            updates["stage"] = config.stage.model_copy(update={"teacher": locate_model(teacher, settings)})
    elif isinstance(config, ValidatorConfig) and config.tokenizer:
        updates = {"tokenizer": locate_model(config.tokenizer, settings)}
    return {name: value for name, value in updates.items() if value != getattr(config, name)}


def locate_parameters(given: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Parameters of a template or a job with the whole paths of their base model and their teacher."""
    found, stage = dict(given), given.get("stage")
    if isinstance(name := found.get("base_model"), str):
        found["base_model"] = locate_model(name, settings)
    if isinstance(stage, Mapping) and isinstance(teacher := stage.get("teacher"), str):
        found["stage"] = {**stage, "teacher": locate_model(teacher, settings)}
    return found


# What is not here


def space_reasons(settings: Settings) -> list[Reason]:
    """Whether the disk of the home has room for a run (`E-DISK-FULL`)."""
    lacking = lacking_space(settings.home, settings.min_free_mb << 20)
    return [] if lacking is None else [Reason(lacking.code, None, "", lacking.what, lacking.do)]


def missing_inputs(chain: ResolvedChain, settings: Settings) -> list[Reason]:
    """Files and models that the nodes will read and that are not here or may not be loaded; each is reported once."""
    found: dict[tuple[str, str], Reason] = {}
    models: set[tuple[str, str]] = set()
    ordered = sorted(chain.nodes, key=lambda node: isinstance(node.config, ValidatorConfig))
    for node in ordered:  # a validator counts with its trainer's tokenizer: a missing base is reported at the trainer
        read, config = list(dependencies(node, settings, run_id="")), node.config
        if isinstance(config, AiGeneratorConfig) and config.engine in (GeneratorKind.LOCAL, GeneratorKind.VLLM):
            model = config.model or settings.default_base_model  # whose server is started here
            read.append(Dependency("model", "config.model", partial(model_digest, model, settings)))
        for one in read:
            if isinstance(one.digest, partial) and one.digest.func is model_digest:
                asked = (one.field, one.digest.args[0])
                if asked in models:
                    continue  # reported at the first node that asks for it
                models.add(asked)
            for reason in digest_reasons(one, node, settings):
                found.setdefault((reason.code, reason.because), reason)
    return list(found.values())


def digest_reasons(one: Dependency, node: ResolvedNode, settings: Settings) -> list[Reason]:
    try:
        one.digest()
        refuse_unreachable(one, node, settings)
    except Refused as refused:
        return [replace(reason, node=node.id) for reason in refused.reasons if reason.code != ROOT_CODE]
    except TrainyardError as error:
        return [reason_of(error, node.id, one.field)]
    return []


def refuse_unreachable(one: Dependency, node: ResolvedNode, settings: Settings) -> None:
    """Raise `NotFound` (`E-MODEL-NOT-FOUND`) for a model of the Hub that is not here while the Hub is not asked."""
    named = {
        "config.base_model": lambda config: config.base_model,
        "config.tokenizer": lambda config: config.tokenizer,
        "config.stage.teacher": lambda config: config.stage.teacher_model,
    }
    name = named[one.field](node.config) if one.field in named else None
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    if name and offline and resolve_model(name, settings).path is None:
        raise NotFound(
            f"There is no model {name!r} on this machine.",
            why=f"It is not a folder (a relative path starts at {settings.working_folder}), it is not in the cache "
            "of the Hub, and HF_HUB_OFFLINE forbids a download.",
            do="Correct the path, or download the model first.",
            code="E-MODEL-NOT-FOUND",
        )


def reason_of(error: TrainyardError, node: str | None, field: str) -> Reason:
    """An error as a reason of a node."""
    return Reason(error.code, node, field, f"{error.what} {error.why}".strip(), error.do)


def teacher_reasons(
    chain: ResolvedChain, settings: Settings, memory_bytes: Callable[[], int] = physical_bytes
) -> list[Reason]:
    """Return which teachers do not fit the memory of this machine (`E-MEMORY-FIT`), where it computes on its CPU."""
    reasons: list[Reason] = []
    for node in chain.nodes:
        config = node.config
        if not isinstance(config, TrainerConfig) or (name := config.stage.teacher_model) is None:
            continue
        if Device.CPU not in (config.device, devices_here()[0]):
            continue
        try:
            parameters = resolve_model(name, settings).parameters or 0
        except TrainyardError:
            continue  # reported by `missing_inputs`
        if (needed := FLOAT32_BYTES * parameters) > (there := memory_bytes()):
            because = f"The teacher {name!r} takes {needed / GIB:.1f} GiB, and this machine has {there / GIB:.1f} GiB."
            instead = "Use a smaller teacher, or a machine with more memory."
            reasons.append(Reason("E-MEMORY-FIT", node.id, "config.stage.teacher", because, instead))
    return reasons


def template_reasons(chain: ResolvedChain, settings: Settings) -> list[Reason]:
    """Return what is wrong with the chat templates of the trainers; a file is rendered in a limited child process."""
    reasons: list[Reason] = []
    for node in chain.nodes:
        wanted = node.config.engine.template if isinstance(node.config, TrainerConfig) else "auto"
        try:
            chosen = choose_template(wanted, roots=data_roots(settings))
            if wanted.endswith(FILE_ENDING):
                check_chat_template(chosen.text)
        except Refused as refused:
            reasons += [replace(reason, node=node.id) for reason in refused.reasons if reason.code != ROOT_CODE]
        except TrainyardError as error:
            reasons.append(reason_of(error, node.id, "config.engine.template"))
    return reasons


# What the servers will say


def server_reasons(chain: ResolvedChain, settings: Settings) -> list[Reason]:
    """Return why a run would not connect to a generator's or a judge's own address; a name unknown now may be later."""
    reasons: list[Reason] = []
    for node in chain.nodes:
        for place, url in addresses_in(node.config.model_dump(mode="json"), "config"):
            judging = load("trainyard.serve.client.judging")  # imports the parts of an HTTP client
            try:
                host = urlsplit(url).hostname or ""
                if host and not judging.is_numeric(host):
                    judging.JudgedHosts(settings.private_hosts).addresses(host, HTTPS)
            except Refused as refused:
                reasons += [replace(one, node=node.id, field=place) for one in refused.reasons]
            except (OSError, ValueError):
                continue  # not known now, or no address: the node says so
    return reasons


def addresses_in(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """(field, address) of every `base_url` in a config; targets are asked by `deployment_reasons`."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, one in pairs:
        if name == "base_url" and isinstance(one, str):
            yield f"{place}.{name}", one
        yield from addresses_in(one, f"{place}.{name}")


def deployment_reasons(chain: ResolvedChain, settings: Settings) -> list[Reason]:
    """Return why the deployers' targets would refuse the adapters of this chain."""
    reasons: list[Reason] = []
    if not any(isinstance(node.config, DeployerConfig) for node in chain.nodes):
        return reasons
    # Imports the clients of every target.
    expect_candidate = load("trainyard.serve.expected:expect_candidate")
    target_reasons = load("trainyard.serve.expected:target_reasons")
    for node in chain.nodes:
        trainer = made_by(chain, node) if isinstance(node.config, DeployerConfig) else None
        if trainer is None or made_by(chain, trainer, Port.MODEL):
            continue  # the base of an adapter on a whole model of this chain is made by the chain itself
        assert isinstance(trainer.config, TrainerConfig)
        assert isinstance(node.config, DeployerConfig)
        try:
            candidate = expect_candidate(trainer.config, settings, rank=added_rank(chain, trainer))
        except TrainyardError:
            continue  # what is wrong with its base or its template is reported at the trainer
        reasons += [replace(one, node=node.id) for one in target_reasons(node.config, candidate, settings)]
    return reasons


def made_by(chain: ResolvedChain, node: ResolvedNode, *ports: Port) -> ResolvedNode | None:
    """The trainer whose adapter or model a node takes, controls left out."""
    taken = [s for port in ports or (Port.ADAPTER, Port.MODEL) for s in node.inputs.get(port, ()) if not s.control]
    trainers = (chain.node(source.node_id) for source in taken)
    return next((one for one in trainers if isinstance(one.config, TrainerConfig)), None)


def added_rank(chain: ResolvedChain, trainer: ResolvedNode) -> int:
    """Rank of the adapters that are stacked below or merged into the one that a trainer writes."""
    config, before = trainer.config, made_by(chain, trainer, Port.ADAPTER)
    assert isinstance(config, TrainerConfig)
    if before is None or config.adapter == "continue":
        return 0
    assert isinstance(before.config, TrainerConfig)
    return rank_of(before.config.method) + added_rank(chain, before)


def in_chain_order(chain: ResolvedChain, reasons: Iterable[Reason]) -> list[Reason]:
    """Reasons node by node, as the chain lists them."""
    places = {node.id: number for number, node in enumerate(chain.nodes)}
    return sorted(reasons, key=lambda reason: places.get(reason.node or "", -1))
