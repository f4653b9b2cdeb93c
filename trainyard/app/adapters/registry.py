"""Adapter versions for an operator: list them, show one, and write one in the layout of another tool.

Give the adapter of an ended job a number in the registry, and make it live: what a deployer does in a chain.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from trainyard.app.adapters.trained import TrainedAdapter, find_trained, find_version_or_job
from trainyard.app.context import Context
from trainyard.app.responses import Record, Response
from trainyard.errors import InvalidInput
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.operations.adapters import AdapterName, AdaptersInput, ConvertInput, RegisterInput
from trainyard.serve.card import write_card
from trainyard.serve.conversion.adapters import CONFIG_FILE
from trainyard.serve.conversion.architectures import Layout
from trainyard.serve.conversion.between import TOKENIZER_FOLDER, convert, detect_layout
from trainyard.serve.deploy import DeployRequest, check_files, describe, find_base, refuse, register, summarize
from trainyard.serve.embedded import find_running
from trainyard.serve.trial import try_adapter_folder
from trainyard.serve.version_facts import base_facts
from trainyard.serve.versions.promotion import parse_target, roll_out_version
from trainyard.settings import Settings
from trainyard.spec.axes.targets import TargetType
from trainyard.spec.nodes import DeployerConfig, Target
from trainyard.stores.adapters import CARD_FILE, RUN, AdapterRegistry, AdapterVersion, check_name, parse_name
from trainyard.stores.models import TOKENIZER_FILES, resolve_model

TOKENIZER_CONFIGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
                     "merges.txt")  # fmt: skip
OTHERS = ".others"
"""A folder of the registry that is never there."""


class AdapterRows(Response):
    rows: tuple[JsonObject, ...]


class Converted(Response):
    source: Path
    target: Path
    was: Layout
    to: Layout
    adapter_run: bool = False
    """Whether the written adapter was loaded and run once on its base."""
    adapter_run_because: str = ""
    """Why it was not."""


def list_adapters(request: AdaptersInput, context: Context) -> AdapterRows:
    registry, tenant = AdapterRegistry(context.settings.adapters), context.caller.tenant
    if tenant and request.tenant not in (None, tenant):
        return AdapterRows(rows=())  # what another tenant has is not there
    return AdapterRows(
        rows=tuple(adapter_row(registry, version) for version in registry.list(tenant or request.tenant))
    )


def open_registry(context: Context, name: str) -> AdapterRegistry:
    """Return the registry in which a caller may look a name up: for the name of another tenant, one without any
    version.
    """
    root, tenant = context.settings.adapters, context.caller.tenant
    return AdapterRegistry(root if tenant in ("", parse_name(name)[0]) else root / OTHERS)


def adapter_row(registry: AdapterRegistry, version: AdapterVersion) -> dict[str, object]:
    return {
        "name": version.name,
        "live": registry.live(version.tenant, version.role).version == version.version,
        "kind": version.kind,
        "base": version.facts.get("base_model", ""),
        "evaluated": version.facts.get("evaluated", False),
        "run": run_word(version),
        "created": datetime.fromtimestamp(version.created, UTC).isoformat(timespec="seconds"),
        "sha256": version.sha256[:12],
    }


def run_word(version: AdapterVersion) -> str:
    """Return whether a version was run once on its base here, in a word; a whole model has none."""
    if version.kind != "adapter":
        return ""
    return "not recorded" if RUN not in version.facts else "yes" if version.facts[RUN] else "no"


def show_adapter(request: AdapterName, context: Context) -> Record:
    registry = open_registry(context, request.name)
    version = registry.show(request.name)
    live = registry.live(version.tenant, version.role)
    state = {
        "path": str(registry.path(version)),
        "live": live.version == version.version,
        "history": list(live.history),
    }
    return Record(record={**version.model_dump(mode="json"), **state})


def convert_adapter(request: ConvertInput, context: Context) -> Converted:
    """Write an adapter in another layout: of a folder, else of the registry, else of a job; it is run once before.

    Raises what `find_version_or_job`, `convert` and `try_adapter_folder` raise.
    """
    source, target, settings = Path(request.source).expanduser().absolute(), request.target.absolute(), context.settings
    version, origin = build_unregistered_version(source), f"written from `{source.name}`"
    if not source.exists():  # what is there under this name comes before a version of the registry
        adapter = find_version_or_job(request.source, context)
        if isinstance(adapter, AdapterVersion):
            source, version, origin = AdapterRegistry(settings.adapters).path(adapter), adapter, ""
        else:
            source, version, origin = adapter.folder, adapter.as_version(), f"trained by the job `{adapter.name}`"
    base, runs = find_convert_base(request, source, settings), []

    def try_run(folder: Path) -> None:
        runs.append(try_adapter_folder(folder, settings, base))

    def complete(folder: Path) -> None:
        if request.to is Layout.PEFT:
            complete_folder(folder, source, base)
            card = write_card(version, folder, repository=str(target), base=str(base or ""), origin=origin)
            (folder / CARD_FILE).write_text(card, encoding="utf-8")

    was = convert(source, target, request.to, base, try_run=try_run, complete=complete)
    return Converted(source=source, target=target, was=was, to=request.to, **runs[0].facts)


def build_unregistered_version(source: Path) -> AdapterVersion:
    """Return what a card says of an adapter outside the registry: what its own files say."""
    return AdapterVersion(tenant="none", role="adapter", version=0, sha256="", facts=base_facts(source))


def complete_folder(folder: Path, source: Path, base: Path | None) -> None:
    """Add what a PEFT adapter is used with: the tokenizer with its chat template, and the record of its training."""
    record, tokenizer = source / "training.json", folder / TOKENIZER_FOLDER
    if record.is_file():
        shutil.copyfile(record, folder / record.name)
    if not tokenizer.is_dir() and base is not None:
        tokenizer.mkdir()
        for name in (*TOKENIZER_FILES, *TOKENIZER_CONFIGS):
            if (base / name).is_file():
                shutil.copyfile(base / name, tokenizer / name)


def find_convert_base(request: ConvertInput, source: Path, settings: Settings) -> Path | None:
    """Return the folder of the base, where one is named and on this machine."""
    if request.base is not None:
        return resolve_model(request.base, settings).path
    if detect_layout(source) is not Layout.PEFT:
        return None
    named = json.loads((source / CONFIG_FILE).read_text(encoding="utf-8")).get("base_model_name_or_path")
    folder = Path(str(named))
    return folder if named and folder.is_dir() else None


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
    adapter = trained.reference.model_copy(update={"facts": {"sources": list(trained.sources), "rows": trained.rows}})
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
