"""Reading: information of repositories, trees, paths, histories, and files with ranges."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any
from urllib.parse import quote, urlencode

from starlette.responses import Response, StreamingResponse

from trainyard.errors import InvalidInput, NotFound
from trainyard.json_types import JsonObject
from trainyard.stores.repositories.commits import Commit, FileEntry
from trainyard.stores.repositories.names import Kind, RepositoryName
from trainyard.stores.repositories.repository import MAIN, Repositories
from trainyard.surfaces.hub.replies import (
    ENTRY_MISSING,
    REPO_MISSING,
    REVISION_MISSING,
    HubRefusal,
    RangeRefused,
    format_http_time,
    format_time,
    reply_json,
)
from trainyard.surfaces.hub.requests import Call, as_kind, decode

PAGE = 1000
"""Entries of one page of a tree or a list."""
RANGE = re.compile(r"bytes=(\d*)-(\d*)")


class ReadingRoutes:
    """Handlers of routes that change nothing."""

    def __init__(self, repositories: Repositories, own_tenant: str) -> None:
        """`own_tenant` is that of a caller who may use every tenant."""
        self.repositories, self.own_tenant = repositories, own_tenant

    def find_commit(self, name: RepositoryName, revision: str) -> Commit:
        """Return a commit. Raises `HubRefusal` with the Hub's code for missing content."""
        if self.repositories.find(name) is None:
            raise HubRefusal(REPO_MISSING, f"There is no repository {name} of {name.kind}.")
        try:
            return self.repositories.resolve(name, revision)
        except NotFound as error:
            raise HubRefusal(REVISION_MISSING, error.what, do=error.do) from error

    def whoami(self, call: Call) -> Response:
        tenant = call.caller.tenant or self.own_tenant
        role = "read" if call.caller.scope.value == "read" else "write"
        token = {"type": "access_token", "accessToken": {"displayName": call.caller.name, "role": role}}
        return reply_json({
            "type": "user", "id": tenant, "name": tenant, "fullname": tenant, "isPro": False, "orgs": [], "auth": token,
        })  # fmt: skip

    def list_repositories(self, call: Call) -> Response:
        kind, tenant = as_kind(call.words[0]), call.caller.tenant
        tenants = [tenant] if tenant else self.repositories.tenants()
        author, search = call.query.get("author", ""), call.query.get("search", "").lower()
        names = [
            name for owner in tenants if author in ("", owner) for name in self.repositories.list_names(owner, kind)
            if search in str(name).lower()
        ]  # fmt: skip
        return self.send_page(call, self.summarize(names))

    def summarize(self, names: Iterable[RepositoryName]) -> Iterator[JsonObject]:
        """Yield the facts of each repository that was not removed meanwhile."""
        for name in names:
            try:
                yield self.facts(name, self.repositories.resolve(name, MAIN), [])
            except NotFound:
                continue

    def facts(self, name: RepositoryName, commit: Commit, siblings: list[JsonObject]) -> JsonObject:
        refs = self.repositories.require(name)
        return {
            "_id": hashlib.sha256(name.folder.encode()).hexdigest()[:24], "id": str(name), "modelId": str(name),
            "author": name.tenant, "sha": commit.id, "private": True, "gated": False, "disabled": False,
            "createdAt": format_time(refs.created), "lastModified": format_time(commit.time), "tags": [],
            "downloads": 0, "likes": 0, "siblings": siblings,
            "usedStorage": sum(entry.size for entry in commit.files.values()),
        }  # fmt: skip

    def inform(self, call: Call) -> Response:
        kind, text, *revision = call.words
        name = call.repository(as_kind(kind), text)
        commit = self.find_commit(name, decode(revision[0]) if revision else MAIN)
        siblings: list[JsonObject] = [{"rfilename": path} for path in sorted(commit.files)]
        if call.flag("blobs"):
            siblings = [{**describe_file(path, entry), "rfilename": path, "blobId": entry.oid}
                        for path, entry in sorted(commit.files.items())]  # fmt: skip
        return reply_json(self.facts(name, commit, siblings))

    def check_access(self, call: Call) -> Response:
        kind, text = call.words
        self.find_commit(call.repository(as_kind(kind), text), MAIN)
        return reply_json({})

    def list_tree(self, call: Call) -> Response:
        """Answer the entries of a folder, or with `recursive` all below it, in pages."""
        kind, text, revision, *folder = call.words
        name = call.repository(as_kind(kind), text)
        commit = self.find_commit(name, decode(revision))
        path = decode(folder[0]).strip("/") if folder else ""
        entries = list_entries(commit.files, path, recursive=call.flag("recursive"))
        if not entries and path:
            raise HubRefusal(ENTRY_MISSING, f"{path[:200]} does not exist on {decode(revision)}.")
        return self.send_page(call, entries)

    def list_paths(self, call: Call) -> Response:
        """Answer the entries of the paths that the body names, without those that do not exist."""
        kind, text, revision = call.words
        commit = self.find_commit(call.repository(as_kind(kind), text), decode(revision))
        paths = [path.strip("/") for path in call.form_values("paths")]
        files = {path: describe_file(path, entry) for path, entry in commit.files.items()}
        entries = {**describe_folders(commit.files), **files}
        return reply_json([entries[path] for path in dict.fromkeys(paths) if path in entries])

    def list_refs(self, call: Call) -> Response:
        kind, text = call.words
        name = call.repository(as_kind(kind), text)
        self.find_commit(name, MAIN)
        refs = self.repositories.require(name)
        branches, tags = (
            [{"name": key, "ref": f"refs/{part}/{key}", "targetCommit": value} for key, value in sorted(ref.items())]
            for part, ref in (("heads", refs.branches), ("tags", refs.tags))
        )
        return reply_json({"branches": branches, "tags": tags, "converts": [], "pullRequests": []})

    def list_commits(self, call: Call) -> Response:
        kind, text, revision = call.words
        name = call.repository(as_kind(kind), text)
        commits = self.repositories.history(name, self.find_commit(name, decode(revision)))
        return self.send_page(call, (
            {"id": commit.id, "title": commit.summary, "message": commit.description,
             "date": format_time(commit.time), "authors": [{"user": commit.author}]}
            for commit in commits
        ))  # fmt: skip

    def send_page(self, call: Call, entries: Iterable[JsonObject]) -> Response:
        """Answer one page, with a link to the next."""
        cursor, limit = call.query.get("cursor", "0"), call.query.get("limit", str(PAGE))
        if not (cursor.isdecimal() and limit.isdecimal() and len(cursor) < 10):
            raise InvalidInput("cursor and limit are numbers.", code="E-PARAMETER")
        start, size = int(cursor), min(PAGE, max(1, int(limit[:9])))
        page = list(islice(entries, start, start + size + 1))
        headers = {}
        if len(page) > size:
            query = urlencode({**call.query, "cursor": start + size})
            headers["link"] = f'<{str(call.request.url).partition("?")[0]}?{query}>; rel="next"'
        return reply_json(page[:size], headers=headers)

    def send_file(self, call: Call, kind: Kind = "models") -> Response:
        text, revision, word = call.words
        name, path = call.repository(kind, text), decode(word)
        commit = self.find_commit(name, decode(revision))
        facts = {"x-repo-commit": commit.id, "accept-ranges": "bytes", "cache-control": "no-cache"}
        entry = commit.files.get(path)
        if entry is None:
            raise HubRefusal(
                ENTRY_MISSING, f"{path[:200]} does not exist on {decode(revision)[:200]}.",
                headers={"x-repo-commit": commit.id},
            )  # fmt: skip
        etag = f'"{entry.etag}"'
        facts |= {
            "etag": etag, "x-linked-etag": etag, "x-linked-size": str(entry.size),
            "last-modified": format_http_time(commit.time),
            "content-disposition": f"inline; filename*=UTF-8''{quote(path.rsplit('/', 1)[-1], safe='')}",
        }  # fmt: skip
        if etag in [tag.strip().removeprefix("W/") for tag in call.request.headers.get("if-none-match", "").split(",")]:
            return Response(status_code=304, headers=facts)
        start, end, status = 0, entry.size, 200
        if (span := parse_range(call, etag, entry.size)) is not None:
            (start, end), status = span, 206
            facts["content-range"] = f"bytes {start}-{end - 1}/{entry.size}"
        facts["content-length"] = str(end - start)
        if call.request.method == "HEAD":
            return Response(status_code=status, headers=facts, media_type="application/octet-stream")
        blocks: Iterator[bytes] = self.repositories.read(name.tenant, entry, start, end)
        return StreamingResponse(blocks, status, facts, "application/octet-stream")

    def send_dataset_file(self, call: Call) -> Response:
        return self.send_file(call, "datasets")


