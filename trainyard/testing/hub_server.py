"""A double of the Hugging Face Hub that serves folders as models, for the real client over real sockets.

    with serving(HubServer({"org/tiny": folder}, gated={"org/closed"})) as server:
        environment = {"HF_ENDPOINT": server.url, "HF_HUB_OFFLINE": "0"}

It speaks the part of the Hub API that a download needs (https://huggingface.co/docs/hub/api): the information of a
model at a revision, and its files by HEAD and GET. A model that it does not know is answered as the Hub does, with 401
and `X-Error-Code: RepoNotFound`; a gated one with 403 and `GatedRepo`. The environment variables count for a process
that starts with them: the client reads them when it is imported.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import unquote, urlsplit

from trainyard.testing.loopback import LoopbackServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
INFORMATION = re.compile(r"/api/models/([^/]+/[^/]+)(?:/revision/[^/]+)?")
TREE = re.compile(r"/api/models/([^/]+/[^/]+)/tree/[^/]+")
FILE = re.compile(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)")


class HubServer(LoopbackServer):
    """Model name -> folder; `requests` keeps every (method, path) that came."""

    def __init__(self, models: Mapping[str, Path], gated: frozenset[str] | set[str] = frozenset()) -> None:
        super().__init__(HubHandler)
        self.models, self.gated = dict(models), frozenset(gated)
        self.requests: list[tuple[str, str]] = []


class HubHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HubServer

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def answer(self, *, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append((self.command, path))
        for pattern in (TREE, INFORMATION, FILE):
            if found := pattern.fullmatch(path):
                break
        else:
            return self.send(404, b"{}", {"X-Error-Code": "EntryNotFound"}, with_body)
        name = found[1]
        if name in self.server.gated:
            return self.send(403, b"{}", {"X-Error-Code": "GatedRepo"}, with_body)
        if name not in self.server.models:
            return self.send(401, b"{}", {"X-Error-Code": "RepoNotFound"}, with_body)
        folder = self.server.models[name]
        if pattern is FILE:
            return self.send_file(folder / found[2], with_body)
        files = [path for path in sorted(folder.iterdir()) if path.is_file()]
        if pattern is TREE:
            listed = [{"type": "file", "path": p.name, "size": p.stat().st_size, "oid": sha1_of(p)} for p in files]
            return self.send(200, json.dumps(listed).encode(), {}, with_body)
        information = {"id": name, "modelId": name, "sha": COMMIT, "siblings": [{"rfilename": p.name} for p in files]}
        return self.send(200, json.dumps(information).encode(), {}, with_body)

    def send_file(self, path: Path, with_body: bool) -> None:
        if not path.is_file():
            return self.send(404, b"", {"X-Error-Code": "EntryNotFound"}, with_body)
        return self.send(200, path.read_bytes(), {"X-Repo-Commit": COMMIT, "ETag": f'"{sha1_of(path)}"'}, with_body)

    def send(self, status: int, body: bytes, headers: Mapping[str, str], with_body: bool) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "X-Repo-Commit": COMMIT, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Requests are in `server.requests`."""


def sha1_of(path: Path) -> str:
    return hashlib.sha1(path.read_bytes(), usedforsecurity=False).hexdigest()
