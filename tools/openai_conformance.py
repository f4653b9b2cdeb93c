"""Compare the OpenAI wire with OpenAI's public OpenAPI document, and print a table.

    git clone https://github.com/openai/openai-openapi
    python -m tools.openai_conformance openai-openapi/openapi.json

For each route that is served: whether an answer validates against the document's schema, with all of its required
fields, and which fields of the request are taken. Answers are those of the wire's own functions for a file, an upload
and a job, and of the model server with the starter for completions. The document is read, never stored here.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from jsonschema import Draft202012Validator
from pydantic import BaseModel

from trainyard.app.context import Context
from trainyard.app.jobs.jobs import JobDetail
from trainyard.serve import protocol, server
from trainyard.serve.answers import Answers
from trainyard.serve.base_sources import find_bases
from trainyard.settings import Settings
from trainyard.spec.states import JobState
from trainyard.stores.metrics import Point
from trainyard.stores.openai_records import FileRecord, FineTuningRecord, UploadRecord
from trainyard.surfaces.openai import events, fields, files, job_bodies, jobs, models, uploads
from trainyard.surfaces.openai.app import ROUTES
from trainyard.surfaces.openai.calls import WireCall, list_of
from trainyard.surfaces.openai.job_plans import JobFiles, plan_job

JOB = "/fine_tuning/jobs/{fine_tuning_job_id}"
REQUESTS: Mapping[tuple[str, str], type[BaseModel]] = {
    ("POST", "/fine_tuning/jobs"): job_bodies.CreateJobBody,
    ("POST", "/uploads"): uploads.UploadBody,
    ("POST", "/uploads/{upload_id}/complete"): uploads.CompleteBody,
    ("POST", "/chat/completions"): protocol.ChatRequest,
    ("POST", "/completions"): protocol.CompletionRequest,
}
"""Route -> the body that it takes; those of forms are in `FORMS`."""
FORMS = {
    ("POST", "/files"): {"file", *files.FileForm.model_fields},
    ("POST", "/uploads/{upload_id}/parts"): {"data"},
}
REFUSED_ROUTES = {"/embeddings"}


def sample_records() -> tuple[FileRecord, UploadRecord, FineTuningRecord, JobDetail]:
    """Return a file, an upload and a finished job, as a service has them."""
    now = time.time()
    file = FileRecord(
        id="file-000000000000000000000000", created=now, filename="chats.jsonl", purpose="fine-tune", bytes=2807,
        sha256="", name="chats.jsonl", path="uploads/chats.jsonl", expires=now + 3600,
    )  # fmt: skip
    upload = UploadRecord(
        id="upload_000000000000000000000000", created=now, filename="chats.jsonl", purpose="fine-tune", bytes=2807,
        mime_type="application/jsonl", expires=now + 3600,
    )  # fmt: skip
    body = job_bodies.CreateJobBody(model="starter", training_file=file.id, metadata={"team": "a"})
    planned = plan_job(body, JobFiles(file), "job", Settings())
    job = FineTuningRecord(
        id="ftjob-000000000000", created=now, request=planned.request, name="job", job="job-000000000000",
        model="ft:starter:default::000000000000",
    )  # fmt: skip
    detail = JobDetail(
        id="job-000000000000", run_id="", name="job", state=JobState.COMPLETED, detail="", message="", created=now,
        started=now, seconds=30.0, parameters={}, trainings=(), nodes=(),
    )  # fmt: skip
    return file, upload, job, detail


def sample_answers(folder: Path) -> dict[tuple[str, str], object]:
    """Return an answer of each route that is served."""
    file, upload, job, detail = sample_records()
    call = WireCall(Context(Settings(home=folder)), {})
    call.files.create(file)
    described = jobs.describe_job(job, detail)
    event = events.describe_event(events.WireEvent("ftevent-1", job.created, "Step 1/18", data={"step": 1}))
    checkpoint = events.WireCheckpoint("ftckpt_1", job.created, 18, job.model)
    model = models.describe_model(job.model, job.created)
    finished = upload.model_copy(update={"status": uploads.COMPLETED, "file": file.id})
    page = {"object": "list", "has_more": False}
    return {
        ("POST", "/files"): files.describe_file(file),
        ("GET", "/files"): list_of([files.describe_file(file)]),
        ("GET", "/files/{file_id}"): files.describe_file(file),
        ("DELETE", "/files/{file_id}"): {"id": file.id, "object": "file", "deleted": True},
        ("POST", "/uploads"): uploads.describe_upload(call, upload),
        ("POST", "/uploads/{upload_id}/parts"): uploads.describe_part(upload.id, "part_1", upload.created),
        ("POST", "/uploads/{upload_id}/complete"): uploads.describe_upload(call, finished),
        ("POST", "/uploads/{upload_id}/cancel"): uploads.describe_upload(call, upload),
        **{("POST", f"{JOB}{verb}"): described for verb in ("/cancel", "/pause", "/resume")},
        ("POST", "/fine_tuning/jobs"): described,
        ("GET", JOB): described,
        ("GET", "/fine_tuning/jobs"): {**page, "data": [described]},
        ("GET", f"{JOB}/events"): {**page, "data": [event]},
        ("GET", f"{JOB}/checkpoints"): list_of([events.describe_checkpoint(job, checkpoint, Point(step=18, loss=0.5))]),
        ("GET", "/models"): {"object": "list", "data": [model]},
        ("GET", "/models/{model}"): model,
        ("DELETE", "/models/{model}"): {"id": job.model, "object": "model", "deleted": True},
        **asyncio.run(ask_starter()),
    }


async def ask_starter() -> dict[tuple[str, str], object]:
    """Return an answer of the model server to each kind of completion."""
    sources = find_bases(["starter"], Settings())
    served = server.prepare(server.parse_arguments([]), sources)
    app = server.build_app(served, Answers(served, max_tokens=64), token=None, hosts=["127.0.0.1"])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        plain = {"model": "starter", "max_tokens": 4, "temperature": 0}
        turns = [{"role": "user", "content": "Hello"}]
        chat = await client.post("/v1/chat/completions", json={**plain, "messages": turns}, timeout=120)
        text = await client.post("/v1/completions", json={**plain, "prompt": "Hello", "logprobs": 1}, timeout=120)
    for base in served.bases.values():
        base.worker.stop()
    return {("POST", "/chat/completions"): chat.json(), ("POST", "/completions"): text.json()}


def in_draft(schema: Any) -> Any:
    """Return a schema with bounds as JSON Schema 2020-12 writes them: `exclusiveMinimum: true` is OpenAPI 3.0's."""
    if isinstance(schema, list):
        return [in_draft(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {key: in_draft(value) for key, value in schema.items()}
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(parts.get(exclusive), bool):
            is_exclusive = parts.pop(exclusive)
            if is_exclusive and bound in parts:
                parts[exclusive] = parts.pop(bound)
    return parts


def resolve(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema, or what its reference names."""
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[-1]]
    return schema


def properties_of(document: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties of a schema, with those of the schemas that it consists of."""
    schema = resolve(document, schema)
    properties = dict(schema.get("properties", {}))
    for part in schema.get("allOf", ()):
        properties |= properties_of(document, part)
    return properties


def content_schema(content: Mapping[str, Any]) -> Mapping[str, Any]:
    kinds = ("application/json", "multipart/form-data")
    return next((content[kind]["schema"] for kind in kinds if kind in content), {})


def check_answer(document: Mapping[str, Any], operation: Mapping[str, Any], answer: object) -> tuple[str, list[str]]:
    """Return how many required fields of the document's answer are there, and what does not validate."""
    schema = content_schema(operation["responses"]["200"].get("content", {}))
    whole = {"$ref": "#/schema", "schema": schema, "components": document["components"]}
    errors = [error.message[:160] for error in Draft202012Validator(whole).iter_errors(answer)]
    required = required_fields(document, schema)
    present = sum(isinstance(answer, dict) and name in answer for name in required)
    return f"{present}/{len(required)}", errors


def required_fields(document: Mapping[str, Any], schema: Mapping[str, Any]) -> list[str]:
    schema = resolve(document, schema)
    parts = (name for part in schema.get("allOf", ()) for name in required_fields(document, part))
    return [*schema.get("required", ()), *parts]


def fields_taken(route: tuple[str, str]) -> set[str]:
    if route in FORMS:
        return set(FORMS[route])
    return set(REQUESTS[route].model_fields) - fields.REFUSED.get(route[1], {}).keys() if route in REQUESTS else set()


def build_table(document: Mapping[str, Any], folder: Path) -> tuple[list[str], list[str]]:
    """Return the lines of the table, and what does not conform."""
    answers, lines, faults = sample_answers(folder), [], []
    lines.append("| route | required fields of the answer | fields of the body: taken; refused by name |")
    lines.append("|---|---|---|")
    served = set()
    counts: Counter[str] = Counter()
    for row in ROUTES:
        path = row.path.replace(":path", "")
        route = (row.method, path)
        served.add(route)
        operation = document["paths"].get(path, {}).get(row.method.lower())
        if operation is None:
            faults.append(f"{row.method} {path} is not in the document")
            continue
        if path in REFUSED_ROUTES:
            lines.append(f"| {row.method} {path} | refused by name | – |")
            continue
        names = set(properties_of(document, content_schema(operation.get("requestBody", {}).get("content", {}))))
        taken = fields_taken(route) & names
        body = f"{len(taken)} of {len(names)}; {', '.join(sorted(names - taken)) or 'none'}" if names else "–"
        if route not in answers:
            lines.append(f"| {row.method} {path} | the bytes of the file | {body} |")
            continue
        present, errors = check_answer(document, operation, answers[route])
        faults += [f"{row.method} {path}: {error}" for error in errors]
        counts.update(dict(zip(("there", "required"), map(int, present.split("/")), strict=True)))
        faults += [f"{row.method} {path}: required fields {present}"] if len(set(present.split("/"))) > 1 else []
        lines.append(f"| {row.method} {path} | {present} | {body} |")
    others = Counter(
        path.split("/")[1]
        for path, operations in document["paths"].items()
        for method in operations
        if method in ("get", "post", "delete", "put", "patch") and (method.upper(), path) not in served
    )
    listed = ", ".join(f"{name} {count}" for name, count in sorted(others.items()))
    share = counts["there"] / counts["required"]
    lines += ["", f"Required fields of these answers: {counts['there']} of {counts['required']} ({share:.0%})."]
    lines += ["", f"Not served, and answered 404 in OpenAI's shape ({sum(others.values())} routes): {listed}."]
    return lines, faults


def main() -> int:
    document = in_draft(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    with tempfile.TemporaryDirectory() as folder:
        lines, faults = build_table(document, Path(folder))
    print("\n".join(lines))
    print(*faults, sep="\n", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
