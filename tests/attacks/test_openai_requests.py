"""Requests of every kind over the OpenAI wire, valid and not: schemathesis, and none may fail the service.

A real Prefect server whose worker is stopped, so that what is started waits, and the model server with the starter.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.flows.real_stack import Stack, standing
from tools.openai_conformance import FORMS, REQUESTS
from trainyard.app.services import running, stop
from trainyard.surfaces.openai import files, job_bodies
from trainyard.surfaces.openai.app import ROUTES
from trainyard.surfaces.openai.prefix import PREFIX

pytestmark = [pytest.mark.timeout(1200), pytest.mark.xdist_group("stack faults")]

EXAMPLES = os.environ.get("EXAMPLES", "30")
SHORT_EXAMPLES = "20"
LIMITS = {
    "TRAINYARD_API_REQUESTS_PER_S": "100000", "TRAINYARD_API_HEAVY_CALLS": "64",
    "TRAINYARD_API_FAILED_LOGINS": "1000000",
}  # fmt: skip
QUERIES = {
    "/files": files.FilesQuery,
    "/fine_tuning/jobs": job_bodies.JobsQuery,
    "/fine_tuning/jobs/{fine_tuning_job_id}/events": job_bodies.EventsQuery,
    "/fine_tuning/jobs/{fine_tuning_job_id}/checkpoints": job_bodies.CheckpointsQuery,
}
GENERATED = re.compile(r"(\d+) generated")


def write_document() -> dict[str, Any]:
    """Return an OpenAPI document of the wire, with the bodies that its routes read."""
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for row in ROUTES:
        path = row.path.replace(":path", "")
        names = re.findall(r"\{(\w+)\}", path)
        parameters = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in names
        ]
        query = QUERIES[path].model_json_schema() if row.method == "GET" and path in QUERIES else {"properties": {}}
        parameters += [{"name": name, "in": "query", "schema": part} for name, part in query["properties"].items()]
        operation: dict[str, Any] = {"parameters": parameters, "responses": {"200": {"description": "An answer."}}}
        route = (row.method, path)
        if route in REQUESTS:
            schema = REQUESTS[route].model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= schema.pop("$defs", {})
            operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
        elif route in FORMS:
            fields = {name: {"type": "string"} for name in FORMS[route] - {"file", "data"}}
            fields |= {name: {"type": "string", "format": "binary"} for name in FORMS[route] & {"file", "data"}}
            form = {"type": "object", "properties": fields, "required": sorted(FORMS[route] - {"expires_after"})}
            operation["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": form}}}
        paths.setdefault(path, {})[row.method.lower()] = operation
    info = {"title": "wire", "version": "1"}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": schemas}}


@pytest.fixture
def stack(tmp_path: Path, tiny_model: Path) -> Iterator[Stack]:
    with standing(tmp_path, tiny_model, lambda stack: stack.environment.update(LIMITS)) as stack:
        for name in ("watchdog", "worker"):
            assert stop(stack.settings, name)
        yield stack


@pytest.mark.integration
def test_few_requests_of_every_kind_do_not_fail_the_service(stack: Stack, tmp_path: Path) -> None:
    assert attack(stack, tmp_path, phases="fuzzing", examples=SHORT_EXAMPLES) > len(ROUTES)


@pytest.mark.slow
@pytest.mark.faults
def test_no_request_fails_the_service(stack: Stack, tmp_path: Path) -> None:
    assert attack(stack, tmp_path, phases="examples,coverage,fuzzing", examples=EXAMPLES) > 300


def attack(stack: Stack, folder: Path, *, phases: str, examples: str) -> int:
    """Send generated requests and return their number, none of which may fail the service."""
    token = stack.json("tokens", "create", "--name", "fuzz", "--scope", "run")["token"]
    api = running(stack.settings, "api")
    assert api is not None
    (folder / "wire.json").write_text(json.dumps(write_document()))
    argv = [
        sys.executable, "-m", "schemathesis.cli", "run", "wire.json", "--url", f"{api.url}{PREFIX}",
        "--header", f"Authorization: Bearer {token}", "--phases", phases,
        "--checks", "not_a_server_error", "--max-examples", examples, "--continue-on-failure",
        "--request-timeout", "60", "--no-color",
    ]  # fmt: skip
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False, timeout=1100)
    assert done.returncode == 0, done.stdout[done.stdout.find("= FAILURES =") :][:8000]
    log = (stack.settings.services / "api.log").read_text()
    assert "Traceback" not in log
    assert "E-BUG" not in log
    match = GENERATED.search(done.stdout)
    assert match is not None
    return int(match[1])
