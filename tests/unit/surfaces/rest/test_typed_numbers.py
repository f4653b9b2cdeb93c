"""Numbers over a network: `"3"` and true are no numbers there, on every surface and in every field."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.answering import answering
from trainyard import Chain, DataSource, Trainer, connect
from trainyard.errors import Refused

pytestmark = pytest.mark.integration

ROWS = '{"messages": [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}]}\n'
AUTHORIZED = {"authorization": "Bearer owner"}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"hyperparameters": {"epochs": "3"}}, "hyperparameters.epochs"),
    ({"hyperparameters": {"epochs": True}}, "hyperparameters.epochs"),
    ({"hyperparameters": {"max_steps": "2"}}, "hyperparameters.max_steps"),
    ({"hyperparameters": {"learning_rate": "2e-4"}}, "hyperparameters.learning_rate"),
    ({"hyperparameters": {"gradient_checkpointing": "no"}}, "hyperparameters.gradient_checkpointing"),
    ({"hyperparameters": {"gradient_checkpointing": 1}}, "hyperparameters.gradient_checkpointing"),
    ({"method": {"type": "lora", "rank": "8"}}, "method.rank"),
    ({"method": {"type": "lora", "rank": True}}, "method.rank"),
    ({"eval": {"share": "0.1"}}, "eval.share"),
    ({"reuse": "no"}, "reuse"),
]
RIGHT: list[dict[str, Any]] = [
    {"hyperparameters": {"epochs": 3, "learning_rate": 2e-4, "max_steps": 60}},
    {"hyperparameters": {"epochs": 0.5, "max_steps": 60.0, "gradient_checkpointing": True}},
    {"method": {"type": "lora", "rank": 8}, "stage": "sft"},
]


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "rows.jsonl").write_text(ROWS * 80)
    monkeypatch.chdir(tmp_path)
    for name in ("PREFECT_API_URL", "PREFECT_HOME"):
        monkeypatch.delenv(name, raising=False)
    with answering() as service_url:
        yield service_url


def chain_with(config: dict[str, Any]) -> dict[str, Any]:
    source = {"type": "data_source", "config": {"path": "rows.jsonl"}}
    return {"name": "typed", "nodes": [source, {"type": "trainer", "config": config}]}


def job_with(config: dict[str, Any]) -> dict[str, Any]:
    return {"dataset": {"path": "rows.jsonl"}, **config}


def list_fields(answer: httpx.Response) -> set[str]:
    return {str(error["field"]) for error in answer.json()["errors"]}


def test_texts_and_truth_values_are_refused_with_their_field(url: str) -> None:
    with httpx.Client(base_url=f"{url}/api/v1", headers=AUTHORIZED, timeout=60) as client:
        for config, field in WRONG:
            chain = chain_with(config)
            for path, body in (("/chains", chain), ("/plan", {"target": chain})):
                answer = client.post(path, json=body)
                assert answer.status_code == 422, (path, config, answer.text)
                assert f"config.{field}" in list_fields(answer), (path, config, answer.text)
            answer = client.post("/jobs", json=job_with(config))
            assert answer.status_code == 422, (config, answer.text)
            assert any(refused_field.endswith(field) for refused_field in list_fields(answer)), (config, answer.text)
            (file,) = client.post("/check", json={"files": [chain]}).json()["files"]
            assert f"config.{field}" in {reason["field"] for reason in file["reasons"]}, (config, file)


def test_parameters_of_templates_are_typed(url: str) -> None:
    with httpx.Client(base_url=f"{url}/api/v1", headers=AUTHORIZED, timeout=60) as client:
        for value in ("3", True):
            body = {"target": "qa-pipeline", "parameters": {"training": {"epochs": value}}}
            for path in ("/plan", "/runs"):
                answer = client.post(path, json=body)
                assert answer.status_code == 422, answer.text
                assert any("epochs" in field for field in list_fields(answer)), answer.text


def test_the_documented_words_are_refused_too(url: str) -> None:
    with httpx.Client(base_url=f"{url}/api/v1", headers=AUTHORIZED, timeout=60) as client:
        for value in ("3", True):
            answer = client.post("/jobs", json={"dataset": {"path": "rows.jsonl"}, "hyperparams": {"epochs": value}})
            assert answer.status_code == 422
            assert any("epochs" in field for field in list_fields(answer)), answer.text


def test_numbers_are_numbers(url: str) -> None:
    with httpx.Client(base_url=f"{url}/api/v1", headers=AUTHORIZED, timeout=60) as client:
        for config in RIGHT:
            (file,) = client.post("/check", json={"files": [chain_with(config)]}).json()["files"]
            assert file["ok"], (config, file)
            assert client.post("/jobs", json=job_with(config)).status_code in (202, 503)  # no Prefect server is here


async def test_over_mcp_too(url: str) -> None:
    async with (
        httpx.AsyncClient(headers=AUTHORIZED, timeout=60) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http)) as client,
    ):
        for config, field in WRONG[:4]:
            result = await client.call_tool("plan", {"target": chain_with(config)})
            assert result.is_error
            assert field in str(result.content)
        result = await client.call_tool("check", {"files": [chain_with(RIGHT[0])]})
        assert not result.is_error


def test_the_sdk_sends_the_numbers_of_a_file(url: str, tmp_path: Path) -> None:
    """`5e-6` and `1E-4` are texts to PyYAML, and numbers to Trainyard."""
    path = tmp_path / "typed.yaml"
    path.write_text(
        "name: typed\nnodes:\n- type: data_source\n  config: {path: rows.jsonl}\n- type: trainer\n"
        "  config:\n    hyperparameters: {learning_rate: 5e-6, weight_decay: 1E-4, max_steps: 60, epochs: .5}\n"
    )
    with connect(url, "owner") as remote:
        chain = Chain.of(path, on=remote)
        assert chain.check().ok
        stored = remote.chains.create(spec=chain.definition)
        shown_chain = remote.chains.show(chain=stored.id)
        assert remote.check(files=(shown_chain.body,)).files[0].ok
        assert Chain.of(shown_chain.body).spec == chain.spec
        written = Chain([DataSource(path="rows.jsonl"), Trainer(hyperparameters={"learning_rate": 5e-6})], on=remote)
        assert written.check().ok
        texts = Chain([DataSource(path="rows.jsonl"), Trainer(hyperparameters={"learning_rate": "5e-6"})], on=remote)
        with pytest.raises(Refused, match="learning_rate"):
            texts.plan()
