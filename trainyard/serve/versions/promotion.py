"""Make a registered version live again: the roll-out of a deployer, for a version that is there already.

A version remembers the targets and the canary of its deployer. A promotion loads it there next to the live version,
asks the canary, and switches all targets, the registry's pointer last. If one fails, everything is undone and the
previous version stays live. The targets of the live version are switched too: what they answer would be out of date.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from trainyard.errors import InvalidInput
from trainyard.json_types import JsonObject
from trainyard.serve.card import keep_card
from trainyard.serve.deploy import Clients, DeployRequest, check_files, check_sites, open_sites, refuse, roll_out
from trainyard.serve.targets.calling import http_client
from trainyard.serve.trial import try_version
from trainyard.settings import Settings
from trainyard.spec.axes.data import Port
from trainyard.spec.axes.targets import TargetType
from trainyard.spec.nodes import DeployerConfig, Target
from trainyard.stores.adapters import AdapterRegistry, AdapterVersion
from trainyard.stores.artifacts import Reference


def newest(registry: AdapterRegistry, name: str) -> AdapterVersion:
    """The version of a name; of `<tenant>/<role>` the one with the highest number, live or not."""
    found = [one for one in registry.list() if one.alias == name]
    return found[-1] if found else registry.show(name)


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
    config = config_of(version, registry, targets)
    wanted = DeployRequest(config, registry.path(version), reference(version, registry), {}, version.tenant, "")
    with ExitStack() as open_clients:
        sites = open_sites(wanted, registry, settings, clients, open_clients)
        refuse(check_files(wanted, sites[0].candidate, settings))
        refuse(check_sites(sites))
        version = keep_card(try_version(registry.verify(version), registry, settings), registry, settings)
        sites[-1].action = action  # the registry's own pointer is the last one
        return roll_out(version, sites, registry)


def config_of(version: AdapterVersion, registry: AdapterRegistry, targets: Sequence[Target]) -> DeployerConfig:
    """The deployer's config with which a version is made live."""
    own = deployment_of(version)
    if own is None and not targets:
        raise InvalidInput(
            f"{version.name} does not say where it was deployed.",
            why="It was pulled, or registered by an earlier version of Trainyard.",
            do="Name its targets, such as --target embedded, --target vllm=http://10.0.0.5:8000 or --target registry.",
            code="E-ADAPTER-INVALID",
        )
    known = DeployerConfig.model_validate({"tenant": version.tenant, "role": version.role, **(own or {})})
    chosen = list(targets) or [*known.targets, *targets_of_live(version, registry)]
    return known.model_copy(update={"targets": tuple(one for at, one in enumerate(chosen) if one not in chosen[:at])})


def targets_of_live(version: AdapterVersion, registry: AdapterRegistry) -> tuple[Target, ...]:
    number = registry.live(version.tenant, version.role).version
    own = deployment_of(registry.show(f"{version.alias}/v{number}")) if number else None
    return DeployerConfig.model_validate({"role": version.role, **own}).targets if own is not None else ()


def deployment_of(version: AdapterVersion) -> JsonObject | None:
    """What a version remembers of its deployer: targets and canary; None if nothing."""
    found: JsonObject | None = version.facts.get("deployment")
    return found


def reference(version: AdapterVersion, registry: AdapterRegistry) -> Reference:
    kind = Port.ADAPTER if version.kind == "adapter" else Port.MODEL
    return Reference(uri=f"file://{registry.path(version)}", sha256=version.sha256, kind=kind)


def parse_target(text: str, settings: Settings) -> Target:
    """The target of `TYPE`, `TYPE=URL` or `TYPE=ENDPOINT`. Raises `InvalidInput` (`E-PARAMETER`, `E-ENDPOINT`)."""
    kind, _, place = text.partition("=")
    if kind not in {one.value for one in TargetType}:
        raise InvalidInput(
            f"{text!r} is not a valid target.",
            why=f"{kind!r} is not one of {', '.join(one.value for one in TargetType)}.",
            do="Write TYPE, TYPE=URL or TYPE=ENDPOINT, such as vllm=http://10.0.0.5:8000.",
            code="E-PARAMETER",
        )
    if not place:
        return Target(type=TargetType(kind))
    if "://" in place:
        return Target(type=TargetType(kind), url=place)
    settings.endpoint(place)
    return Target(type=TargetType(kind), endpoint=place)
