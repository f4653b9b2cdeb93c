"""Names in repositories: of the repository, its revisions, and its files. Each has one spelling and stays inside."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from trainyard.errors import InvalidInput

Kind = Literal["models", "datasets"]
KINDS: tuple[Kind, ...] = ("models", "datasets")
TENANT = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?")
REF = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._/-]{0,198}[A-Za-z0-9_])?")
COMMIT = re.compile(r"[0-9a-f]{40}")
SHA256 = re.compile(r"[0-9a-f]{64}")
MOST_PATH_BYTES, MOST_PART_BYTES, MOST_PARTS = 1024, 255, 32
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\\]")


class RepositoryName(NamedTuple):
    """A repository: its kind, and its tenant and name, which clients write as `tenant/name`."""

    kind: Kind
    tenant: str
    name: str

    def __str__(self) -> str:
        return f"{self.tenant}/{self.name}"

    @property
    def folder(self) -> str:
        return f"tenants/{self.tenant}/{self.kind}/{self.name}"


def parse_repository(kind: str, text: str) -> RepositoryName:
    """Return the repository that `tenant/name` means. Raises `InvalidInput` (`E-NAME`)."""
    tenant, _, name = text.partition("/")
    if kind not in KINDS:
        raise InvalidInput(f"{kind!r} is not a kind of repository.", do="Use models or datasets.", code="E-NAME")
    if not (TENANT.fullmatch(tenant) and NAME.fullmatch(name)) or ".." in name or "--" in name:
        raise InvalidInput(
            f"{text[:200]!r} is not a valid name of a repository.",
            why="A name is TENANT/NAME: small letters, digits and hyphens; then up to 96 letters, digits and . _ -",
            do="Use a name such as acme/qa-pairs.",
            code="E-NAME",
        )
    return RepositoryName(kind, tenant, name)


def check_ref(name: str) -> str:
    """Return the name of a branch or tag. Raises `InvalidInput` (`E-NAME`)."""
    parts = name.split("/")
    if not REF.fullmatch(name) or COMMIT.fullmatch(name) or any(part in ("", ".", "..") for part in parts):
        raise InvalidInput(
            f"{name[:200]!r} is not a valid name of a branch or tag.",
            why="A name has up to 200 letters, digits and . _ - /, and is not 40 hexadecimal digits.",
            do="Use a name such as v1.",
            code="E-NAME",
        )
    return name


def check_path(path: str) -> str:
    """Return the path of a file in a repository: relative, and with one spelling. Raises `InvalidInput` (`E-NAME`)."""
    parts = path.split("/")
    problem = ""
    if any(part in ("", ".", "..") for part in parts) or parts[0] == ".git":
        problem = "It is absolute, or a part between slashes is empty, `.`, `..` or `.git`."
    elif CONTROL.search(path) or not is_encodable(path):
        problem = "It contains a control character, a backslash, or an unpaired surrogate."
    elif len(path.encode()) > MOST_PATH_BYTES or len(parts) > MOST_PARTS:
        problem = f"It has more than {MOST_PATH_BYTES} bytes or {MOST_PARTS} parts."
    elif any(len(part.encode()) > MOST_PART_BYTES for part in parts):
        problem = f"A part between slashes has more than {MOST_PART_BYTES} bytes."
    if problem:
        raise InvalidInput(
            f"{path[:200]!r} is not a valid path in a repository.", why=problem,
            do="Use a relative path such as data/train.jsonl.", code="E-NAME",
        )  # fmt: skip
    return path


def is_encodable(text: str) -> bool:
    return text == text.encode("utf-8", "replace").decode()
