"""Deploy an adapter: gate, check every target, register a version, then switch all targets or none.

Order of events, and what a failure at each leaves behind:

1. gate: not better, or not evaluated → `E-GATE`, `R-UNEVALUATED`; nothing happened
2. checks of all targets, all reasons at once → nothing happened
3. register `<tenant>/<role>/v<N>` → at worst a number without a version
4. load everywhere, ask every canary, switch everywhere, the registry's live pointer last → on any failure everything
   is undone in reverse order, the previous version stays live, the new one stays registered but never was live
5. retire the previous version → a failure is a warning, the deployment stays live

A deployment that does not happen is an error, never a quiet success: the node fails, and what comes after is skipped.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import httpx

from trainyard.errors import NotDeployed, Reason, Refused, TrainyardError, Unavailable
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.serve.card import keep_card
from trainyard.serve.embedded import find_running
from trainyard.serve.signatures import check_signature, sign_version, verify_version
from trainyard.serve.targets import merged
from trainyard.serve.targets.calling import http_client
from trainyard.serve.targets.contract import AdapterCandidate, Canary, TargetDeployment
from trainyard.serve.targets.table import TARGETS
from trainyard.serve.trial import read_object, read_trial, try_adapter_folder
from trainyard.serve.worker_uploads import upload_version
from trainyard.settings import Settings
from trainyard.spec.axes.data import Port
from trainyard.spec.axes.targets import TargetType
from trainyard.spec.nodes import DeployerConfig, Target
from trainyard.spec.roles import DEFAULT_ROLE
from trainyard.stores.adapters import RUN, RUN_BECAUSE, SIGNED, AdapterRegistry, AdapterVersion
from trainyard.stores.artifacts import Produced, Reference, open_reference
from trainyard.stores.ledger.log import run_key
from trainyard.stores.ledger.recording import PROMOTED, PUBLISHED, record_step
from trainyard.stores.models import chat_template, chat_template_sha256, model_sha256, resolve_model, template_dirs
from trainyard.stores.whole import write_json_durably

DEPLOYMENT_FILE = "deployment.json"
TOLERATED = ("forgetting", "heldout_loss", "token_accuracy")
"""Benchmarks of a default evaluator, whose margins are its tolerance."""
OLLAMA_URL = "http://127.0.0.1:11434"
DEPLOYMENT_FIELDS = ("targets", "canary", "canary_max_tokens")
"""What a version remembers of its deployer: enough to make it live again (`serve/versions/promotion.py`)."""
logger = logging.getLogger(__name__)
Clients = Callable[[Target, str, Settings], httpx.Client]


@dataclasses.dataclass(frozen=True)
class DeployRequest:
    """A deployment: what, by whose verdict, for whom."""

    config: DeployerConfig
    path: Path
    adapter: Reference
    verdict: JsonMapping
    """The report's gate, with its adapter's digest; empty when nothing evaluated it."""
    tenant: str
    run_key: str
    report: JsonMapping = dataclasses.field(default_factory=dict)
    """The means and intervals of its benchmarks, for a model card."""

    @property
    def role(self) -> str:
        """Return the role of the config, which a resolved chain names."""
        return self.config.role or DEFAULT_ROLE


def deploy(
    config: DeployerConfig,
    *,
    adapter: Reference,
    report: Reference | None,
    folder: Path,
    settings: Settings,
    tenant: str,
    clients: Clients = http_client,
    run_key: str = "",
) -> Produced:
    """Carry out a deployer node; facts say which version is live where.

    `tenant` is the chain's, used unless the config names one. With a `run_key`, doing it twice registers one version.
    Raises `Refused` (all reasons), `NotDeployed` (`E-GATE`), `TrainyardError` (`E-CANARY`, …), `Unavailable` (a target
    is down).
    """
    verdict = gate(config, adapter, report)
    source, owner = open_reference(adapter), config.tenant or tenant
    request = DeployRequest(config, source, adapter, verdict, owner, run_key, summarize(report))
    registry = AdapterRegistry(settings.adapters)
    with registry.deploying(request.tenant, request.role), ExitStack() as open_clients:
        if (facts := keep_newer(request, registry)) is not None:
            write_json_durably(folder / DEPLOYMENT_FILE, facts)
            return Produced(outputs={}, facts=facts)
        sites = open_sites(request, registry, settings, clients, open_clients)
        refuse(check_files(request, sites[0].candidate, settings))
        refuse(check_sites(sites))
        version = register(request, registry, sites[0].candidate, settings)
        facts = roll_out(version, sites, registry, notes=describe_uncompared(version, sites[-1].previous, request))
    write_json_durably(folder / DEPLOYMENT_FILE, facts)
    return Produced(outputs={}, facts=facts)


def gate(config: DeployerConfig, adapter: Reference, report: Reference | None) -> JsonMapping:
    """Return the verdict of the report on this very adapter; raises when it forbids the deployment."""
    if report is None:
        if config.unevaluated:
            return {}
        because = "no evaluation report reached the deployer, so it is not known whether the adapter is better."
        instead = "add an evaluator before the deployer, or set `unevaluated: true`."
        raise Refused([Reason("R-UNEVALUATED", None, "config.unevaluated", because, instead)])
    value = json.loads((open_reference(report) / "report.json").read_text(encoding="utf-8"))
    if value["adapter_sha256"] != adapter.sha256:
        because = f"the report is about {value['adapter_sha256'][:12]}, the adapter is {adapter.sha256[:12]}."
        instead = "connect the deployer to the adapter that was evaluated."
        raise Refused([Reason("R-EVALUATION", None, "needs", because, instead)])
    verdict: JsonMapping = value["gate"]
    if verdict.get("few_rows") and config.few_rows == "allow" and verdict.get("better_on_few"):
        return verdict
    if verdict.get("few_rows") and config.few_rows != "allow":
        raise NotDeployed(
            "There are not enough rows to say whether the adapter is better; nothing was deployed.",
            reasons=verdict["reasons"],
            passed=verdict.get("passed", ()),
            do="Give more rows, or write few_rows: allow to deploy what is better on these.",
            verdict="not enough rows to say",
        )
    if not verdict["better"]:
        raise NotDeployed(
            "The adapter is not better than its baseline; nothing was deployed.",
            reasons=[reason for reason in verdict["reasons"] if reason not in verdict.get("few_rows", ())],
            passed=verdict.get("passed", ()),
            do=suggest_remedy(value),
        )
    return verdict


def suggest_remedy(report: JsonMapping) -> str:
    """Return what to do after a report that says no.

    Where the primary metric is better, and others with a margin are worse, that is the tolerance that allows it.
    """
    failed = {reason.partition(": ")[0] for reason in report["gate"]["reasons"]}
    lines = [line for line in report.get("benchmarks") or () if f"{line['name']}/{line['set']}" in failed]
    shares = [
        -line["improvement"]["mean"] / abs(line["baseline"])
        for line in lines
        if line["name"] in TOLERATED and line["margin"] > 0 and line["baseline"]
    ]
    if any(label.startswith("quotes/") for label in failed):
        return (
            "Its answers do not have the sentences of its rows: train more epochs, or take a larger base. To deploy it "
            "all the same: least_quoted: 0 at the evaluator (of a template: `-p publish.least_quoted=0`)."
        )
    if len(shares) < len(failed) or report["gate"].get("primary") in failed:
        return (
            "Read the run's report. Hold out more rows, train longer, or allow a loss by the evaluator's tolerance "
            "or a benchmark's margin (of a template: publish.tolerance)."
        )
    tolerance = math.ceil(max(shares) * 100 + 1e-9) / 100
    allow = (
        f"To allow that, run it again with tolerance: {tolerance:g} at the evaluator (of a template: `-p "
        f"publish.tolerance={tolerance:g}`); what is trained is used again. Else train"
        if tolerance <= 1
        else "Train"
    )
    return (
        f"It learned its rows and is worse on other text, as a small base is that learns by heart. {allow} fewer "
        "steps, or take a larger base."
    )


def keep_newer(request: DeployRequest, registry: AdapterRegistry) -> dict[str, object] | None:
    """Return the facts of a deployment that leaves what is live as it is; None for one that continues.

    A run that reuses its results brings a version that is registered already. Where another one has replaced it, or is
    newer, that one stays: only a promotion or a rollback makes an earlier version live again.
    """
    live = registry.live(request.tenant, request.role)
    same = [
        version for version in registry.list(request.tenant, request.role) if version.sha256 == request.adapter.sha256
    ]
    if live.version is None or live.version in [version.version for version in same]:
        return None
    earlier = [version for version in same if version.version < live.version or live.has_been(version.version)]
    if not earlier:
        return None  # it is new here, or its own deployment has not succeeded yet
    version = max(earlier, key=lambda candidate: candidate.version)
    name = f"{version.alias}/v{live.version}"
    message = f"{name} stays live: this adapter is {version.name}, which was registered before"
    return {"deployed": False, "version": version.name, "alias": version.alias, "live": name, "kept": message,
            "targets": [], "warnings": []}  # fmt: skip


def summarize(report: Reference | None) -> dict[str, object]:
    """Return what of a report stays with the version: its benchmarks without the values of single rows."""
    if report is None:
        return {}
    value = json.loads((open_reference(report) / "report.json").read_text(encoding="utf-8"))
    lines = {f"{line['name']}/{line['set']}": line for line in value.get("benchmarks") or ()}
    keys = ("metric", "rows", "baseline", "candidate", "improvement")
    benchmarks = {name: {key: line[key] for key in keys} for name, line in lines.items()}
    return {**{key: value.get(key) for key in ("baseline", "live", "confidence")}, "benchmarks": benchmarks}


def describe_uncompared(
    version: AdapterVersion, replaced: AdapterVersion | None, request: DeployRequest
) -> tuple[str, ...]:
    """Return a warning for an adapter that was found better than its base, but not than the version it replaces.

    None for a deployment without an evaluation: its chain says that already.
    """
    participants = {str(request.report.get("live") or ""), str(request.report.get("baseline") or "").split(" ")[-1]}
    if replaced is None or not request.report or replaced.name in participants or replaced.sha256 == version.sha256:
        return ()
    return (
        f"{version.name} takes the place of {replaced.name}, with which it was not compared: that needs "
        "`baseline: both` at the evaluator.",
    )


def open_sites(
    request: DeployRequest, registry: AdapterRegistry, settings: Settings, clients: Clients, stack: ExitStack
) -> list[TargetDeployment]:
    """Return a site for each target; the registry comes last, because its pointer is what everybody else follows."""
    candidate = find_base(describe(request), settings)
    listed = [
        (index, target) for index, target in enumerate(request.config.targets) if target.type.facts.server != "none"
    ]
    live = registry.live(request.tenant, request.role).version
    previous = registry.show(f"{request.tenant}/{request.role}/v{live}") if live else None
    sites = []
    registries = [pair for pair in enumerate(request.config.targets) if pair[1].type is TargetType.REGISTRY]
    for index, target in [*listed, *(registries[-1:] or [(len(listed), Target(type=TargetType.REGISTRY))])]:
        site = TargetDeployment(target, candidate, registry, index, previous=previous, settings=settings)
        site.canary = Canary(request.config.canary, request.config.canary_max_tokens)
        if target.type.facts.server == "running":
            site.http = stack.enter_context(clients(target, address(target, settings), settings))
        sites.append(site)
    return sites


def address(target: Target, settings: Settings) -> str:
    """A target's url or endpoint, that of the embedded server which is up, or where ollama listens by default."""
    if target.endpoint is not None:
        return settings.endpoint(target.endpoint).base_url
    defaults = {TargetType.EMBEDDED: find_running, TargetType.OLLAMA: lambda _: OLLAMA_URL}
    url = target.url or (defaults[target.type](settings) if target.type in defaults else None)
    if url is None:
        hint = "Call `trainyard up`." if target.type is TargetType.EMBEDDED else "Give the target its url."
        raise Unavailable(f"The target `{target.type.value}` has no address.", do=hint, code="R-TARGET-DOWN")
    return url


