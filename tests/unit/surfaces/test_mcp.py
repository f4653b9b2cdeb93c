"""The MCP server with the official client: over the streams of a real child process, and over HTTP."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import httpx
import jsonschema
import pytest
from mcp import Client, StdioServerParameters, types
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from pydantic import TypeAdapter

from tests.answering import answering
from tests.selection import slow
from trainyard.app.context import OWNER, Caller
from trainyard.operations.table import OPERATIONS, Scope
from trainyard.surfaces.invocation import SCOPES, load_implementation
from trainyard.surfaces.mcp.calls import NAMES, list_tools, tool_name

pytestmark = pytest.mark.integration

CHAIN = {"nodes": [{"type": "data_source", "config": {"path": "rows.jsonl"}}, {"type": "trainer"}]}
ROWS = '{"messages": [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}]}\n'
SAMPLES: dict[str, Any] = {
    "string": "nothing", "array": [], "object": {}, "integer": 1, "number": 1.5, "boolean": False,
}  # fmt: skip
GIVEN: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("adapters_list", "backends", "chains_list", "templates", "schema", "sweep_list")},
    "check": {"files": [CHAIN]},
    "plan": {"target": CHAIN},
    "chains_create": {"spec": CHAIN},
    "chains_show": {"chain": "chain"},
    "data_preview": {"path": "rows.jsonl"},
    "diloco_simulate": {"parameters": 1e9, "step_s": 1.0},
    "gpus_ps": {},
    "graph_export": {"file": "graph.jsonl"},
    "scripts_save": {"name": "mine", "text": "print()"},
    "tokens_create": {"name": "laptop"},
    "tokens_revoke": {"name": "laptop"},
}
"""Tool -> arguments with which it gives a result. Every other one is called with names of what is not there."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.jsonl").write_text(ROWS * 8)
    monkeypatch.chdir(tmp_path)
    for name in ("PREFECT_API_URL", "PREFECT_HOME"):
        monkeypatch.delenv(name, raising=False)


def child(*options: str) -> StdioServerParameters:
    arguments = ["-m", "trainyard", "mcp", *options]
    return StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ), cwd=Path.cwd())


def arguments(tool: types.Tool) -> dict[str, Any]:
    """What a tool is called with: never anything that would start or write something."""
    if tool.name in GIVEN:
        return GIVEN[tool.name]
    properties = tool.input_schema.get("properties", {})
    needed = {name: SAMPLES[properties[name].get("type", "string")] for name in tool.input_schema.get("required", ())}
    return needed or {"no_such_field": 1}


def join_text(result: types.CallToolResult) -> str:
    return "\n".join(content.text for content in result.content if isinstance(content, types.TextContent))


def response_schema(tool: str) -> dict[str, Any]:
    response = get_type_hints(load_implementation(NAMES[tool]))["return"]
    return TypeAdapter(response).json_schema(mode="serialization")


def require_answer(tool: types.Tool, result: types.CallToolResult) -> None:
    """A result as the tool's schema says, or an error with its four fields."""
    if result.is_error:
        error = result.structured_content["error"]
        assert set(error) - {"reasons"} == {"code", "what", "why", "do"}, tool.name
        assert error["code"].startswith(("E-", "R-")), error
        assert error["code"] != "E-BUG", error
        assert join_text(result).startswith(error["code"])
    else:
        jsonschema.validate(result.structured_content, response_schema(tool.name))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_an_agent_lists_and_calls_every_tool_of_a_child_process(mode: str) -> None:
    async with Client(child(), mode=mode) as client:
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == [tool for tool, name in NAMES.items() if not OPERATIONS[name].endless]
        results = {tool.name: await client.call_tool(tool.name, arguments(tool)) for tool in tools}
        for tool in tools:
            require_answer(tool, results[tool.name])
        assert {name for name, result in results.items() if not result.is_error} == GIVEN.keys()
        for tool in ("serve", "mcp"):
            assert f"E-LOCAL: {tool} runs until it is stopped" in join_text(await client.call_tool(tool, {}))
        plan = results["plan"].structured_content
        assert plan["digest"] == results["chains_create"].structured_content["digest"]
        assert plan["digest"] == results["check"].structured_content["files"][0]["digest"]


async def test_a_tool_that_is_not_there_and_a_wrong_value_are_errors_with_a_remedy() -> None:
    async with Client(child("--scope", "read")) as client:
        unknown = await client.call_tool("trains_list", {})
        wrong = await client.call_tool("jobs_list", {"limit": 0})
        misspelt = await client.call_tool("jobs_list", {"limt": 3})
        denied = await client.call_tool("chains_create", {"spec": CHAIN})
        assert "E-PARAMETER: jobs_list has no field 'limt'" in join_text(misspelt)
        assert "Did you mean 'limit'?" in join_text(misspelt)
        assert join_text(unknown) == "E-NOT-FOUND: There is no tool 'trains_list'. Do: List the tools."
        assert "E-PARAMETER: jobs_list does not take this value of 'limit'" in join_text(wrong)
        assert "E-SCOPE: chains create needs a token with the scope run" in join_text(denied)


