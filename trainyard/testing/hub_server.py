"""A double of the Hugging Face Hub, for the real client over real sockets: models, data sets, repositories to write.

    with serving(HubServer({"org/tiny": folder}, datasets={"org/chats": other}, gated={"org/closed"})) as server:
        environment = {"HF_ENDPOINT": server.url, "HF_HUB_OFFLINE": "0"}

    HubServer({}, tokens={"hf_secret": "acme"}, root=tmp_path)      acme/… may be written with the token

It speaks the part of the Hub API that downloads and commits need (https://huggingface.co/docs/hub/api): information of
a repository at a revision, its tree, files by HEAD and GET; repositories, branches, pre-upload, LFS batches, commits. A
model that it does not know, or that is private and asked for without its token, is answered as the Hub does, with 401
and `X-Error-Code: RepoNotFound`; a gated one with 403 and `GatedRepo`. A commit is refused when its parent is not the
head, or when it names a blob that was not uploaded; an upload that is not what its name says is refused, too. A data
set gets a new commit when its files change, which `main` names from then on, and the earlier ones stay.

The environment variables count for a process that starts with them: the client reads them when it is imported. Xet is
not spoken: a writing client gets `HF_HUB_DISABLE_XET=1` and takes LFS.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

from trainyard.json_types import JsonMapping, JsonObject
from trainyard.testing.loopback import LoopbackHandler, LoopbackServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
"""Head of a model that nobody has written to."""
REPO = r"([^/]+/[^/]+)"
REVISION = r"(refs/convert/[^/]+|[^/]+)"
ROUTES: tuple[tuple[str, re.Pattern[str], str], ...] = tuple(
    (method, re.compile(pattern), handler)
    for method, pattern, handler in (
        ("GET", rf"/api/models/{REPO}/tree/([^/]+)", "list_tree"),
        ("GET", rf"/api/models/{REPO}(?:/revision/([^/]+))?", "inform"),
        ("GET", rf"/{REPO}/resolve/([^/]+)/(.+)", "send_file"),
        ("GET", rf"/api/datasets/{REPO}/tree/{REVISION}(?:/(.+))?", "list_dataset"),
        ("POST", rf"/api/datasets/{REPO}/paths-info/{REVISION}", "list_dataset_paths"),
        ("GET", rf"/api/datasets/{REPO}(?:/revision/{REVISION})?", "inform_dataset"),
        ("GET", rf"/datasets/{REPO}/resolve/{REVISION}/(.+)", "send_dataset_file"),
        ("POST", r"/api/validate-yaml", "validate_card"),
        ("POST", r"/api/repos/create", "create_repository"),
        ("POST", rf"/api/models/{REPO}/branch/([^/]+)", "create_branch"),
        ("POST", rf"/api/models/{REPO}/preupload/([^/]+)", "choose_modes"),
        ("POST", rf"/{REPO}\.git/info/lfs/objects/batch", "offer_uploads"),
        ("PUT", r"/lfs/([0-9a-f]{64})", "take_blob"),
        ("POST", r"/lfs/([0-9a-f]{64})/verify", "verify_blob"),
        ("POST", rf"/api/models/{REPO}/commit/([^/]+)", "commit"),
    )
)
LARGE = (".safetensors", ".gguf", ".bin")
"""Endings that the Hub's `.gitattributes` send to LFS."""
NO_TOKENS: Mapping[str, str] = {}
Files = Mapping[str, bytes]
"""Name in the repository -> content."""