def describe(request: DeployRequest) -> AdapterCandidate:
    """Return the facts in the adapter's own files."""
    training = read_object(request.path / "training.json")
    config = read_object(request.path / "adapter_config.json")
    base = str(training.get("base_path") or config.get("base_model_name_or_path") or "")
    return AdapterCandidate(
        kind="adapter" if request.adapter.kind is Port.ADAPTER else "model",
        base_model=str(training.get("base_model") or base),
        base_path=base,
        base_sha256=str(training.get("base_sha256") or ""),
        chat_template_sha256=str(training.get("chat_template_sha256") or ""),
        adapter_config=config,
        template=next(filter(None, map(chat_template, template_dirs(request.path))), ""),
    )


def find_base(candidate: AdapterCandidate, settings: Settings) -> AdapterCandidate:
    """The same with the folder that its base has on this machine, for an adapter that was trained on another one."""
    if candidate.kind != "adapter" or (Path(candidate.base_path) / "config.json").is_file():
        return candidate
    try:
        model = resolve_model(candidate.base_model, settings)
    except TrainyardError:
        return candidate  # the targets that need the folder say so
    here = model.path is not None and model.sha256 == candidate.base_sha256
    return dataclasses.replace(candidate, base_path=str(model.path)) if here else candidate


def check_sites(sites: Sequence[TargetDeployment]) -> list[Reason]:
    """Return what any target has against the version, and against what it is to become for it."""
    return [reason for site in sites for reason in (*TARGETS[site.target.type].check(site), *merged.check(site))]


