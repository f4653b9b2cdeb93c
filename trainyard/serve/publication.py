"""Published files of an adapter version, and the checks of a publication.

A publication is a version's files with a manifest: names, sizes and SHA-256, the base, the verdict. A pull
believes nothing else: each file is compared with the manifest, weights are safetensors or nothing is registered, and
the base has to be the one of the training. For the Hub, what only this machine knows (paths, logs) is taken out of the
configs; the weights are never touched.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from trainyard.callbacks import ignore
from trainyard.errors import Corrupt, InvalidInput, Reason, Refused, TrainyardError
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.serve.card import keep_card
from trainyard.serve.signatures import check_pulled
from trainyard.serve.trial import TrialRun, read_object, try_adapter_folder
from trainyard.serve.version_facts import base_facts, check_facts, public_base
from trainyard.settings import Settings
from trainyard.spec.chain import canonical_json
from trainyard.stores.adapters import (
    CARD_FILE,
    PICKLED,
    AdapterRegistry,
    AdapterVersion,
    files_digest,
    parse_name,
    take,
)
from trainyard.stores.files import DISK
from trainyard.stores.models import check_adapter_folder, check_model_folder, resolve_model
from trainyard.stores.objects.store import check_name
from trainyard.stores.signing.bundles import read_key_id
from trainyard.stores.whole import MANIFEST, describe_files

TRAVELLING_FACTS = ("base_model", "base_sha256", "chat_template_sha256", "evaluated", "gate", "data", "rows", "report")
"""Facts of a version that are true on any machine."""
OF_THIS_MACHINE = ("base_path", "log_head")
"""Keys of `training.json` that are not published on the Hub."""


class PublishedFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    sha256: str
    bytes: int


class Publication(BaseModel):
    """The manifest of a published version."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    """`<tenant>/<role>/v<N>` where it was published."""
    sha256: str
    """Digest over names and digests of `files`."""
    run_key: str = ""
    kind: Literal["adapter", "model"] = "adapter"
    files: dict[str, PublishedFile]
    facts: JsonObject = {}
    trained_sha256: str = ""
    """Digest of the version that it was made of, where configs were changed for the publication."""

    @property
    def alias(self) -> str:
        return self.name.rpartition("/")[0]


def read_publication(text: bytes, source: str) -> Publication:
    """The checked manifest of a source. Raises `Corrupt` (`E-CORRUPT`), `InvalidInput` (`E-MODEL-UNSAFE`, `E-NAME`)."""
    try:
        publication = Publication.model_validate_json(text)
    except ValidationError as error:
        raise Corrupt(
            f"{source} has no valid {MANIFEST} of Trainyard.",
            why="; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()[:3]),
            do="Pull what `trainyard adapters push` has published.",
            code="E-CORRUPT",
        ) from error
    parse_name(publication.name)
    check_facts(publication.facts, source)
    names = [check_name(name) for name in publication.files]
    refuse_pickled(names, source)
    if files_digest({name: file.model_dump() for name, file in publication.files.items()}) != publication.sha256:
        raise Corrupt(
            f"The manifest of {source} does not agree with itself.",
            why="The digest over its files is another one than it says.",
            do="Publish the version again.",
            code="E-CORRUPT",
        )
    return publication


def refuse_pickled(names: list[str], source: str) -> None:
    """Raise `InvalidInput` (`E-MODEL-UNSAFE`) for files whose loading runs code."""
    pickled = [name for name in names if Path(name).suffix.lower() in PICKLED]
    if pickled:
        raise InvalidInput(
            f"{source} contains pickled weights: {pickled[0]}.",
            why="Loading a pickle runs whatever code it contains; only safetensors are pulled.",
            do="Ask its publisher for safetensors.",
            code="E-MODEL-UNSAFE",
        )


def stage(version: AdapterVersion, registry: AdapterRegistry, folder: Path) -> Publication:
    """Put what the Hub gets of a version into an empty folder: files and manifest; the card is the caller's.

    The adapter's config names the base by its name instead of a folder of this machine.
    """
    source, facts = registry.path(registry.verify(version)), version.facts
    for name in version.files:
        if name != CARD_FILE:
            take(DISK, source / name, folder / name)
    named = public_base(version) or None
    base = {"base_model": named} if named else {}
    change_json(folder / "adapter_config.json", lambda old: {**old, "base_model_name_or_path": named})
    training = {**read_object(folder / "training.json"), **base}
    change_json(folder / "training.json", lambda _: {k: v for k, v in training.items() if k not in OF_THIS_MACHINE})
    files = describe_files(folder)
    publication = Publication(
        name=version.name,
        sha256=files_digest(files),
        run_key=version.run_key,
        kind="adapter" if version.kind == "adapter" else "model",
        files={name: PublishedFile(**entry) for name, entry in files.items()},
        facts={**{name: facts[name] for name in TRAVELLING_FACTS if name in facts}, **base},
        trained_sha256=version.sha256,
    )
    (folder / MANIFEST).write_bytes(canonical_json(publication.model_dump(mode="json")))
    return publication


def change_json(path: Path, change: Callable[[Mapping[str, object]], Mapping[str, object]]) -> None:
    """Replace a JSON file that may be a hard link by a changed one."""
    if path.is_file():
        text = json.dumps(change(read_object(path)), indent=1, sort_keys=True)
        path.unlink()
        path.write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class Destination:
    """Registration of a fetched version: under the next number, or under the number that it has at its source."""

    registry: AdapterRegistry
    work: Path
    """Folder for what arrives."""
    alias: str | None = None
    """`TENANT/ROLE`; None: that of the publication."""
    number: int | None = None
    require_base: Callable[[Mapping[str, str]], None] = ignore
    """Raises for a base that is another one here. A night leaves that to its deployment."""
    keep_card: Callable[[AdapterVersion], AdapterVersion] = lambda version: version
    """Writes the card of a registered version into its folder."""
    check_signature: Callable[[Path, bytes | None, str], str] = lambda _folder, _bundle, _source: ""
    """Verifies what was fetched from a source, and returns what is to be said of it."""
    try_run: Callable[[Path], TrialRun] = lambda _: TrialRun("it is run when it is deployed")
    """Runs the adapter of a folder once on its base, before it is registered. A night leaves that, too."""


def register_pulled(
    publication: Publication,
    fetch: Callable[[str, Path], object],
    *,
    source: str,
    origin: JsonMapping,
    to: Destination,
    signature: bytes | None = None,
) -> AdapterVersion:
    """Fetch the files of a publication, verify them and register them; twice gives the same version.

    `fetch(name, target)` brings one file; the publisher's `signature` stays with the version. Raises `Corrupt`
    (`E-CORRUPT`) for files that are not what the manifest says, and what `to.check_signature`, `to.require_base` and
    `register` raise.
    """
    tenant, role, _ = parse_name(to.alias or publication.alias)
    to.work.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=to.work, prefix=".pull-") as work:
        folder = Path(work) / "version"
        for name in publication.files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            fetch(name, folder / name)
        require_same(publication, folder, source)
        notice = to.check_signature(folder, signature, source)
        base = base_facts(folder)
        to.require_base(base)
        run: dict[str, object] = {}
        if publication.kind == "adapter":
            check_adapter_folder(folder)
            run = to.try_run(folder).facts
        else:
            check_model_folder(folder)
        facts = {name: publication.facts[name] for name in TRAVELLING_FACTS if name in publication.facts}
        facts = {"evaluated": False, "gate": {}, **facts, **base, **run}
        facts |= {"signature_notice": notice} if notice else {}
        facts["origin"] = {"source": source, "name": publication.name, "sha256": publication.sha256, **origin}
        pulled = f"pulled:{source}:{publication.sha256}"
        run_key = pulled if to.number is None else publication.run_key
        version = to.registry.register(
            tenant, role, folder, kind=publication.kind, facts=facts, run_key=run_key, number=to.number
        )
    if signature is not None:
        version = to.registry.keep_signature(version, signature, read_key_id(signature, source))
    return to.keep_card(version)


def require_same(publication: Publication, folder: Path, source: str) -> None:
    files = describe_files(folder)
    wrong = [name for name, file in publication.files.items() if files.get(name) != file.model_dump()]
    if wrong:
        raise Corrupt(
            f"{wrong[0]} of {source} is not what its manifest says.",
            why=f"{len(wrong)} of {len(publication.files)} files have another size or SHA-256; nothing was registered.",
            do="Pull it again; if it stays so, publish the version again.",
            code="E-CORRUPT",
        )


def new_version(settings: Settings, alias: str | None = None) -> Destination:
    """Return the destination of a pull by hand: the next number in this home's registry, with a base that fits."""
    check = partial(require_base, settings=settings)
    registry = AdapterRegistry(settings.adapters)
    return Destination(
        registry, settings.home, alias, require_base=check,
        keep_card=partial(keep_card, registry=registry, settings=settings),
        check_signature=partial(check_pulled, settings=settings),
        try_run=partial(try_adapter_folder, settings=settings),
    )  # fmt: skip


def require_base(base: Mapping[str, str], settings: Settings) -> None:
    """Raise `Refused` (`R-BASE-MISMATCH`) when the base is on this machine and is another one."""
    try:
        model = resolve_model(base["base_model"], settings)
    except TrainyardError:
        return  # it is not here; a deployment asks again
    if model.path is not None and base["base_sha256"] and model.sha256 != base["base_sha256"]:
        because = (
            f"the adapter belongs to a base {base['base_model']!r} with the digest {base['base_sha256'][:12]}, and "
            f"that of this machine has {model.sha256[:12]}."
        )
        instead = "bring the same base to this machine, then pull it again."
        raise Refused([Reason("R-BASE-MISMATCH", None, "base_model", because, instead)], what="It was not pulled.")
