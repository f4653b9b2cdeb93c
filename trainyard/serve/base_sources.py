"""Bases of a model server: their files, their memory, and the names under which they answer.

Torch-free: a command asks these before a server is started, and the server asks them again before it reads a weight.

Which base an adapter belongs to, by its own files, and which versions of the registry are served on given bases.

An adapter on another base answers nonsense without any error, and one under another chat template nearly so.
Torch-free.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from trainyard.errors import InvalidInput, LimitExceeded, NotFound
from trainyard.loading import load_object
from trainyard.serve.prompt_fields import check_folder
from trainyard.serve.signatures import verify_version
from trainyard.settings import Settings
from trainyard.spec.chain import digest
from trainyard.spec.estimate.memory import answering_bytes
from trainyard.stores.adapters import AdapterRegistry, parse_name
from trainyard.stores.model_hub import download_model
from trainyard.stores.models import ModelSource, chat_template_sha256, read_json, resolve_model

WIDTHS = {"float32": 4, "bfloat16": 2}
"""dtype of a served base -> bytes of a number."""


@dataclass(frozen=True)
class BaseSources:
    """The bases of one server, each once, and further names of the same weights."""

    bases: tuple[ModelSource, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Name that was given for weights that are served already -> the base that has them."""

    @property
    def title(self) -> str:
        """Return the names of the bases, for the record of their server."""
        return ", ".join(base.name for base in self.bases)

    @property
    def sha256(self) -> str:
        """Return the digest of the bases: of a single one, its own."""
        digests = [base.sha256 for base in self.bases]
        return digests[0] if len(digests) == 1 else digest(digests)


def find_bases(names: Sequence[str], settings: Settings, *, download: bool = False) -> BaseSources:
    """Return the models of the names, checked; a model that is named twice is served once.

    With `download`, a Hub name that is not on this machine is downloaded, unless HF_HUB_OFFLINE forbids it. Raises what
    `resolve_model`, `download_model` and `check_folder` raise, and `NotFound` (`E-MODEL-NOT-FOUND`).
    """
    sources: dict[str, ModelSource] = {}
    aliases: dict[str, str] = {}
    for name in dict.fromkeys(names):
        source = find_base(name, settings, download=download)
        first = sources.setdefault(source.sha256, source)
        if first is not source and name != str(first.path):
            aliases[name] = first.name
    return BaseSources(tuple(sources.values()), aliases)


def find_base(name: str, settings: Settings, *, download: bool) -> ModelSource:
    source = resolve_model(name, settings)
    if source.path is None and download and not load_object("huggingface_hub.constants:HF_HUB_OFFLINE"):
        source = download_model(name, settings)
    if source.path is None:
        raise NotFound(
            f"The model {name!r} is not on this machine.",
            do="Download it into a folder and give the folder, or use `starter`.",
            code="E-MODEL-NOT-FOUND",
        )
    check_folder(source.path)
    return source


def require_room(bases: Sequence[ModelSource], dtype: str, settings: Settings) -> None:
    """Refuse bases that do not fit into memory together, before any of them is read.

    Raises `LimitExceeded` (`E-MEMORY-FIT`) that names the first base that does not fit, its need and what is left.
    """
    free, limit = psutil.virtual_memory().available, settings.serve_memory_mb << 20
    room = min(free, limit) if limit else free
    bound = "serve_memory_mb is" if limit and limit <= free else "Free on this machine are"
    sizes: dict[str, int] = {}
    for base in bases:
        need, left = estimate_bytes(base, dtype), room - sum(sizes.values())
        if need > left:
            rest = "".join(f"; {name!r} takes {gib(size)}" for name, size in sizes.items())
            raise LimitExceeded(
                f"The base {base.name!r} needs {gib(need)} of memory, and {gib(left)} are left.",
                why=f"{bound} {gib(room)}{rest}.",
                do="Serve fewer or smaller bases, use --dtype bfloat16, or end what takes the memory.",
                code="E-MEMORY-FIT",
            )
        sizes[base.name] = need


def gib(size: int) -> str:
    return f"{size / 2**30:.3g} GiB"


def estimate_bytes(base: ModelSource, dtype: str) -> int:
    """Bytes of a base and one conversation with it."""
    assert base.path is not None
    assert base.parameters is not None
    config = read_json(Path(base.path) / "config.json", "E-MODEL-INVALID")
    return answering_bytes(config, base.parameters, WIDTHS[dtype])


VERSION = re.compile(r"v\d+")


def read_origin(folder: Path) -> dict[str, object]:
    """Return the `training.json` of an adapter; empty for one that was made elsewhere. Raises `E-ADAPTER-MISMATCH`."""
    path = folder / "training.json"
    if not path.is_file():
        return {}
    try:
        origin = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        origin = None
    if not isinstance(origin, dict):
        raise InvalidInput(
            f"{folder.name}/training.json is not a JSON object.", do="Train it again.", code="E-ADAPTER-MISMATCH"
        )
    return origin


