"""The graph in a Ladybug database: tables, and how a batch is written to them fast and all at once.

    Document -[MENTIONS]-> Entity -[RELATES]-> Entity          Document -[STATES]-> Entity (the relation's source)

Writing is an upsert by difference: the keys are read once, what is new goes in by bulk COPY (rows whose keys occur
once: a duplicate key in a COPY ends the process), and only what really changed is set. All statements of a batch are
one transaction. Runs in the writer's own process (`writer.py`): no other code shares it with the database.

Which Cypher a stranger may send: one statement that reads the graph and nothing else.

The database itself refuses writes in a read-only transaction, but lets such a transaction read and write *files*
(`LOAD FROM`, `COPY … TO`, `EXPORT DATABASE`) and change its settings (`CALL`). So a statement has to begin like a
query, and may not contain the keywords of anything else outside of strings and quoted names.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import ladybug
import orjson
import pyarrow as pa

from trainyard.errors import Conflict, InvalidInput, LimitExceeded, TrainyardError, Unavailable
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.stores.graph.contract import GraphStats, document_line, entity_line, relation_line
from trainyard.stores.graph.facts import Contents, Edge, Entity, MutateResult, Mutation
from trainyard.stores.graph.state import Changes, EntityTally, GraphDocument, State

MAX_CHARS = 20_000
BEGINNINGS = frozenset({"match", "optional", "with", "unwind", "return"})
FORBIDDEN = frozenset(
    {"alter", "attach", "begin", "call", "checkpoint", "comment", "commit", "copy", "create", "delete", "detach"}
    | {"drop", "explain", "export", "extension", "import", "insert", "install", "load", "macro", "merge", "profile"}
    | {"remove", "rollback", "set", "uninstall", "update", "use"}
)
QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|//[^\n]*|/\*.*?\*/", re.DOTALL)
WORD = re.compile(r"(?<![.\w$])[A-Za-z_]\w*")


def check_reading(cypher: str) -> None:
    """Raises `InvalidInput` (`E-GRAPH-QUERY`) unless the statement is one that reads."""
    if len(cypher) > MAX_CHARS or "\0" in cypher:
        raise refused_error(f"it is longer than {MAX_CHARS:,} characters or contains NUL")
    bare = QUOTED.sub(" ", cypher).strip()
    if re.search(r"['\"`]", bare):
        raise refused_error("a quotation does not end")
    if ";" in bare.rstrip("; \n\t"):
        raise refused_error("it is more than one statement")
    words = [word.lower() for word in WORD.findall(bare)]
    if not words or words[0] not in BEGINNINGS:
        raise refused_error(
            f"it begins with {words[0].upper() if words else 'nothing'}, not with MATCH, UNWIND or RETURN"
        )
    if forbidden := next((word for word in words if word in FORBIDDEN), None):
        raise refused_error(
            f"it contains the word {forbidden.upper()}, which does more than read; quote a name with backticks"
        )


def refused_error(why: str) -> InvalidInput:
    return InvalidInput(
        "This Cypher statement is not run.",
        why=f"{why[0].upper()}{why[1:]}.",
        do="Write one statement of MATCH, WHERE, WITH, UNWIND and RETURN, with values as $parameters.",
        code="E-GRAPH-QUERY",
    )


SCHEMA = (
    "CREATE NODE TABLE IF NOT EXISTS Document(key STRING PRIMARY KEY, tenant STRING, stream STRING, names STRING, "
    "content_sha256 STRING, version STRING)",
    "CREATE NODE TABLE IF NOT EXISTS Entity(key STRING PRIMARY KEY, tenant STRING, kind STRING, name STRING, "
    "attributes STRING)",
    "CREATE REL TABLE IF NOT EXISTS RELATES(FROM Entity TO Entity, tenant STRING, kind STRING, key STRING)",
    "CREATE REL TABLE IF NOT EXISTS MENTIONS(FROM Document TO Entity, name STRING, attributes STRING)",
    "CREATE REL TABLE IF NOT EXISTS STATES(FROM Document TO Entity, kind STRING, target STRING, relation STRING)",
)
BULK_ROWS = 200
"""From here on COPY is faster than CREATE: it writes a checkpoint, which costs some 50 ms."""
CACHED_TALLIES = 100_000
MAX_ROWS = 100_000
QUERY_S = 30
POOL_BYTES = 256 << 20


Rows = list[tuple[str, ...]]


class Tables:
    """An open database. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        try:
            self.database = ladybug.Database(str(path), buffer_pool_size=POOL_BYTES)
        except RuntimeError as error:
            raise not_opened_error(path, str(error)) from error
        self.connection = ladybug.Connection(self.database, num_threads=2)
        for statement in SCHEMA:
            self.connection.execute(statement)
        self.state = self.read_keys()

    def close(self) -> None:
        self.connection.close()
        self.database.close()

    def rows(self, cypher: str, **parameters: Any) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a statement that Trainyard wrote."""
        result: Any = self.connection.execute(cypher, parameters)
        table = result.get_as_arrow(65_536)
        return zip(*(column.to_pylist() for column in table.columns), strict=True)

    def run(self, cypher: str, **parameters: Any) -> None:
        self.connection.execute(cypher, parameters)

    # what is known

    def read_keys(self) -> State:
        """Return a state with all documents and all keys, and nothing else."""
        state = State()
        for key, tenant, stream, content, version, names in self.rows(
            "MATCH (d:Document) RETURN d.key, d.tenant, d.stream, d.content_sha256, d.version, d.names"
        ):
            document = GraphDocument(tenant, stream, content, version, frozenset(orjson.loads(names)))
            state.documents[key] = document
            state.slots |= dict.fromkeys(document.slots(), key)
        state.entities = {key for (key,) in self.rows("MATCH (e:Entity) RETURN e.key")}
        state.relations = {key for (key,) in self.rows("MATCH (:Entity)-[r:RELATES]->(:Entity) RETURN r.key")}
        return state

    def load_touched(self, part: Sequence[Mutation]) -> None:
        """Load what `State.apply` needs besides the keys."""
        state = self.state
        state.contents = {key: Contents() for key in state.find_replaced(part)}
        if state.contents:
            self.load_contents(sorted(state.contents))
        keys = {key for contents in state.contents.values() for key in contents.mentions}
        for mutation in part:
            if mutation.document not in state.documents:
                keys |= mutation.contents.mentions.keys()
        if len(state.tallies) > CACHED_TALLIES:
            state.tallies.clear()
        missing = sorted((keys & state.entities) - state.tallies.keys())
        for key, tenant, kind, name, attributes in self.rows(
            "UNWIND $keys AS k MATCH (:Document)-[m:MENTIONS]->(e:Entity) WHERE e.key = k "
            "RETURN e.key, e.tenant, e.kind, m.name, m.attributes", keys=missing,
        ) if missing else ():  # fmt: skip
            tally = state.tallies.setdefault(key, EntityTally(tenant, kind))
            tally.add(Entity(kind, name, orjson.loads(attributes)))

    def load_contents(self, documents: list[str]) -> None:
        state = self.state
        for document, key, kind, name, attributes in self.rows(
            "UNWIND $keys AS k MATCH (d:Document)-[m:MENTIONS]->(e:Entity) WHERE d.key = k "
            "RETURN d.key, e.key, e.kind, m.name, m.attributes", keys=documents,
        ):  # fmt: skip
            state.contents[document].mentions[key] = Entity(kind, name, orjson.loads(attributes))
        sources: set[str] = set()
        for document, tenant, relation, kind, source, target in self.rows(
            "UNWIND $keys AS k MATCH (d:Document)-[s:STATES]->(e:Entity) WHERE d.key = k "
            "RETURN d.key, d.tenant, s.relation, s.kind, e.key, s.target", keys=documents,
        ):  # fmt: skip
            state.contents[document].relations[relation] = Edge(tenant, kind, source, target)
            sources.add(source)
        stated = {key for contents in state.contents.values() for key in contents.relations}
        state.supports = dict.fromkeys(stated, 0)
        for (relation,) in self.rows(
            "UNWIND $keys AS k MATCH (:Document)-[s:STATES]->(e:Entity) WHERE e.key = k RETURN s.relation",
            keys=sorted(sources),
        ) if sources else ():  # fmt: skip
            if relation in stated:
                state.supports[relation] += 1

    # writing

    def mutate(self, batch: Sequence[Mutation]) -> list[MutateResult]:
        """Return all mutations, which the caller has checked, in one transaction; see `contract.Graph`."""
        results = list[MutateResult]()
        fresh = any(
            self.state.slots.get((mutation.tenant, mutation.stream, mutation.name)) != mutation.document
            for mutation in batch
        )
        if not fresh:
            return [MutateResult(mutation.document, already=True) for mutation in batch]
        self.run("BEGIN TRANSACTION")
        try:
            for part in self.state.runs(batch):
                self.load_touched(part)
                done, changes = self.state.apply(part)
                self.write(changes)
                results += done
            self.run("COMMIT")
        except Exception as error:
            self.roll_back()
            self.state = self.read_keys()
            if isinstance(error, TrainyardError):
                raise
            raise Unavailable(
                "The graph was not written; it is as it was before.",
                why=" ".join(str(error).split())[:500],
                do="Look at the free space of the disk, then do it again: nothing is written twice.",
                code="E-GRAPH-STORE",
            ) from error
        self.state.contents, self.state.supports = {}, {}
        return results

    def roll_back(self) -> None:
        """Roll back an unfinished transaction, here and in the database, which may have ended a failed one already."""
        try:
            self.run("ROLLBACK")
        except RuntimeError:
            self.connection.close()
            self.connection = ladybug.Connection(self.database, num_threads=2)

    def write(self, changes: Changes) -> None:
        self.remove(changes)
        self.create("Document", ("key", "tenant", "stream", "names", "content_sha256", "version"), [
            (key, document.tenant, document.stream, names_text(document), document.content_sha256, document.version)
            for key, document in changes.new_documents.items()
        ])  # fmt: skip
        self.create("Entity", ("key", "tenant", "kind", "name", "attributes"), [
            (key, tenant, entity.kind, entity.name, attributes_text(entity))
            for key, (tenant, entity) in changes.new_entities.items()
        ])  # fmt: skip
        self.join("RELATES", ("Entity", "Entity"), ("from", "to", "tenant", "kind", "key"), [
            (edge.source, edge.target, edge.tenant, edge.kind, key) for key, edge in changes.new_relations.items()
        ])  # fmt: skip
        self.join("MENTIONS", ("Document", "Entity"), ("from", "to", "name", "attributes"), [
            (document, key, mention.name, attributes_text(mention)) for document, key, mention in changes.mentions
        ])  # fmt: skip
        self.join("STATES", ("Document", "Entity"), ("from", "to", "kind", "target", "relation"), [
            (document, edge.source, edge.kind, edge.target, key) for document, key, edge in changes.statements
        ])  # fmt: skip
        if changes.changed_entities:
            self.run(
                "UNWIND $rows AS row MATCH (e:Entity) WHERE e.key = row.key "
                "SET e.name = row.name, e.attributes = row.attributes",
                rows=[
                    {"key": key, "name": entity.name, "attributes": attributes_text(entity)}
                    for key, entity in changes.changed_entities.items()
                ],
            )
        for key, document in changes.renamed_documents.items():
            self.run("MATCH (d:Document) WHERE d.key = $key SET d.names = $names", key=key, names=names_text(document))

    def remove(self, changes: Changes) -> None:
        for key, edge in changes.dead_relations.items():
            self.run(
                "MATCH (a:Entity)-[r:RELATES]->(:Entity) WHERE a.key = $source AND r.key = $key DELETE r",
                source=edge.source, key=key,
            )  # fmt: skip
        for key in changes.dead_documents:
            self.run("MATCH (d:Document) WHERE d.key = $key DETACH DELETE d", key=key)
        for key in changes.dead_entities:
            self.run("MATCH (e:Entity) WHERE e.key = $key DETACH DELETE e", key=key)

    def create(self, table: str, columns: Sequence[str], rows: Rows) -> None:
        """New nodes, whose keys are in none of the tables and occur once."""
        fields = ", ".join(f"{name}: row.{name}" for name in columns)
        self.insert(table, columns, rows, f"CREATE (:{table} {{{fields}}})")

    def join(self, table: str, ends: tuple[str, str], columns: Sequence[str], rows: Rows) -> None:
        """New edges, each once. The first two columns, `from` and `to`, are the keys of the ends."""
        fields = ", ".join(f"{name}: row.{name}" for name in columns[2:])
        match = f"MATCH (a:{ends[0]}), (b:{ends[1]}) WHERE a.key = row.`from` AND b.key = row.`to` "
        self.insert(table, columns, rows, f"{match}CREATE (a)-[:{table} {{{fields}}}]->(b)")

    def insert(self, table: str, columns: Sequence[str], rows: Rows, statement: str) -> None:
        """Write many rows by COPY, a few by a statement for each `row`."""
        if len(rows) >= BULK_ROWS:
            batch = pa.table(dict(zip(columns, zip(*rows, strict=True), strict=True)))  # noqa: F841 (COPY finds it)
            self.connection.execute(f"COPY {table} FROM batch")
        elif rows:
            records = [dict(zip(columns, row, strict=True)) for row in rows]
            self.run(f"UNWIND $rows AS row {statement}", rows=records)

    # reading

    def has(self, documents: Collection[str]) -> list[str]:
        return [key for key in documents if key in self.state.documents]

    def query(self, cypher: str, parameters: JsonMapping) -> list[JsonObject]:
        """Rows of a caller's statement: it can only read, for 30 s, and 100,000 rows."""
        check_reading(cypher)
        self.run("BEGIN TRANSACTION READ ONLY")
        self.connection.set_query_timeout(QUERY_S * 1000)
        try:
            result: Any = self.connection.execute(cypher, dict(parameters))
            names = result.get_column_names()
            rows: list[JsonObject] = []
            while result.has_next():
                if len(rows) == MAX_ROWS:
                    raise LimitExceeded(
                        f"The query has more than {MAX_ROWS:,} rows.", do="Add a LIMIT.", code="E-GRAPH-QUERY"
                    )
                rows.append(dict(zip(names, result.get_next(), strict=True)))
            result.close()
        except TrainyardError:
            raise
        except (RuntimeError, ValueError, TypeError, ArithmeticError) as error:  # of a value that it cannot convert
            raise InvalidInput(
                "The graph does not answer this query.",
                why=" ".join(str(error).split())[:500],
                do="The tables are in docs/graph.md; values are given as parameters.",
                code="E-GRAPH-QUERY",
            ) from error
        finally:
            self.connection.set_query_timeout(0)
            self.roll_back()
        return rows

    def stats(self, tenant: str | None) -> GraphStats:
        documents = [document for document in self.state.documents.values() if tenant in (None, document.tenant)]
        parameters = {"tenant": tenant} if tenant is not None else {}
        where = "WHERE {}.tenant = $tenant " if parameters else ""
        of_entities = f"MATCH (e:Entity) {where.format('e')}RETURN e.kind, count(*)"
        of_relations = f"MATCH (:Entity)-[r:RELATES]->(:Entity) {where.format('r')}RETURN r.kind, count(*)"
        entities = dict(sorted((kind, count) for kind, count in self.rows(of_entities, **parameters)))
        relations = dict(sorted((kind, count) for kind, count in self.rows(of_relations, **parameters)))
        return GraphStats(len(documents), sum(entities.values()), sum(relations.values()), entities, relations)

    def dump(self, tenant: str | None) -> list[str]:
        mentions: dict[str, list[str]] = {}
        for key, document in self.rows("MATCH (d:Document)-[:MENTIONS]->(e:Entity) RETURN e.key, d.key"):
            mentions.setdefault(key, []).append(document)
        statements: dict[str, list[str]] = {}
        for key, document in self.rows("MATCH (d:Document)-[s:STATES]->(:Entity) RETURN s.relation, d.key"):
            statements.setdefault(key, []).append(document)
        lines = [
            document_line(key, document)
            for key, document in self.state.documents.items()
            if tenant in (None, document.tenant)
        ]
        for key, owner, kind, name, attributes in self.rows(
            "MATCH (e:Entity) RETURN e.key, e.tenant, e.kind, e.name, e.attributes"
        ):
            if tenant in (None, owner):
                lines.append(
                    entity_line(key, owner, Entity(kind, name, orjson.loads(attributes)), mentions.get(key, []))
                )
        for key, owner, kind, source, target in self.rows(
            "MATCH (a:Entity)-[r:RELATES]->(b:Entity) RETURN r.key, r.tenant, r.kind, a.key, b.key"
        ):
            if tenant in (None, owner):
                lines.append(relation_line(key, Edge(owner, kind, source, target), statements.get(key, [])))
        return sorted(lines)


def names_text(document: GraphDocument) -> str:
    return orjson.dumps(sorted(document.names)).decode()


def attributes_text(entity: Entity) -> str:
    return (
        "{}" if not entity.attributes else orjson.dumps(dict(entity.attributes), option=orjson.OPT_SORT_KEYS).decode()
    )


def not_opened_error(path: Path, why: str) -> Conflict | Unavailable:
    if "lock" in why.lower():
        return Conflict(
            f"Another process has the graph {path.name} open.",
            why="The database takes one process at a time; a night, or `trainyard serve --role graph`, has it.",
            do="Ask that server (`--graph http://127.0.0.1:9081`), or wait for the night to end.",
            code="E-GRAPH-BUSY",
        )
    return Unavailable(
        f"The graph {path.name} cannot be opened.", why=" ".join(why.split())[:500],
        do="If the disk is sound, restore an export or move the file away; documents are then read again.",
        code="E-GRAPH-STORE",
    )  # fmt: skip
