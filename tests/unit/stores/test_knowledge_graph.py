"""The knowledge graph: the rules in memory, the database held to the same rules, the process that has it."""

from __future__ import annotations

import hashlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as trying
from hypothesis import strategies as st

from trainyard.errors import Conflict, InvalidInput, Unavailable
from trainyard.settings import settings
from trainyard.stores.graph.contract import Graph
from trainyard.stores.graph.facts import Entity, Mutation, Named, Relation, check_mutation, entity_key, parse_mutation
from trainyard.stores.graph.local import LadybugGraph, MemoryGraph
from trainyard.stores.graph.remote import HttpGraph, open_graph
from trainyard.stores.graph.tables import BULK_ROWS, Tables, check_reading

JANE, ACME = Named("person", "Jane Doe"), Named("company", "Acme GmbH")


def mutation(
    name: str, text: str, entities: tuple[Entity, ...] = (), relations: tuple[Relation, ...] = (), **other: str
) -> Mutation:
    content = hashlib.sha256(text.encode()).hexdigest()
    fields = {"tenant": "default", "stream": "meetings", "version": "v1", **other}
    return Mutation(name=name, content_sha256=content, entities=entities, relations=relations, **fields)


WORKS = mutation(
    "a.md", "one", (Entity("person", "Jane Doe", {"email": "j@acme.example"}),), (Relation("works_at", JANE, ACME),)
)


@pytest.fixture(params=["memory", "database"])
def graph(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Graph]:
    new_graph: Graph = MemoryGraph() if request.param == "memory" else LadybugGraph(tmp_path / "graph.lbug")
    with new_graph as opened:
        yield opened


def list_names(graph: Graph, kind: str) -> list[str]:
    lines = [json.loads(line) for line in graph.dump()]
    return sorted(line["name"] for line in lines if line["a"] == "entity" and line["kind"] == kind)


# keys and checks


@pytest.mark.parametrize(
    ("kind", "first", "other"),
    [
        ("person", "Jane Doe", "  DR. jane   DOE "),
        ("company", "Acme GmbH", "ACME"),
        ("company", "Acme Inc.", "acme, Ltd"),
        ("project", "Blue Harbour", "“Blue Harbour”"),
        ("location", "Ｂremen", "bremen"),
    ],
)
def test_spellings_of_one_name_have_one_key(kind: str, first: str, other: str) -> None:
    assert entity_key("t", kind, first) == entity_key("t", kind, other)


def test_tenants_and_kinds_keep_names_apart() -> None:
    keys = {entity_key(tenant, kind, "Bremen") for tenant in ("a", "b") for kind in ("project", "location")}
    assert len(keys) == 4


def test_the_ends_of_a_relation_are_entities() -> None:
    assert [entity.name for entity in check_mutation(WORKS).entities] == ["Jane Doe", "Acme GmbH"]


ONE, FIRM = {"kind": "person", "name": "A"}, {"kind": "company", "name": "B"}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"tenant": "../other"}, "tenant is"),
    ({"stream": "a/b"}, "stream is"),
    ({"content_sha256": "abc"}, "content_sha256 is"),
    ({"name": ""}, "Name has to be"),
    ({"entities": [{"kind": "robot", "name": "Overlord"}]}, "kind 'robot'; there are person"),
    ({"entities": [{"kind": "person", "name": "..."}]}, "1 to 200 printable"),
    ({"entities": [{"kind": "person", "name": "x" * 201}]}, "1 to 200 printable"),
    ({"entities": [{"kind": "person", "name": "Eve\u202e"}]}, "printable"),
    ({"entities": [{"kind": "person", "name": "E", "attributes": {"a": "x" * 501}}]}, "at most 500"),
    ({"entities": [{"kind": "person", "name": "E", "attributes": {"a b": "x"}}]}, "an attribute is named|An attribute"),
    ({"entities": [{"kind": "person", "name": 7}]}, "is not a string"),
    ({"entities": [{"kind": "person"}]}, "shape is wrong"),
    ({"entities": [{"kind": "person", "name": f"P {n}"} for n in range(201)]}, "at most 200 and 400"),
    ({"relations": [{"kind": "rules", "source": ONE, "target": ONE}]}, "kind 'rules'"),
    ({"relations": [{"kind": "works_at", "source": FIRM, "target": ONE}]}, "does not lead from a company to a person"),
    ({"surprise": 1}, "shape is wrong"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "message"), BAD, ids=lambda value: str(value)[:40])
def test_a_bad_mutation_says_what_is_wrong(field: dict[str, Any], message: str) -> None:
    good = {"tenant": "t", "stream": "s", "name": "a.md", "content_sha256": "0" * 64, "version": "v"}
    with pytest.raises(InvalidInput, match=f"(?i){message}") as caught:
        parse_mutation({**good, **field})
    assert caught.value.code == "E-GRAPH-QUERY"