class HubServer(LoopbackServer):
    """Name -> folder, of models and of data sets; `requests` keeps every (method, path), `commits` every commit."""

    def __init__(
        self,
        models: Mapping[str, Path],
        gated: frozenset[str] | set[str] = frozenset(),
        datasets: Mapping[str, Path] | None = None,
        *,
        tokens: Mapping[str, str] = NO_TOKENS,
        root: Path | None = None,
    ) -> None:
        super().__init__(HubHandler)
        self.models, self.gated, self.tokens, self.root = dict(models), frozenset(gated), dict(tokens), root
        self.datasets = dict(datasets or {})
        self.snapshots: dict[tuple[str, str], Files] = {}
        """(data set, commit) -> its files then."""
        self.private: set[str] = set()
        self.branches: dict[tuple[str, str], Path] = {}
        """(repository, branch) -> folder, for branches other than main."""
        self.heads: dict[Path, str] = {}
        self.blobs: dict[str, bytes] = {}
        self.commits: list[tuple[str, str, str]] = []
        """(repository, branch, summary)"""
        self.requests: list[tuple[str, str]] = []
        self.failing: dict[str, int] = {}
        """End of a path -> status with which requests to it are answered."""

    def folder(self, name: str, revision: str | None) -> Path | None:
        """Return the files of a revision: a branch, or the commit at its head."""
        if revision in (None, "main"):
            return self.models[name]
        if (name, str(revision)) in self.branches:
            return self.branches[name, str(revision)]
        folders = [self.models[name], *(path for (repo, _), path in self.branches.items() if repo == name)]
        return next((path for path in folders if self.head(path) == revision), None)

    def head(self, folder: Path) -> str:
        return self.heads.get(folder, COMMIT)

    def find_commit(self, name: str, revision: str | None) -> tuple[str, Files] | None:
        """(commit, files) of a data set; None for a revision that it does not have."""
        files = {path: file.read_bytes() for path, file in list_files(self.datasets[name]).items()}
        commit = git_blob_sha1(json.dumps({path: git_blob_sha1(data) for path, data in files.items()}).encode())
        self.snapshots[name, commit] = files
        sha = commit if revision in (None, "main", "HEAD") else str(revision)
        return (sha, self.snapshots[name, sha]) if (name, sha) in self.snapshots else None


