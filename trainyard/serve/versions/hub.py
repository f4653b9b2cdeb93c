"""Adapter versions on the Hugging Face Hub: one commit for a version, and back with every digest checked.

Both directions use `huggingface_hub`. A repository is private unless it is requested in public; a commit contains the
files, the manifest and the card, and is one or none. The token comes from an environment variable, else from
`hf auth login`; it is in no message.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from trainyard.callbacks import ignore
from trainyard.errors import Conflict, Corrupt, InvalidInput, NotFound, TrainyardError, Unavailable
from trainyard.serve.publication import (
    Publication,
    new_version,
    read_publication,
    refuse_pickled,
    register_pulled,
    stage,
)
from trainyard.serve.versions.bucket import Sent
from trainyard.settings import Settings
from trainyard.stores.adapters import AdapterRegistry, AdapterVersion
from trainyard.stores.ledger.proofs import PROOF_FILE
from trainyard.stores.model_hub import import_hub
from trainyard.stores.models import HUB_NAME
from trainyard.stores.signing.bundles import SIGNATURE_FILE
from trainyard.stores.whole import MANIFEST

TOKEN_VARIABLE = "HF_TOKEN"
CHANGED = frozenset({409, 412})
"""Statuses of the Hub for a commit on a head that is not the newest, or a name that was just taken."""
KEPT = frozenset({".gitattributes"})
"""Files of a repository that the Hub itself writes."""


@dataclass(frozen=True)
class HubAddress:
    """A repository and what of it is meant."""

    name: str
    revision: str | None = None
    token_env: str = TOKEN_VARIABLE
    public: bool = False


def push_to_hub(
    version: AdapterVersion,
    registry: AdapterRegistry,
    to: HubAddress,
    cards: Mapping[str, str],
    try_run: Callable[[Path], object] = ignore,
) -> Sent:
    """Commit a version to a repository, which is made if it is not there; the same content twice is one commit.

    `try_run` gets the folder that is sent, before anything is sent, and raises for an adapter that does not run.
    `cards` are name -> text. A proof that is there for the same files stays: the log has only grown since.

    Raises `InvalidInput` (`E-NAME`, `E-API-KEY`), `Conflict` (`E-PUBLISH`) for a repository with something else in
    it or a public one that was not requested, `Unavailable` (`E-AUTH`, `E-PUBLISH`).
    """
    require_name(to.name)
    hub = import_hub()
    api = open_client(hub, require_token(to.token_env))
    registry.root.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=registry.root.parent, prefix=".push-") as work, translate_errors(hub, to.name, "push"):
        folder = Path(work) / "version"
        folder.mkdir()
        publication = stage(version, registry, folder)
        try_run(folder)
        for name, text in cards.items():
            (folder / name).write_text(text, encoding="utf-8")
        head = open_repository(hub, api, to)
        there = {sibling.rfilename for sibling in head.siblings or ()} - KEPT
        before = find_publication(api, to, head, Path(work))
        if there and (before is None or before.alias != version.alias):
            raise occupied_error(to, before.alias if before else "", version)
        files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
        if before is not None and before.sha256 == publication.sha256 and PROOF_FILE in there & files.keys():
            del files[PROOF_FILE]
            there = there - {PROOF_FILE}
        changes = [hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=path) for name, path in files.items()]
        changes += [hub.CommitOperationDelete(path_in_repo=name) for name in sorted(there - files.keys())]
        done = api.create_commit(
            to.name, changes, commit_message=f"Publish {version.name}", revision=to.revision, parent_commit=head.sha
        )
    return Sent(f"{api.endpoint}/{to.name}", done.oid, changed=done.oid != head.sha)


def open_repository(hub: ModuleType, api: Any, to: HubAddress) -> Any:
    """Return what the Hub says of the repository at the revision; both are made if they are not there."""
    try:
        head = api.model_info(to.name, revision=to.revision)
    except hub.errors.RepositoryNotFoundError:
        api.create_repo(to.name, private=not to.public)
        head = None
    except hub.errors.RevisionNotFoundError:
        head = None
    if head is None:
        if to.revision is not None:
            api.create_branch(to.name, branch=to.revision, exist_ok=True)
        head = api.model_info(to.name, revision=to.revision)
    if not head.private and not to.public:
        raise Conflict(
            f"The repository {to.name} is public.",
            why="What is pushed is private unless it is requested in public.",
            do="Give --public, or make the repository private on the Hub.",
            code="E-PUBLISH",
        )
    return head


def find_publication(api: Any, to: HubAddress, head: Any, work: Path) -> Publication | None:
    """Return what a repository contains; None if Trainyard has not published it."""
    if MANIFEST not in {sibling.rfilename for sibling in head.siblings or ()}:
        return None
    path = api.hf_hub_download(to.name, MANIFEST, revision=head.sha, local_dir=work / "there")
    return read_publication(Path(path).read_bytes(), to.name)


def occupied_error(to: HubAddress, owner: str, version: AdapterVersion) -> Conflict:
    return Conflict(
        f"The repository {to.name} contains {owner or 'files that Trainyard has not published'}.",
        why=f"A push of {version.name} would replace them.",
        do="Choose another repository, or another --revision.",
        code="E-PUBLISH",
    )


def pull_from_hub(source: HubAddress, settings: Settings, alias: str | None = None) -> AdapterVersion:
    """Register what a repository contains at a revision.

    Raises `NotFound` (`E-MODEL-NOT-FOUND`), `InvalidInput` (`E-ADAPTER-INVALID`, `E-MODEL-UNSAFE`), `Corrupt`
    (`E-CORRUPT`), `Unavailable` (`E-MODEL-DOWNLOAD`), and what `register_pulled` raises.
    """
    require_name(source.name)
    hub = import_hub()
    anyone = source.token_env == TOKEN_VARIABLE and not os.environ.get(TOKEN_VARIABLE)
    api = open_client(hub, None if anyone else require_token(source.token_env))
    with TemporaryDirectory(prefix="trainyard-pull-") as work, translate_errors(hub, source.name, "pull"):
        head = api.model_info(source.name, revision=source.revision)
        there = [sibling.rfilename for sibling in head.siblings or ()]
        if MANIFEST not in there:
            if not any(name.endswith(".safetensors") for name in there):
                refuse_pickled(there, source.name)
            raise InvalidInput(
                f"{source.name} contains no adapter that Trainyard has published.",
                why=f"It has no {MANIFEST} with the digests of its files.",
                do="Download it yourself, and deploy it from a chain.",
                code="E-ADAPTER-INVALID",
            )

        def fetch(name: str, target: Path) -> None:
            if name not in there:
                raise Corrupt(
                    f"{name} of {source.name} is missing.",
                    why="Its manifest lists it; nothing was registered.",
                    do="Publish the version again.",
                    code="E-CORRUPT",
                )
            shutil.move(api.hf_hub_download(source.name, name, revision=head.sha, local_dir=work), target)

        path = Path(api.hf_hub_download(source.name, MANIFEST, revision=head.sha, local_dir=work))
        signature = None
        if SIGNATURE_FILE in there:
            bundle = api.hf_hub_download(source.name, SIGNATURE_FILE, revision=head.sha, local_dir=work)
            signature = Path(bundle).read_bytes()
        publication = read_publication(path.read_bytes(), source.name)
        return register_pulled(
            publication,
            fetch,
            source=f"hub:{source.name}",
            origin={"revision": head.sha},
            to=new_version(settings, alias),
            signature=signature,
        )


def open_client(hub: ModuleType, token: str | None) -> Any:
    """Return a client of the Hub, or of the server that HF_ENDPOINT names."""
    return hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, token=token)


def require_name(name: str) -> None:
    if not HUB_NAME.fullmatch(name) or ".." in name or "--" in name:
        raise InvalidInput(
            f"{name!r} is not a valid name of a Hub repository.",
            do="Write org/name, or an address such as gs://bucket/prefix.",
            code="E-NAME",
        )


def require_token(variable: str) -> str:
    """Return the token with which something is written. Raises `InvalidInput` (`E-API-KEY`)."""
    token = os.environ.get(variable, "").strip()
    if not token and variable == TOKEN_VARIABLE:
        token = import_hub().get_token() or ""
    if not token:
        raise InvalidInput(
            f"The environment variable {variable}, which should contain a token of the Hub, is not set.",
            do=f"Set {variable} to a token that may write (https://huggingface.co/settings/tokens).",
            code="E-API-KEY",
        )
    if not (token.isascii() and token.isprintable()):
        raise InvalidInput(
            f"The token in {variable} has characters that no HTTP header can carry.",
            do=f"Set {variable} to the token alone, on one line.",
            code="E-API-KEY",
        )
    return token


@contextmanager
def translate_errors(hub: ModuleType, name: str, verb: str) -> Iterator[None]:
    """Turn the client's errors into ours. A token is in none of them: the client does not print headers."""
    errors = hub.errors
    try:
        yield
    except TrainyardError:
        raise
    except (errors.RepositoryNotFoundError, errors.GatedRepoError, errors.RevisionNotFoundError) as error:
        raise NotFound(
            f"The Hub has no repository or revision {name!r}, or does not show it to this account.",
            do="Correct the name, or set HF_TOKEN to an account that may read it.",
            code="E-MODEL-NOT-FOUND",
        ) from error
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        if status in (401, 403):
            raise Unavailable(
                f"The Hub does not let this account {verb} {name!r}.",
                why=f"It answered with status {status}.",
                do="Use a token that may write to this organization.",
                code="E-AUTH",
            ) from error
        if status in CHANGED:
            raise Conflict(
                f"{name!r} could not be {verb}ed, because it was changed at the same time.",
                why=f"The Hub answered with status {status}; nothing of this {verb} is there.",
                do="Look at who else writes to it, then try again.",
                code="E-PUBLISH",
            ) from error
        raise build_failure(name, verb, error) from error
    except (
        errors.OfflineModeIsEnabled,
        errors.LocalEntryNotFoundError,
        errors.HTTPError,
        OSError,
        RuntimeError,
    ) as error:
        raise build_failure(name, verb, error) from error


def build_failure(name: str, verb: str, error: Exception) -> Unavailable:
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON")
    return Unavailable(
        f"{name!r} could not be {verb}ed.",
        why="HF_HUB_OFFLINE is set." if offline else (str(error).strip().splitlines() or [type(error).__name__])[0],
        do="Unset HF_HUB_OFFLINE." if offline else "Try again when the Hub can be reached; nothing is half done.",
        code="E-PUBLISH" if verb == "push" else "E-MODEL-DOWNLOAD",
    )
