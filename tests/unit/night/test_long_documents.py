"""Documents in parts and windows, and those that a server refuses: whose facts come, stay and go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.night.nights import Kept, NeverAsked, names_in, night
from tools.night_program import QuickServer
from trainyard.night.deps import NightDeps
from trainyard.night.extracting import Intents
from trainyard.serve.client.client import ServerRefused
from trainyard.serve.extraction.extraction import Messages


def long_text(*names: str) -> str:
    """One section for each name, so long that every two need a part of their own."""
    padding = ("-" * 6_999 + "\n") * 5
    return "".join(f"{name}\n{padding}\n" for name in names)


def test_a_long_document_is_read_in_parts_with_facts_of_their_own(world: NightDeps) -> None:
    graph_store = Kept()
    world = replace(world, stores=replace(world.stores, graph=graph_store.opened))
    path = world.documents / "long.md"
    path.write_text(long_text("person Eve", "person Flo", "person Gus"), encoding="utf-8")
    assert night(world).phase1.done == 5
    documents = names_in(graph_store)
    assert (documents["Eve"], documents["Flo"], documents["Gus"]) == (["long.md"], ["long.md/#2"], ["long.md/#3"])
    path.write_text(long_text("person Eve", "person Hal", "person Gus"), encoding="utf-8")
    assert night(world, "20270103").phase1.waiting == 1
    assert names_in(graph_store)["Hal"] == ["long.md/#2"]
    assert "Flo" not in names_in(graph_store)


def test_a_document_longer_than_the_context_is_read_in_windows_without_doubles(world: NightDeps) -> None:
    """What stands on a cut is in both windows: one entity, with both windows as its sources."""
    graph_store = Kept()
    server = QuickServer()
    server.window_chars = 2_000
    world = replace(world, stores=replace(world.stores, graph=graph_store.opened), server=server)
    lines = [f"person Person{number} Of The Board" for number in range(200)]
    (world.documents / "long.md").write_text("\n".join(lines), encoding="utf-8")
    report = night(world)
    assert report.state == "completed"
    documents = names_in(graph_store)
    windows = {document for name in documents for document in documents[name] if document.startswith("long.md")}
    assert windows == {"long.md", *(f"long.md/#{number}" for number in range(2, len(windows) + 1))}
    assert len(windows) == 4
    people = [name for name in documents if name.startswith("Person")]
    assert len(people) == 200 == report.phase1.new_entities - 4  # the others are of the two short documents
    shared = [documents[name] for name in people if len(documents[name]) > 1]
    assert len(shared) >= 3
    assert all(len(both) == 2 for both in shared)
    assert night(world, "20270103").phase1.waiting == 0


class RefusingServer(QuickServer):
    """Refuses some documents as vLLM refuses a prompt that is too long, and answers the others."""

    def __init__(self, status: int) -> None:
        self.status = status

    async def complete(self, messages: Messages, schema: dict[str, Any] | None, max_tokens: int) -> str:
        if "Refused" in messages[-1]["content"]:
            error = ServerRefused(
                "The model server refused.", why="This model's maximum context length is 8192 tokens."
            )
            error.status = self.status
            raise error
        return await super().complete(messages, schema, max_tokens)


def test_documents_that_the_server_refuses_are_quarantined_and_the_phase_continues(world: NightDeps) -> None:
    for number in range(40):  # more in a row than failures that end a phase
        (world.documents / f"a{number:02}.md").write_text(f"person Refused{number}", encoding="utf-8")
    report = night(replace(world, server=RefusingServer(400)))
    assert report.phase1.failure is None
    assert (report.phase1.done, report.phase1.left, len(report.phase1.quarantined)) == (2, 0, 41)
    reasons = {document.name: document.reason for document in report.phase1.quarantined}
    assert "status 400: This model's maximum context length is 8192 tokens" in reasons["a07.md"]
    assert night(replace(world, server=NeverAsked()), "20270103").phase1.waiting == 0
    (world.documents / "a07.md").write_text("person Grace", encoding="utf-8")
    assert night(world, "20270104").phase1.done == 1


def test_a_server_that_lets_nobody_in_has_failed(world: NightDeps) -> None:
    for number in range(40):
        (world.documents / f"a{number:02}.md").write_text(f"person Refused{number}", encoding="utf-8")
    report = night(replace(world, server=RefusingServer(401)))
    assert report.phase1.failure is not None
    assert report.phase1.left >= 30
    assert not [document for document in report.phase1.quarantined if document.name != "three.md"]


def test_a_part_that_is_gone_takes_its_facts_with_it_without_the_model(world: NightDeps) -> None:
    graph_store = Kept()
    world = replace(world, stores=replace(world.stores, graph=graph_store.opened))
    path = world.documents / "long.md"
    path.write_text(long_text("person Eve", "person Flo", "person Gus"), encoding="utf-8")
    night(world)
    path.write_text(long_text("person Eve", "person Flo"), encoding="utf-8")
    silent = replace(world, server=NeverAsked())
    assert night(silent, "20270103").state == "completed"
    assert {"Eve", "Flo"} <= names_in(graph_store).keys()
    assert "Gus" not in names_in(graph_store)
    before = list(graph_store.graph.dump())
    night(silent, "20270104")
    assert list(graph_store.graph.dump()) == before
    path.write_text(long_text("person Eve", "person Flo", "person Gus"), encoding="utf-8")
    night(world, "20270105")
    assert names_in(graph_store)["Gus"] == ["long.md/#3"]


def test_parts_that_only_the_graph_has_are_taken_away_after_a_crash(world: NightDeps) -> None:
    """A file grows, the process dies between the graph and the ledger, and the file is short again: twice, the second
    time when the ledger knows the part as gone."""
    graph_store = Kept()
    world = replace(world, stores=replace(world.stores, graph=graph_store.opened))
    path, short, grown = world.documents / "long.md", "person Eve", long_text("person Eve", "person Flo", "person Gus")
    path.write_text(short, encoding="utf-8")
    night(world)
    for first, second in (("20270103", "20270104"), ("20270105", "20270106")):
        path.write_text(grown, encoding="utf-8")
        with pytest.raises(KeyboardInterrupt):
            night(replace(world, at=dies_at("night.graph.after")), first)
        assert {"Eve", "Flo", "Gus"} <= names_in(graph_store).keys()
        path.write_text(short, encoding="utf-8")
        assert night(world, second).state == "completed"
        assert "Eve" in names_in(graph_store)
        assert not {"Flo", "Gus"} & names_in(graph_store).keys()
        assert Intents(world).list_unsettled() == {}


def dies_at(fatal: str) -> Callable[[str], None]:
    def interrupt_at(point: str) -> None:
        if point == fatal:
            raise KeyboardInterrupt

    return interrupt_at
