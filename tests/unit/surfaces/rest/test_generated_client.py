"""A client that a generator makes of the OpenAPI document speaks with a running service."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from keyword import iskeyword
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.answering import answering
from trainyard import here
from trainyard.operations.table import OPERATIONS, group_lines
from trainyard.surfaces.rest.openapi import openapi_document
from trainyard.surfaces.rest.routes import operation_id

pytestmark = pytest.mark.slow
ROWS = '{"messages": [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}]}\n'
CHAIN = {"name": "guide", "nodes": [{"type": "data_source", "config": {"path": "rows.jsonl"}}, {"type": "trainer"}]}
CONFIG = "content_type_overrides: {application/x-safetensors: application/octet-stream}\npost_hooks: []\n"
"""The generator knows no safetensors: they are bytes. It formats nothing."""


@pytest.fixture
def generated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The package that `openapi-python-client` writes; it may warn of nothing."""
    (tmp_path / "openapi.json").write_text(json.dumps(openapi_document()))
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "rows.jsonl").write_text(ROWS * 8)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    arguments = ["generate", "--path", "openapi.json", "--output-path", "made_client", "--meta", "none"]
    command = [str(Path(sys.executable).parent / "openapi-python-client"), *arguments, "--config", "config.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    assert "Warning" not in done.stdout + done.stderr
    return importlib.import_module("made_client")


def find_module(name: str) -> ModuleType:
    """The module of the generated package that calls an operation."""
    word, function = name.partition(" ")[0], operation_id(name)
    group = word if word in group_lines() else "default"
    return importlib.import_module(f"made_client.api.{group}.{function}{'_' if iskeyword(function) else ''}")


def call(name: str, client: Any, *arguments: Any, **fields: Any) -> Any:
    return find_module(name).sync(*arguments, client=client, **fields)


def test_a_generated_client_speaks_with_the_service(generated: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREFECT_API_URL", "PREFECT_HOME"):
        monkeypatch.delenv(name, raising=False)

    assert all(callable(find_module(name).sync) for name in OPERATIONS)
    models = importlib.import_module("made_client.models")
    with answering() as url, generated.AuthenticatedClient(base_url=url, token="owner") as client:
        stored = call("chains create", client, body=models.ChainSpec.from_dict(CHAIN))
        assert stored.digest == here.check(files=(CHAIN,)).files[0].digest
        chain = call("chains show", client, stored.id)
        assert (chain.name, chain.revision, chain.etag) == ("guide", 1, stored.etag)
        assert [chain.name for chain in call("chains list", client).chains] == ["guide"]
        changed = models.ChainSpec.from_dict({**CHAIN, "description": "More."})
        assert call("chains update", client, "guide", body=changed, if_match=stored.etag).revision == 2
        assert call("chains update", client, "guide", body=changed, if_match=stored.etag).code == "E-CONFLICT"
        problem = call("chains show", client, "nothing")
        assert (problem.code, problem.status) == ("E-NOT-FOUND", 404)
        assert {template.name for template in call("templates", client).templates} == {
            template.name for template in here.templates().templates
        }
        plan = call("plan", client, body=models.PlanBody.from_dict({"target": CHAIN}))
        assert (plan.digest, list(plan.order)) == (stored.digest, ["data-source", "trainer"])
