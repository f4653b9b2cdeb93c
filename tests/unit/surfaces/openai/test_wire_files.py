"""The OpenAI wire in this process: files, uploads, keys, tenants and the shape of every refusal."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from starlette.types import ASGIApp

from trainyard.app.context import Context
from trainyard.settings import load_settings, settings
from trainyard.stores.auth_string import keep_auth
from trainyard.stores.metrics import Point
from trainyard.stores.openai_records import FineTuningRecord
from trainyard.stores.secret_files import TokenFile
from trainyard.surfaces.openai.app import ROUTES
from trainyard.surfaces.openai.calls import WireCall
from trainyard.surfaces.openai.prefix import PREFIX
from trainyard.surfaces.openai.results import keep_results
from trainyard.surfaces.rest.service import build_guarded_app

OWN = "http://127.0.0.1:8898"
FORM = {"purpose": "fine-tune"}


def write_rows(count: int = 12) -> bytes:
    turns = [[{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": f"{n}."}] for n in range(count)]
    return b"".join(json.dumps({"messages": pair}).encode() + b"\n" for pair in turns)


class Wire:
    """A client of the wire with a token."""

    def __init__(self, app: ASGIApp, home: Path) -> None:
        self.app, self.tokens, self.made = app, TokenFile(home), dict[tuple[str, str], str]()

    def token(self, scope: str = "run", tenant: str = "") -> str:
        if (scope, tenant) not in self.made:
            self.made[scope, tenant] = self.tokens.create(f"a-{scope}{tenant}", scope, tenant, 1)
        return self.made[scope, tenant]

    def ask(self, method: str, path: str, token: str | None = None, **options: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=OWN) as client:
                return await client.request(method, f"{PREFIX}{path}", headers=headers, **options)

        secret = self.token() if token is None else token
        headers = {**({"authorization": f"Bearer {secret}"} if secret else {}), **options.pop("headers", {})}
        return anyio.run(send)

    def upload(self, data: bytes, name: str = "chats.jsonl", **fields: Any) -> httpx.Response:
        token = fields.pop("token", None)
        return self.ask("POST", "/files", token, files={"file": (name, data)}, data={**FORM, **fields})


@pytest.fixture
def wire(home: Path) -> Wire:
    keep_auth(settings())
    return Wire(build_guarded_app(settings()), home)


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """Return the error of a refusal, whose shape is checked."""
    assert answer.headers["x-request-id"].startswith("req_")
    error: dict[str, Any] = answer.json()["error"]
    assert answer.json().keys() == {"error"}
    assert error.keys() == {"message", "type", "param", "code"}
    return error


def test_a_file_comes_back_as_it_went_and_is_gone_when_deleted(wire: Wire) -> None:
    data = write_rows()
    file = wire.upload(data).json()
    assert file["object"] == "file"
    assert (file["bytes"], file["filename"], file["purpose"]) == (len(data), "chats.jsonl", "fine-tune")
    path = f"/files/{file['id']}"
    assert wire.ask("GET", path).json() == file
    assert wire.ask("GET", f"{path}/content").content == data
    assert [entry["id"] for entry in wire.ask("GET", "/files").json()["data"]] == [file["id"]]
    assert wire.ask("DELETE", path).json() == {"id": file["id"], "object": "file", "deleted": True}
    assert error_of(wire.ask("GET", path))["message"] == f"No such File object: {file['id']}"


def test_files_are_listed_page_by_page(wire: Wire) -> None:
    ids = [wire.upload(write_rows(12 + number)).json()["id"] for number in range(3)]
    first = wire.ask("GET", "/files", params={"limit": 2, "order": "asc"}).json()
    assert [entry["id"] for entry in first["data"]] == ids[:2]
    assert first["has_more"] is True
    rest = wire.ask("GET", "/files", params={"after": first["last_id"], "order": "asc"}).json()
    assert [entry["id"] for entry in rest["data"]] == ids[2:]
    assert error_of(wire.ask("GET", "/files", params={"after": "file-0"}))["param"] == "after"
    assert error_of(wire.ask("GET", "/files", params={"limit": 0}))["param"] == "limit"
    assert error_of(wire.ask("GET", "/files", params={"colour": "red"}))["code"] == "unknown_parameter"


def test_an_expired_file_is_not_there(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    file = wire.upload(write_rows(), **{"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}).json()
    assert file["expires_at"] == file["created_at"] + 3600
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3601)
    assert wire.ask("GET", f"/files/{file['id']}").status_code == 404


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"a": 1}\n[1]\n', 'Line 2 is not a dictionary (HINT: line starts with: "[1]...").'),
        (b'{"a": 1}\n\n{"a": 1,}\n', 'Line 3 is not a dictionary (HINT: line starts with: "{"a"...").'),
        (b'[\n{"a": 1}\n]', 'Line 1 is not a dictionary (HINT: line starts with: "[...").'),
        (b'{"a": "\xff"}\n', "Line 1 is not a dictionary"),
        (b"\n\n", "File is empty"),
    ],
)
def test_what_is_not_jsonl_is_refused_with_its_line(wire: Wire, data: bytes, message: str) -> None:
    answer = wire.upload(data)
    assert answer.status_code == 400
    assert message in error_of(answer)["message"]
    assert wire.ask("GET", "/files").json()["data"] == []


@pytest.mark.parametrize(
    ("fields", "name", "param"),
    [
        ({"purpose": "batch"}, "a.jsonl", "purpose"),
        ({"purpose": "wish"}, "a.jsonl", "purpose"),
        ({}, "a.csv", "file"),
        ({"colour": "red"}, "a.jsonl", "colour"),
    ],
)
def test_a_form_without_a_use_is_refused_by_its_field(
    wire: Wire, fields: dict[str, str], name: str, param: str
) -> None:
    answer = wire.upload(write_rows(), name, **fields)
    assert answer.status_code == 400
    assert error_of(answer)["param"] == param


def begin_upload(wire: Wire, data: bytes) -> str:
    body = {"filename": "c.jsonl", "purpose": "fine-tune", "bytes": len(data), "mime_type": "application/jsonl"}
    upload = wire.ask("POST", "/uploads", json=body).json()
    assert upload["status"] == "pending"
    return str(upload["id"])


def add_part(wire: Wire, upload: str, data: bytes) -> str:
    answer = wire.ask("POST", f"/uploads/{upload}/parts", files={"data": ("part", data)})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def test_parts_become_the_file_in_the_order_that_is_named(wire: Wire) -> None:
    data = write_rows()
    upload = begin_upload(wire, data)
    last, first, again = (add_part(wire, upload, part) for part in (data[100:], data[:100], data[:100]))
    path = f"/uploads/{upload}/complete"
    for part_ids, param in (([first], "part_ids"), ([first, first], "part_ids"), (["part_0"], "part_ids")):
        assert error_of(wire.ask("POST", path, json={"part_ids": part_ids}))["param"] == param
    assert error_of(wire.ask("POST", path, json={"part_ids": [again, last], "md5": "0"}))["param"] == "md5"
    body = {"part_ids": [first, last], "md5": hashlib.md5(data, usedforsecurity=False).hexdigest()}
    done = wire.ask("POST", path, json=body).json()
    assert done["status"] == "completed"
    assert wire.ask("GET", f"/files/{done['file']['id']}/content").content == data
    assert error_of(wire.ask("POST", path, json=body))["code"] == "invalid_upload_state"


def test_an_upload_that_is_not_completed_expires(wire: Wire, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upload = begin_upload(wire, write_rows())
    add_part(wire, upload, b"{}")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3601)
    answer = wire.ask("POST", f"/uploads/{upload}/parts", files={"data": ("part", b"{}")})
    assert "is expired" in error_of(answer)["message"]
    assert not list(home.glob(f"tenants/*/openai/uploads/{upload}/*"))


def test_a_cancelled_upload_takes_no_parts(wire: Wire) -> None:
    upload = begin_upload(wire, write_rows())
    assert wire.ask("POST", f"/uploads/{upload}/cancel").json()["status"] == "cancelled"
    answer = wire.ask("POST", f"/uploads/{upload}/parts", files={"data": ("part", b"{}")})
    assert error_of(answer)["code"] == "invalid_upload_state"


def test_a_tenant_sees_its_own_files_only(wire: Wire) -> None:
    acme, blue = wire.token("run", "acme"), wire.token("run", "blue")
    file = wire.upload(write_rows(), token=acme).json()["id"]
    assert wire.ask("GET", f"/files/{file}", acme).status_code == 200
    for method, path in (("GET", f"/files/{file}"), ("GET", f"/files/{file}/content"), ("DELETE", f"/files/{file}")):
        assert wire.ask(method, path, blue).status_code == 404
    body = {"model": "starter", "training_file": file}
    assert error_of(wire.ask("POST", "/fine_tuning/jobs", blue, json=body))["param"] == "training_file"


def test_a_tenant_sees_its_own_jobs_and_uploads_only(wire: Wire) -> None:
    acme, blue = wire.token("run", "acme"), wire.token("run", "blue")
    file = wire.upload(b'{"messages": []}\n', token=acme).json()["id"]
    job = wire.ask("POST", "/fine_tuning/jobs", acme, json={"model": "starter", "training_file": file}).json()
    assert job["error"]["code"] == "invalid_file_format"
    path = f"/fine_tuning/jobs/{job['id']}"
    assert wire.ask("GET", f"{path}/events", acme).json()["data"][0]["level"] == "error"
    for method, part in (("GET", ""), ("GET", "/events"), ("GET", "/checkpoints"), ("POST", "/cancel"),
                         ("POST", "/pause"), ("POST", "/resume")):  # fmt: skip
        answer = wire.ask(method, f"{path}{part}", blue)
        assert (answer.status_code, error_of(answer)["code"]) == (404, "fine_tune_not_found")
    body = {"filename": "c.jsonl", "purpose": "fine-tune", "bytes": 9, "mime_type": "application/jsonl"}
    upload = wire.ask("POST", "/uploads", acme, json=body).json()["id"]
    for part, options in (("parts", {"files": {"data": ("part", b"{}")}}), ("cancel", {}),
                          ("complete", {"json": {"part_ids": ["part_1"]}})):  # fmt: skip
        answer = wire.ask("POST", f"/uploads/{upload}/{part}", blue, **options)
        assert (answer.status_code, error_of(answer)["param"]) == (404, "upload_id")
    assert wire.ask("POST", f"/uploads/{upload}/cancel", acme).json()["status"] == "cancelled"


def test_a_validation_file_is_checked_as_the_training_file_is(wire: Wire) -> None:
    files = [wire.upload(rows).json()["id"] for rows in (write_rows(), write_rows(3))]
    body = {"model": "starter", "training_file": files[0], "validation_file": files[1]}
    job = wire.ask("POST", "/fine_tuning/jobs", json=body).json()
    assert (job["status"], job["validation_file"]) == ("failed", files[1])
    assert job["error"]["param"] == "validation_file"
    assert job["error"]["message"] == "Validation file has 3 example(s), but must have at least 10 examples"
    answer = wire.ask("POST", "/fine_tuning/jobs", json={**body, "validation_file": "file-0"})
    assert (answer.status_code, error_of(answer)["param"]) == (404, "validation_file")


def test_the_metrics_of_a_job_are_a_file(wire: Wire, home: Path) -> None:
    call = WireCall(Context(settings()), {})
    record = FineTuningRecord(id="ftjob-0123456789ab", created=1.0, request={}, name="job", model="ft:a:default::b")
    call.jobs.create(record)
    points = [Point(step=1, loss=2.5), Point(step=2, loss=1.25, eval_loss=1.5)]
    kept = keep_results(call, record, points, 5.0)
    assert keep_results(call, kept, points, 5.0).result_file == kept.result_file
    path = f"/files/{kept.result_file}"
    assert wire.ask("GET", path).json()["purpose"] == "fine-tune-results"
    assert base64.b64decode(wire.ask("GET", f"{path}/content").content).decode() == (
        "step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy\n1,2.50000,,,\n2,1.25000,,1.50000,\n"
    )
    assert [entry["id"] for entry in wire.ask("GET", "/files", params={"purpose": "fine-tune-results"}).json()["data"]]
    answer = wire.ask("POST", "/fine_tuning/jobs", json={"model": "starter", "training_file": kept.result_file})
    assert error_of(answer)["code"] == "invalid_file_purpose"
    assert wire.ask("DELETE", path).json()["deleted"] is True
    assert wire.ask("GET", path).status_code == 404
    assert not list(home.glob("tenants/*/openai/results/*"))


def test_a_tenant_reads_no_folder_of_the_machine(wire: Wire, home: Path) -> None:
    file = wire.upload(write_rows(), token=wire.token("run", "acme")).json()["id"]
    body = {"model": "nowhere/at-all", "training_file": file}
    answer = wire.ask("POST", "/fine_tuning/jobs", wire.token("run", "acme"), json=body)
    assert answer.status_code == 400
    assert str(home) not in answer.text
    assert error_of(answer)["code"] == "model_not_available"


def test_a_reader_changes_nothing(wire: Wire) -> None:
    reader = wire.token("read")
    assert wire.ask("GET", "/files", reader).status_code == 200
    upload = {"filename": "c.jsonl", "purpose": "fine-tune", "bytes": 9, "mime_type": "application/jsonl"}
    for path, options in (
        ("/files", {"files": {"file": ("a.jsonl", write_rows())}, "data": FORM}),
        ("/uploads", {"json": upload}),
        ("/fine_tuning/jobs", {"json": {"model": "starter", "training_file": "file-0"}}),
        ("/chat/completions", {"json": {"model": "starter", "messages": []}}),
    ):
        answer = wire.ask("POST", path, reader, **options)
        assert (answer.status_code, error_of(answer)["code"]) == (403, "E-SCOPE"), path


def test_every_route_needs_a_key(wire: Wire) -> None:
    for row in ROUTES:
        answer = wire.ask(row.method, row.path.replace(":path", ""), "ty_wrong")
        assert (answer.status_code, error_of(answer)["code"]) == (401, "invalid_api_key"), row.path


def test_a_form_of_a_page_is_refused(wire: Wire) -> None:
    answer = wire.ask("POST", "/files", "", files={"file": ("a.jsonl", write_rows())}, data=FORM)
    assert answer.status_code == 415
    assert error_of(answer)["type"] == "invalid_request_error"


def test_what_is_not_served_is_refused_by_its_name(wire: Wire) -> None:
    assert error_of(wire.ask("POST", "/responses", json={}))["message"] == "Invalid URL (POST /openai/v1/responses)"
    assert error_of(wire.ask("POST", "/embeddings", json={"model": "starter"}))["code"] == "unsupported_endpoint"
    answer = wire.ask("PUT", "/files")
    assert (answer.status_code, error_of(answer)["code"]) == (405, "method_not_supported")


def test_a_body_that_is_too_long_or_no_json_is_refused_in_the_same_shape(home: Path) -> None:
    keep_auth(settings())
    small = Wire(build_guarded_app(load_settings(upload_mb=1)), home)
    answer = small.upload(b'{"a": "' + b"x" * (3 << 20) + b'"}')
    assert answer.status_code == 413
    assert error_of(answer)["code"] == "E-BODY-LENGTH"
    headers = {"content-type": "application/json"}
    assert error_of(small.ask("POST", "/fine_tuning/jobs", content=b"{", headers=headers))["type"]


def test_an_unknown_model_does_not_exist(wire: Wire) -> None:
    for name in ("ft:starter:default::0123456789ab", "nothing"):
        assert error_of(wire.ask("GET", f"/models/{name}"))["code"] == "model_not_found"
    answer = wire.ask("POST", "/chat/completions", json={"model": "starter", "messages": []})
    assert (answer.status_code, error_of(answer)["code"]) == (503, "E-NO-SERVER")