def parse_range(call: Call, etag: str, size: int) -> tuple[int, int] | None:
    """Return (start, end) of a request for a part of a file; None for the whole. Raises `RangeRefused`."""
    header, condition = call.request.headers.get("range"), call.request.headers.get("if-range", etag)
    match = RANGE.fullmatch(header.strip()) if header else None
    if match is None or condition != etag or not any(match.groups()) or max(map(len, match.groups())) > 18:
        return None
    first, last = match.groups()
    start = int(first) if first else max(0, size - int(last))
    end = min(size, int(last) + 1) if first and last else size
    if start >= end:
        raise RangeRefused(f"The range is outside of the file, which has {size:,} bytes.", code="E-PARAMETER")
    return start, end


def describe_file(path: str, entry: FileEntry) -> JsonObject:
    """Return the entry of a file in a tree."""
    facts: JsonObject = {"type": "file", "path": path, "size": entry.size, "oid": entry.oid}
    if entry.large:
        pointer = len(f"version https://git-lfs.github.com/spec/v1\noid sha256:{entry.sha256}\nsize {entry.size}\n")
        facts["lfs"] = {
            "oid": entry.sha256, "sha256": entry.sha256, "size": entry.size, "pointerSize": pointer,
        }  # fmt: skip
    return facts


def describe_folders(files: Mapping[str, FileEntry]) -> dict[str, JsonObject]:
    """Return the entry of every folder, whose `oid` changes with the files below it."""
    hashers: dict[str, Any] = {}
    for path, entry in sorted(files.items()):
        for position, letter in enumerate(path):
            if letter == "/":
                hasher = hashers.setdefault(path[:position], hashlib.sha1(usedforsecurity=False))
                hasher.update(f"{path} {entry.sha256}\n".encode())
    return {
        folder: {"type": "directory", "path": folder, "size": 0, "oid": hasher.hexdigest()}
        for folder, hasher in hashers.items()
    }


def list_entries(files: Mapping[str, FileEntry], folder: str, *, recursive: bool) -> list[JsonObject]:
    """Return the files and folders below a folder, by path: its own, or with `recursive` all."""
    prefix = f"{folder}/" if folder else ""
    entries = {**describe_folders(files), **{path: describe_file(path, entry) for path, entry in files.items()}}
    inside = {path: entry for path, entry in entries.items() if path.startswith(prefix)}
    return [entry for path, entry in sorted(inside.items()) if recursive or "/" not in path.removeprefix(prefix)]
