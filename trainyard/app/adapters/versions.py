"""The life of adapter versions: which one is live, which one is removed, and how one gets to another machine."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from trainyard.app.adapters.registry import open_registry
from trainyard.app.adapters.trained import find_version_or_job
from trainyard.app.context import Context
from trainyard.app.responses import Response
from trainyard.errors import Conflict, InvalidInput
from trainyard.json_types import JsonObject
from trainyard.operations.adapters import (
    CardInput,
    DeleteInput,
    MergeInput,
    PromoteInput,
    PullInput,
    PushInput,
    RollbackInput,
)
from trainyard.serve.card import write_card
from trainyard.serve.conversion.merged import Format
from trainyard.serve.data_card import write_cards, write_data_card
from trainyard.serve.signatures import check_signature, sign_published
from trainyard.serve.targets.merged import remove_models
from trainyard.serve.trial import find_base_folder, try_adapter_folder, try_version
from trainyard.serve.versions.bucket import is_address, pull_from_store, push_to_store
from trainyard.serve.versions.hub import HubAddress, pull_from_hub, push_to_hub
from trainyard.serve.versions.promotion import merge_adapter, merge_version, newest, parse_target, roll_out_version
from trainyard.stores.adapters import RUN, RUN_BECAUSE, SIGNED, AdapterRegistry, AdapterVersion, parse_name
from trainyard.stores.files import DISK, make_folders
from trainyard.stores.whole import write_whole


class Promotion(Response):
    """The live version."""

    version: str
    previous: str | None
    targets: tuple[JsonObject, ...] = ()
    warnings: tuple[str, ...] = ()
    changed: bool = True


class DeletedVersion(Response):
    version: str
    deleted: str
    files: int
    bytes: int
    """Of the version; the disk is free when no result of a run has the same files."""


def promote(request: PromoteInput, context: Context) -> Promotion:
    registry = open_registry(context, request.name)
    tenant, role, number = parse_name(request.name)
    version = newest(registry, request.name) if number is None else registry.show(request.name)
    with registry.deploying(tenant, role):
        if registry.live(tenant, role).version == version.version and not request.targets:
            return Promotion(version=version.name, previous=version.name, changed=False)
        return make_live(version, registry, context, "promote", request.targets)


def rollback(request: RollbackInput, context: Context) -> Promotion:
    tenant, role, number = parse_name(request.role)
    if number is not None:
        raise InvalidInput(
            f"A rollback goes to the version before the live one, and {request.role!r} names a version.",
            do=f"Write {tenant}/{role}, or promote the version: trainyard adapters promote {request.role}.",
            code="E-NAME",
        )
    registry = open_registry(context, request.role)
    registry.previous(tenant, role)  # of a role that is not there nothing is made, not even a lock
    with registry.deploying(tenant, role):
        return make_live(registry.previous(tenant, role), registry, context, "rollback", request.targets)


def make_live(
    version: AdapterVersion, registry: AdapterRegistry, context: Context, action: str, targets: Sequence[str]
) -> Promotion:
    parsed_targets = [parse_target(text, context.settings) for text in targets]
    facts = roll_out_version(version, registry, context.settings, action=action, targets=parsed_targets)
    return Promotion(**{name: facts[name] for name in ("version", "previous", "targets", "warnings")})


def delete_version(request: DeleteInput, context: Context) -> DeletedVersion:
    """Remove a version. Raises `Conflict` (`E-CONFLICT`) for the live one, and for the one that a rollback takes."""
    tenant, role, number = parse_name(request.name)
    if number is None:
        raise InvalidInput(
            f"{request.name!r} names no version.", do=f"Write the version: {request.name}/v1.", code="E-NAME"
        )
    registry = open_registry(context, request.name)
    registry.find(request.name)
    with registry.deploying(tenant, role):
        versions = [entry.version for entry in registry.earlier(tenant, role)[-1:]]
        if versions == [number] and not request.force:
            raise Conflict(
                f"A rollback of {tenant}/{role} would make {request.name} live again.",
                do="Keep it, or give --force: a rollback then goes to the version before it.",
                code="E-CONFLICT",
            )
        version = registry.delete(request.name)
        remove_models(context.settings, version.name)
    return DeletedVersion(
        version=version.name,
        deleted=datetime.fromtimestamp(version.deleted, UTC).isoformat(timespec="seconds"),
        files=len(version.files),
        bytes=sum(int(file["bytes"]) for file in version.files.values()),
    )


class Card(Response):
    name: str
    markdown: str
    path: str = ""


class Published(Response):
    version: str
    where: str
    revision: str
    changed: bool
    live: bool
    adapter_run: bool | None = None
    """Whether the adapter was loaded and run once on its base here; None for a whole model."""
    adapter_run_because: str = ""
    """Why it was not."""


class Pulled(Response):
    version: str
    source: str
    base_model: str
    sha256: str
    signed_by: str = ""
    """Id of the key of its signature."""
    notice: str = ""
    """What is to be said of a version without a verified signature."""
    adapter_run: bool | None = None
    """Whether the adapter was loaded and run once on its base here; None for a whole model."""
    adapter_run_because: str = ""
    """Why it was not."""


def show_card(request: CardInput, context: Context) -> Card:
    registry = open_registry(context, request.name)
    version = registry.show(request.name)
    folder, home = registry.path(version), context.settings.home
    markdown = write_data_card(version) if request.data else write_card(version, folder, home=home)
    card = Card(name=version.name, markdown=markdown)
    if request.out is None:
        return card
    out = request.out.expanduser().absolute()
    make_folders(DISK, out.parent)
    write_whole(DISK, out, card.markdown.encode())
    return card.model_copy(update={"path": str(out)})


def push(request: PushInput, context: Context) -> Published:
    """Publish a version on the Hub, or in an object store. Raises `InvalidInput` (`E-PARAMETER`) without a place."""
    registry, settings = AdapterRegistry(context.settings.adapters), context.settings
    version, to = registry.show(request.name), request.to or settings.weights_store
    if not to:
        raise InvalidInput(
            "It is not said where the version is published.",
            do="Name a repository of the Hub (org/name) or a store (gs://bucket/prefix), or set weights_store.",
            code="E-PARAMETER",
        )
    check_signature(version, registry, settings)
    version = try_version(version, registry, settings)
    if is_address(to):
        refuse_hub_options(request)
        sent = push_to_store(version, registry, to, write_cards(version, registry.path(version), settings.home))
    else:
        address = HubAddress(to, request.revision, request.token_env, request.public)
        base, _ = find_base_folder(registry.path(version), settings)
        cards = write_cards(version, registry.path(version), settings.home, to)

        def check(folder: Path) -> None:
            if version.kind == "adapter":
                try_adapter_folder(folder, settings=settings, base=base)
            sign_published(folder, settings)

        sent = push_to_hub(version, registry, address, cards, check)
    return Published(
        version=version.name, where=sent.where, revision=sent.revision, changed=sent.changed, live=sent.live,
        **describe_trial(version),
    )  # fmt: skip


def refuse_hub_options(request: PushInput | PullInput) -> None:
    if request.revision is not None or getattr(request, "public", False):
        raise InvalidInput(
            "--revision and --public belong to the Hub; an object store has neither.",
            do="Leave them out.",
            code="E-PARAMETER",
        )


def pull(request: PullInput, context: Context) -> Pulled:
    if is_address(request.source):
        refuse_hub_options(request)
        version = pull_from_store(request.source, context.settings, request.alias)
    else:
        address = HubAddress(request.source, request.revision, request.token_env)
        version = pull_from_hub(address, context.settings, request.alias)
    origin = version.facts["origin"]
    return Pulled(
        version=version.name,
        source=origin["source"],
        base_model=str(version.facts.get("base_model") or ""),
        sha256=version.sha256,
        signed_by=str(version.facts.get(SIGNED) or ""),
        notice=str(version.facts.get("signature_notice") or ""),
        **describe_trial(version),
    )


def describe_trial(version: AdapterVersion) -> JsonObject:
    """Return the facts of a version about having been run, for a response."""
    return {name: version.facts[name] for name in (RUN, RUN_BECAUSE) if name in version.facts}


class Merged(Response):
    target: str
    version: str
    format: str
    dtype: str
    divergence: float
    """Largest difference of a logit from base plus adapter, after the sum in float32."""
    saved_divergence: float
    """The same of the model as written in its dtype."""


def resolve_merge_target(request: MergeInput) -> tuple[Path, Format]:
    """Return the folder and the format of a merge. Raises `InvalidInput` (`E-PARAMETER`).

    In an earlier version `--to` named the folder, and `--format` the format.
    """
    formats: dict[str, Format] = {"safetensors": "safetensors", "gguf": "gguf"}
    if request.target is not None and request.to in formats:
        return request.target.expanduser().absolute(), formats[request.to]
    folder = request.target or ("FOLDER" if request.to in formats else request.to)
    raise InvalidInput(
        "No folder is named." if request.to in formats else f"{request.to!r} is not a format: safetensors or gguf.",
        why="The folder is given by its place, and --to names the format.",
        do=f"Write: trainyard adapters merge {request.name} {folder}"
        + (f" --to {request.to}" if request.to == "gguf" else ""),
        code="E-PARAMETER",
    )


def merge(request: MergeInput, context: Context) -> Merged:
    """Write a version, or the adapter of a job, as one model. Raises what `find_version_or_job` raises."""
    target, to = resolve_merge_target(request)
    settings = context.settings
    adapter = find_version_or_job(request.name, context)
    if isinstance(adapter, AdapterVersion):
        facts = merge_version(adapter, target, settings, format=to, dtype=request.dtype)
    else:
        labels = {"version": adapter.label, "sha256": adapter.reference.sha256}
        facts = merge_adapter(adapter.reference, adapter.name, target, settings, labels, format=to, dtype=request.dtype)
    names = ("version", "format", "dtype", "divergence", "saved_divergence")
    return Merged(target=str(target), **{name: facts[name] for name in names})