def refuse(reasons: Sequence[Reason]) -> None:
    if reasons:
        raise Refused(reasons, what=f"The adapter cannot be deployed, for {len(reasons)} reason(s).")


def check_files(request: DeployRequest, candidate: AdapterCandidate, settings: Settings) -> list[Reason]:
    """Return the reasons in an adapter's files against it: a control, or another template or base than in training."""
    reasons = []
    if read_object(request.path / "training.json").get("control"):
        because = "the adapter is a control: it was trained on shuffled answers and knows nothing."
        instead = "connect the deployer to the trainer without `control`."
        reasons.append(Reason("R-CONTROL", None, "needs", because, instead))
    trained = candidate.chat_template_sha256
    carried = next(filter(None, map(chat_template_sha256, template_dirs(request.path))), None)
    if trained and carried and trained != carried:
        because = "the chat template in the adapter's folder is not the one that it was trained with."
        instead = "restore the tokenizer files, or train again."
        reasons.append(Reason("R-TEMPLATE-MISMATCH", None, "needs", because, instead))
    folder = Path(candidate.base_path)
    is_here = candidate.kind == "adapter" and candidate.base_sha256 and (folder / "config.json").is_file()
    if is_here and model_sha256(folder, digests=settings.models / ".digests.json") != candidate.base_sha256:
        because = f"the files of the base {candidate.base_model!r} have changed since the training."
        reasons.append(Reason("R-BASE-MISMATCH", None, "needs", because, "restore the base, or train on the new one."))
    return reasons