# what a mutation does


def test_the_same_document_twice_adds_nothing(graph: Graph) -> None:
    first, second = graph.mutate([WORKS]), graph.mutate([WORKS])
    assert (first[0].new_entities, first[0].new_relations, first[0].already) == (2, 1, False)
    assert (second[0].new_entities, second[0].new_relations, second[0].already) == (0, 0, True)
    assert graph.has([WORKS.document, "0" * 32]) == {WORKS.document}


def test_an_edited_document_replaces_what_only_it_stated(graph: Graph) -> None:
    other = mutation("b.md", "two", (Entity("company", "acme"),))
    graph.mutate([WORKS, other])
    result = graph.mutate([mutation("a.md", "one, edited", (Entity("person", "Ann Poe"),))])[0]
    assert list_names(graph, "person") == ["Ann Poe"]
    assert list_names(graph, "company") == ["acme"]
    assert (result.removed_entities, result.removed_relations, result.changed_entities) == (1, 1, 1)
    assert graph.stats().documents == 2


def test_one_content_under_two_names_is_one_document(graph: Graph) -> None:
    graph.mutate([WORKS])
    copy = graph.mutate([mutation("copy.md", "one")])[0]
    assert copy.already
    graph.mutate([mutation("a.md", "one, edited")])
    assert list_names(graph, "person") == ["Jane Doe"]
    graph.mutate([mutation("copy.md", "other")])
    assert graph.stats().entities == 0


def test_the_order_of_documents_makes_no_difference(tmp_path: Path) -> None:
    batch = [
        mutation(f"{n}.md", str(n), (Entity("person", spelling, {"role": role}),))
        for n, (spelling, role) in enumerate(
            [("Jane Doe", "b"), ("JANE DOE", "a"), ("Jane Doe", "a"), ("Dr Jane Doe", "b")]
        )
    ]
    first, other = MemoryGraph(), MemoryGraph()
    first.mutate(batch)
    for single in reversed(batch):
        other.mutate([single])
    assert list(first.dump()) == list(other.dump())
    assert list_names(first, "person") == ["Jane Doe"]


def test_hostile_text_is_data(graph: Graph) -> None:
    nasty = "'}) DETACH DELETE e // <script>alert(1)</script>"
    graph.mutate([mutation("a.md", "one", (Entity("person", nasty, {"email": "$key"}),)), WORKS])
    assert nasty in list_names(graph, "person")


def test_tenants_do_not_meet(graph: Graph) -> None:
    graph.mutate([WORKS, mutation("a.md", "one", WORKS.entities, tenant="other")])
    assert [graph.stats(tenant).entities for tenant in ("default", "other", None)] == [2, 1, 3]
    assert all('"tenant":"other"' in line for line in graph.dump("other"))


def test_export_is_the_dump(graph: Graph, tmp_path: Path) -> None:
    graph.mutate([WORKS])
    assert graph.export(tmp_path / "new" / "graph.jsonl") == 4
    assert (tmp_path / "new" / "graph.jsonl").read_text().splitlines() == list(graph.dump())


# the database is held to the rules


WORDS = st.sampled_from(["Ann", "ann", "Bob", "Cid"])
ENTITIES = st.builds(
    Entity, st.sampled_from(["person", "company"]), WORDS, st.sampled_from([{}, {"role": "x"}, {"role": "y"}])
)
RELATIONS = st.builds(
    lambda person_name, two: Relation("works_at", Named("person", person_name), Named("company", two)), WORDS, WORDS
)  # fmt: skip
MUTATIONS = st.builds(
    lambda name, text, entities, relations: mutation(name, text, tuple(entities), tuple(relations)),
    st.sampled_from(["a.md", "b.md", "c.md"]), st.sampled_from("uvwxyz"),
    st.lists(ENTITIES, max_size=4), st.lists(RELATIONS, max_size=3),
)  # fmt: skip


