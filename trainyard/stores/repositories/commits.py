"""Commits: an immutable list of files with their digests, its parent, and a message. The id is a digest of all that.

A commit id has 40 hexadecimal digits, as clients of the Hub expect: the first 160 bits of the SHA-256. `oid` is git's
SHA-1 of a blob, by which clients see whether a small file has changed; the content itself is found by SHA-256.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from trainyard.errors import Corrupt
from trainyard.spec.chain import canonical_json
from trainyard.stores.schema import add_version, read_versioned

RefKind = Literal["branches", "tags"]
MOST_FILES = 100_000
"""In one repository."""


@dataclass(frozen=True)
class FileEntry:
    """A file of a commit."""

    sha256: str
    size: int
    oid: str
    """Git's SHA-1 of the blob; of a large file, that of its LFS pointer."""
    large: bool = False
    """Whether it was uploaded as an LFS object."""

    @property
    def etag(self) -> str:
        return self.sha256 if self.large else self.oid


@dataclass(frozen=True)
class Commit:
    """A commit."""

    files: Mapping[str, FileEntry]
    parent: str = ""
    summary: str = ""
    description: str = ""
    author: str = ""
    time: float = 0.0
    id: str = field(default="", compare=False)

    def to_json(self) -> tuple[str, bytes]:
        """Return the id and the stored text."""
        fields = {name: value for name, value in asdict(self).items() if name != "id"}
        data = canonical_json(add_version("commit", fields))
        return hashlib.sha256(data).hexdigest()[:40], data

    @staticmethod
    def from_json(commit_id: str, data: bytes) -> Commit:
        """Raises `Corrupt` (`E-CORRUPT`) where the text does not have the digest of its id."""
        if hashlib.sha256(data).hexdigest()[:40] != commit_id:
            raise Corrupt(
                f"The commit {commit_id} is damaged.", why="Its content does not have this digest.",
                do="Restore the storage of the data worker from a copy.", code="E-CORRUPT",
            )  # fmt: skip
        fields: dict[str, Any] = read_versioned("commit", data, f"The commit {commit_id}")
        files = {path: FileEntry(**entry) for path, entry in fields.pop("files").items()}
        return Commit(files=files, id=commit_id, **fields)


@dataclass(frozen=True)
class Refs:
    """Branches and tags of a repository, each the id of a commit."""

    created: float
    branches: Mapping[str, str]
    tags: Mapping[str, str] = field(default_factory=dict)

    def names(self, kind: RefKind) -> Mapping[str, str]:
        """Return the branches or the tags."""
        return self.branches if kind == "branches" else self.tags

    def with_names(self, kind: RefKind, names: Mapping[str, str]) -> Refs:
        """Return a copy with other branches or tags."""
        return replace(self, branches=names) if kind == "branches" else replace(self, tags=names)

    def to_json(self) -> bytes:
        return json.dumps(add_version("repository", asdict(self)), sort_keys=True).encode()

    @staticmethod
    def from_json(name: str, data: bytes) -> Refs:
        return Refs(**read_versioned("repository", data, f"The repository {name}"))


def hash_pointer(sha256: str, size: int) -> str:
    """Return git's SHA-1 of the LFS pointer of a file."""
    text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()
    return hash_git_blob(text)


def hash_git_blob(data: bytes) -> str:
    """Return git's SHA-1 of a blob."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