def try_adapter(request: DeployRequest, settings: Settings) -> dict[str, object]:
    """Run an adapter that its training has not run, before it gets a number; returns the facts of its version.

    Raises as `try_adapter_folder`.
    """
    if request.adapter.kind is not Port.ADAPTER:
        return {}
    recorded = read_trial(request.path)
    done = recorded if recorded is not None and not recorded.reason else try_adapter_folder(request.path, settings)
    return done.facts


def register(
    request: DeployRequest, registry: AdapterRegistry, candidate: AdapterCandidate, settings: Settings
) -> AdapterVersion:
    """Store the version with what a list shows of it, after it was run.

    One that is registered already keeps the signature of its publisher, which is verified before the adapter is run.
    Raises as `try_adapter` and `verify_version`.
    """
    if (registered := registry.find_folder(request.path)) is not None:
        verify_version(registered, registry, settings)
    run = try_adapter(request, settings)
    facts = {
        **run,
        "base_model": candidate.base_model,
        "base_path": candidate.base_path,
        "base_sha256": candidate.base_sha256,
        "chat_template_sha256": candidate.chat_template_sha256,
        "evaluated": bool(request.verdict),
        "gate": dict(request.verdict),
        "report": dict(request.report),
        "data": list(request.adapter.facts.get("sources") or ()),
        "rows": dict(request.adapter.facts.get("rows") or {}),
        "deployment": request.config.model_dump(mode="json", include=set(DEPLOYMENT_FIELDS), exclude_defaults=True),
    }
    version = registry.register(
        request.tenant, request.role, request.path, kind=candidate.kind, facts=facts, run_key=request.run_key
    )
    # A version of the same key may be registered already.
    version = version if version.facts.get(RUN) is True else registry.record_run(version, dict(run))
    version = sign_version(version, registry, settings)
    if problem := record_version(version, settings, PUBLISHED, "registered"):
        logger.warning("%s", problem)
    version = keep_card(version, registry, settings)
    upload_version(version, registry, settings)
    return version


