"""Uploads against a service in a process: hostile names and bodies, tenants, many at once, a client that leaves."""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path

import httpx
import pytest

from tests.api_process import serving
from trainyard.settings import load_settings
from trainyard.stores.secret_files import TokenFile

pytestmark = pytest.mark.integration

BYTES = {"content-type": "application/octet-stream"}
ROWS = b'{"prompt": "What does it cost?", "completion": "Three euros."}\n'
HOSTILE = (
    "..", ".hidden.jsonl", " chats.jsonl", "chats.jsonl ", "..%5cchats.jsonl", "c:chats.jsonl", "chats%00.jsonl",
    "chats%0a.jsonl", "%e2%80%aelnosj.jsonl", "..%252fchats.jsonl", "%2e%2e%2fchats.jsonl", "a%2fb.jsonl",
    "x" * 200 + ".jsonl", "chats", "chats.exe", "chats.jsonl.php7", "%f0%9f%9a%b2" * 50 + ".csv", "~", "-", "con.",
)  # fmt: skip
"""Names, as they are in a path of HTTP."""


REFUSALS = ("E-NAME", "E-DATA-NOT-FOUND", "E-DATA-FORMAT", "E-NOT-FOUND", "E-METHOD")


@dataclass(frozen=True)
class Service:
    client: httpx.Client
    tokens: dict[str, str]
    home: Path
    port: int

    def put(self, name: str, data: bytes, caller: str = "blue", **options: object) -> httpx.Response:
        headers = {**BYTES, "authorization": f"Bearer {self.tokens[caller]}"}
        return self.client.put(f"/api/v1/data/uploads/{name}", content=data, headers=headers, **options)  # type: ignore[arg-type]

    def ask(self, method: str, path: str, caller: str = "blue") -> httpx.Response:
        return self.client.request(method, path, headers={"authorization": f"Bearer {self.tokens[caller]}"})

    def head(self, name: str, length: str) -> bytes:
        """The beginning of a request as it is sent."""
        return (
            f"PUT /api/v1/data/uploads/{name} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
            f"Authorization: Bearer {self.tokens['blue']}\r\nContent-Type: application/octet-stream\r\n{length}\r\n\r\n"
        ).encode()

    def files(self, tenant: str = "blue") -> dict[str, bytes]:
        root = self.home / "tenants" / tenant / "uploads"
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("uploads") / "home"
        for name in ("PREFECT_API_URL", "PREFECT_HOME"):
            patch.delenv(name, raising=False)
        patch.setenv("TRAINYARD_HOME", str(home))
        patch.setenv("TRAINYARD_UPLOAD_MB", "2")
        patch.setenv("TRAINYARD_UPLOADS_MB", "6")
        load_settings(home=home)
        callers = {
            "blue": ("run", "blue"),
            "red": ("run", "red"),
            "reader": ("read", "blue"),
            "green": ("run", "green"),
        }
        tokens = {name: TokenFile(home).create(name, scope, tenant, 1) for name, (scope, tenant) in callers.items()}
        with serving() as port, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
            yield Service(client, tokens, home, port)


@pytest.fixture(autouse=True)
def no_uploads(service: Service) -> None:
    """Each test begins without uploads."""
    for tenant in ("blue", "green"):
        shutil.rmtree(service.home / "tenants" / tenant / "uploads", ignore_errors=True)


def test_an_upload_is_whole_listed_previewed_and_removed(service: Service) -> None:
    answer = service.put("Fragen für Käufer (1).jsonl", ROWS)
    upload = answer.json()
    assert answer.status_code == 201, answer.text
    assert upload["path"] == "uploads/Fragen für Käufer (1).jsonl"
    assert (upload["sha256"], upload["is_new"]) == (hashlib.sha256(ROWS).hexdigest(), True)
    listed = service.ask("GET", "/api/v1/data").json()["entries"]
    assert [entry["path"] for entry in listed if entry["uploaded"]] == [upload["path"]]
    preview = service.ask("GET", f"/api/v1/data/preview?path={upload['path']}").json()
    assert "Three euros." in str(preview["raw"]["rows"][0]), preview
    removed = service.ask("DELETE", f"/api/v1/data/uploads/{upload['name']}")
    assert (removed.status_code, removed.json()["files"]) == (200, 1)
    assert service.files() == {}


def test_a_name_keeps_its_content(service: Service) -> None:
    """Another file gets a name of its own, the same one is there already; nobody's file is overwritten."""
    first, again, other = (service.put("keep.jsonl", data).json() for data in (ROWS, ROWS, ROWS * 2))
    digest = hashlib.sha256(ROWS * 2).hexdigest()[:8]
    assert [upload["name"] for upload in (first, again, other)] == ["keep.jsonl", "keep.jsonl", f"keep-{digest}.jsonl"]
    assert [upload["is_new"] for upload in (first, again, other)] == [True, False, True]
    assert service.files() == {"keep.jsonl": ROWS, f"keep-{digest}.jsonl": ROWS * 2}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_leave_nothing(name: str, service: Service) -> None:
    before = service.files()
    answer = service.put(name, ROWS)
    assert answer.status_code in (404, 405, 422), answer.text
    assert answer.json()["code"] in ("E-NAME", "E-DATA-NOT-FOUND", "E-DATA-FORMAT", "E-NOT-FOUND", "E-METHOD"), (
        answer.text
    )
    folder = service.put("rows.jsonl", ROWS, params={"folder": "../red"})
    assert (folder.status_code, folder.json()["code"]) == (404, "E-DATA-NOT-FOUND")  # as of what is not there
    assert service.files() == before
    assert not (service.home / "tenants" / "red").exists()


