"""Graphs of this machine: in a database file, through the child process that has it open, or in memory.

The graph in memory has the rules without a database: for tests, and for the simulation of nights.
"""

from __future__ import annotations

import select
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from trainyard.cancellation import end_on_leaving
from trainyard.errors import InvalidInput, TrainyardError, Unavailable, from_fields
from trainyard.inherited import UMASK, child_environment
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.stores.files import DISK, make_folders, translate_os_errors
from trainyard.stores.graph.contract import (
    AskedGraph,
    Graph,
    GraphStats,
    count_lines,
    document_line,
    entity_line,
    relation_line,
)
from trainyard.stores.graph.facts import Edge, MutateResult, Mutation, check_mutation
from trainyard.stores.graph.state import State


class MemoryGraph(Graph):
    """Graph in memory, without queries; every mutation is durable as long as the process."""

    def __init__(self) -> None:
        self.state = State()

    def mutate(self, mutations: Sequence[Mutation]) -> list[MutateResult]:
        batch, results = [check_mutation(mutation) for mutation in mutations], list[MutateResult]()
        for part in self.state.runs(batch):
            results += self.state.apply(part)[0]
        return results

    def has(self, documents: Collection[str]) -> set[str]:
        return {key for key in documents if key in self.state.documents}

    def query(self, cypher: str, parameters: JsonMapping | None = None) -> list[JsonObject]:
        raise InvalidInput(
            "A graph in memory has no query language.", do="Use a database file or a server.", code="E-GRAPH-QUERY"
        )

    def stats(self, tenant: str | None = None) -> GraphStats:
        return count_lines(self.dump(tenant))

    def dump(self, tenant: str | None = None) -> Iterator[str]:
        state, lines = self.state, list[str]()
        mentions: dict[str, list[str]] = {key: [] for key in state.entities}
        statements: dict[str, list[str]] = {key: [] for key in state.relations}
        edges: dict[str, Edge] = {}
        for key, contents in state.contents.items():
            for entity in contents.mentions:
                mentions[entity].append(key)
            for relation in contents.relations:
                statements[relation].append(key)
            edges |= contents.relations
        for key, document in state.documents.items():
            if tenant in (None, document.tenant):
                lines.append(document_line(key, document))
        for key, tally in state.tallies.items():
            if tenant in (None, tally.tenant) and (entity_now := tally.entity()) is not None:
                lines.append(entity_line(key, tally.tenant, entity_now, mentions[key]))
        for key, supporters in statements.items():
            if tenant in (None, edges[key].tenant):
                lines.append(relation_line(key, edges[key], supporters))
        return iter(sorted(lines))

    def close(self) -> None:
        """Nothing is open."""


ANSWER_S = 900.0
"""A writer that is silent for this long is ended: the next call starts another one, and what it had not committed is
gone as after a crash."""
STOP_S = 30.0
SLICE_S = 2.0
"""A query that runs for longer gives way as soon as somebody else waits."""
QUERY_S = 40.0
"""The database has its own timeout of 30 s per query, but does not apply it while it builds a list."""
POLL_S = 0.05


class LadybugGraph(AskedGraph):
    """A database file. Usable from many threads, one call at a time; the writer starts with the first call."""

    def __init__(self, path: Path) -> None:
        self.path, self.answer_s = path.absolute(), ANSWER_S
        self.writer: subprocess.Popen[bytes] | None = None
        self.lock = threading.RLock()
        self.waiting = 0
        """How many threads wait for the lock."""

    @property
    def log(self) -> Path:
        return self.path.with_name(f"{self.path.name}.log")

    def ask(self, verb: str, **fields: Any) -> Any:
        """Return one request to the writer. Raises what it raised; `Unavailable` (`E-GRAPH-STORE`) if it died of it."""
        line = orjson.dumps({"do": verb, **fields}, default=dict, option=orjson.OPT_APPEND_NEWLINE)
        self.waiting += 1
        with self.lock:
            self.waiting -= 1
            if self.writer is not None and self.writer.poll() is not None:
                self.end(STOP_S)  # it died while it was idle, with everything committed
            if self.writer is None:
                self.start()
            assert self.writer is not None
            assert self.writer.stdin is not None
            try:
                self.writer.stdin.write(line)
                self.writer.stdin.flush()
            except OSError as error:  # BrokenPipeError: it died while it was idle
                raise self.clear_dead_writer() from error
            if verb == "mutate":
                return self.answer()
            with end_on_leaving(self.writer.kill):  # which reads only
                if verb == "query":
                    self.give_way()
                return self.answer()

    def give_way(self) -> None:
        """Wait for a query's answer, but end the writer when the query takes long and others wait, or takes too long.

        Nothing is lost: a query only reads. The database does not look at an interruption everywhere.
        Raises `InvalidInput` (`E-GRAPH-QUERY`).
        """
        assert self.writer is not None
        assert self.writer.stdout is not None
        started, silent = time.monotonic(), True
        while silent and (took := time.monotonic() - started) < (SLICE_S if self.waiting else QUERY_S):
            silent = not select.select([self.writer.stdout], [], [], min(POLL_S, QUERY_S - took))[0]
        if silent:
            self.writer.kill()
            self.end(STOP_S)
            raise InvalidInput(
                f"The query was ended after {time.monotonic() - started:.0f} s.",
                why=f"A query may take {QUERY_S:g} s, and {SLICE_S:g} s while others wait for the graph.",
                do="Narrow it: fewer rows in MATCH and UNWIND, a LIMIT.",
                code="E-GRAPH-QUERY",
            )

    def answer(self) -> Any:
        assert self.writer is not None
        assert self.writer.stdout is not None
        silence = threading.Timer(self.answer_s, self.writer.kill)
        silence.start()
        try:
            line = self.writer.stdout.readline()
        finally:
            silence.cancel()
        if not line.endswith(b"\n"):
            raise self.clear_dead_writer()
        reply = orjson.loads(line)
        if "error" in reply:
            raise from_fields(reply["error"])
        return reply["ok"]

    def start(self) -> None:
        """Start the writer and wait until it has the database. Raises `Conflict` (`E-GRAPH-BUSY`) if it cannot."""
        with translate_os_errors("The graph's writer was not started"):
            make_folders(DISK, self.path.parent)
            with self.log.open("wb") as log:
                self.writer = subprocess.Popen(
                    [sys.executable, "-P", "-m", "trainyard.stores.graph.writer", str(self.path)],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=child_environment(), umask=UMASK,
                )  # fmt: skip
        try:
            self.answer()
        except TrainyardError:
            self.close()
            raise

    def clear_dead_writer(self) -> Unavailable:
        """Return the error for a writer that is gone; it is cleared away, and the next call starts another one."""
        code = self.end(0.5)
        last = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return Unavailable(
            f"The graph's writer process ended with {f'signal {-code}' if code < 0 else f'status {code}'}.",
            why=last[-1][:500] if last else "Its log is empty.",
            do=f"Do it again: what was not committed is gone, nothing is written twice. Its log is {self.log.name}.",
            code="E-GRAPH-STORE",
        )

    def end(self, wait_s: float) -> int:
        assert self.writer is not None
        writer, self.writer = self.writer, None
        for stream in (writer.stdin, writer.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):  # what was not sent is of no use to a process that is gone
                    stream.close()
        try:
            return writer.wait(timeout=wait_s)
        except subprocess.TimeoutExpired:
            writer.kill()
            return writer.wait()

    def close(self) -> None:
        """End the writer; it closes the database first."""
        with self.lock:
            if self.writer is not None:
                self.end(STOP_S)
