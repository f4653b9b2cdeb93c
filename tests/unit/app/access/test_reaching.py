from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainyard.app.context import Caller, Context
from trainyard.callbacks import ignore
from trainyard.errors import Conflict, Denied, InvalidInput, NotFound, Refused
from trainyard.operations.table import OPERATIONS, Scope
from trainyard.settings import load_settings
from trainyard.stores.adapters import AdapterRegistry
from trainyard.surfaces.invocation import build_request, execute_operation

REMOTE = Caller("ci", remote=True)
CHAIN = {"nodes": [{"type": "data_source", "config": {"path": "docs"}}]}


@pytest.fixture
def context(tmp_path: Path) -> Context:
    (tmp_path / "work").mkdir()
    return Context(load_settings(working_folder=tmp_path / "work"), say=ignore, caller=REMOTE)


def ask(operation: str, context: Context, /, **fields: Any) -> Any:
    return execute_operation(operation, build_request(operation, fields), context)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("check", {"files": ["/etc/passwd"]}),
        ("check", {"files": [CHAIN, "chain.yaml"]}),
        ("plan", {"target": "chain.yaml"}),
        ("scripts draft", {"target": "chain.yaml"}),
        ("scripts draft", {"target": "/" + "x" * 5000}),
        ("plan", {"target": "qa-pipeline", "measure": True}),
        ("run", {"target": "../chain.yaml"}),
        ("run", {"target": "qa-pipeline", "watch": True}),
        ("jobs create", {"file": "job.yaml"}),
        ("jobs logs", {"job": "a", "follow": True}),
        ("jobs metrics", {"job": "a", "plot": True}),
        ("sweep", {"file": "chain.yaml"}),
        ("adapters card", {"name": "a/b", "out": "card.md"}),
        ("adapters promote", {"name": "a/b", "targets": ["vllm=http://169.254.169.254"]}),
        ("adapters rollback", {"role": "a/b", "targets": ["vllm=http://127.0.0.1:1"]}),
        ("graph stats", {"graph": "http://169.254.169.254"}),
        ("graph query", {"cypher": "MATCH (n) RETURN n", "graph": "file:///etc"}),
        ("nightly status", {"config": "/etc/passwd"}),
        ("corpus status", {"config": "/etc/passwd"}),
        ("corpus apprenticeship", {"file": "/etc/passwd"}),
        ("corpus apprenticeship", {"prompt": "a", "config": "/etc/passwd"}),
    ],
)
def test_files_and_addresses_are_for_the_machine_s_user(name: str, fields: dict[str, Any], context: Context) -> None:
    with pytest.raises(Denied, match="E-LOCAL"):
        ask(name, context, **fields)


def test_a_name_that_is_neither_template_nor_file_does_not_exist(context: Context) -> None:
    (context.settings.working_folder / "nothing").write_text("nodes: []")
    for name in ("plan", "run", "scripts draft"):
        with pytest.raises(NotFound, match="E-PARAMETER: There is no template 'nothing'"):
            ask(name, context, target="nothing")


def test_a_whole_chain_is_checked_and_planned_but_not_run(context: Context) -> None:
    (file,) = ask("check", context, files=[CHAIN]).files
    assert file.reasons[0]["code"] == "E-DATA-NOT-FOUND"
    with pytest.raises(InvalidInput, match=r"E-PARAMETER: A run takes a template's name .*, not a whole chain"):
        ask("run", context, target=CHAIN)


@pytest.mark.parametrize("local", [name for name, row in OPERATIONS.items() if row.local])
def test_what_is_local_is_refused_whatever_the_scope(local: str, context: Context) -> None:
    model = build_request("templates", {})
    with pytest.raises(Denied, match="E-LOCAL"):
        execute_operation(local, model.model_construct(_fields_set=set()), context)


