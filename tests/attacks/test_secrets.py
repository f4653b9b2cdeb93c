"""A chain that wants a key of the operator's: whatever it names, its own address gets none."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodes.completion import completion
from nodes.runner import NodeContext, RunInfo
from trainyard.app.run_records import RunRecord
from trainyard.errors import InvalidInput, TrainyardError
from trainyard.serve.expected import ask_target
from trainyard.serve.targets.calling import http_client
from trainyard.serve.targets.contract import AdapterCandidate
from trainyard.settings import Settings, load_settings
from trainyard.spec.axes.targets import TargetType
from trainyard.spec.graph import ResolvedNode, check
from trainyard.spec.nodes import AiGeneratorConfig, Target
from trainyard.testing.scripted_server import Exchange, ScriptedServer
from trainyard.testing.vllm_server import vllm_server

KEY = "sk-the-operators-own-key"
CANDIDATE = AdapterCandidate("adapter", "org/base", "", "", "", {"r": 8})


@pytest.fixture
def stranger() -> Iterator[ScriptedServer]:
    """A server of the chain's author, which keeps what it is sent."""
    with ScriptedServer() as server:
        yield server


@pytest.fixture
def house() -> Iterator[ScriptedServer]:
    """The endpoint `gpt` of the operator."""
    with ScriptedServer(api_key=KEY) as server:
        yield server


@pytest.fixture
def operator(home: Path, house: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
    endpoints = {"gpt": {"base_url": house.url, "api_key_env": "OPENAI_API_KEY", "model": "gpt-large"}}
    return load_settings(home=home, endpoints=endpoints)


async def ask(config: dict[str, Any], settings: Settings, folder: Path) -> str:
    """What a generator node with this config is answered."""
    record = RunRecord(folder / "run")
    record.begin({})
    node = ResolvedNode(id="writer", type="ai_generator", config=AiGeneratorConfig.model_validate(config))
    run = RunInfo("a-run", "chain", "default", str(folder / "run"))
    context = NodeContext(node, {}, run, settings, record, logging.getLogger(__name__))
    with completion(context) as complete:
        assert complete is not None
        async with complete:
            return await complete([{"role": "user", "content": "Hello"}], None, 1)


def authorizations(server: ScriptedServer) -> list[str]:
    assert server.headers, "the server was asked"
    return [each["authorization"] for each in server.headers if "authorization" in each]


@pytest.mark.parametrize("variable", ["OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "PREFECT_API_AUTH_STRING"])
def test_a_chain_cannot_name_a_variable(variable: str, stranger: ScriptedServer) -> None:
    config = {"model": "any", "base_url": stranger.url, "api_key_env": variable}
    nodes = [{"type": "data_source", "config": {"path": "docs"}}, {"type": "ai_generator", "config": config}]
    (reason,) = check({"nodes": nodes})
    assert (reason.row, reason.field) == ("chain-key", "config.api_key_env")
    assert "endpoint: NAME" in reason.instead
    assert stranger.requests == []


def test_a_key_in_a_chain_is_refused_and_not_repeated() -> None:
    nodes = [{"type": "data_source", "config": {"path": "docs"}}, {"type": "ai_generator", "config": {"api_key": KEY}}]
    (reason,) = check({"nodes": nodes})
    assert reason.row == "chain-key"
    assert KEY not in reason.line()


@pytest.mark.parametrize("engine", [None, "openai"])
async def test_a_chains_own_address_gets_no_endpoints_key(
    engine: str | None, operator: Settings, stranger: ScriptedServer, house: ScriptedServer, tmp_path: Path
) -> None:
    """The model has the name of the operator's endpoint, and the address is the chain's."""
    await ask({"model": "gpt", "engine": engine, "base_url": stranger.url}, operator, tmp_path)
    assert authorizations(stranger) == []
    assert [each["model"] for each in stranger.requests] == ["gpt"], "nothing of the endpoint is used"
    assert house.headers == []


@pytest.mark.parametrize("config", [{"model": "gpt"}, {"model": "gpt-large", "endpoint": "gpt"}])
async def test_an_endpoint_gets_its_key(
    config: dict[str, str], operator: Settings, house: ScriptedServer, tmp_path: Path
) -> None:
    await ask({**config, "engine": "openai"}, operator, tmp_path)
    assert authorizations(house) == [f"Bearer {KEY}"]
    assert [each["model"] for each in house.requests] == ["gpt-large"]


async def test_an_endpoint_that_sends_its_clients_elsewhere_does_not_send_the_key_there(
    operator: Settings, stranger: ScriptedServer, house: ScriptedServer, tmp_path: Path
) -> None:
    async def elsewhere(exchange: Exchange) -> None:
        exchange.reply(307, b"", {"location": f"{stranger.url}/chat/completions"})

    house.then = elsewhere
    with pytest.raises(TrainyardError):
        await ask({"model": "gpt", "engine": "openai"}, operator, tmp_path)
    assert stranger.headers == []


async def test_nothing_of_the_key_is_written(
    operator: Settings, house: ScriptedServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also not when the server repeats it in its refusal."""

    async def repeat(exchange: Exchange) -> None:
        exchange.error(400, f"the key {exchange.headers['authorization']} may not do that")

    await ask({"model": "gpt", "engine": "openai"}, operator, tmp_path)
    house.then = repeat
    with pytest.raises(TrainyardError) as failed:
        await ask({"model": "gpt", "engine": "openai"}, operator, tmp_path)
    assert KEY not in str(failed.value)
    assert KEY not in caplog.text
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert written
    assert [path for path in written if KEY.encode() in path.read_bytes()] == []


def test_a_target_with_its_own_address_gets_no_key(operator: Settings, stranger: ScriptedServer) -> None:
    target = Target(type=TargetType.VLLM, url=stranger.url)
    assert [reason.code for reason in ask_target(target, 0, CANDIDATE, operator)] == ["R-BASE-MISMATCH"]
    with http_client(target, stranger.url, operator) as client:
        client.post("/v1/load_lora_adapter", json={})
    assert authorizations(stranger) == []


def test_a_target_at_an_endpoint_gets_its_key(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_KEY", KEY)
    with vllm_server("org/base", api_key=KEY) as double:
        endpoints = {"house": {"base_url": double.url, "api_key_env": "VLLM_KEY"}}
        endpoint_settings = load_settings(home=home, endpoints=endpoints)
        assert ask_target(Target(type=TargetType.VLLM, endpoint="house"), 0, CANDIDATE, endpoint_settings) == []


def test_no_address_but_the_endpoints_is_reached_with_its_key(operator: Settings, house: ScriptedServer) -> None:
    """Also not when a caller hands over another one."""
    with http_client(Target(type=TargetType.VLLM, endpoint="gpt"), "http://198.51.100.7", operator) as client:
        assert str(client.base_url).rstrip("/") == house.url.removesuffix("/v1")


def test_what_opens_the_prefect_server_is_no_endpoints_key(home: Path) -> None:
    endpoint = {"base_url": "https://198.51.100.7/v1", "api_key_env": "PREFECT_API_AUTH_STRING"}
    with pytest.raises(InvalidInput, match=r"E-SETTINGS: .*PREFECT_API_AUTH_STRING opens the Prefect server"):
        load_settings(home=home, endpoints={"gpt": endpoint})
    with pytest.raises(InvalidInput, match=r"E-SETTINGS: .*PREFECT_API_AUTH_STRING opens the Prefect server"):
        load_settings(home=home, child_variables=["PREFECT_API_AUTH_STRING"])
