"""Writing: repositories, branches, tags, and commits, whose lines are read one by one to the disk."""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio.to_thread
import orjson
import yaml
from starlette.requests import Request
from starlette.responses import Response

from trainyard.errors import Denied, InvalidInput, LimitExceeded, NotFound
from trainyard.operations.table import Scope
from trainyard.stores.repositories.commits import Commit, FileEntry, RefKind, hash_git_blob, hash_pointer
from trainyard.stores.repositories.names import COMMIT, SHA256, RepositoryName, check_path, parse_repository
from trainyard.stores.repositories.repository import MAIN, Edits, Repositories
from trainyard.stores.repositories.storage import Staging
from trainyard.surfaces.hub.replies import REPO_MISSING, REVISION_MISSING, HubRefusal, reply_json
from trainyard.surfaces.hub.requests import Call, as_kind, decode, receive_blocks, require_scope

REGULAR_BYTES = 5 << 20
"""Files up to this size are in the commit itself; larger ones are uploaded before."""
MOST_LINE_BYTES = 2 * REGULAR_BYTES
MOST_COMMIT_BYTES = 1 << 30
MOST_LINES = 50_000
MOST_TEXT = 10_000
"""Characters of a message."""
MOST_CARD_CHARS = 256 << 10
"""Characters of a card's header."""


