"""The wire of a data worker: tenants, quotas, ranges, uploads, and requests that are refused."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from tests.data_worker import DataWorker, make_data_worker
from trainyard.stores.repositories.names import parse_repository
from trainyard.stores.repositories.storage import Staging
from trainyard.surfaces.hub import uploads, writing
from trainyard.surfaces.hub.service import build_data_app, collecting

REPO = "/api/datasets/acme/chats"
NDJSON = {"content-type": "application/x-ndjson"}


@pytest.fixture
def worker(tmp_path: Path) -> DataWorker:
    return make_data_worker(tmp_path / "worker", {"small": 1})


@pytest.fixture
def client(worker: DataWorker) -> TestClient:
    app = build_data_app(worker.settings, worker.repositories)
    return TestClient(app, base_url="http://127.0.0.1", headers=worker.bearer("acme"))


def create(client: TestClient, name: str = "chats", **headers: str) -> None:
    answer = client.post("/api/repos/create", json={"name": name, "type": "dataset"}, headers=headers)
    assert answer.status_code == 200, answer.text


def commit(client: TestClient, files: dict[str, bytes], *more: dict[str, Any], **header: Any) -> httpx.Response:
    lines: list[dict[str, Any]] = [{"key": "header", "value": {"summary": "add", **header}}, *more]
    for path, data in files.items():
        value = {"path": path, "content": base64.b64encode(data).decode(), "encoding": "base64"}
        lines.append({"key": "file", "value": value})
    return client.post(f"{REPO}/commit/main", content="\n".join(map(json.dumps, lines)), headers=NDJSON)


def offer(client: TestClient, data: bytes, name: str = "acme/chats", size: int | None = None) -> dict[str, Any]:
    entry = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data) if size is None else size}
    body = {"operation": "upload", "transfers": ["basic", "multipart"], "objects": [entry]}
    answer = client.post(f"/datasets/{name}.git/info/lfs/objects/batch", json=body)
    assert answer.status_code == 200, answer.text
    first: dict[str, Any] = answer.json()["objects"][0]
    return first


def stored_bytes(worker: DataWorker, tenant: str = "acme") -> int:
    usage = worker.repositories.quotas.read(tenant)
    on_disk = sum(file.size for file in worker.repositories.storage.list(f"tenants/{tenant}/blobs"))
    assert not usage.reserved
    assert on_disk == usage.stored
    assert not any(path.is_file() for path in (worker.settings.repositories / "staging").rglob("*"))
    return on_disk


def test_another_tenant_sees_and_changes_nothing(client: TestClient, worker: DataWorker) -> None:
    create(client)
    assert commit(client, {"a.txt": b"secret"}).status_code == 200
    other = worker.bearer("other")
    for method, path in (
        ("GET", REPO), ("GET", f"{REPO}/tree/main"), ("GET", f"{REPO}/refs"), ("GET", f"{REPO}/commits/main"),
        ("GET", "/datasets/acme/chats/resolve/main/a.txt"), ("HEAD", "/datasets/acme/chats/resolve/main/a.txt"),
        ("POST", f"{REPO}/commit/main"), ("POST", f"{REPO}/tag/main"), ("DELETE", f"{REPO}/branch/main"),
        ("POST", "/datasets/acme/chats.git/info/lfs/objects/batch"), ("POST", f"{REPO}/preupload/main"),
    ):  # fmt: skip
        answer = client.request(method, path, headers=other)
        assert (answer.status_code, answer.headers["x-error-code"]) == (404, "RepoNotFound"), path
    missing = client.get("/api/datasets/acme/nothing", headers=other)
    assert (
        missing.headers["x-error-message"].replace("nothing", "chats")
        == client.get(REPO, headers=other).headers["x-error-message"]
    ), "one that exists is not told from one that does not"
    body = {"name": "x", "organization": "acme", "type": "dataset"}
    assert client.post("/api/repos/create", json=body, headers=other).status_code == 403
    assert (
        client.request("DELETE", "/api/repos/delete", json={**body, "name": "chats"}, headers=other).status_code == 403
    )
    assert client.get("/api/datasets", headers=other).json() == []
    assert [repo["id"] for repo in client.get("/api/datasets").json()] == ["acme/chats"]


def test_content_of_another_tenant_is_not_reached_by_its_digest(client: TestClient, worker: DataWorker) -> None:
    create(client)
    data = b"x" * 100
    assert client.put(offer(client, data)["actions"]["upload"]["href"], content=data).status_code == 200
    assert "actions" not in offer(client, data)
    other = TestClient(client.app, base_url="http://127.0.0.1", headers=worker.bearer("other"))
    create(other)
    assert "actions" in offer(other, data, "other/chats"), "the other tenant has to upload it, too"
    lines = [
        {"key": "header", "value": {"summary": "steal"}},
        {"key": "lfsFile", "value": {"path": "a", "oid": hashlib.sha256(data).hexdigest(), "size": 100}},
    ]
    answer = other.post("/api/datasets/other/chats/commit/main", content="\n".join(map(json.dumps, lines)))
    assert (answer.status_code, answer.json()["code"]) == (400, "E-NOT-FOUND")


def test_token_is_required_and_a_reader_does_not_write(client: TestClient, worker: DataWorker) -> None:
    create(client)
    assert client.get(REPO, headers={"authorization": ""}).status_code == 401
    wrong = client.get(REPO, headers={"authorization": "Bearer ty_wrong"})
    assert (wrong.status_code, wrong.headers["x-error-message"]) == (401, "Invalid credentials in Authorization header")
    reader = worker.bearer("acme", "read")
    assert client.get(REPO, headers=reader).status_code == 200
    answer = client.post(f"{REPO}/tag/main", json={"tag": "v1"}, headers=reader)
    assert (answer.status_code, answer.json()["code"]) == (403, "E-SCOPE")


def test_revisions_stay_what_they_were(client: TestClient) -> None:
    create(client)
    first = commit(client, {"a.txt": b"one", "data/b.txt": b"b"}).json()["commitOid"]
    assert client.post(f"{REPO}/tag/{first}", json={"tag": "v1"}).status_code == 200
    assert client.post(f"{REPO}/tag/main", json={"tag": "v1"}).status_code == 409
    second = commit(client, {"a.txt": b"two"}, {"key": "deletedFolder", "value": {"path": "data/"}})
    path = "/datasets/acme/chats/resolve"
    contents = [
        client.get(f"{path}/{revision}/a.txt").content for revision in ("main", "v1", "refs%2Ftags%2Fv1", first)
    ]
    assert contents == [b"two", b"one", b"one", b"one"]
    assert [entry["path"] for entry in client.get(f"{REPO}/tree/main?recursive=true").json()] == ["a.txt"]
    assert [entry["path"] for entry in client.get(f"{REPO}/tree/v1").json()] == ["a.txt", "data"]
    stale = commit(client, {"a.txt": b"three"}, parentCommit=first)
    assert (stale.status_code, second.status_code) == (412, 200)
    missing = client.get(f"{path}/v9/a.txt")
    assert (missing.status_code, missing.headers["x-error-code"]) == (404, "RevisionNotFound")
    assert client.get(f"{path}/main/none").headers["x-error-code"] == "EntryNotFound"


def test_file_has_ranges_and_an_etag(client: TestClient) -> None:
    create(client)
    commit(client, {"a.txt": b"0123456789"})
    path = "/datasets/acme/chats/resolve/main/a.txt"
    head = client.head(path)
    assert head.headers["content-length"] == head.headers["x-linked-size"] == "10"
    parts = {"bytes=2-4": b"234", "bytes=7-": b"789", "bytes=-3": b"789", "bytes=5-99": b"56789"}
    for value, expected in parts.items():
        answer = client.get(path, headers={"range": value})
        assert (answer.status_code, answer.content) == (206, expected)
    assert client.get(path, headers={"range": "bytes=10-"}).status_code == 416
    assert client.get(path, headers={"range": "bytes=1-2", "if-range": '"other"'}).content == b"0123456789"
    assert client.get(path, headers={"if-none-match": head.headers["etag"]}).status_code == 304


def test_quota_is_exact_before_and_during_an_upload(client: TestClient, worker: DataWorker) -> None:
    small = TestClient(client.app, base_url="http://127.0.0.1", headers=worker.bearer("small"))
    create(small)
    mib = 1 << 20
    full, more = b"a" * (mib - 10), b"b" * 11
    links = [offer(small, data, "small/chats") for data in (full, more)]  # both fit while neither is stored
    assert small.put(links[0]["actions"]["upload"]["href"], content=full).status_code == 200
    late = small.put(links[1]["actions"]["upload"]["href"], content=more)
    assert (late.status_code, late.json()["code"]) == (403, "E-LIMIT")
    assert "The storage quota of small is reached: 1,048,576 bytes" in late.headers["x-error-message"]
    refused = offer(small, more, "small/chats")
    assert refused["error"]["code"] == 403
    assert "quota of small" in refused["error"]["message"]
    assert stored_bytes(worker, "small") == mib - 10
    lines = [{"key": "header", "value": {"summary": "add"}}]
    for path in ("a", "b"):
        content = base64.b64encode(path.encode() * 6).decode()
        lines.append({"key": "file", "value": {"path": path, "content": content, "encoding": "base64"}})
    answer = small.post("/api/datasets/small/chats/commit/main", content="\n".join(map(json.dumps, lines)))
    assert answer.status_code == 403, "two files of which one would fit: none is stored"
    assert stored_bytes(worker, "small") == mib - 10
    last = b"c" * 10
    assert small.put(offer(small, last, "small/chats")["actions"]["upload"]["href"], content=last).status_code == 200
    assert stored_bytes(worker, "small") == mib


def test_parts_are_put_together(client: TestClient, worker: DataWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "PART_BYTES", 1000)
    create(client)
    data = bytes(range(256)) * 10
    upload = offer(client, data)["actions"]["upload"]
    header = upload["header"]
    size = int(header["chunk_size"])
    numbers = sorted(int(key) for key in header if key.isdecimal())
    for number in reversed(numbers):
        part = data[(number - 1) * size : number * size]
        assert client.put(header[str(number)], content=part).headers["etag"]
        if number > 1:
            assert client.post(upload["href"], json={}).status_code == 400, "parts are missing"
    assert client.put(header["1"], content=b"short").status_code == 400
    assert client.post(upload["href"], json={}).status_code == 200
    assert client.post(upload["href"], json={}).status_code == 200, "asked again after a lost answer"
    assert stored_bytes(worker) == len(data)


def test_wrong_parts_leave_nothing(client: TestClient, worker: DataWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "PART_BYTES", 1000)
    create(client)
    upload = offer(client, b"a" * 1500)["actions"]["upload"]
    client.put(upload["header"]["1"], content=b"b" * 1000)
    client.put(upload["header"]["2"], content=b"b" * 500)
    answer = client.post(upload["href"], json={})
    assert (answer.status_code, answer.json()["code"]) == (400, "E-CORRUPT")
    assert stored_bytes(worker) == 0


@pytest.mark.parametrize(("body", "code"), [
    (b"wrong" * 20, "E-CORRUPT"), (b"x" * 99, "E-BODY-LENGTH"), (b"x" * 101, "E-BODY-LENGTH"),
])  # fmt: skip
def test_upload_that_is_not_its_digest_leaves_nothing(
    client: TestClient, worker: DataWorker, body: bytes, code: str
) -> None:
    create(client)
    link = offer(client, b"x" * 100)["actions"]["upload"]["href"]
    for content in (body, iter([body])):  # with and without a length
        answer = client.put(link, content=content)
        assert (answer.status_code, answer.json()["code"]) == (400, code)
    assert stored_bytes(worker) == 0


def test_link_is_for_one_content(client: TestClient, worker: DataWorker) -> None:
    create(client)
    link = offer(client, b"x" * 100)["actions"]["upload"]["href"]
    text, _, signature = link.rpartition(".")
    other = base64.urlsafe_b64encode(b'{"tenant":"other"}').decode()
    for wrong in (f"{text}.{'0' * len(signature)}", f"{text[:-4]}{other}.{signature}", text):
        assert client.put(wrong, content=b"x" * 100).status_code in (400, 401)
    assert stored_bytes(worker) == 0


@pytest.mark.parametrize("lines", [
    b"", b"[1]", b"{", b'{"key":"header"}', b'{"key":"header","value":{"summary":1}}',
    b'{"key":"header","value":{"summary":"a"}}\n{"key":"link","value":{"path":"a"}}',
    b'{"key":"header","value":{"summary":"a"}}\n{"key":"file","value":{"path":"../a","content":"","encoding":"base64"}}',
    b'{"key":"header","value":{"summary":"a"}}\n{"key":"file","value":{"path":"a","content":"?","encoding":"base64"}}',
    b'{"key":"header","value":{"summary":"a"}}\n{"key":"lfsFile","value":{"path":"a","oid":"../../x","size":1}}',
    b'{"key":"header","value":{"summary":"a","parentCommit":"../x"}}', b"[" * 10_000,
])  # fmt: skip
def test_commit_that_is_wrong_stores_nothing(client: TestClient, worker: DataWorker, lines: bytes) -> None:
    create(client)
    good = {"key": "file", "value": {"path": "good", "content": "YQ==", "encoding": "base64"}}
    answer = client.post(f"{REPO}/commit/main", content=json.dumps(good).encode() + b"\n" + lines, headers=NDJSON)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]
    assert stored_bytes(worker) == 0
    assert client.get(f"{REPO}/tree/main").json() == []


def test_bombs_are_refused(client: TestClient, worker: DataWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    create(client)
    zipped = {**NDJSON, "content-encoding": "gzip"}
    assert client.post(f"{REPO}/commit/main", content=gzip.compress(b"a" * 1000), headers=zipped).status_code == 400
    monkeypatch.setattr(writing, "MOST_LINES", 100)
    assert client.post(f"{REPO}/commit/main", content=b"\n" * 101, headers=NDJSON).status_code == 413
    monkeypatch.setattr(writing, "MOST_LINE_BYTES", 1000)
    assert client.post(f"{REPO}/commit/main", content=b"a" * 1001, headers=NDJSON).status_code == 413
    assert client.post(f"{REPO}/paths-info/main", content=b"[" * (9 << 20), headers={
        "content-type": "application/json",
    }).status_code == 413  # fmt: skip
    assert stored_bytes(worker) == 0


@pytest.mark.parametrize("path", [
    "/api/datasets/acme/..%2F..%2Fx", "/api/datasets/%2e%2e/x", "/api/datasets/gpt2", "/api/spaces/acme/x",
    "/datasets/acme/chats/resolve/main/..%2F..%2Frefs.json", "/datasets/acme/chats/resolve/..%2F..%2Fx/a",
    "/datasets/acme/chats/resolve/main/%00", f"/datasets/acme/chats/resolve/main/{'a' * 5000}",
    "/datasets/acme/chats/resolve/main//etc/passwd", "/datasets/acme/chats/resolve/%ff/a", "/nothing",
])  # fmt: skip
def test_hostile_address_is_not_found(client: TestClient, path: str) -> None:
    create(client)
    commit(client, {"a": b"a"})
    answer = client.get(path)
    assert answer.status_code in (400, 404), answer.text


def test_request_of_a_page_is_refused(client: TestClient) -> None:
    create(client)
    assert client.get(REPO, headers={"origin": "https://evil.example"}).status_code == 403
    assert client.get(REPO, headers={"host": "evil.example"}).status_code == 400


def test_public_repository_is_refused(client: TestClient) -> None:
    answer = client.post("/api/repos/create", json={"name": "x", "visibility": "public"})
    assert (answer.status_code, answer.json()["code"]) == (400, "E-PARAMETER")


def test_xet_is_refused_with_the_remedy(client: TestClient) -> None:
    answer = client.get(f"{REPO}/xet-write-token/main")
    assert answer.status_code == 400
    assert "HF_HUB_DISABLE_XET=1" in answer.headers["x-error-message"]


def test_changes_are_in_the_audit_log(client: TestClient, worker: DataWorker) -> None:
    create(client)
    commit(client, {"a": b"a"})
    text = "\n".join(path.read_text() for path in (worker.settings.home / "audit").rglob("*") if path.is_file())
    assert '"operation":"hub commit"' in text.replace(": ", ":")
    assert "acme-run" in text


@pytest.mark.parametrize(
    "header", ["date: 2026-02-30", "a: " + "[" * 3000, "? [a]\n: b", "- a", "a: b: c", "x: " + "y" * (1 << 19)]
)
def test_a_card_with_a_wrong_header_is_told(client: TestClient, header: str) -> None:
    answer = client.post("/api/validate-yaml", json={"content": f"---\n{header}\n---\ntext", "repoType": "model"})
    assert (answer.status_code, len(answer.json()["errors"])) == (400, 1)


def test_a_card_of_blank_lines_is_read_in_one_pass(client: TestClient) -> None:
    started = time.monotonic()
    answer = client.post("/api/validate-yaml", json={"content": "---" + "\n" * 200_000})
    assert (answer.json()["errors"], len(answer.json()["warnings"])) == ([], 1)
    assert time.monotonic() - started < 5
    good = client.post("/api/validate-yaml", json={"content": "---\r\nlicense: mit\r\n---\r\n# text"})
    assert good.json() == {"errors": [], "warnings": []}


@pytest.mark.parametrize("body", [{}, {"name": None}, {"name": 5}, {"name": ""}])
def test_a_repository_or_tag_without_a_name_is_refused(client: TestClient, body: dict[str, Any]) -> None:
    answer = client.post("/api/repos/create", json={**body, "type": "dataset"})
    assert (answer.status_code, answer.json()["code"]) == (400, "E-JSON")
    assert client.get("/api/datasets").json() == []
    create(client)
    answer = client.post(f"{REPO}/tag/main", json={"tag": body.get("name")})
    assert (answer.status_code, answer.json()["code"]) == (400, "E-JSON")


def test_concurrent_parts_over_the_quota_are_refused_and_leave_nothing(
    worker: DataWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "PART_BYTES", 100_000)
    client = TestClient(
        build_data_app(worker.settings, worker.repositories), base_url="http://127.0.0.1",
        headers=worker.bearer("small"),
    )  # fmt: skip
    create(client)
    links = [offer(client, data, "small/chats")["actions"]["upload"]["header"]
             for data in (b"a" * 700_000, b"b" * 700_000)]  # fmt: skip
    parts = [(link[f"{number}"], letter * 100_000) for link, letter in zip(links, (b"a", b"b"), strict=True)
             for number in range(1, 8)]  # fmt: skip
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda part: client.put(part[0], content=part[1]), parts))
    assert {answer.status_code for answer in answers} == {200, 403}
    usage = worker.repositories.quotas.read("small")
    assert (usage.total, [entry.uploads for entry in usage.reserved.values()]) == (700_000, [1])


def test_a_damaged_repository_keeps_no_other_tenant_from_collection(worker: DataWorker, caplog: Any) -> None:
    repositories = worker.repositories
    for tenant in ("damaged", "later"):
        repositories.create(parse_repository("datasets", f"{tenant}/chats"), "test")
    refs = worker.settings.repositories / "tenants/damaged/datasets/chats/refs.json"
    refs.write_text("{")
    blob = worker.settings.repositories / "tenants/later/blobs/aa" / ("a" * 64)
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"x")
    os.utime(blob, (1, 1))
    staging = Staging(worker.settings.repositories / "staging", 3600)
    deadline = time.monotonic() + 10
    with collecting(repositories, staging, every_s=0.1):
        while blob.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
    assert not blob.exists()
    assert "the collection of damaged failed" in caplog.text
