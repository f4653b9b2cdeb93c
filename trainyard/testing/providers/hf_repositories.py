"""Repositories of models next to a double of Hugging Face Jobs: what `huggingface_hub` writes and reads around a job.

Files are sent in commits, none by LFS. The whole wire of the Hub is that of a data worker.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from trainyard.json_types import JsonMapping
from trainyard.testing.loopback import LoopbackHandler, LoopbackServer
from trainyard.testing.providers.double import EXPIRED_KEY

COMMIT = "0123456789abcdef0123456789abcdef01234567"
"""Head of every repository."""
REPO = r"([^/]+/[^/]+)"
ROUTES: tuple[tuple[str, re.Pattern[str], str], ...] = tuple(
    (method, re.compile(pattern), handler)
    for method, pattern, handler in (
        ("GET", rf"/api/models/{REPO}/tree/[^/]+", "list_tree"),
        ("GET", rf"/api/models/{REPO}(?:/revision/[^/]+)?", "inform"),
        ("GET", rf"/{REPO}/resolve/[^/]+/(.+)", "send_file"),
        ("POST", r"/api/repos/create", "create_repository"),
        ("POST", rf"/api/models/{REPO}/preupload/[^/]+", "choose_modes"),
        ("POST", rf"/api/models/{REPO}/commit/[^/]+", "commit"),
    )
)


class RepositoryServer(LoopbackServer):
    """Repositories of one account, each a folder below `root`."""

    root: Path
    repositories: dict[str, Path]
    storage_limit = 1 << 40
    """Bytes of all repositories."""


class RepositoryHandler(LoopbackHandler):
    server: RepositoryServer

    def answer_repositories(self, key: str) -> None:
        """Answer a request for a repository; those without the key get none."""
        path = unquote(urlsplit(self.path).path)
        self.content = self.body()
        method = "GET" if self.command == "HEAD" else self.command
        for route_method, pattern, handler in ROUTES:
            if route_method == method and (match := pattern.fullmatch(path)):
                is_owner = self.headers.get("Authorization") == f"Bearer {key}"
                if not is_owner:
                    expired = self.headers.get("Authorization") == f"Bearer {EXPIRED_KEY}"
                    self.refuse(401, "", "The token has expired." if expired else "Invalid credentials in the header.")
                elif match.groups() and match[1] not in self.server.repositories:
                    self.refuse(404, "RepoNotFound", f"There is no repository {match[1]}.")
                else:
                    getattr(self, handler)(*match.groups())
                return
        self.refuse(404, "EntryNotFound")

    def refuse(self, status: int, code: str = "", message: str = "") -> None:
        self.send(status, {"error": message}, {"X-Error-Code": code} if code else {})

    def list_tree(self, name: str) -> None:
        files = list_files(self.server.repositories[name])
        self.send(200, [
            {"type": "file", "path": path, "size": file.stat().st_size, "oid": hash_content(file)}
            for path, file in files.items()
        ])  # fmt: skip

    def inform(self, name: str) -> None:
        siblings = [{"rfilename": path} for path in list_files(self.server.repositories[name])]
        self.send(200, {"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings, "private": True})

    def send_file(self, name: str, file: str) -> None:
        path = self.server.repositories[name] / file
        if not path.is_file():
            return self.refuse(404, "EntryNotFound")
        return self.send(200, path.read_bytes(), {"X-Repo-Commit": COMMIT, "ETag": f'"{hash_content(path)}"'})

    def create_repository(self) -> None:
        request = json.loads(self.content)
        name = f"{request['organization']}/{request['name']}"
        if name in self.server.repositories:
            url = f"{self.server.url}/{name}"
            return self.send(409, {"error": "You already created this model repo", "url": url})
        folder = self.server.root / name
        folder.mkdir(parents=True)
        self.server.repositories[name] = folder
        return self.send(200, {"url": f"{self.server.url}/{name}", "name": name})

    def choose_modes(self, name: str) -> None:
        del name  # every file is sent in the commit
        files = json.loads(self.content)["files"]
        answers = [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in files]
        self.send(200, {"files": answers})

    def commit(self, name: str) -> None:
        files = [file for folder in self.server.repositories.values() for file in list_files(folder).values()]
        if sum(file.stat().st_size for file in files) + len(self.content) > self.server.storage_limit:
            return self.refuse(403, "", "Private repository storage limit reached.")
        for line in filter(None, self.content.splitlines()):
            entry: JsonMapping = json.loads(line)
            if entry["key"] == "file":
                path = self.server.repositories[name] / entry["value"]["path"]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(base64.b64decode(entry["value"]["content"]))
        url = f"{self.server.url}/{name}/commit/{COMMIT}"
        return self.send(200, {"success": True, "commitOid": COMMIT, "commitUrl": url})


def list_files(folder: Path) -> dict[str, Path]:
    """Return name in the repository -> file."""
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}


def hash_content(file: Path) -> str:
    """Return git's SHA-1 of a blob."""
    data = file.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