def record_version(version: AdapterVersion, settings: Settings, kind: str, action: str, times: int = 0) -> str:
    """Record in the ledger that a version was registered or made live; return why it could not be, else empty."""
    return record_step(
        settings.home,
        kind,
        run_key(kind, version.name, version.sha256, action, times),
        tenant=version.tenant,
        version=version.name,
        action=action,
        outputs={version.kind: {"sha256": version.sha256}},
        base_sha256=version.facts.get("base_sha256") or None,
        evaluated=version.facts.get("evaluated"),
        signed_by=version.facts.get(SIGNED),
    )


def roll_out(
    version: AdapterVersion, sites: Sequence[TargetDeployment], registry: AdapterRegistry, notes: Sequence[str] = ()
) -> dict[str, object]:
    """Load, ask and switch everywhere, or undo everything. The signature is verified before anything is loaded.

    `notes` are warnings of the caller, which the facts have with those of the deployment.
    """
    settings = sites[-1].settings
    unsigned = check_signature(version, registry, settings) if settings is not None else ""
    for site in sites:
        site.version = registry.verify(version)
    folders: list[Path] = []
    try:
        merged.make_models(sites, folders)
        for step in ("load", "canary", "switch"):
            for site in sites:
                getattr(TARGETS[site.target.type], step)(site)
    except TrainyardError as error:
        failures = apply_to_sites("undo", sites[::-1])
        remove_folders(folders)
        raise undone(error, sites, failures) from error
    except BaseException:  # an interrupt, or a bug: the servers must not stay half switched either
        apply_to_sites("undo", sites[::-1])
        remove_folders(folders)
        raise
    # The previous version no longer answers for anybody: one that is not dropped only costs memory.
    left = apply_to_sites("retire", sites)
    warnings = [f"The previous version is still loaded in {server}" for server in left]
    warnings += [unsigned] if unsigned else []
    if settings is not None:
        times = len(registry.live(version.tenant, version.role).history)
        problem = record_version(version, settings, PROMOTED, sites[-1].action, times)
        warnings += [problem] if problem else []
    if version.facts.get(RUN) is False:
        warnings.append(f"The adapter was never run on its base here: {version.facts.get(RUN_BECAUSE)}")
    return {
        "deployed": True,
        "version": version.name,
        "alias": version.alias,
        "previous": sites[-1].previous.name if sites[-1].previous else None,
        "targets": [build_answer(site) for site in sites],
        "warnings": [*warnings, *notes],
    }


def remove_folders(folders: Sequence[Path]) -> None:
    """Remove the merged models that this deployment has made: nothing serves them."""
    for folder in folders:
        shutil.rmtree(folder)


def build_answer(site: TargetDeployment) -> JsonObject:
    """Return the facts of one target of a deployment."""
    url = str(site.http.base_url) if site.http else None
    return {"type": site.target.type.value, "url": url, "answer": site.answer, **merged.describe_merged(site)}


def apply_to_sites(step: str, sites: Sequence[TargetDeployment]) -> list[str]:
    """Do a step at every site, whatever happens at another; returns where it failed, and how."""
    failures = []
    for site in sites:
        try:
            getattr(TARGETS[site.target.type], step)(site)
        except TrainyardError as error:
            failures.append(f"{site.where}: {error.what}")
    return failures


def undone(error: TrainyardError, sites: Sequence[TargetDeployment], failures: Sequence[str]) -> TrainyardError:
    """Return the error that stopped the roll-out, with the state it left."""
    previous = sites[-1].previous
    state = f"{previous.name} stays live" if previous else "nothing is live, as before"
    state = f"Could not be undone at {'; '.join(failures)}" if failures else f"Everything was undone; {state}"
    why = f"{error.why.rstrip('.')}. {state}." if error.why else f"{state}."
    return type(error)(error.what, why=why, do=error.do, code=error.code)
