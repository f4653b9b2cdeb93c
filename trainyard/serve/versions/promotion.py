"""Make a registered version live again: the roll-out of a deployer, for a version that is there already.

A version remembers the targets and the canary of its deployer. A promotion loads it there next to the live version,
asks the canary, and switches all targets, the registry's pointer last. If one fails, everything is undone and the
previous version stays live. The targets of the live version are switched too: what they answer would be out of date.

A registered version as a whole model: base and adapter in one folder, or in one GGUF file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from trainyard.errors import Conflict, InvalidInput, NotFound
from trainyard.json_types import JsonObject
from trainyard.serve.card import keep_card
from trainyard.serve.conversion.merged import DType, Format, merge_files, require_converter
from trainyard.serve.deploy import (
    Clients,
    DeployRequest,
    check_files,
    check_sites,
    describe,
    find_base,
    open_sites,
    refuse,
    roll_out,
)
from trainyard.serve.signatures import verify_version
from trainyard.serve.targets.calling import http_client
from trainyard.serve.targets.merged import read_facts
from trainyard.serve.trial import try_version
from trainyard.settings import Settings
from trainyard.spec.axes.data import Port
from trainyard.spec.axes.targets import TargetType
from trainyard.spec.nodes import DeployerConfig, Target
from trainyard.stores.adapters import AdapterRegistry, AdapterVersion
from trainyard.stores.artifacts import Reference


def newest(registry: AdapterRegistry, name: str) -> AdapterVersion:
    """Return the version of a name; of `<tenant>/<role>` the one with the highest number, live or not."""
    versions = [version for version in registry.list() if version.alias == name]
    return versions[-1] if versions else registry.show(name)


def roll_out_version(
    version: AdapterVersion,
    registry: AdapterRegistry,
    settings: Settings,
    *,
    action: str,
    targets: Sequence[Target] = (),
    clients: Clients = http_client,
) -> dict[str, object]:
    """Make a version live on `targets`, else on those of its deployment; facts say where it answers.

    `action` goes into the history of the live pointer. The caller has `registry.deploying`. Raises `InvalidInput`
    (`E-ADAPTER-INVALID`) for a version without a deployment, what `try_version` raises for one that was never run here,
    and what `deploy` raises.
    """
    config = build_deployer_config(version, registry, targets)
    request = DeployRequest(config, registry.path(version), reference(version, registry), {}, version.tenant, "")
    with ExitStack() as open_clients:
        sites = open_sites(request, registry, settings, clients, open_clients)
        refuse(check_files(request, sites[0].candidate, settings))
        refuse(check_sites(sites))
        version = try_version(verify_version(version, registry, settings), registry, settings)
        version = keep_card(version, registry, settings)
        sites[-1].action = action  # the registry's own pointer is the last one
        return roll_out(version, sites, registry)


def build_deployer_config(
    version: AdapterVersion, registry: AdapterRegistry, targets: Sequence[Target]
) -> DeployerConfig:
    """Return the deployer's config with which a version is made live."""
    deployment = read_deployment(version)
    if deployment is None and not targets:
        raise InvalidInput(
            f"{version.name} does not say where it was deployed.",
            why="It was pulled, or registered by an earlier version of Trainyard.",
            do="Name its targets, such as --target embedded, --target vllm=http://10.0.0.5:8000 or --target registry.",
            code="E-ADAPTER-INVALID",
        )
    config = DeployerConfig.model_validate({"tenant": version.tenant, "role": version.role, **(deployment or {})})
    all_targets = list(targets) or [*config.targets, *targets_of_live(version, registry)]
    return config.model_copy(
        update={"targets": tuple(target for at, target in enumerate(all_targets) if target not in all_targets[:at])}
    )


def targets_of_live(version: AdapterVersion, registry: AdapterRegistry) -> tuple[Target, ...]:
    number = registry.live(version.tenant, version.role).version
    deployment = read_deployment(registry.show(f"{version.alias}/v{number}")) if number else None
    return DeployerConfig.model_validate({"role": version.role, **deployment}).targets if deployment is not None else ()


