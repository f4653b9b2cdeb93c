"""The facts of this machine and its settings that decide whether a chain can run here."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

from trainyard.backends.base import probe_all
from trainyard.backends.job import find_step_service
from trainyard.compute.gpus import list_devices
from trainyard.data.paths import data_roots, resolve_inside
from trainyard.data.remote.kinds import find_kind
from trainyard.errors import Reason, Refused, TrainyardError
from trainyard.inherited import is_key_missing
from trainyard.sandbox.service import Confinement, find_confinement
from trainyard.serve.inference_server import vllm
from trainyard.settings import Settings
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.targets import TargetType
from trainyard.spec.chain import ChainSpec, ResolvedChain, ResolvedNode
from trainyard.spec.compat.context import RunFacts
from trainyard.spec.estimate.shape import BaseFacts, ModelShape
from trainyard.spec.nodes import (
    DataSourceConfig,
    DeployerConfig,
    SourceSet,
)
from trainyard.spec.training import TrainerConfig
from trainyard.stores.models import base_facts, resolve_model


def read_machine_facts(chain: ChainSpec | ResolvedChain, settings: Settings) -> RunFacts:
    """Return the facts of the machine and the settings; the embedded server is asked only if a node needs it."""
    roots = data_roots(settings, chain.tenant)
    deployers = (node.config for node in chain.nodes if isinstance(node.config, DeployerConfig))
    # Imports the clients of servers.
    asks_embedded = any(target.type is TargetType.EMBEDDED for config in deployers for target in config.targets)

    def path_problem(path: str) -> Reason | None:
        try:
            resolve_inside(path, roots)
        except Refused as refused:
            return refused.reasons[0]
        except TrainyardError:
            return None  # it is inside a root and missing: `check_inputs` reports that
        return None

    return RunFacts(
        endpoints=frozenset(settings.endpoints),
        missing_key=lambda config: find_missing_key(config, settings),
        may_mirror=settings.may_mirror,
        may_read=settings.may_read,
        data_workers=settings.listed_data_workers,
        path_problem=path_problem,
        backends=probe_backends(settings),
        base=lambda name: find_base_facts(name, settings),
        devices=frozenset(list_devices()),
        vllm_install=None if vllm.executable(settings) else vllm.install_line(),
        embedded=has_embedded_server(settings) if asks_embedded else None,
        has_module=has_module,
        opens_network=settings.allow_open_network,
        confines_code=lambda: settings.allow_unconfined_code or find_confinement() is not Confinement.NONE,
    )


def find_missing_key(config: TrainerConfig, settings: Settings) -> str | None:
    """Return the variable whose key the service of a trainer needs and that is empty here."""
    named = config.service.endpoint if config.service is not None else None
    if not config.backend.facts.remote or (named is not None and named not in settings.endpoints):
        return None
    variable = find_step_service(config, settings.default_base_model, settings).api_key_env
    return variable if is_key_missing(variable) else None


def has_embedded_server(settings: Settings) -> bool:
    """Return whether the model server of this machine runs."""
    from trainyard.serve.embedded import find_running  # imports an HTTP client, which few chains need

    return find_running(settings) is not None


def find_base_facts(name: str, settings: Settings) -> BaseFacts | None:
    """Return the facts in a base model's files; None if it is not here, or cannot be read."""
    folder = find_base_folder(name, settings)
    try:
        return base_facts(folder) if folder else None
    except TrainyardError:
        return None


def has_module(name: str) -> bool:
    """Return whether a package can be imported here; the packages that its name is below are looked for first."""
    parts = name.split(".")
    parents = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
    return all(importlib.util.find_spec(parent) is not None for parent in parents)


def probe_backends(settings: Settings) -> dict[BackendName, str | None]:
    """Backend -> why it cannot be used here; None if it can."""
    statuses = probe_all(settings)
    return {
        name: None if status.available else f"{status.why} {status.fix}".strip() for name, status in statuses.items()
    }


def find_base_folder(name: str, settings: Settings) -> Path | None:
    """Return the folder of a base model; None if it is not here, which the trainer's own line reports."""
    try:
        return resolve_model(name, settings).path
    except TrainyardError:
        return None


def find_base_shape(name: str, settings: Settings) -> ModelShape | None:
    """Return the shape of a base model that is here."""
    folder = find_base_folder(name, settings)
    return ModelShape.from_config(json.loads((folder / "config.json").read_text("utf-8"))) if folder else None


def read_memory_bytes() -> int:
    """Return the memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def list_trainers(chain: ResolvedChain) -> list[tuple[ResolvedNode, TrainerConfig]]:
    nodes = (chain.node(node_id) for node_id in chain.order)
    return [(node, node.config) for node in nodes if isinstance(node.config, TrainerConfig)]


def is_local(config: DataSourceConfig) -> bool:
    return all(is_local_set(source_set) for _, _, source_set in config.named_sets())


def is_local_set(source_set: SourceSet) -> bool:
    return find_kind(source_set) is None