@dataclass
class Draft:
    """A commit as its lines say it."""

    folder: Path
    """Where the contents of small files are, by SHA-256."""
    files: dict[str, FileEntry] = field(default_factory=dict)
    deleted_files: list[str] = field(default_factory=list)
    deleted_folders: list[str] = field(default_factory=list)
    header: dict[str, Any] = field(default_factory=dict)
    large: dict[str, tuple[str, int | None]] = field(default_factory=dict)
    """Path -> (SHA-256, size, or None for that of the stored content)."""
    small: dict[str, int] = field(default_factory=dict)
    """SHA-256 -> bytes."""

    def read_line(self, line: bytes) -> None:
        """Take one line over. Raises `InvalidInput` (`E-JSON`, `E-NAME`), `LimitExceeded`."""
        try:
            entry = orjson.loads(line)
            key, value = entry["key"], entry["value"]
        except (orjson.JSONDecodeError, TypeError, KeyError) as error:
            raise InvalidInput("A line of the commit is not an object with key and value.", code="E-JSON") from error
        if not isinstance(value, dict):
            raise InvalidInput("The value of a line is not an object.", code="E-JSON")
        if key == "header":
            self.header = value
            return
        path = value.get("path")
        if not isinstance(path, str):
            raise InvalidInput("A line of the commit has no path.", code="E-JSON")
        path = check_path(path.rstrip("/") if key == "deletedFolder" else path)
        if key == "file":
            self.take_content(path, value)
        elif key == "lfsFile":
            sha256, size = value.get("oid"), value.get("size")
            if not (isinstance(sha256, str) and SHA256.fullmatch(sha256) and (size is None or type(size) is int)):
                raise InvalidInput(f"{path} has no SHA-256 as oid.", code="E-JSON")
            self.large[path] = sha256, size
        elif key == "deletedFile":
            self.deleted_files.append(path)
        elif key == "deletedFolder":
            self.deleted_folders.append(path)
        else:
            raise InvalidInput(f"{str(key)[:40]!r} is not a key of a commit.", code="E-JSON")

    def take_content(self, path: str, value: dict[str, Any]) -> None:
        content = value.get("content")
        if value.get("encoding", "utf-8") not in ("base64", "utf-8") or not isinstance(content, str):
            raise InvalidInput(f"{path} has no content in base64.", code="E-JSON")
        try:
            is_text = value.get("encoding") != "base64"
            data = content.encode() if is_text else base64.b64decode(content, validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidInput(f"The content of {path} is not base64.", code="E-JSON") from error
        sha256 = hashlib.sha256(data).hexdigest()
        (self.folder / sha256).write_bytes(data)
        self.small[sha256] = len(data)
        self.files[path] = FileEntry(sha256, len(data), hash_git_blob(data))


class WritingRoutes:
    """Handlers of routes that change something."""

    def __init__(self, repositories: Repositories, staging: Staging, own_tenant: str) -> None:
        self.repositories, self.staging, self.own_tenant = repositories, staging, own_tenant

    # Repositories

    def create_repository(self, call: Call) -> Response:
        body, name = call.json(), self.named(call)
        if body.get("visibility", "private") != "private" or body.get("private") is False:
            raise InvalidInput(
                "A data worker has private repositories only: those of a tenant.", do="Leave the visibility out.",
                code="E-PARAMETER",
            )  # fmt: skip
        if not self.repositories.create(name, call.caller.name):
            url = repository_url(call, name)
            return reply_json({"error": f"You already created this {name.kind[:-1]} repo", "url": url}, 409)
        return reply_json({"url": repository_url(call, name), "name": str(name), "id": str(name)})

    def named(self, call: Call) -> RepositoryName:
        """Return the repository that a body names, which the caller may write. Raises `Denied` (`E-SCOPE`)."""
        body = call.json()
        tenant = body.get("organization") or call.caller.tenant or self.own_tenant
        name = parse_repository(f"{body.get('type') or 'model'}s", f"{tenant}/{read_name(body, 'name')}")
        require_scope(call.caller, Scope.RUN)
        if call.caller.tenant not in ("", name.tenant):
            raise Denied(
                f"You don't have the rights to write under the namespace {name.tenant}.",
                do=f"Use a token of that tenant; this one is of {call.caller.tenant}.", code="E-SCOPE",
            )  # fmt: skip
        return name

    def delete_repository(self, call: Call) -> Response:
        name = self.named(call)
        try:
            self.repositories.delete(name)
        except NotFound as error:
            raise HubRefusal(REPO_MISSING, error.what) from error
        return reply_json({})

    # Branches and tags

    def create_branch(self, call: Call) -> Response:
        name, ref = self.find(call), decode(call.words[2])
        start = call.json().get("startingPoint") or MAIN
        self.create_ref(name, "branches", ref, str(start))
        return reply_json({})

    def create_tag(self, call: Call) -> Response:
        name, revision = self.find(call), decode(call.words[2])
        self.create_ref(name, "tags", read_name(call.json(), "tag"), revision)
        return reply_json({})

    def create_ref(self, name: RepositoryName, kind: RefKind, ref: str, revision: str) -> None:
        try:
            self.repositories.create_ref(name, kind, ref, revision)
        except NotFound as error:
            raise HubRefusal(REVISION_MISSING, error.what, do=error.do) from error

    def delete_branch(self, call: Call) -> Response:
        return self.delete_ref(call, "branches")

    def delete_tag(self, call: Call) -> Response:
        return self.delete_ref(call, "tags")

    def delete_ref(self, call: Call, kind: RefKind) -> Response:
        name = self.find(call)
        try:
            self.repositories.delete_ref(name, kind, decode(call.words[2]))
        except NotFound as error:
            raise HubRefusal(REVISION_MISSING, error.what, do=error.do) from error
        return reply_json({})

    def squash(self, call: Call) -> Response:
        """Make one commit of the history of a branch."""
        name, branch, text = self.find(call), decode(call.words[2]), str(call.json().get("message") or "Squash history")
        try:
            draft = Commit({}, summary=text[:MOST_TEXT], author=call.caller.name)
            return reply_json({"commitOid": self.repositories.squash(name, branch, draft).id})
        except NotFound as error:
            raise HubRefusal(REVISION_MISSING, error.what, do=error.do) from error

    def find(self, call: Call) -> RepositoryName:
        """Return the repository of a path, which the caller may write. Raises `HubRefusal`, `Denied`."""
        name = call.repository(as_kind(call.words[0]), call.words[1], write=True)
        if self.repositories.find(name) is None:
            raise HubRefusal(REPO_MISSING, f"There is no repository {name} of {name.kind}.")
        return name

    # Commits

    def validate_card(self, call: Call) -> Response:
        """Answer whether the YAML header of a card is a mapping."""
        text = find_card_header(str(call.json().get("content", "")))
        errors, warnings = [], [] if text else [{"message": "empty or missing yaml metadata in repo card"}]
        header = None
        if text is not None and len(text) > MOST_CARD_CHARS:
            errors.append({"message": f"The YAML header is longer than {MOST_CARD_CHARS:,} characters."})
        else:
            try:
                header = yaml.safe_load(text or "")
            except (yaml.YAMLError, ValueError, RecursionError, TypeError) as error:  # such as a 30th of February
                errors.append({"message": (str(error) or type(error).__name__).splitlines()[0]})
        if not errors and not isinstance(header, dict | None):
            errors.append({"message": "The YAML header is not a mapping."})
        return reply_json({"errors": errors, "warnings": warnings}, 400 if errors else 200)

    def choose_modes(self, call: Call) -> Response:
        """Answer for each file whether it goes into the commit, and its digest if it is stored already."""
        name, revision = self.find(call), decode(call.words[2])
        commit = self.head(name, revision)
        files = call.json().get("files")
        if not isinstance(files, list):
            raise InvalidInput("The body has no list of files.", code="E-JSON")
        answers = []
        for file in files:
            if not (isinstance(file, dict) and isinstance(file.get("path"), str) and type(file.get("size")) is int):
                raise InvalidInput("A file has a path and a size.", code="E-JSON")
            path, entry = check_path(file["path"]), commit.files.get(file["path"])
            mode = "lfs" if file["size"] > REGULAR_BYTES else "regular"
            answers.append({
                "path": path, "uploadMode": mode, "shouldIgnore": False,
                "oid": entry.etag if entry is not None and entry.large == (mode == "lfs") else None,
            })  # fmt: skip
        return reply_json({"files": answers})

    def head(self, name: RepositoryName, revision: str) -> Commit:
        try:
            return self.repositories.resolve(name, revision)
        except NotFound as error:
            raise HubRefusal(REVISION_MISSING, error.what, do=error.do) from error

    async def commit(self, call: Call) -> Response:
        """Read the lines to the disk, then make the commit."""
        name, branch = await anyio.to_thread.run_sync(self.find, call), decode(call.words[2])
        if call.flag("create_pr"):
            raise InvalidInput("A data worker has no pull requests.", do="Commit to a branch.", code="E-PARAMETER")
        folder = self.staging.root / f"commit-{secrets.token_hex(8)}"
        folder.mkdir()
        try:
            draft = Draft(folder)
            async for line in read_lines(call.request):
                await anyio.to_thread.run_sync(draft.read_line, line)
            return await anyio.to_thread.run_sync(self.finish, call, name, branch.removeprefix("refs/heads/"), draft)
        finally:
            await anyio.to_thread.run_sync(shutil.rmtree, folder, True)

    def finish(self, call: Call, name: RepositoryName, branch: str, draft: Draft) -> Response:
        """Store the contents and move the branch. Raises what `Repositories.commit` raises, `HubRefusal`."""
        header = draft.header
        summary, parent = header.get("summary"), header.get("parentCommit") or ""
        if not isinstance(summary, str) or not isinstance(parent, str) or (parent and not COMMIT.fullmatch(parent)):
            raise InvalidInput("The commit has no header with a summary.", code="E-JSON")
        if branch not in (self.repositories.require(name)).branches:
            raise HubRefusal(REVISION_MISSING, f"{name} has no branch {branch[:200]!r}.", do="Create it first.")
        edits = Edits(draft.files | self.find_large(name, draft), draft.deleted_files, draft.deleted_folders)
        edits.apply(self.head(name, branch).files)  # a refused commit stores nothing
        with self.repositories.reserving(name.tenant, draft.small) as store:
            for sha256 in draft.small:
                store(sha256, draft.folder / sha256)
        message = Commit(
            {}, summary=summary[:MOST_TEXT], description=str(header.get("description") or "")[:MOST_TEXT],
            author=call.caller.name,
        )  # fmt: skip
        commit = self.repositories.commit(name, branch, edits, message, parent=parent)
        url = f"{repository_url(call, name)}/commit/{commit.id}"
        return reply_json({"success": True, "commitOid": commit.id, "commitUrl": url, "hookOutput": ""})

    def find_large(self, name: RepositoryName, draft: Draft) -> dict[str, FileEntry]:
        """Return the entries of uploaded files. Raises `InvalidInput` for one that was not uploaded."""
        files: dict[str, FileEntry] = {}
        for path, (sha256, size) in draft.large.items():
            stored = self.repositories.size(name.tenant, sha256)
            if stored is None or size not in (None, stored):
                raise InvalidInput(
                    f"LFS pointer pointed to a file that does not exist: {path} ({sha256}).",
                    do="Upload it, then commit again.", code="E-NOT-FOUND",
                )  # fmt: skip
            files[path] = FileEntry(sha256, stored, hash_pointer(sha256, stored), large=True)
        return files


def read_name(body: dict[str, Any], field: str) -> str:
    """Return a name of a body. Raises `InvalidInput` (`E-JSON`) without one."""
    value = body.get(field)
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"The body has no {field}.", do=f"Give {field} as a text.", code="E-JSON")
    return value