async def test_a_child_process_answers_and_sends_progress_as_notifications() -> None:
    reported: list[tuple[float, str | None]] = []

    async def note(progress: float, _total: float | None, message: str | None) -> None:
        reported.append((progress, message))

    deprecated = {"nodes": [CHAIN["nodes"][0], {"type": "trainer", "config": {"method": "lora", "lora": {"rank": 4}}}]}
    async with Client(child()) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        result = await client.call_tool("check", {"files": [deprecated]}, progress_callback=note)
        results = {name: await client.call_tool(name, arguments(tools[name])) for name in ("plan", "chains_create")}
        local = await client.call_tool("serve", {"role": "training"})
    assert "serve" not in tools
    for name, checked in [("check", result), *results.items()]:
        require_answer(tools[name], checked)
    assert results["plan"].structured_content["digest"] == results["chains_create"].structured_content["digest"]
    assert "E-LOCAL: serve runs until it is stopped" in join_text(local)
    assert not result.is_error
    assert [progress for progress, _ in reported] == [1.0]
    assert "lora.rank is deprecated" in str(reported[0][1])


async def test_pages_and_schemas_are_resources() -> None:
    async with Client(child()) as client:
        uris = {str(resource.uri) for resource in (await client.list_resources()).resources}
        assert {"trainyard://schema/chain", "trainyard://docs/chains", "trainyard://docs/guides/documents"} <= uris
        (page,) = (await client.read_resource("trainyard://docs/chains")).contents
        assert isinstance(page, types.TextResourceContents)
        assert page.text.startswith("# Chains")
        with pytest.raises(MCPError, match="There is no resource"):
            await client.read_resource("trainyard://docs/../pyproject")


# Over HTTP


@asynccontextmanager
async def connect_client(url: str, token: str, mode: str = "auto") -> AsyncIterator[Client]:
    async with (
        httpx.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=60) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


@pytest.mark.parametrize("mode", ["auto", slow("legacy")])
async def test_an_agent_lists_and_calls_every_tool_over_http(mode: str) -> None:
    with answering() as url:
        async with connect_client(url + "/mcp", "owner", mode) as client:
            tools = (await client.list_tools()).tools
            assert not any(OPERATIONS[NAMES[tool.name]].local for tool in tools)
            for tool in tools:
                require_answer(tool, await client.call_tool(tool.name, arguments(tool)))
            for name, row in OPERATIONS.items():
                if row.local:
                    assert join_text(await client.call_tool(tool_name(name), {})).startswith("E-LOCAL"), name


async def test_a_caller_may_do_what_its_token_allows() -> None:
    with answering() as url:
        async with connect_client(url + "/mcp", "reader") as client:
            assert "E-SCOPE" in join_text(await client.call_tool("chains_create", {"spec": CHAIN}))
        async with connect_client(url + "/mcp", "acme") as client:
            stored = await client.call_tool("chains_create", {"spec": CHAIN})
            assert stored.structured_content["tenant"] == "acme"
            assert "E-SCOPE" in join_text(await client.call_tool("sweep_list", {}))
        async with connect_client(url + "/mcp", "owner") as client:
            listed = (await client.call_tool("chains_list", {})).structured_content
            assert [chain["author"] for chain in listed["chains"]] == ["acme"]
        answer = httpx.post(url + "/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        assert (answer.status_code, answer.json()["code"]) == (401, "E-AUTH")


def test_a_tool_says_what_it_may_change() -> None:
    for tool in list_tools(OWNER):
        row = OPERATIONS[NAMES[tool.name]]
        assert (tool.annotations is not None and tool.annotations.read_only_hint) is (row.scope is Scope.READ)
        assert tool.description
        assert row.summary.startswith(tool.description)
        assert "anyOf" not in tool.input_schema
        whole = row.request.model_json_schema()
        assert tool.input_schema.get("required") == whole.get("required"), tool.name
        assert tool.input_schema.get("properties", {}).keys() == whole.get("properties", {}).keys()
    assert OWNER.remote is False


@pytest.mark.parametrize("scope", list(Scope))
@pytest.mark.parametrize("remote", [False, True])
def test_a_list_of_tools_is_short_and_the_callers_own(scope: Scope, remote: bool) -> None:
    caller = Caller("agent", scope, remote=remote)
    tools = list_tools(caller)
    assert len(types.ListToolsResult(tools=list(tools)).model_dump_json(by_alias=True, exclude_none=True)) <= 60_000
    rows = [OPERATIONS[NAMES[tool.name]] for tool in tools]
    assert all(SCOPES.index(row.scope) <= SCOPES.index(scope) and not (remote and row.local) for row in rows)
    of_tenant = list_tools(replace(caller, tenant="acme"))
    assert 10 < len(of_tenant) < len(tools)
    assert all(OPERATIONS[NAMES[tool.name]].tenants for tool in of_tenant)