def test_too_long_bodies_are_refused_also_without_a_length(service: Service) -> None:
    large = b"x" * (2 << 20) + b"y"
    chunked = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (large[:-1], large[-1:]))
    for length, body in ((f"Content-Length: {len(large)}", b""), ("Transfer-Encoding: chunked", chunked)):
        with socket.create_connection(("127.0.0.1", service.port), timeout=30) as connection:
            connection.sendall(service.head("large.txt", length) + body)
            response = HTTPResponse(connection)
            response.begin()
            answer = response.read()  # head and body come in packets of their own
        assert response.status == 413, answer
        assert b"E-BODY-LENGTH" in answer
    assert service.put("fits.txt", large[:-1]).status_code == 201
    assert list(service.files()) == ["fits.txt"]


def test_a_tenant_has_its_share_of_the_disk(service: Service) -> None:
    sizes = [service.put(f"part{count}.txt", bytes([65 + count]) * (2 << 20), "green") for count in range(4)]
    assert [answer.status_code for answer in sizes] == [201, 201, 201, sizes[-1].status_code]
    assert sizes[-1].json()["code"] == "E-DISK-FULL"
    assert len(service.files("green")) == 3


def test_empty_missing_and_json_bodies(service: Service) -> None:
    assert service.put("empty.jsonl", b"").json()["code"] == "E-DATA-EMPTY"
    headers = {"authorization": f"Bearer {service.tokens['blue']}"}
    nothing = service.client.put("/api/v1/data/uploads/text.jsonl", json={}, headers=headers)
    assert nothing.json()["code"] == "E-PARAMETER"
    file = service.client.put("/api/v1/data/uploads/text.jsonl", json={"file": "/etc/passwd"}, headers=headers)
    assert file.json()["code"] == "E-LOCAL"
    form = service.client.put("/api/v1/data/uploads/form.jsonl", files={"file": ROWS}, headers=headers)
    assert (form.status_code, form.json()["code"]) == (415, "E-REQUEST-REFUSED")
    assert service.files() == {}


def test_other_tenants_and_readers(service: Service) -> None:
    assert service.put("mine.jsonl", ROWS).status_code == 201
    assert service.ask("DELETE", "/api/v1/data/uploads/mine.jsonl", "red").status_code == 404
    assert not [entry for entry in service.ask("GET", "/api/v1/data", "red").json()["entries"] if entry["uploaded"]]
    for caller, path in (("red", "uploads/mine.jsonl"), ("red", "../blue/uploads/mine.jsonl")):
        assert service.ask("GET", f"/api/v1/data/preview?path={path}", caller).status_code in (404, 422)
    refused = [
        service.put("mine.jsonl", ROWS, "reader"),
        service.ask("DELETE", "/api/v1/data/uploads/mine.jsonl", "reader"),
    ]
    assert [(answer.status_code, answer.json()["code"]) for answer in refused] == [(403, "E-SCOPE")] * 2
    assert service.ask("DELETE", "/api/v1/data/uploads/mine.jsonl").status_code == 200


def test_links_in_the_folder_lead_nowhere(service: Service, tmp_path: Path) -> None:
    outside = tmp_path / "outside.jsonl"
    outside.write_bytes(b"{}\n")
    assert service.put("first.jsonl", ROWS).status_code == 201
    root = service.home / "tenants" / "blue" / "uploads"
    (root / "link.jsonl").symlink_to(outside)
    (root / "folder").symlink_to(tmp_path)
    assert service.put("link.jsonl", ROWS).json()["code"] == "E-DATA-NOT-FOUND"
    assert service.put("rows.jsonl", ROWS, params={"folder": "folder"}).json()["code"] == "E-DATA-NOT-FOUND"
    assert outside.read_bytes() == b"{}\n"
    for name in ("link.jsonl", "folder"):  # the links go, what they lead to stays
        assert service.ask("DELETE", f"/api/v1/data/uploads/{name}").status_code == 200
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outside.jsonl"]


def test_many_at_once_give_one_file_for_each_content(service: Service) -> None:
    contents = [ROWS * (1 + count % 3) for count in range(12)]
    with ThreadPoolExecutor(6) as pool:
        uploads = [answer.json() for answer in pool.map(lambda data: service.put("race.jsonl", data), contents)]
    files = service.files()
    assert sorted(len(data) for data in files.values()) == [len(ROWS), 2 * len(ROWS), 3 * len(ROWS)]
    for answer, data in zip(uploads, contents, strict=True):
        assert files[answer["name"]] == data
    assert sum(answer["is_new"] for answer in uploads) == 3


def test_a_client_that_leaves_in_the_middle_leaves_nothing(service: Service) -> None:
    with socket.create_connection(("127.0.0.1", service.port)) as connection:
        connection.sendall(service.head("half.jsonl", f"Content-Length: {len(ROWS) * 1000}") + ROWS * 500)
    time.sleep(0.5)
    assert service.files() == {}
    assert service.put("whole.jsonl", ROWS).status_code == 201


def test_uploads_are_in_the_audit_log_without_their_content(service: Service) -> None:
    assert service.put("audited.jsonl", ROWS).status_code == 201
    assert service.ask("DELETE", "/api/v1/data/uploads/audited.jsonl").status_code == 200
    text = "".join(path.read_text() for path in (service.home / "audit").rglob("*") if path.is_file())
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    ended = [line["operation"] for line in lines if line.get("phase") == "ended" and "audited" in json.dumps(line)]
    assert ended == ["data upload", "data delete"]
    assert "Three euros" not in text
