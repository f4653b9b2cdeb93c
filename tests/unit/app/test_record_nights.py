"""Nights and the knowledge graph for people who look: reports, entities, what is next to one; tenants stay apart."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainyard.app.chat import AskedAnswer, ask
from trainyard.app.context import Caller, Context
from trainyard.app.graph import count_graph, list_entities, show_neighbors
from trainyard.app.nights import list_night_reports, show_night
from trainyard.errors import Corrupt, InvalidInput, NotFound
from trainyard.night.report import (
    BucketReport,
    Failure,
    NightReport,
    Phase1Report,
    Phase2Report,
    TrainingReport,
    write_report,
)
from trainyard.night.training import tenant_root
from trainyard.operations.adapters import AskInput, answer_text
from trainyard.operations.graph import EntitiesInput, GraphInput, NeighborsInput, entities_text, neighbors_text
from trainyard.operations.nights import NightNameInput, NightsInput, night_detail_text, nights_text
from trainyard.settings import settings
from trainyard.stores.adapters import AdapterRegistry
from trainyard.stores.files import DISK
from trainyard.stores.graph.facts import Entity, Mutation, Named, Relation, entity_key
from trainyard.stores.graph.local import LadybugGraph
from trainyard.stores.graph.remote import graph_file
from trainyard.stores.schema import add_version

JANE, ACME = Named("person", "Jane Doe"), Named("company", "Acme")


@pytest.fixture
def context(home: Path) -> Context:
    return Context(settings(), say=lambda _text: None)


def make_tenant_context(context: Context, tenant: str) -> Context:
    return replace(context, caller=Caller(tenant, tenant=tenant, remote=True))


def write_night(context: Context, tenant: str, night: str, **fields: Any) -> Path:
    folder = tenant_root(context.settings, tenant) / "nights" / night
    folder.mkdir(parents=True)
    write_report(NightReport(**{"run": night, "tenant": tenant, "state": "completed", **fields}), folder, DISK)
    return folder


def make_failed_night() -> dict[str, Any]:
    failure = Failure(code="E-DISK-FULL", what="The disk is full.", do="Make room.")
    trained = TrainingReport(marker="m", outcome="published", version="default/bot/v2")
    return {
        "state": "failed", "started": 100.0, "seconds": 9.0, "window_s": 60.0,
        "phase1": Phase1Report(waiting=3, done=2, failure=failure),
        "phase2": Phase2Report(buckets=(BucketReport(bucket="b", method="sft", threshold=4),), trainings=(trained,)),
    }  # fmt: skip


def test_nights_are_listed_the_newest_first_and_shown_whole(context: Context) -> None:
    write_night(context, "default", "2026-10-01")
    write_night(context, "default", "2026-10-03", **make_failed_night())
    night_folder = tenant_root(context.settings, "default") / "nights" / "2026-10-02"
    night_folder.mkdir()
    (night_folder / "begun.json").write_text(json.dumps(add_version("night", {"started": 50.0})))
    listing = list_night_reports(NightsInput(), context)
    assert [(night.night, night.state, night.started) for night in listing.nights] == [
        ("2026-10-03", "failed", 100.0), ("2026-10-02", "begun", 50.0), ("2026-10-01", "completed", None)
    ]  # fmt: skip
    assert listing.nights[0].published == ("default/bot/v2",)
    assert list_night_reports(NightsInput(limit=2), context).more is True
    detail = show_night(NightNameInput(night="2026-10-03"), context)
    assert detail.report is not None
    assert detail.report.phase2.buckets[0].threshold == 4
    assert detail.next_steps[0] == "E-DISK-FULL: The disk is full. Do: Make room."
    assert "default/2026-10-03  failed" in nights_text(listing)
    assert "## Documents" in night_detail_text(detail)
    assert night_detail_text(show_night(NightNameInput(night="2026-10-02"), context)).endswith("has no report.")


def test_nights_of_tenants_stay_apart(context: Context) -> None:
    write_night(context, "blue", "2026-10-01")
    write_night(context, "red", "2026-10-01")
    assert {night.tenant for night in list_night_reports(NightsInput(), context).nights} == {"blue", "red"}
    blue = make_tenant_context(context, "blue")
    assert [night.tenant for night in list_night_reports(NightsInput(), blue).nights] == ["blue"]
    assert list_night_reports(NightsInput(tenant="red"), blue).nights == ()
    assert show_night(NightNameInput(night="2026-10-01"), blue).tenant == "blue"
    with pytest.raises(NotFound, match="E-NOT-FOUND"):
        show_night(NightNameInput(night="2026-10-01", tenant="red"), blue)
    assert show_night(NightNameInput(night="2026-10-01", tenant="red"), context).tenant == "red"


@pytest.mark.parametrize("name", ["..", "a/b", "x\0", "é", "A"])
def test_a_night_that_cannot_be_a_folder_is_refused(context: Context, name: str) -> None:
    with pytest.raises(InvalidInput, match="E-NAME"):
        show_night(NightNameInput(night=name), context)
    with pytest.raises(InvalidInput, match="E-NAME"):
        show_night(NightNameInput(night="2026-10-01", tenant=name), context)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"run": "x", "tenant": "default", "state": "odd"}'])
def test_a_report_that_cannot_be_read_is_listed_and_is_an_error_when_it_is_shown(context: Context, text: str) -> None:
    folder = write_night(context, "default", "2026-10-01")
    (folder / "report.json").write_text(text)
    (line,) = list_night_reports(NightsInput(), context).nights
    assert line.state == "unreadable"
    with pytest.raises(Corrupt, match="E-CORRUPT"):
        show_night(NightNameInput(night="2026-10-01"), context)


def make_mutation(tenant: str, name: str) -> Mutation:
    entities = (Entity("person", "Jane Doe", {"email": "j@acme.example"}), Entity("company", "Acme"))
    relations = (Relation("works_at", JANE, ACME),)
    return Mutation(tenant, "meetings", name, f"{len(tenant):064x}", "v1", entities, relations)


@pytest.fixture
def written(context: Context) -> Context:
    graph_file(context.settings).parent.mkdir(parents=True)
    with LadybugGraph(graph_file(context.settings)) as graph:
        graph.mutate([make_mutation("blue", "a.md"), make_mutation("crimson", "b.md")])
    return context


def test_entities_are_found_by_a_part_of_their_names(written: Context) -> None:
    listing = list_entities(EntitiesInput(text="JANE", tenant="blue"), written)
    assert [(entity.kind, entity.name, entity.attributes) for entity in listing.entities] == [
        ("person", "Jane Doe", {"email": "j@acme.example"})
    ]
    assert [entity.name for entity in list_entities(EntitiesInput(kind="company"), written).entities] == [
        "Acme",
        "Acme",
    ]
    first = list_entities(EntitiesInput(limit=3), written)
    assert (len(first.entities), first.next_offset) == (3, 3)
    assert len(list_entities(EntitiesInput(limit=3, offset=3), written).entities) == 1
    assert list_entities(EntitiesInput(text="'; MATCH (n) RETURN n //\0"), written).entities == ()
    assert "--offset 3" in entities_text(first)


def test_neighbors_are_relations_both_ways_and_documents(written: Context) -> None:
    jane, acme = (entity_key("blue", entity.kind, entity.name) for entity in (JANE, ACME))
    neighbors = show_neighbors(NeighborsInput(key=jane), written)
    assert [(relation.kind, relation.direction, relation.entity.key) for relation in neighbors.relations] == [
        ("works_at", "out", acme)
    ]
    assert [document.names for document in neighbors.documents] == [("a.md",)]
    (back,) = show_neighbors(NeighborsInput(key=acme), written).relations
    assert (back.direction, back.entity.name) == ("in", "Jane Doe")
    assert "-works_at-> Acme" in neighbors_text(neighbors)


def test_the_graphs_of_tenants_stay_apart(written: Context) -> None:
    blue = make_tenant_context(written, "blue")
    assert {entity.tenant for entity in list_entities(EntitiesInput(), blue).entities} == {"blue"}
    assert list_entities(EntitiesInput(tenant="crimson"), blue).entities == ()
    other = entity_key("crimson", JANE.kind, JANE.name)
    for fields in ({}, {"tenant": "crimson"}):
        with pytest.raises(NotFound, match="E-NOT-FOUND"):
            show_neighbors(NeighborsInput(key=other, **fields), blue)
    assert count_graph(GraphInput(), blue).entities == 2
    assert count_graph(GraphInput(tenant="crimson"), blue).entities == 0
    assert count_graph(GraphInput(), written).entities == 4


def test_looking_at_a_home_without_a_graph_makes_none(context: Context) -> None:
    assert list_entities(EntitiesInput(), context).entities == ()
    assert count_graph(GraphInput(), context).entities == 0
    with pytest.raises(NotFound, match="E-NOT-FOUND"):
        show_neighbors(NeighborsInput(key="0" * 32), context)
    assert not graph_file(context.settings).exists()
    assert entities_text(list_entities(EntitiesInput(), context)) == "no such entity"


def test_an_unknown_kind_names_those_that_there_are(context: Context) -> None:
    with pytest.raises(InvalidInput, match=r"E-PARAMETER.*\n?.*person, company"):
        list_entities(EntitiesInput(kind="dog"), context)


@pytest.mark.parametrize("name", ["red/bot", "red/bot/v1"])
def test_a_tenant_cannot_ask_the_adapter_of_another(context: Context, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    registry = AdapterRegistry(context.settings.adapters)
    registry.register("red", "bot", folder)
    registry.promote("red/bot/v1")
    with pytest.raises(NotFound, match="E-ADAPTER-NOT-FOUND"):
        ask(AskInput(adapter=name, question="Why?"), make_tenant_context(context, "blue"))


def test_two_answers_are_a_text() -> None:
    answer = AskedAnswer(question="Why?", base="No.", adapter="So.", base_model="starter", adapter_version="a/b/v1")
    assert answer_text(answer) == "starter: No.\n\na/b/v1: So."
    assert answer_text(answer.model_copy(update={"error": "too long"})) == "refused: too long"
