"""Stored chains: each a folder of numbered revisions, which are written once and never changed.

    chains/<tenant>/<id>/
        1.json              the first revision: name, body, digest, author, time
        2.json              the next one

Number N+1 is created by exactly one of any number of writers (`create_whole`), so that who wrote second is refused
and nothing is lost. An id is random and never used again; a deleted chain is gone as a whole.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from trainyard.errors import Conflict, NotFound
from trainyard.json_types import JsonObject
from trainyard.spec.chain import canonical_json
from trainyard.stores.files import DISK, Files, make_folders, translate_os_errors
from trainyard.stores.live.job_ids import CHAIN_ID, ID_BYTES
from trainyard.stores.schema import add_version, read_versioned
from trainyard.stores.whole import create_whole, remove_folder

TENANT = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
REVISION_FILE = re.compile(r"([1-9][0-9]{0,8})\.json")
DELETED = ".deleted"
ETAG_CHARS = 12
MOST_SUMMARIES = 20_000
"""Summaries that are kept in memory; a revision never changes."""


class StoredChain(BaseModel):
    """A revision of a chain."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    tenant: str
    revision: int
    name: str
    description: str = ""
    body: JsonObject
    """The chain as its file has it: a chain, a job, or the call of a template with its parameters."""
    digest: str
    """Of the resolved chain, as the machine that stored it resolved it."""
    nodes: int
    author: str = ""
    created: float = 0.0
    """Unix seconds of this revision."""

    @property
    def etag(self) -> str:
        """Return the revision and the beginning of the digest of its body: `3-1f2e3d4c5b6a`."""
        return f"{self.revision}-{hashlib.sha256(canonical_json(self.body)).hexdigest()[:ETAG_CHARS]}"


class ChainStore:
    """The chains below one folder. Safe for concurrent processes."""

    def __init__(self, root: Path, files: Files = DISK, now: Callable[[], float] = time.time) -> None:
        self.root, self.files, self.now = root, files, now

    def create(self, chain: StoredChain) -> StoredChain:
        """Store a new chain; its id, revision and time are set here."""
        chain_id = f"chain-{secrets.token_hex(ID_BYTES)}"
        make_folders(self.files, self.root / chain.tenant / chain_id)
        return self.write(chain.model_copy(update={"id": chain_id, "revision": 1}))

    def write(self, chain: StoredChain) -> StoredChain:
        """Write a revision; its time is set here.

        Raises `Conflict` (`E-FILE-EXISTS`) where another writer has taken its number, `NotFound` where the chain is
        deleted meanwhile.
        """
        chain = chain.model_copy(update={"created": self.now()})
        path = self.root / chain.tenant / chain.id / f"{chain.revision}.json"
        data = json.dumps(add_version("chain", chain.model_dump(mode="json"))).encode()
        try:
            with translate_os_errors(f"The chain {chain.name} was not stored"):
                create_whole(self.files, path, data, word=secrets.token_hex(4))
        except FileNotFoundError as error:
            raise no_chain_error(chain.id) from error
        return chain

    def list(self, tenant: str = "") -> list[StoredChain]:
        """Return the newest revision of every chain of a tenant, or of all; the newest first."""
        chains = (self.newest(folder) for folder in self.folders(tenant))
        return sorted((chain for chain in chains if chain is not None), key=lambda chain: (-chain.created, chain.id))

    def find(self, name: str, tenant: str = "") -> StoredChain:
        """Return the newest revision of the chain of that id or name, or of the only one that begins so.

        Raises `NotFound` (`E-NOT-FOUND`), `Conflict` (`E-CONFLICT`) naming the chains of that name.
        """
        if CHAIN_ID.fullmatch(name):
            folders = [folder for folder in self.folders(tenant) if folder.name == name]
            matches = [chain for folder in folders if (chain := self.newest(folder)) is not None]
        else:
            chains = self.list(tenant)
            matches = [chain for chain in chains if chain.name == name]
            beginning = [chain for chain in chains if chain.name.startswith(name) or chain.id.startswith(name)]
            matches = matches or (beginning if len(beginning) == 1 else [])
        if not matches:
            raise no_chain_error(name)
        if len(matches) > 1:
            raise Conflict(
                f"{name!r} is the name of {len(matches)} stored chains: "
                f"{', '.join(chain.id for chain in matches[:5])}.",
                do="Give the id of the one that you mean.", code="E-CONFLICT",
            )  # fmt: skip
        return matches[0]

    def show(self, chain: StoredChain, revision: int) -> StoredChain:
        """Another revision of the same chain. Raises `NotFound` (`E-NOT-FOUND`)."""
        path = self.root / chain.tenant / chain.id / f"{revision}.json"
        if not self.files.exists(path):
            raise NotFound(
                f"The chain {chain.name} ({chain.id}) has no revision {revision}.",
                why=f"Its revisions are 1 to {chain.revision}.", do="Name one of them.", code="E-NOT-FOUND",
            )  # fmt: skip
        return read_revision(path, self.files)  # type: ignore[arg-type]

    def delete(self, chain: StoredChain) -> None:
        """Remove a chain with all its revisions; a reader finds all of them or none."""
        folder = self.root / chain.tenant / chain.id
        trash = folder.with_name(f".{chain.id}{DELETED}")
        try:
            self.files.rename_noreplace(folder, trash)
        except FileNotFoundError as error:
            raise no_chain_error(chain.id) from error
        self.files.fsync_folder(folder.parent)
        remove_folder(self.files, trash)

    def folders(self, tenant: str = "") -> Iterator[Path]:
        tenants = [tenant] if tenant else self.files.listdir(self.root) if self.files.is_folder(self.root) else []
        for owner in tenants:
            folder = self.root / owner
            if TENANT.fullmatch(owner) and self.files.is_folder(folder):
                yield from (folder / name for name in self.files.listdir(folder) if CHAIN_ID.fullmatch(name))

    def newest(self, folder: Path) -> StoredChain | None:
        """The newest revision in a folder; None in one that was made and not written, or is deleted meanwhile."""
        try:
            numbers = [int(match[1]) for name in self.files.listdir(folder) if (match := REVISION_FILE.fullmatch(name))]
            return read_revision(folder / f"{max(numbers)}.json", self.files) if numbers else None  # type: ignore[arg-type]
        except FileNotFoundError:
            return None


@lru_cache(MOST_SUMMARIES)  # a revision never changes; mypy does not take a protocol for hashable
def read_revision(path: Path, files: Any) -> StoredChain:
    return StoredChain.model_validate(read_versioned("chain", files.read(path), path))


def no_chain_error(name: str) -> NotFound:
    return NotFound(
        f"There is no stored chain {name!r}.", do="List them by `trainyard chains list`.", code="E-NOT-FOUND"
    )


# What differs


def nodes_by_id(body: Mapping[str, object]) -> dict[str, object]:
    """Return the body with its nodes by their ids, or by type and place, so that a node is compared with itself."""
    listed = body.get("nodes")
    if not isinstance(listed, list):
        return dict(body)
    counts: dict[str, int] = {}
    named: dict[str, object] = {}
    for node in listed:
        stem = str(node.get("id") or node.get("type"))
        counts[stem] = counts.get(stem, 0) + 1
        named[stem if counts[stem] == 1 else f"{stem}-{counts[stem]}"] = node
    return {**body, "nodes": named}