@pytest.mark.parametrize(
    "path", ["/etc", "~", "../elsewhere", "link", "/proc/self/cwd/../../../../etc", "a\\..\\b", "./../x"]
)
def test_a_model_is_no_folder_outside(path: str, context: Context, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (context.settings.working_folder / "link").symlink_to(tmp_path / "elsewhere")
    for fields in (
        {"target": {"nodes": [{"type": "trainer", "config": {"base_model": path}}]}},
        {"target": "training-job", "parameters": {"base_model": path}},
        {"target": "training-job", "parameters": {"stage": {"type": "distill", "teacher": path}}},
    ):
        with pytest.raises(Refused, match="R-PATH-ROOT"):
            ask("plan", context, **fields)
    with pytest.raises(Refused, match="R-PATH-ROOT"):
        ask("data preview", context, path="rows.jsonl", base_model=path)


def test_a_model_of_the_hub_or_in_a_data_root_may_be_named(context: Context, tiny_model: Path) -> None:
    (context.settings.working_folder / "model").symlink_to(tiny_model)
    root_settings = load_settings(working_folder=context.settings.working_folder, data_roots=[tiny_model.parent])
    for name in ("starter", "org/model", "model", str(tiny_model)):
        with pytest.raises(NotFound, match="E-DATA-NOT-FOUND"):  # the rows, which are read later
            ask("data preview", replace(context, settings=root_settings), path="rows.jsonl", base_model=name)


@pytest.mark.parametrize("name", ["~nobody-here/model", "a" * 300])
def test_a_model_that_cannot_be_a_folder_is_not_there(name: str, context: Context) -> None:
    with pytest.raises((NotFound, Refused)):
        ask("data preview", context, path="rows.jsonl", base_model=name)


@pytest.fixture
def two_tenants(context: Context, tmp_path: Path) -> Context:
    """Tenants blue and red have versions of the same role; the caller is blue's."""
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    registry = AdapterRegistry(context.settings.adapters)
    for tenant in ("blue", "red"):
        registry.register(tenant, "bot", folder, facts={"base_model": "starter", "evaluated": True})
        registry.promote(f"{tenant}/bot/v1")
    return replace(context, caller=Caller("blue-ci", Scope.ADMIN, "blue", remote=True))


def test_a_tenant_sees_its_own_versions(two_tenants: Context) -> None:
    assert [row["name"] for row in ask("adapters list", two_tenants).rows] == ["blue/bot/v1"]
    assert [row["name"] for row in ask("adapters list", two_tenants, tenant="blue").rows] == ["blue/bot/v1"]
    assert ask("adapters list", two_tenants, tenant="red").rows == ()
    assert ask("adapters show", two_tenants, name="blue/bot").record["tenant"] == "blue"


@pytest.mark.parametrize(
    ("name", "field"),
    [("show", "name"), ("promote", "name"), ("rollback", "role"), ("delete-version", "name"), ("card", "name")],
)
@pytest.mark.parametrize("version", ["", "/v1"])
def test_another_tenant_s_versions_do_not_exist_in_the_same_words(
    name: str, field: str, version: str, two_tenants: Context
) -> None:
    def get_refusal(value: str) -> str:
        with pytest.raises((NotFound, InvalidInput, Conflict)) as error:
            ask(f"adapters {name}", two_tenants, **{field: value})
        return str(error.value).replace(value.partition("/")[0], "TENANT")

    assert get_refusal(f"red/bot{version}") == get_refusal(f"nobody/bot{version}")
    assert sorted(path.name for path in two_tenants.settings.adapters.iterdir()) == ["blue", "red"]
    assert AdapterRegistry(two_tenants.settings.adapters).live("red", "bot").version == 1


def test_what_is_not_kept_apart_is_not_for_tenants(two_tenants: Context) -> None:
    for name in ("doctor", "sweep list", "settings", "corpus status", "tokens list", "audit list", "gc"):
        with pytest.raises(Denied, match=r"E-SCOPE: .* concerns every tenant of this machine"):
            ask(name, two_tenants)
