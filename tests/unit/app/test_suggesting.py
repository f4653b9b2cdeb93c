"""Every operation that takes a name says which one was meant, where it finds nothing by it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainyard.app.completion import KNOWN, list_names
from trainyard.app.context import Caller, Context
from trainyard.app.suggestions import iterate_named_fields, with_nearest
from trainyard.errors import InvalidInput, NotFound
from trainyard.operations.fields import Argument, Option
from trainyard.operations.table import OPERATIONS, Scope
from trainyard.settings import settings
from trainyard.spec.load.spellings import nearest, nearest_paths
from trainyard.stores.chain_revisions import ChainStore, StoredChain
from trainyard.surfaces.invocation import execute_operation

RUN, SWEEP, SESSION = "0aa885f8-eaaa-4f32-a852-144a17056dc2", "width-ecfc218f", "session-0123456789ab"
WRONG = {
    "adapter": ("default/desq", "default/desk"),
    "chain": ("handbuk", "handbook"),
    "night": ("2026-11-72", "2026-11-27"),
    "night preset": ("nightli", "nightly"),
    "preset": ("strikt", "strict"),
    "run": ("bike-dsk", "bike-desk"),
    "schema": ("trainr", "trainer"),
    "session": ("session-0123456789aa", SESSION),
    "sweep": ("width-ecfc2180", SWEEP),
    "template": ("qa-pipelin", "qa-pipeline"),
    "template or run": ("qa-pipelin", "qa-pipeline"),
    "tenant": ("defalt", "default"),
    "upload": ("chat.jsonl", "chats.jsonl"),
}
"""Kind -> a word that a user may type, and the name that it is like."""


def store_chain(name: str) -> StoredChain:
    return StoredChain(id="", tenant="default", revision=0, name=name, body={"nodes": []}, digest="", nodes=0)


@pytest.fixture
def context(home: Path) -> Context:
    """A home that has a name of each kind."""
    (home / "runs" / RUN).mkdir(parents=True)
    (home / "runs" / RUN / "chain.json").write_text(json.dumps({"name": "bike-desk", "tenant": "default"}))
    (home / "adapters/default/desk/v1").mkdir(parents=True)
    (home / "adapters/default/desk/v1/manifest.json").touch()
    for path in (f"sweeps/{SWEEP}/sweep.json", f"sessions/{SESSION}/session.json"):
        (home / path).parent.mkdir(parents=True)
        (home / path).touch()
    (home / "tenants/default/nights/2026-11-27").mkdir(parents=True)
    (home / "tenants/default/uploads").mkdir()
    (home / "tenants/default/uploads/chats.jsonl").touch()
    here = settings()
    ChainStore(here.chains).create(store_chain("handbook"))
    return Context(here, say=lambda _text: None)


def list_named_fields() -> list[tuple[str, str, str]]:
    """(operation, field, kind) of every field that names something."""
    return [
        (operation, name, declared.completes)
        for operation, row in OPERATIONS.items()
        for name, field in row.request.model_fields.items()
        for declared in field.metadata
        if isinstance(declared, Argument | Option) and declared.completes
    ]


def test_every_kind_of_name_has_an_example() -> None:
    assert set(WRONG) == set(KNOWN)
    assert {kind for _, _, kind in list_named_fields()} <= set(KNOWN)


@pytest.mark.parametrize(("operation", "field", "kind"), list_named_fields())
def test_an_error_about_a_name_lists_the_nearest(operation: str, field: str, kind: str, context: Context) -> None:
    word, right = WRONG[kind]
    model = OPERATIONS[operation].request
    repeated = "tuple" in str(model.model_fields[field].annotation)
    required_fields = {name: "other" for name, model_field in model.model_fields.items() if model_field.is_required()}
    request = model.model_construct(**{**required_fields, field: (word, "other") if repeated else word})
    error = with_nearest(NotFound(f"There is no {word!r}.", do="List them.", code="E-X"), request, context)
    assert right in error.do
    assert error.do.startswith("Did you mean ")
    assert error.do.endswith("List them.")


@pytest.mark.parametrize(
    ("operation", "fields", "right"),
    [
        ("templates", {"name": "qa-pipelin"}, "qa-pipeline"),
        ("schema", {"name": "trainr"}, "trainer"),
        ("chains show", {"chain": "handbuk"}, "handbook"),
        ("adapters show", {"name": "default/desq"}, "desk"),
        ("adapters show", {"name": "desk"}, "default/desk"),
        ("nightly show", {"night": "2026-11-72"}, "2026-11-27"),
        ("sessions show", {"session": "session-0123456789aa"}, SESSION),
        ("check", {"files": ("no/qa-pipelin",)}, ""),
    ],
)
def test_operations_say_which_name_was_meant(
    operation: str, fields: dict[str, object], right: str, context: Context
) -> None:
    request = OPERATIONS[operation].request(**fields)
    with pytest.raises((NotFound, InvalidInput)) as caught:
        execute_operation(operation, request, context)
    assert (f"Did you mean {right!r}" in caught.value.do) if right else "Did you mean" not in caught.value.do


def test_the_beginning_of_a_chain_s_name_finds_it_where_no_other_begins_so(context: Context) -> None:
    store = ChainStore(context.settings.chains)
    assert store.find("hand").name == "handbook"
    store.create(store_chain("handmade"))
    with pytest.raises(NotFound):
        store.find("hand")


def test_a_caller_of_a_tenant_learns_no_names(context: Context) -> None:
    stranger = Context(context.settings, caller=Caller("guest", Scope.READ, tenant="acme", remote=True))
    request = OPERATIONS["jobs show"].request(job="bike-dsk")
    assert [*iterate_named_fields(request)] == [("run", "bike-dsk", False), ("run", "bike-dsk", False)]
    assert with_nearest(NotFound("There is no job 'bike-dsk'.", do="List."), request, stranger).do == "List."


def test_paths_are_compared_with_what_is_in_their_folder(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in ("handbook", "chats.jsonl", "bad.jsonl", ".handbok"):
        (tmp_path / "data" / name).touch()
    assert nearest_paths("data/handbok", [tmp_path]) == ["data/handbook"]
    assert nearest_paths("data/chat.jsonl", [tmp_path]) == ["data/chats.jsonl"]
    assert nearest_paths("other/chat.jsonl", [tmp_path]) == []


def test_names_are_compared_as_a_whole_and_in_their_parts() -> None:
    assert nearest("asistant", ["default/assistant", "default/coder"]) == ["default/assistant"]
    assert nearest("Desk", ["desk-1", "other"]) == ["desk-1"]
    assert nearest("zzz", ["desk"]) == []
    assert list_names("template", []) != []