def find_card_header(content: str) -> str | None:
    """Return the text between the first two lines `---` of a card; None without them."""
    first, *lines = content.split("\n")
    ends = (number for number, line in enumerate(lines) if line.rstrip() == "---")
    end = next(ends, None) if first.rstrip() == "---" else None
    return None if end is None else "\n".join(lines[:end])


async def read_lines(request: Request) -> AsyncIterator[bytes]:
    """Yield the lines of a body. Raises `LimitExceeded` (`E-BODY-LENGTH`) for long lines, many, or a long body."""
    pending, total, lines = bytearray(), 0, 0
    async for block in receive_blocks(request):
        total += len(block)
        *whole, rest = block.split(b"\n")
        for part in whole:
            pending += part
            lines += 1
            require_size(len(pending), total, lines)
            if pending.strip():
                yield bytes(pending)
            pending.clear()
        pending += rest
        require_size(len(pending), total, lines)
    if pending.strip():
        yield bytes(pending)


def require_size(line: int, total: int, lines: int) -> None:
    if line > MOST_LINE_BYTES or total > MOST_COMMIT_BYTES or lines > MOST_LINES:
        raise LimitExceeded(
            f"A commit has at most {MOST_LINES:,} lines, {MOST_LINE_BYTES >> 20} MiB in one and "
            f"{MOST_COMMIT_BYTES >> 20:,} MiB in all.",
            do="Upload large files by LFS, and make several commits.", code="E-BODY-LENGTH",
        )  # fmt: skip


def repository_url(call: Call, name: RepositoryName) -> str:
    prefix = "datasets/" if name.kind == "datasets" else ""
    return f"{str(call.request.base_url).rstrip('/')}/{prefix}{name}"
