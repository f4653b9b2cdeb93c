"""Repositories of tenants: create, read, commit, branch, tag, remove, and collect what nothing refers to.

A commit is accepted whole or not at all: its contents are stored, then its list of files, and at last the branch moves,
if it is still where the writer has seen it. A writer that names no parent is applied to the newest head, so that
concurrent writers lose nothing; two that name the same parent get one commit and one refusal.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from trainyard.errors import Conflict, InvalidInput, LimitExceeded, NotFound
from trainyard.stores.repositories.commits import MOST_FILES, Commit, FileEntry, RefKind, Refs
from trainyard.stores.repositories.names import COMMIT, KINDS, Kind, RepositoryName, check_path, check_ref
from trainyard.stores.repositories.quota import Quotas, blob_name, blobs_folder
from trainyard.stores.repositories.storage import Storage

MAIN = "main"
GRACE_S = 3600.0
"""A content that nothing refers to is kept for so long: its commit may be on the way."""
TRIES = 1000


@dataclass(frozen=True)
class Edits:
    """Changes of a commit."""

    files: Mapping[str, FileEntry]
    deleted_files: Sequence[str] = ()
    deleted_folders: Sequence[str] = ()

    def apply(self, files: Mapping[str, FileEntry]) -> dict[str, FileEntry]:
        """Return the files after the changes. Raises `NotFound` (`E-NOT-FOUND`), `InvalidInput`, `LimitExceeded`."""
        result = dict(files)
        for path in self.deleted_files:
            if result.pop(path, None) is None:
                raise NotFound(f"There is no file {path} to delete.", code="E-NOT-FOUND")
        missing = {folder.rstrip("/") for folder in self.deleted_folders}
        deleted = frozenset(missing)
        for path in [*result] if deleted else ():
            if inside := deleted.intersection(list_folders(path)):
                del result[path]
                missing -= inside
        if missing:
            raise NotFound(f"There is no folder {min(missing)} to delete.", code="E-NOT-FOUND")
        result.update(self.files)
        if len(result) > MOST_FILES:
            raise LimitExceeded(
                f"A repository has at most {MOST_FILES:,} files.", do="Pack them, as Parquet or WebDataset."
            )
        require_no_overlap(result, self.files)
        return result


def list_folders(path: str) -> list[str]:
    """Return the folders that a file is in."""
    return [path[:position] for position, letter in enumerate(path) if letter == "/"]


def require_no_overlap(files: Mapping[str, FileEntry], changed: Mapping[str, FileEntry]) -> None:
    """Raises `InvalidInput` (`E-NAME`) where a name is both a file and a folder."""
    folders = {folder for path in files for folder in list_folders(path)}
    for path in changed:
        if path in folders or any(folder in files for folder in list_folders(path)):
            raise InvalidInput(f"{path!r} would be a file and a folder.", do="Choose another path.", code="E-NAME")


class Repositories:
    """All repositories of a storage."""

    def __init__(self, storage: Storage, quotas: Quotas, now: Callable[[], float] = time.time) -> None:
        self.storage, self.quotas, self.now = storage, quotas, now
        self.pins: dict[tuple[str, str], float] = {}
        """(tenant, SHA-256) -> when a client asked whether the content is stored."""
        self.pinning = threading.Lock()
        """Guards `pins`, which requests change while they are collected."""

    # Repositories

    def create(self, name: RepositoryName, author: str) -> bool:
        """Make an empty repository. Return False if it exists."""
        with self.storage.locked(f"tenant {name.tenant}"):  # an earlier one of the name is not being removed meanwhile
            if self.find(name) is not None:
                return False
            commit = self.write_commit(name, Commit({}, summary="initial commit", author=author, time=self.now()))
            refs = Refs(self.now(), {MAIN: commit.id})
            return self.storage.write(f"{name.folder}/refs.json", refs.to_json(), None)

    def find(self, name: RepositoryName) -> Refs | None:
        return self.load_refs(name)[0]

    def load_refs(self, name: RepositoryName) -> tuple[Refs | None, str | None]:
        record = self.storage.read(f"{name.folder}/refs.json")
        return (Refs.from_json(str(name), record.data), record.version) if record else (None, None)

    def require(self, name: RepositoryName) -> Refs:
        """Raises `NotFound` (`E-NOT-FOUND`)."""
        refs = self.find(name)
        if refs is None:
            raise missing_repository(name)
        return refs

    def list_names(self, tenant: str, kind: Kind) -> list[RepositoryName]:
        """Return the repositories of a tenant, by name."""
        folder = f"tenants/{tenant}/{kind}/"
        names = {file.name for file in self.storage.list(folder) if file.name.endswith("/refs.json")}
        return sorted(RepositoryName(kind, tenant, name.removeprefix(folder).split("/")[0]) for name in names)

    def delete(self, name: RepositoryName) -> None:
        """Remove a repository. Its contents go with the next collection. Raises `NotFound` (`E-NOT-FOUND`)."""
        with self.storage.locked(f"tenant {name.tenant}"):
            self.require(name)
            self.storage.delete(f"{name.folder}/refs.json")
            for file in [*self.storage.list(f"{name.folder}/")]:
                self.storage.delete(file.name)

    # Revisions

    def resolve(self, name: RepositoryName, revision: str) -> Commit:
        """Return the commit of a branch, a tag or a commit id. Raises `NotFound` (`E-NOT-FOUND`)."""
        refs = self.require(name)
        plain = revision.removeprefix("refs/heads/").removeprefix("refs/tags/")
        commit_id = refs.branches.get(plain) or refs.tags.get(plain) or refs.branches.get(revision)
        if commit_id is None and COMMIT.fullmatch(revision):
            commit_id = revision
        commit = self.read_commit(name, commit_id) if commit_id is not None else None
        if commit is None:
            raise missing_revision(name, revision)
        return commit

    def read_commit(self, name: RepositoryName, commit_id: str) -> Commit | None:
        record = self.storage.read(f"{name.folder}/commits/{commit_id}.json")
        return Commit.from_json(commit_id, record.data) if record else None

    def history(self, name: RepositoryName, commit: Commit) -> Iterator[Commit]:
        """Yield a commit and those before it."""
        current: Commit | None = commit
        while current is not None:
            yield current
            current = self.read_commit(name, current.parent) if current.parent else None

    def write_commit(self, name: RepositoryName, commit: Commit) -> Commit:
        commit_id, data = commit.to_json()
        self.storage.write(f"{name.folder}/commits/{commit_id}.json", data, None)
        return replace(commit, id=commit_id)

    def commit(self, name: RepositoryName, branch: str, edits: Edits, draft: Commit, *, parent: str = "") -> Commit:
        """Move a branch to a new commit with these changes; `draft` has the message and the author.

        Raises `Conflict` (`E-OBJECT-CHANGED`) when the head is not `parent` any more, `InvalidInput` for a content that
        was not uploaded, and what `Edits.apply` raises.
        """
        for path in (*edits.files, *edits.deleted_files):
            check_path(path)
        with self.storage.locked(f"tenant {name.tenant}"):  # nothing is collected meanwhile
            for path, entry in edits.files.items():
                if self.storage.size(blob_name(name.tenant, entry.sha256)) != entry.size:
                    raise InvalidInput(
                        f"The content of {path} was not uploaded: {entry.sha256}.",
                        do="Upload it, then commit again.", code="E-NOT-FOUND",
                    )  # fmt: skip
            for _ in range(TRIES):
                refs, version = self.load_refs(name)
                if refs is None:
                    raise missing_repository(name)
                head = refs.branches.get(branch)
                if head is None:
                    raise missing_revision(name, branch)
                if parent and not head.startswith(parent):
                    raise stale_parent(name, branch, parent, head)
                files = self.resolve(name, head).files
                new_files = edits.apply(files)
                commit = self.write_commit(name, replace(draft, files=new_files, parent=head, time=self.now()))
                moved = replace(refs, branches={**refs.branches, branch: commit.id})
                if self.storage.write(f"{name.folder}/refs.json", moved.to_json(), version):
                    return commit
        raise stale_parent(name, branch, parent or "its head", "changing")

    def squash(self, name: RepositoryName, branch: str, draft: Commit) -> Commit:
        """Replace the history of a branch by one commit with the same files: what it had before is collected."""
        while True:
            refs, version = self.load_refs(name)
            if refs is None:
                raise missing_repository(name)
            if branch not in refs.branches:
                raise missing_revision(name, branch)
            files = self.resolve(name, refs.branches[branch]).files
            commit = self.write_commit(name, replace(draft, files=files, parent="", time=self.now()))
            moved = replace(refs, branches={**refs.branches, branch: commit.id})
            if self.storage.write(f"{name.folder}/refs.json", moved.to_json(), version):
                return commit

    def change_refs(self, name: RepositoryName, edit: Callable[[Refs], Refs]) -> None:
        while True:
            refs, version = self.load_refs(name)
            if refs is None:
                raise missing_repository(name)
            if self.storage.write(f"{name.folder}/refs.json", edit(refs).to_json(), version):
                return

    def create_ref(self, name: RepositoryName, kind: RefKind, ref: str, revision: str) -> None:
        """Make a branch or tag. Raises `Conflict` (`E-OBJECT-EXISTS`) for one that exists, `NotFound`."""
        check_ref(ref)
        commit = self.resolve(name, revision)

        def edit(refs: Refs) -> Refs:
            if ref in refs.branches or ref in refs.tags:
                raise Conflict(f"{ref} exists in {name} already.", do="Choose another name.", code="E-OBJECT-EXISTS")
            return refs.with_names(kind, {**refs.names(kind), ref: commit.id})

        self.change_refs(name, edit)

    def delete_ref(self, name: RepositoryName, kind: RefKind, ref: str) -> None:
        """Remove a branch or tag. Raises `NotFound` (`E-NOT-FOUND`), `InvalidInput` for main."""
        if (kind, ref) == ("branches", MAIN):
            raise InvalidInput("The branch main cannot be deleted.", do="Delete the repository.", code="E-NAME")

        def edit(refs: Refs) -> Refs:
            if ref not in refs.names(kind):
                raise missing_revision(name, ref)
            return refs.with_names(kind, {key: value for key, value in refs.names(kind).items() if key != ref})

        self.change_refs(name, edit)

    # Contents

    def has(self, tenant: str, sha256: str, size: int) -> bool:
        """Return whether a content is stored. It is then kept for the commit that asks."""
        return self.size(tenant, sha256) == size

    def pin(self, tenant: str, digests: Iterable[str]) -> None:
        """Keep contents for the commit that is on the way."""
        with self.pinning:
            self.pins |= {(tenant, sha256): self.now() for sha256 in digests}

    def list_pins(self, tenant: str, oldest: float) -> set[str]:
        """Return the contents of a tenant that are kept, and forget what is older."""
        with self.pinning:
            self.pins = {pin: time for pin, time in self.pins.items() if time > oldest}
            return {sha256 for owner, sha256 in self.pins if owner == tenant}

    def size(self, tenant: str, sha256: str) -> int | None:
        """Return the bytes of a stored content; None if it is not stored."""
        self.pin(tenant, [sha256])
        return self.storage.size(blob_name(tenant, sha256))

    def read(self, tenant: str, entry: FileEntry, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield the bytes of a file from `start` up to `end`."""
        return self.storage.read_range(blob_name(tenant, entry.sha256), start, entry.size if end is None else end)

    @contextmanager
    def reserving(self, tenant: str, contents: Mapping[str, int]) -> Iterator[Callable[[str, Path], None]]:
        """Reserve room for contents (SHA-256 -> bytes), and yield the function that takes the file of one over.

        Raises `QuotaReached` (`E-LIMIT`) before anything is stored.
        """
        self.pin(tenant, contents)
        stored = dict.fromkeys(self.quotas.reserve(tenant, contents), False)

        def store(sha256: str, path: Path) -> None:
            if sha256 in stored:
                self.quotas.extend(tenant, sha256, contents[sha256])
            is_new = self.storage.store_file(blob_name(tenant, sha256), path)
            if sha256 in stored:
                stored[sha256] |= is_new

        try:
            yield store
        finally:
            self.quotas.settle(tenant, stored)

    def store_reserved(self, tenant: str, sha256: str, path: Path, size: int) -> bool:
        """Take a content over whose room is reserved. Return whether it is new; the caller settles."""
        self.quotas.extend(tenant, sha256, size)
        return self.storage.store_file(blob_name(tenant, sha256), path)

    # Collection

    def collect(self, tenant: str, *, grace_s: float = GRACE_S) -> int:
        """Remove the commits and contents of a tenant that no branch or tag reaches; return the bytes removed."""
        removed, oldest = 0, self.now() - grace_s
        with self.storage.locked(f"tenant {tenant}"):
            used = self.list_pins(tenant, oldest)
            for kind in KINDS:
                for name in self.list_names(tenant, kind):
                    used |= self.collect_commits(name, oldest)
            for file in [*self.storage.list(blobs_folder(tenant))]:
                if file.name.rsplit("/", 1)[1] not in used and file.modified <= oldest:
                    self.storage.delete(file.name)
                    removed += file.size
            if removed:
                self.quotas.recount(tenant)
        return removed

    def collect_commits(self, name: RepositoryName, oldest: float) -> set[str]:
        """Remove the commits that nothing reaches; return the SHA-256 of every content of the others."""
        refs, used, reached = self.find(name), set[str](), set[str]()
        for commit_id in {*refs.branches.values(), *refs.tags.values()} if refs else ():
            commit = self.read_commit(name, commit_id)
            for ancestor in self.history(name, commit) if commit else ():
                if ancestor.id in reached:
                    break
                reached.add(ancestor.id)
                used |= {entry.sha256 for entry in ancestor.files.values()}
        for file in [*self.storage.list(f"{name.folder}/commits/")]:
            if Path(file.name).stem not in reached and file.modified <= oldest:
                self.storage.delete(file.name)
        return used

    def tenants(self) -> list[str]:
        """Return every tenant with something stored."""
        return sorted({file.name.split("/")[1] for file in self.storage.list("tenants/")})


def missing_repository(name: RepositoryName) -> NotFound:
    return NotFound(f"There is no repository {name} of {name.kind}.", do="Correct the name, or create it.")


def missing_revision(name: RepositoryName, revision: str) -> NotFound:
    return NotFound(f"{name} has no revision {revision[:200]!r}.", do="Name a branch, a tag or a commit.")


def stale_parent(name: RepositoryName, branch: str, parent: str, head: str) -> Conflict:
    return Conflict(
        f"A commit has happened since: {branch} of {name} is not {parent[:40]} any more.", why=f"It is {head}.",
        do="Refresh and try again.", code="E-OBJECT-CHANGED",
    )  # fmt: skip