@trying(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(batches=st.lists(st.lists(MUTATIONS, max_size=6), min_size=1, max_size=3))
def test_the_database_does_what_the_memory_does(
    batches: list[list[Mutation]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path, memory = tmp_path_factory.mktemp("graph") / "graph.lbug", MemoryGraph()
    tables = Tables(path)
    for batch in batches:
        assert tables.mutate([check_mutation(mutation) for mutation in batch]) == memory.mutate(batch)
        assert tables.dump(None) == list(memory.dump())
    tables.close()
    again = Tables(path)
    assert again.dump(None) == list(memory.dump())
    assert again.stats("default") == memory.stats("default")
    again.close()


def test_a_bulk_write_is_the_same_as_single_ones(tmp_path: Path) -> None:
    batch = [
        mutation(f"{n}.md", str(n), (Entity("person", f"P {n}"), Entity("company", f"C {n % 7}")),
             (Relation("works_at", Named("person", f"P {n}"), Named("company", f"C {n % 7}")),))
        for n in range(BULK_ROWS + 50)
    ]  # fmt: skip
    memory = MemoryGraph()
    memory.mutate(batch)
    with LadybugGraph(tmp_path / "graph.lbug") as graph:
        graph.mutate(batch)
        assert list(graph.dump()) == list(memory.dump())
        assert sum(counts.new_entities + counts.new_relations for counts in graph.mutate(batch)) == 0


# its process


@pytest.mark.faults
def test_a_killed_writer_is_an_error_and_the_next_call_works(tmp_path: Path) -> None:
    with LadybugGraph(tmp_path / "graph.lbug") as graph:
        graph.mutate([WORKS])
        assert graph.writer is not None
        graph.writer.send_signal(signal.SIGKILL)
        graph.writer.wait()
        assert graph.stats().entities == 2  # a writer that died while idle is started again, unnoticed
        graph.writer.send_signal(signal.SIGSTOP)
        graph.answer_s = 0.5
        with pytest.raises(Unavailable, match=r"E-GRAPH-STORE.*signal 9"):
            graph.mutate([mutation("b.md", "two", (Entity("person", "Ann Poe"),))])
        graph.answer_s = 60
        assert list_names(graph, "person") == ["Jane Doe"]


def test_two_processes_do_not_share_a_database(tmp_path: Path) -> None:
    with LadybugGraph(tmp_path / "graph.lbug") as first, LadybugGraph(tmp_path / "graph.lbug") as other:
        first.stats()
        with pytest.raises(Conflict, match="E-GRAPH-BUSY"):
            other.stats()


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    (tmp_path / "graph.lbug").write_bytes(b"not a database" * 1000)
    with LadybugGraph(tmp_path / "graph.lbug") as graph, pytest.raises(Unavailable, match="E-GRAPH-STORE"):
        graph.stats()


# queries


def test_a_query_reads_with_parameters(tmp_path: Path) -> None:
    with LadybugGraph(tmp_path / "graph.lbug") as graph:
        graph.mutate([WORKS])
        cypher = "MATCH (a:Entity)-[r:RELATES]->(b:Entity) WHERE a.name = $name RETURN r.kind AS kind, b.name AS name"
        assert graph.query(cypher, {"name": "Jane Doe"}) == [{"kind": "works_at", "name": "Acme GmbH"}]
        assert graph.query(cypher, {"name": "x' OR 1=1"}) == []
        with pytest.raises(InvalidInput, match="E-GRAPH-QUERY"):
            graph.query("MATCH (n:Nobody) RETURN n")
        assert graph.mutate([WORKS])[0].already  # the writer still works after a bad query


@pytest.mark.parametrize(
    ("cypher", "message"),
    [
        ("CREATE (:Entity {key: 'x'})", "begins with CREATE"),
        ("MATCH (e) SET e.name = 'x'", "word SET"),
        ("match (e) detach delete e", "word DETACH"),
        ("LOAD FROM '/etc/passwd' RETURN *", "begins with LOAD"),
        ("MATCH (e) LOAD FROM 'x.csv' RETURN *", "word LOAD"),
        ("COPY (MATCH (e) RETURN e) TO 'x.csv'", "begins with COPY"),
        ("RETURN 1; MATCH (e) DELETE e", "more than one statement"),
        ("MATCH (e) RETURN 'open", "quotation does not end"),
        ("CALL threads=1", "begins with CALL"),
        ("/* MATCH */ EXPORT DATABASE 'x'", "begins with EXPORT"),
        ("", "begins with nothing"),
        ("RETURN " + "1" * 20_000, "longer than"),
    ],
)
def test_a_query_can_only_read(cypher: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        check_reading(cypher)


@pytest.mark.parametrize(
    "cypher", ["MATCH (e:Entity) WHERE e.set = 'DELETE; it' RETURN e.key;", "UNWIND [1] AS x RETURN x // drop"]
)
def test_words_in_texts_names_and_comments_are_no_commands(cypher: str) -> None:
    check_reading(cypher)


def test_addresses(tmp_path: Path) -> None:
    here = open_graph("", settings())
    assert isinstance(here, LadybugGraph)
    assert here.path == settings().home / "graph" / "knowledge.lbug"
    there = open_graph((tmp_path / "my graph").as_uri(), settings())
    assert isinstance(there, LadybugGraph)
    assert there.path == tmp_path / "my graph"
    with open_graph("http://127.0.0.1:9081", settings()) as remote:
        assert isinstance(remote, HttpGraph)
    for bad in ("ftp://host", "file://host/path", "http://me:secret@host", "graph"):
        with pytest.raises(InvalidInput, match="E-GRAPH-QUERY"):
            open_graph(bad, settings())
