"""Give the adapter of an ended job a number in the registry, and make it live: what a deployer does in a chain."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from trainyard.app.adapters.trained import TrainedAdapter, find_trained
from trainyard.app.context import Context
from trainyard.app.responses import Response
from trainyard.errors import InvalidInput
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.operations.adapters import RegisterInput
from trainyard.serve.deploy import DeployRequest, check_files, describe, find_base, refuse, register, summarize
from trainyard.serve.embedded import find_running
from trainyard.serve.versions.promotion import parse_target, roll_out_version
from trainyard.settings import Settings
from trainyard.spec.axes.targets import TargetType
from trainyard.spec.nodes import DeployerConfig, Target
from trainyard.stores.adapters import AdapterRegistry, check_name


class Registered(Response):
    """A version that a job's adapter has become, and whether it is live."""

    version: str
    job: str
    """Id of the job."""
    live: bool
    evaluated: bool
    better: bool | None = None
    """The verdict of its evaluation; None without one."""
    adapter_run: bool | None = None
    """Whether the adapter was loaded and run once on its base here; None for a whole model."""
    adapter_run_because: str = ""
    """Why it was not."""
    targets: tuple[JsonObject, ...] = ()
    """Where it answers, if it was made live."""
    warnings: tuple[str, ...] = ()
    next: tuple[str, ...] = ()
    """Commands that use it."""


def register_job(request: RegisterInput, context: Context) -> Registered:
    """Register the adapter of a job; the same job and role twice is one version.

    Raises `InvalidInput` (`E-PARAMETER`, `E-NAME`) for targets without `promote`, and what `find_trained`,
    `check_files`, `register` and `roll_out_version` raise.
    """
    if request.targets and not request.promote:
        raise InvalidInput("--target belongs to --promote.", do="Give --promote, too.", code="E-PARAMETER")
    settings, trained, role = context.settings, find_trained(request.job, context), check_name(request.role)
    verdict = find_verdict(trained)
    targets = resolve_targets(request.targets, settings)
    config = DeployerConfig(tenant=trained.tenant, role=role, targets=targets, unevaluated=not verdict)
    adapter = trained.reference.model_copy(update={"facts": {"sources": list(trained.sources)}})
    key = f"job:{trained.job}:{adapter.sha256}"
    deployment = DeployRequest(config, trained.folder, adapter, verdict, trained.tenant, key, summarize(trained.report))
    registry, candidate = AdapterRegistry(settings.adapters), find_base(describe(deployment), settings)
    with registry.deploying(trained.tenant, role):
        refuse(check_files(deployment, candidate, settings))
        version = register(deployment, registry, candidate, settings)
        facts: JsonMapping = {}
        if request.promote:
            facts = roll_out_version(version, registry, settings, action="promote", targets=targets)
        live = registry.live(version.tenant, version.role).version == version.version
    return Registered(
        version=version.name, job=trained.job, live=live, evaluated=bool(verdict),
        better=bool(verdict["better"]) if verdict else None,
        adapter_run=version.facts.get("adapter_run"), adapter_run_because=version.facts.get("adapter_run_because", ""),
        targets=tuple(facts.get("targets", ())), warnings=tuple(facts.get("warnings", ())),
        next=(f"trainyard chat {version.name}", *([] if live else [f"trainyard adapters promote {version.name}"])),
    )  # fmt: skip


def find_verdict(trained: TrainedAdapter) -> Mapping[str, object]:
    """Return the gate's verdict on an adapter in the run of its job; empty where nothing evaluated it."""
    if trained.report is None:
        return {}
    report = json.loads((trained.report.path / "report.json").read_text(encoding="utf-8"))
    verdict: Mapping[str, object] = report["gate"] if report["adapter_sha256"] == trained.reference.sha256 else {}
    return verdict


def resolve_targets(names: Sequence[str], settings: Settings) -> tuple[Target, ...]:
    """Return where an adapter becomes live: as written, else the model server of `up` if it runs, and the registry."""
    if names:
        return tuple(parse_target(word, settings) for word in names)
    embedded = (Target(type=TargetType.EMBEDDED),) if find_running(settings) is not None else ()
    return (*embedded, Target(type=TargetType.REGISTRY))
