"""How fast are entities and relations upserted into the knowledge graph, beside what one would write by hand?

1,000 documents name 5,000 entities and state 10,000 relations, each relation in two documents. Both sides start from
the same rows with their keys, each row once, and write entities, relations and the provenance of both: ours takes off
the keys that the graph has and copies the rest in one transaction, the peer is `UNWIND` with `MERGE` in batches of
1,000 rows on the same database and tables. Both give the same dump, and the same documents a second time add nothing.
At 20,000 entities and 40,000 relations the peer is ended after 120 s, and the ratio is a lower bound. What the store
takes from documents to the committed graph, checks, hashing and the way to its process included, stands beside it.
"""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Row, Sample, finish, measure, median, size
from trainyard.stores.graph.facts import Entity, Mutation, Named, Relation, check_mutation
from trainyard.stores.graph.local import LadybugGraph
from trainyard.stores.graph.state import Changes, State
from trainyard.stores.graph.tables import Tables, attributes_text, names_text

BATCH = 1_000
BAR, ROUNDS = 20.0, size(5, 1)
LARGE_CAP_S = 120.0


def documents(entities: int) -> list[Mutation]:
    """One document of twenty relations for every five entities; each relation is stated in two documents, as people
    and companies come back from one meeting to the next."""
    chance = random.Random(0)
    people = [Named("person", f"Person {index}") for index in range(entities // 2)]
    companies = [Named("company", f"Company {index}") for index in range(entities - len(people))]
    relations: dict[Relation, None] = {}
    for index, (person, company) in enumerate(zip(people, companies, strict=True)):
        relations[Relation("works_at", person, company)] = None
        relations[Relation("partner_of", company, companies[index - 1])] = None
    while len(relations) < 2 * entities:
        relations[Relation("works_at", chance.choice(people), chance.choice(companies))] = None
    twice = [*relations, *relations]
    chance.shuffle(twice)
    mutations = []
    for number in range(len(twice) // 20):
        stated = twice[number * 20 : number * 20 + 20]
        named = dict.fromkeys(end for relation in stated for end in (relation.source, relation.target))
        content = hashlib.sha256(str(number).encode()).hexdigest()
        attributes = {"number": str(number)}
        seen = tuple(Entity(entity.kind, entity.name, attributes if number % 3 == 0 else {}) for entity in named)
        mutations.append(Mutation("bench", "notes", f"{number}.md", content, "v1", seen, tuple(dict.fromkeys(stated))))
    return mutations


def write_documents(path: Path, mutations: list[Mutation]) -> float:
    """Seconds from documents to the committed graph; the start of the writer's process is not part of it."""
    with LadybugGraph(path) as graph:
        graph.has([])
        time.sleep(1.5)  # the writer loads its libraries in the background
        return measure(lambda: float(len(graph.mutate(mutations)))).wall_s


def write_ours(path: Path, changes: Changes) -> Sample:
    tables = Tables(path)

    def write() -> float:
        state = tables.read_keys()
        tables.run("BEGIN TRANSACTION")
        tables.write(without(changes, state))
        tables.run("COMMIT")
        return 1.0

    sample = measure(write)
    tables.close()
    return sample


def without(changes: Changes, state: State) -> Changes:
    """The rows whose keys the graph does not have."""
    return Changes(
        new_documents={key: document for key, document in changes.new_documents.items() if key not in state.documents},
        new_entities={key: entity for key, entity in changes.new_entities.items() if key not in state.entities},
        new_relations={key: relation for key, relation in changes.new_relations.items() if key not in state.relations},
        mentions=[mention for mention in changes.mentions if mention[0] not in state.documents],
        statements=[statement for statement in changes.statements if statement[0] not in state.documents],
    )


def merged(mutations: list[Mutation]) -> Changes:
    """The rows that both write, so that the peer has no arithmetic to do."""
    _results, changes = State().apply([check_mutation(mutation) for mutation in mutations])
    return changes


PEER = {
    "documents": "MERGE (d:Document {key: row.key}) SET d.tenant = row.tenant, d.stream = row.stream, "
    "d.names = row.names, d.content_sha256 = row.content_sha256, d.version = row.version",
    "entities": "MERGE (e:Entity {key: row.key}) SET e.tenant = row.tenant, e.kind = row.kind, e.name = row.name, "
    "e.attributes = row.attributes",
    "relations": "MATCH (a:Entity {key: row.source}), (b:Entity {key: row.target}) "
    "MERGE (a)-[:RELATES {tenant: row.tenant, kind: row.kind, key: row.key}]->(b)",
    "mentions": "MATCH (d:Document {key: row.document}), (e:Entity {key: row.key}) "
    "MERGE (d)-[:MENTIONS {name: row.name, attributes: row.attributes}]->(e)",
    "statements": "MATCH (d:Document {key: row.document}), (e:Entity {key: row.source}) "
    "MERGE (d)-[:STATES {kind: row.kind, target: row.target, relation: row.key}]->(e)",
}


def peer_rows(changes: Changes) -> Iterator[tuple[str, list[dict[str, str]]]]:
    yield "documents", [
        {"key": key, "tenant": document.tenant, "stream": document.stream, "names": names_text(document),
         "content_sha256": document.content_sha256, "version": document.version}
        for key, document in changes.new_documents.items()
    ]  # fmt: skip
    yield (
        "entities",
        [
            {
                "key": key,
                "tenant": tenant,
                "kind": entity.kind,
                "name": entity.name,
                "attributes": attributes_text(entity),
            }
            for key, (tenant, entity) in changes.new_entities.items()
        ],
    )
    yield (
        "relations",
        [
            {
                "key": key,
                "tenant": relation.tenant,
                "kind": relation.kind,
                "source": relation.source,
                "target": relation.target,
            }
            for key, relation in changes.new_relations.items()
        ],
    )
    yield (
        "mentions",
        [
            {"document": document, "key": key, "name": entity.name, "attributes": attributes_text(entity)}
            for document, key, entity in changes.mentions
        ],
    )
    yield (
        "statements",
        [
            {
                "document": document,
                "key": key,
                "kind": relation.kind,
                "source": relation.source,
                "target": relation.target,
            }
            for document, key, relation in changes.statements
        ],
    )


def write_peer(path: Path, changes: Changes) -> Sample:
    """The same from rows whose keys are there already, one commit a batch."""
    tables = Tables(path)

    def write() -> float:
        for kind, rows in peer_rows(changes):
            for start in range(0, len(rows), BATCH):
                tables.run(f"UNWIND $rows AS row {PEER[kind]}", rows=rows[start : start + BATCH])
        return 1.0

    sample = measure(write)
    tables.close()
    return sample


def dump(path: Path) -> list[str]:
    with LadybugGraph(path) as graph:
        return list(graph.dump())


def capped_peer(folder: Path, entities: int, cap_s: float) -> tuple[float, bool]:
    """Seconds that the peer took in a process of its own, and whether it was ended before its end."""
    started = time.perf_counter()
    argv = [sys.executable, "-m", "benchmarks.graph_upsert", "peer", str(folder / "large-peer"), str(entities)]
    try:
        subprocess.run(argv, check=True, timeout=cap_s)
    except subprocess.TimeoutExpired:
        return cap_s, True
    return time.perf_counter() - started, False


def compare(folder: Path, entities: int, rounds: int) -> tuple[dict[str, list[Sample]], list[Row]]:
    mutations = documents(entities)
    changes, samples = merged(mutations), dict[str, list[Sample]](ours=[], peer=[])
    variants = {"ours": write_ours, "peer": write_peer}
    write_ours(folder / "warm", changes)
    for turn in range(rounds):
        for name in variants if turn % 2 == 0 else reversed(variants):
            samples[name].append(variants[name](folder / f"{name}{turn}", changes))
    whole = write_documents(folder / "whole", mutations)
    dumps = [dump(folder / name) for name in ("ours0", "peer0", "whole")]
    with LadybugGraph(folder / "whole") as graph:
        added = sum(
            result.new_entities + result.new_relations + (not result.already) for result in graph.mutate(mutations)
        )
    seconds = {name: median(variant_samples, "wall_s") for name, variant_samples in samples.items()}
    label = f"{entities:,} entities, {len(changes.new_relations):,} relations"
    ratio = seconds["peer"] / seconds["ours"]
    rows = [
        Row(f"seconds, {label}", seconds["ours"], seconds["peer"], "UNWIND + MERGE", ratio, BAR, ">=", ratio >= BAR),
        Row.at_least("same dump (1 = yes)", float(dumps[0] == dumps[1] == dumps[2]), 1.0),
        Row.at_most("added by a second run of the same documents", float(added), 0.0),
        Row.ratio_at_least(
            "documents per second, by the store",
            len(mutations) / whole,
            len(mutations) / seconds["peer"],
            "rows by MERGE",
            1.0,
        ),
    ]
    return samples, rows


def large(folder: Path, entities: int) -> Row:
    our_s = write_ours(folder / "large", merged(documents(entities))).wall_s
    peer, ended = capped_peer(folder, entities, LARGE_CAP_S)
    label = f"seconds, {entities:,} entities{' (peer ended: a lower bound)' if ended else ''}"
    return Row(label, our_s, peer, "UNWIND + MERGE", peer / our_s, BAR, ">=", peer / our_s >= BAR)


def main() -> int:
    if sys.argv[1:2] == ["peer"]:
        write_peer(Path(sys.argv[2]), merged(documents(int(sys.argv[3]))))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        samples, rows = compare(folder, size(5_000, 100), ROUNDS)
        rows.append(large(folder, size(20_000, 200)))
    return finish("graph_upsert", rows, samples)


if __name__ == "__main__":
    sys.exit(main())