def choose_base(folder: Path, bases: Sequence[ModelSource]) -> ModelSource:
    """Return the base that an adapter belongs to, checked; of a single one only what `training.json` says is compared.

    Of several bases it is the one whose digest `training.json` names; for an adapter that was made elsewhere, the one
    that its `adapter_config.json` names. Raises `InvalidInput` (`E-ADAPTER-MISMATCH`).
    """
    if len(bases) == 1:
        check_origin(folder, bases[0])
        return bases[0]
    trained_on = read_origin(folder).get("base_sha256")
    if trained_on is not None:
        match = next((base for base in bases if base.sha256 == trained_on), None)
        reason = f"Its base has the digest {str(trained_on)[:12]}"
    else:
        named = read_json(folder / "adapter_config.json", "E-ADAPTER-INVALID").get("base_model_name_or_path")
        match = next((base for base in bases if named and named in (base.name, str(base.path))), None)
        reason = f"Its adapter_config.json names {named!r}" if named else "Its files name no base"
    if match is None:
        served = ", ".join(f"{base.name} ({base.sha256[:12]})" for base in bases)
        raise InvalidInput(
            f"The adapter was trained on another base than those that are served: {served}.",
            why=f"{reason}.",
            do="Serve the base that it was trained on, too, or train the adapter on one of these.",
            code="E-ADAPTER-MISMATCH",
        )
    check_origin(folder, match)
    return match


def check_origin(folder: Path, base: ModelSource) -> None:
    """Compare an adapter's `training.json` with the base. An adapter made elsewhere has none and passes.

    Raises `InvalidInput` (`E-ADAPTER-MISMATCH`).
    """
    if base.path is None or not (origin := read_origin(folder)):
        return
    trained_on, template = origin.get("base_sha256"), origin.get("chat_template_sha256")
    if trained_on is not None and trained_on != base.sha256:
        raise InvalidInput(
            f"The adapter was trained on another base than {base.name!r}.",
            why=f"Its base has the digest {str(trained_on)[:12]}, this one {base.sha256[:12]}.",
            do="Serve the base that training.json names, or train the adapter on this base.",
            code="E-ADAPTER-MISMATCH",
        )
    served = chat_template_sha256(base.path)
    if template is not None and template != served:
        raise InvalidInput(
            "The adapter was trained with another chat template than the one that is served.",
            why=f"Its template has the digest {str(template)[:12]}, the served one {str(served)[:12]}.",
            do="Serve the base with the template of the training, or train the adapter again.",
            code="E-ADAPTER-MISMATCH",
        )


@dataclass(frozen=True)
class NamedAdapter:
    """A verified adapter, as a server loads it: a version of the registry, or what a job has trained."""

    name: str
    folder: Path
    alias: str | None
    """The role's name where its live version was requested, the job's where a job was."""


def full_name(name: str, settings: Settings) -> str:
    """`ROLE` and `ROLE/vN` are names of this home's tenant, unless a tenant of that name has such a role."""
    first, _, rest = name.partition("/")
    is_local = not rest or (VERSION.fullmatch(rest) and not (settings.adapters / first / rest).is_dir())
    return f"{settings.tenant}/{name}" if is_local else name


def find_adapter(name: str, settings: Settings) -> NamedAdapter:
    """Return the version that a name means, each byte verified.

    Raises `NotFound` (`E-ADAPTER-NOT-FOUND`) for an unknown version or a role without a live one, `InvalidInput`
    (`E-NAME`; `E-ADAPTER-INVALID` for a whole model, which has no base) and `Corrupt` (`E-CORRUPT`);
    as `check_signature` for its signature.
    """
    registry, version_name = AdapterRegistry(settings.adapters), full_name(name, settings)
    version = verify_version(registry.show(version_name), registry, settings)
    if version.kind != "adapter":
        raise InvalidInput(
            f"{version.name} is a whole model, not an adapter.",
            do=f"Serve it as a base: --model {registry.path(version)}.",
            code="E-ADAPTER-INVALID",
        )
    alias = version.alias if parse_name(version_name)[2] is None else None
    return NamedAdapter(version.name, registry.path(version), alias)


def require_bases(adapters: Sequence[NamedAdapter], bases: Sequence[ModelSource]) -> None:
    """Compare each adapter with the bases. Raises as `choose_base`."""
    for adapter in adapters:
        try:
            choose_base(adapter.folder, bases)
        except InvalidInput as error:
            message = f"{adapter.name} cannot be served: {error.what}"
            raise InvalidInput(message, why=error.why, do=error.do, code=error.code) from error