class HubHandler(LoopbackHandler):
    server: HubServer

    def answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append((self.command, path))
        self.content = self.body()
        for end, status in self.server.failing.items():
            if path.endswith(end):
                return self.refuse(status, "", "The Hub is not well")
        method = "GET" if self.command == "HEAD" else self.command
        for route_method, pattern, handler in ROUTES:
            if route_method == method and (match := pattern.fullmatch(path)):
                name = match[1] if pattern.groups and "/" in (match[1] or "") else ""
                allowed = self.may_read_dataset(name) if "dataset" in handler else self.may_see_model(name, method)
                if allowed:
                    getattr(self, handler)(*match.groups())
                return None
        return self.refuse(404, "EntryNotFound")

    do_GET = do_HEAD = do_POST = do_PUT = answer

    def json_body(self) -> Any:
        return json.loads(self.content)

    def refuse(self, status: int, code: str = "", message: str = "") -> None:
        self.send(status, {"error": message}, {"X-Error-Code": code} if code else {})

    def may_write(self, namespace: str) -> bool:
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        return self.server.tokens.get(token) == namespace

    def may_read_dataset(self, name: str) -> bool:
        if name in self.server.gated:
            self.refuse(403, "GatedRepo")
        elif name not in self.server.datasets:
            self.refuse(401, "RepoNotFound")
        else:
            return True
        return False

    def may_see_model(self, name: str, method: str) -> bool:
        """Whether this request is allowed; those that name no repository check their own rights."""
        if not name:
            return True
        is_owner = self.may_write(name.split("/", maxsplit=1)[0])
        if name in self.server.gated:
            self.refuse(403, "GatedRepo")
        elif name not in self.server.models or (name in self.server.private and not is_owner):
            self.refuse(401, "RepoNotFound")
        elif method == "POST" and not is_owner:
            self.refuse(403, "", "You don't have the rights to write to this repository")
        else:
            return True
        return False

    # Reading

    def find_folder(self, name: str, revision: str | None) -> Path | None:
        folder = self.server.folder(name, revision)
        if folder is None:
            self.refuse(404, "RevisionNotFound")
        return folder

    def list_tree(self, name: str, revision: str) -> None:
        if folder := self.find_folder(name, revision):
            listed = [
                {"type": "file", "path": path, "size": file.stat().st_size, "oid": git_blob_sha1(file.read_bytes())}
                for path, file in list_files(folder).items()
            ]
            self.send(200, listed)

    def inform(self, name: str, revision: str | None) -> None:
        if folder := self.find_folder(name, revision):
            siblings = [{"rfilename": path} for path in list_files(folder)]
            fields = {"id": name, "modelId": name, "sha": self.server.head(folder), "siblings": siblings}
            self.send(200, {**fields, "private": name in self.server.private})

    def send_file(self, name: str, revision: str, file: str) -> None:
        folder = self.find_folder(name, revision)
        if folder is None:
            return None
        path = folder / file
        if not path.is_file():
            return self.refuse(404, "EntryNotFound")
        return self.send(
            200,
            path.read_bytes(),
            {"X-Repo-Commit": self.server.head(folder), "ETag": f'"{git_blob_sha1(path.read_bytes())}"'},
        )

    def find_snapshot(self, name: str, revision: str | None) -> tuple[str, Files] | None:
        snapshot = self.server.find_commit(name, revision)
        if snapshot is None:
            self.refuse(404, "RevisionNotFound")
        return snapshot

    def inform_dataset(self, name: str, revision: str | None) -> None:
        if snapshot := self.find_snapshot(name, revision):
            siblings = [{"rfilename": path} for path in sorted(snapshot[1])]
            self.send(200, {"id": name, "sha": snapshot[0], "siblings": siblings, "tags": [], "gated": False})

    def list_dataset(self, name: str, revision: str, below: str | None) -> None:
        """The entries of a folder, or with `recursive` all below it. A folder that is not there is 404."""
        snapshot = self.find_snapshot(name, revision)
        if snapshot is None:
            return None
        recursive = parse_qs(urlsplit(self.path).query).get("recursive", ["false"])[0].lower() in ("true", "1")
        prefix = f"{below.rstrip('/')}/" if below else ""
        inside = [path for path in snapshot[1] if path.startswith(prefix)]
        if not inside and below:
            return self.refuse(404, "EntryNotFound")
        entries = {entry["path"]: entry for path in inside for entry in entries_to(path, prefix, snapshot[1])}
        visible = [
            entry for path, entry in sorted(entries.items()) if recursive or "/" not in path.removeprefix(prefix)
        ]
        return self.send(200, visible)

    def list_dataset_paths(self, name: str, revision: str) -> None:
        """The information of the paths that the body names, those that do not exist left out."""
        if snapshot := self.find_snapshot(name, revision):
            form = parse_qs(self.content.decode())
            paths = form.get("paths") or (self.json_body()["paths"] if self.content.startswith(b"{") else [])
            entries = {entry["path"]: entry for path in snapshot[1] for entry in entries_to(path, "", snapshot[1])}
            self.send(200, [entries[path] for path in paths if path in entries])

    def send_dataset_file(self, name: str, revision: str, path: str) -> None:
        snapshot = self.find_snapshot(name, revision)
        if snapshot is None:
            return None
        commit, files = snapshot
        if path not in files:
            return self.refuse(404, "EntryNotFound")
        return self.send(200, files[path], {"X-Repo-Commit": commit, "ETag": f'"{git_blob_sha1(files[path])}"'})

    # Writing

    def validate_card(self) -> None:
        """The YAML header has to be a mapping, and its license one that is known."""
        match = re.match(r"---\n(.*?)\n---\n", self.json_body()["content"], re.DOTALL)
        try:
            header = yaml.safe_load(match[1]) if match else None
        except yaml.YAMLError as error:
            header = str(error)
        warnings = [] if match else [{"message": "empty or missing yaml metadata in repo card"}]
        if header is not None and not isinstance(header, dict):
            return self.send(400, {"errors": [{"message": f"not a mapping: {header}"}], "warnings": warnings})
        return self.send(200, {"errors": [], "warnings": warnings})

    def create_repository(self) -> None:
        request = self.json_body()
        name = f"{request['organization']}/{request['name']}"
        if not self.may_write(request["organization"]):
            return self.refuse(403, "", "You don't have the rights to create a model under this namespace")
        if name in self.server.models:
            return self.refuse(409, "", "You already created this model repo")
        assert self.server.root is not None, "a double that is written to has a folder"
        folder = self.server.root / name
        folder.mkdir(parents=True)
        self.server.models[name] = folder
        if request.get("visibility") == "private" or request.get("private"):
            self.server.private.add(name)
        return self.send(200, {"url": f"{self.server.url}/{name}", "name": name})

    def create_branch(self, name: str, branch: str) -> None:
        assert self.server.root is not None, "a double that is written to has a folder"
        if (name, branch) in self.server.branches or branch == "main":
            return self.refuse(409, "", "Reference already exists")
        folder = self.server.root / f"{name}@{branch}"
        shutil.copytree(self.server.models[name], folder)
        self.server.branches[name, branch] = folder
        self.server.heads[folder] = self.server.head(self.server.models[name])
        return self.send(200, {})

    def choose_modes(self, name: str, revision: str) -> None:
        folder = self.find_folder(name, revision)
        if folder is None:
            return
        answers = []
        for file in self.json_body()["files"]:
            mode = "lfs" if file["path"].endswith(LARGE) else "regular"
            path = folder / file["path"]
            oid = git_oid(path.read_bytes(), mode) if path.is_file() else None
            answers.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        self.send(200, {"files": answers})

    def offer_uploads(self, name: str) -> None:
        objects = []
        for item in self.json_body()["objects"]:
            href = f"{self.server.url}/lfs/{item['oid']}"
            actions = {"upload": {"href": href, "header": {}}, "verify": {"href": f"{href}/verify", "header": {}}}
            fields = {"oid": item["oid"], "size": item["size"]}
            objects.append(fields if item["oid"] in self.server.blobs else {**fields, "actions": actions})
        self.send(200, {"transfer": "basic", "objects": objects})

    def take_blob(self, oid: str) -> None:
        if hashlib.sha256(self.content).hexdigest() != oid:
            return self.refuse(400, "", "The content does not have this SHA-256")
        self.server.blobs[oid] = self.content
        return self.send(200, {})

    def verify_blob(self, oid: str) -> None:
        blob = self.server.blobs.get(oid)
        self.send(200 if blob is not None and len(blob) == self.json_body()["size"] else 404, {})

    def commit(self, name: str, revision: str) -> None:
        """All lines or nothing, on top of the head that the client has seen."""
        folder = self.find_folder(name, revision)
        if folder is None:
            return None
        lines = [json.loads(line) for line in self.content.splitlines() if line]
        header = next(line["value"] for line in lines if line["key"] == "header")
        parent = header.get("parentCommit")
        if parent not in (None, self.server.head(folder)):
            return self.refuse(412, "", "A commit has happened since. Please refresh and try again.")
        missing = [entry["value"]["oid"] for entry in lines if entry["key"] == "lfsFile"]
        missing = [oid for oid in missing if oid not in self.server.blobs]
        if missing:
            return self.refuse(400, "", f"LFS pointer pointed to a file that does not exist: {missing[0]}")
        for entry in lines:
            self.apply(folder, entry["key"], entry["value"])
        self.server.commits.append((name, revision, header["summary"]))
        self.server.heads[folder] = hashlib.sha1(f"{len(self.server.commits)}{name}".encode()).hexdigest()
        url = f"{self.server.url}/{name}/commit/{self.server.heads[folder]}"
        return self.send(200, {"success": True, "commitOid": self.server.heads[folder], "commitUrl": url})

    def apply(self, folder: Path, key: str, value: JsonMapping) -> None:
        if key == "deletedFile":
            (folder / value["path"]).unlink()
        elif key in ("file", "lfsFile"):
            path = folder / value["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(
                self.server.blobs[value["oid"]] if key == "lfsFile" else base64.b64decode(value["content"])
            )


def list_files(folder: Path) -> dict[str, Path]:
    """Name in the repository -> file."""
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}


def git_oid(data: bytes, mode: str) -> str:
    """Return how a repository names a content: SHA-256 in LFS, else git's SHA-1 of a blob."""
    if mode == "lfs":
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def entries_to(path: str, prefix: str, files: Files) -> list[JsonObject]:
    """Return a file's entry in a tree, and those of the folders between the prefix and it."""
    parts = path.removeprefix(prefix).split("/")
    above = [prefix + "/".join(parts[:depth]) for depth in range(1, len(parts))]
    folders: list[dict[str, object]] = [
        {"type": "directory", "path": folder, "size": 0, "oid": git_blob_sha1(folder.encode())} for folder in above
    ]
    return [*folders, {"type": "file", "path": path, "size": len(files[path]), "oid": git_blob_sha1(files[path])}]


def git_blob_sha1(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()
