"""Client of data workers: reads and writes repositories, at the first of several workers that answers.

`huggingface_hub` is not used here: it reads HF_HUB_OFFLINE and its endpoint once for a process, and a chain may name a
data worker where the Hub itself is switched off. The token goes to the addresses of the setting `data_workers` alone.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from trainyard.callbacks import ignore
from trainyard.errors import Conflict, Corrupt, Denied, LimitExceeded, NotFound, TrainyardError, Unavailable
from trainyard.json_types import JsonObject
from trainyard.settings import Settings
from trainyard.stores.files import DISK, make_folders, translate_os_errors
from trainyard.stores.repositories.names import check_path
from trainyard.stores.whole import new_file

TIMEOUT = httpx.Timeout(60.0, connect=5.0)
DOWN = (httpx.TransportError,)
DOWN_STATUS = frozenset({502, 503, 504})
ERRORS: Mapping[int, tuple[type[TrainyardError], str]] = {
    401: (Denied, "E-AUTH"), 403: (Denied, "E-SCOPE"), 404: (NotFound, "E-DATA-NOT-FOUND"),
    409: (Conflict, "E-OBJECT-EXISTS"), 412: (Conflict, "E-OBJECT-CHANGED"),
}  # fmt: skip
MOST_TRIES = 10
"""Times that a folder is committed to a branch that others change."""
SMALL_BYTES = 1 << 20
"""Files up to this size are sent in the commit."""


@dataclass
class DataWorkers:
    """Data workers that store the same repositories, in the order in which they are asked."""

    urls: Sequence[str]
    token: str = ""
    say: Callable[[str], None] = ignore
    """Gets a line about each worker that does not answer."""
    down: dict[str, str] = field(default_factory=dict)
    """Address -> why it did not answer."""

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Return the answer of the first worker that answers.

        Raises `Unavailable` (`E-URL`) if none does, `NotFound`, `Denied`, `Conflict`, as the answer says.
        """
        for url in self.urls:
            try:
                with self.client(url) as client:
                    answer = client.request(method, path, **options)
            except DOWN as error:
                self.note_down(url, error)
                continue
            if answer.status_code in DOWN_STATUS:
                self.note_down(url, answer.status_code)
                continue
            return check_answer(url, answer)
        raise self.none_answers()

    def client(self, url: str) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.token}"} if self.token else {}
        return httpx.Client(base_url=url.rstrip("/"), headers=headers, timeout=TIMEOUT, trust_env=False)

    def note_down(self, url: str, why: object) -> None:
        if url not in self.down:
            self.say(f"the data worker {url} does not answer ({why}); the next one is asked")
        self.down[url] = str(why)

    def none_answers(self) -> Unavailable:
        if not self.urls:
            do = "Set data_workers in trainyard.toml to addresses such as http://127.0.0.1:8892."
            return Unavailable("No data worker is set.", do=do, code="E-URL")
        return Unavailable(
            f"No data worker answers: {', '.join(self.urls)}.", why="; ".join(self.down.values()),
            do="Start one (`trainyard serve --role data`), or correct the setting data_workers.", code="E-URL",
        )  # fmt: skip

    # Reading

    def find_commit(self, kind: str, repository: str, revision: str) -> str:
        """Return the commit of a revision. Raises as `request` does."""
        answer = self.request("GET", f"/api/{kind}/{repository}/revision/{quote(revision, safe='')}")
        return str(answer.json()["sha"])

    def list_files(self, kind: str, repository: str, commit: str) -> list[JsonObject]:
        """Return the entries of all files of a commit. Raises as `request` does, and `InvalidInput` (`E-NAME`)."""
        entries: list[JsonObject] = []
        cursor = 0
        while True:
            query = {"recursive": "true", "cursor": str(cursor)}
            page = self.request("GET", f"/api/{kind}/{repository}/tree/{commit}", params=query)
            entries += page.json()
            if "link" not in page.headers:
                files = [entry for entry in entries if entry["type"] == "file"]
                for entry in files:
                    check_path(str(entry["path"]))  # files are written under these names
                return files
            cursor += len(page.json())

    def list_repositories(self, kind: str) -> list[JsonObject]:
        """Return the repositories that the token may read. Raises as `request` does."""
        rows: list[JsonObject] = self.request("GET", f"/api/{kind}").json()
        return rows

    def download(self, kind: str, repository: str, commit: str, entry: JsonObject, path: Path) -> None:
        """Write a file of a commit, checked by its digest; it appears whole. Raises as `request` does, `Corrupt`."""
        prefix = "" if kind == "models" else f"/{kind}"
        address = f"{prefix}/{repository}/resolve/{commit}/{quote(entry['path'])}"
        for url in self.urls:
            try:
                with self.client(url) as client, client.stream("GET", address) as answer:
                    if answer.status_code in DOWN_STATUS:
                        self.note_down(url, answer.status_code)
                        continue
                    if answer.status_code != 200:
                        answer.read()
                    check_answer(url, answer)
                    self.write(answer, entry, path)
                    return
            except DOWN as error:
                self.note_down(url, error)
        raise self.none_answers()

    def write(self, answer: httpx.Response, entry: JsonObject, path: Path) -> None:
        lfs = entry.get("lfs")
        hasher = hashlib.sha256() if lfs else hashlib.sha1(f"blob {entry['size']}\0".encode(), usedforsecurity=False)
        with translate_os_errors(f"{path} was not written"):
            make_folders(DISK, path.parent)
            with new_file(path) as temporary, temporary.open("wb") as stream:
                for block in answer.iter_bytes(1 << 20):
                    hasher.update(block)
                    stream.write(block)
                expected = lfs["oid"] if lfs else entry["oid"]
                if hasher.hexdigest() != expected:
                    raise Corrupt(
                        f"{entry['path']} arrived damaged.", why=f"Its digest is not {expected}.", do="Run it again.",
                        code="E-CORRUPT",
                    )  # fmt: skip

    # Writing

    def upload_folder(self, kind: str, repository: str, files: Mapping[str, Path], summary: str) -> str:
        """Make one commit of files (path -> file), and return its id; the repository is made if there is none.

        Contents that are stored already are not sent again, so that doing it again adds nothing.
        """
        self.create(kind, repository)
        for _ in range(MOST_TRIES):
            head = self.find_commit(kind, repository, "main")
            stored = {entry["path"]: entry for entry in self.list_files(kind, repository, head)}
            prepared = (self.prepare(kind, repository, path, file, stored) for path, file in sorted(files.items()))
            lines = [line for line in prepared if line is not None]
            lines += [{"key": "deletedFile", "value": {"path": path}} for path in sorted(stored.keys() - files.keys())]
            if not lines:
                return head
            try:
                return self.commit(kind, repository, lines, summary, parent=head)
            except Conflict as error:  # on another head these lines would not leave these files alone
                changed = error
        raise changed

    def create(self, kind: str, repository: str) -> None:
        """Make a repository unless it exists. Raises as `request` does."""
        tenant, name = repository.split("/")
        body = {"name": name, "organization": tenant, "type": kind.removesuffix("s")}
        with suppress(Conflict):
            self.request("POST", "/api/repos/create", json=body)

    def commit(self, kind: str, repository: str, lines: Sequence[JsonObject], summary: str, *, parent: str = "") -> str:
        """Commit lines to main and return the commit's id. Raises as `request` does, and `Conflict` for a parent that
        is not the head.
        """
        header = {"summary": summary} | ({"parentCommit": parent} if parent else {})
        text = "\n".join(json.dumps(line) for line in [{"key": "header", "value": header}, *lines])
        headers = {"content-type": "application/x-ndjson"}
        answer = self.request("POST", f"/api/{kind}/{repository}/commit/main", content=text.encode(), headers=headers)
        return str(answer.json()["commitOid"])

    def tag(self, kind: str, repository: str, tag: str, commit: str) -> None:
        """Tag a commit. Raises `Conflict` (`E-OBJECT-EXISTS`) for a tag that exists."""
        self.request("POST", f"/api/{kind}/{repository}/tag/{commit}", json={"tag": tag})

    def squash(self, kind: str, repository: str) -> None:
        """Make one commit of the history of main, so that removed files are collected. Raises as `request` does."""
        self.request("POST", f"/api/{kind}/{repository}/super-squash/main", json={})

    def prepare(
        self, kind: str, repository: str, path: str, file: Path, stored: Mapping[str, JsonObject]
    ) -> JsonObject | None:
        """Return the line of a file in a commit, its content uploaded; None for a file that has not changed."""
        size = file.stat().st_size
        if size <= SMALL_BYTES:
            data = file.read_bytes()
            oid = hashlib.sha1(b"blob %d\0" % size + data, usedforsecurity=False).hexdigest()
            if path in stored and stored[path]["oid"] == oid:
                return None
            content = base64.b64encode(data).decode()
            return {"key": "file", "value": {"path": path, "content": content, "encoding": "base64"}}
        with file.open("rb") as stream:
            sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        if path in stored and (stored[path].get("lfs") or {}).get("oid") == sha256:
            return None
        self.upload_content(kind, repository, file, sha256, size)
        return {"key": "lfsFile", "value": {"path": path, "algo": "sha256", "oid": sha256, "size": size}}

    def upload_content(self, kind: str, repository: str, file: Path, sha256: str, size: int) -> None:
        """Upload one content to the first worker that takes all of it. Raises `LimitExceeded`, `Unavailable`."""
        for url in self.urls:
            try:
                self.send_content(kind, repository, file, sha256, size)
                return
            except DOWN as error:  # it ended in the middle
                self.note_down(url, error)
        raise self.none_answers()

    def send_content(self, kind: str, repository: str, file: Path, sha256: str, size: int) -> None:
        """Send one content, in parts if it is large. Raises `LimitExceeded` (`E-LIMIT`) over the quota."""
        prefix = "" if kind == "models" else f"/{kind}"
        body = {
            "operation": "upload", "transfers": ["basic", "multipart"], "objects": [{"oid": sha256, "size": size}],
        }  # fmt: skip
        answer = self.request("POST", f"{prefix}/{repository}.git/info/lfs/objects/batch", json=body)
        (entry,) = answer.json()["objects"]
        if "error" in entry:
            why = str(entry["error"]["message"])
            raise LimitExceeded("The data worker does not take the file.", why=why, code="E-LIMIT")
        if "actions" not in entry:
            return
        upload = entry["actions"]["upload"]
        header = upload.get("header", {})
        with httpx.Client(timeout=TIMEOUT, trust_env=False) as client:
            if "chunk_size" not in header:
                check_answer(upload["href"], client.put(upload["href"], content=read_blocks(file, 0, size)))
                return
            part = int(header["chunk_size"])
            for number in range((size + part - 1) // part):
                start = number * part
                end = min(size, start + part)
                content = read_blocks(file, start, end)
                length = {"content-length": str(end - start)}
                check_answer(upload["href"], client.put(header[f"{number + 1}"], content=content, headers=length))
            check_answer(upload["href"], client.post(upload["href"], json={"oid": sha256}))


def read_blocks(file: Path, start: int, end: int) -> Iterator[bytes]:
    """Yield a part of a file."""
    with file.open("rb") as stream:
        stream.seek(start)
        while start < end and (block := stream.read(min(1 << 20, end - start))):
            start += len(block)
            yield block


def check_answer(url: str, answer: httpx.Response) -> httpx.Response:
    """Return a good answer. Raises what another one says."""
    if answer.status_code < 400:
        return answer
    try:
        message = str(answer.json()["error"])
    except (ValueError, KeyError, TypeError):
        message = f"HTTP {answer.status_code}"
    kind, code = ERRORS.get(answer.status_code, (Unavailable, "E-URL"))
    raise kind(f"The data worker at {url.split('/lfs/', maxsplit=1)[0]} refuses it.", why=message, code=code)


def open_data_workers(settings: Settings, first: str = "", say: Callable[[str], None] = ignore) -> DataWorkers:
    """Return the data workers of the settings, `first` before the others; no other address gets the token."""
    urls = sorted(settings.data_workers, key=lambda url: url != first.rstrip("/"))
    return DataWorkers(urls, os.environ.get(settings.data_worker_key_env, ""), say)
