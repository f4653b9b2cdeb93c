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
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from trainyard.testing.loopback import LoopbackHandler, LoopbackServer

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


class HubHandler(LoopbackHandler):
    server: HubServer

    def answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append((self.command, path))
        for pattern in (TREE, INFORMATION, FILE):
            if found := pattern.fullmatch(path):
                break
        else:
            return self.refuse(404, "EntryNotFound")
        name = found[1]
        if name in self.server.gated:
            return self.refuse(403, "GatedRepo")
        if name not in self.server.models:
            return self.refuse(401, "RepoNotFound")
        folder = self.server.models[name]
        if pattern is FILE:
            return self.send_file(folder / found[2])
        files = [path for path in sorted(folder.iterdir()) if path.is_file()]
        if pattern is TREE:
            listed = [{"type": "file", "path": p.name, "size": p.stat().st_size, "oid": sha1_of(p)} for p in files]
            return self.send(200, listed)
        siblings = [{"rfilename": path.name} for path in files]
        return self.send(200, {"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings})

    def refuse(self, status: int, code: str) -> None:
        self.send(status, b"{}", {"X-Error-Code": code})

    def send_file(self, path: Path) -> None:
        if not path.is_file():
            return self.refuse(404, "EntryNotFound")
        return self.send(200, path.read_bytes(), {"X-Repo-Commit": COMMIT, "ETag": f'"{sha1_of(path)}"'})

    do_GET = do_HEAD = answer


def sha1_of(path: Path) -> str:
    return hashlib.sha1(path.read_bytes(), usedforsecurity=False).hexdigest()