def read_deployment(version: AdapterVersion) -> JsonObject | None:
    """Return what a version remembers of its deployer: targets and canary; None if nothing."""
    deployment: JsonObject | None = version.facts.get("deployment")
    return deployment


def reference(version: AdapterVersion, registry: AdapterRegistry) -> Reference:
    kind = Port.ADAPTER if version.kind == "adapter" else Port.MODEL
    return Reference(uri=f"file://{registry.path(version)}", sha256=version.sha256, kind=kind)


def parse_target(text: str, settings: Settings) -> Target:
    """The target of `TYPE`, `TYPE=URL` or `TYPE=ENDPOINT`. Raises `InvalidInput` (`E-PARAMETER`, `E-ENDPOINT`)."""
    kind, _, address = text.partition("=")
    if kind not in {target.value for target in TargetType}:
        raise InvalidInput(
            f"{text!r} is not a valid target.",
            why=f"{kind!r} is not one of {', '.join(target.value for target in TargetType)}.",
            do="Write TYPE, TYPE=URL or TYPE=ENDPOINT, such as vllm=http://10.0.0.5:8000.",
            code="E-PARAMETER",
        )
    if not address:
        return Target(type=TargetType(kind))
    if "://" in address:
        return Target(type=TargetType(kind), url=address)
    settings.endpoint(address)
    return Target(type=TargetType(kind), endpoint=address)


def merge_version(
    version: AdapterVersion, target: Path, settings: Settings, *, format: Format = "safetensors", dtype: DType = "auto"
) -> dict[str, object]:
    """Write the merged model of a version as the folder `target`; returns what is in its `merged.json`.

    Raises `Conflict` (`E-FILE-EXISTS`), `InvalidInput` (`E-MERGE`, `E-PARAMETER`), `NotFound` (`E-MODEL-NOT-FOUND`),
    `Refused` (`R-BASE-MISMATCH`), `Unavailable` (`E-PACKAGE-MISSING`, `E-CONVERT`) and what the child reports; nothing
    is left then.
    """
    registry = AdapterRegistry(settings.adapters)
    adapter = reference(verify_version(version, registry, settings), registry)
    facts = read_facts(version)
    return merge_adapter(adapter, version.name, target, settings, facts, format=format, dtype=dtype)


def merge_adapter(
    adapter: Reference,
    name: str,
    target: Path,
    settings: Settings,
    facts: Mapping[str, object],
    *,
    format: Format = "safetensors",
    dtype: DType = "auto",
) -> dict[str, object]:
    """Write the merged model of an adapter, registered or not; `name` is what messages call it. Raises as above."""
    if format == "gguf":
        require_converter(settings, dtype)
    if target.exists():
        raise Conflict(
            f"{target} exists already.",
            do="Name a folder that is not there; nothing is overwritten.",
            code="E-FILE-EXISTS",
        )
    base = require_base_folder(adapter, name, settings)
    return merge_files(adapter.path, base, target, settings, facts, format=format, dtype=dtype)


def require_base_folder(adapter: Reference, name: str, settings: Settings) -> Path:
    """Return the folder of the base, whose files are those of the training."""
    if adapter.kind is not Port.ADAPTER:
        raise InvalidInput(
            f"{name} is a whole model.",
            do=f"Use its folder as it is: {adapter.path}.",
            code="E-MERGE",
        )
    request = DeployRequest(DeployerConfig(), adapter.path, adapter, {}, "", "")
    candidate = find_base(describe(request), settings)
    if not (Path(candidate.base_path) / "config.json").is_file():
        raise NotFound(
            f"The base {candidate.base_model!r} of {name} is not on this machine.",
            do="Download it, or bring its folder back; its digest is compared.",
            code="E-MODEL-NOT-FOUND",
        )
    refuse(check_files(request, candidate, settings))
    return Path(candidate.base_path)
