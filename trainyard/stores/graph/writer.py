"""The process that has the database: `python -m trainyard.stores.graph.writer PATH`, spoken to by `local.LadybugGraph`.

One JSON line in, one out: {"do": verb, …} and {"ok": value} or {"error": {kind, code, what, why, do}}. A database that
crashes takes only this process with it. It ends when its input does, so it never outlives its parent, and it
ignores Ctrl-C: the parent decides.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from trainyard.errors import TrainyardError, Unavailable
from trainyard.json_types import JsonObject
from trainyard.stores.graph.facts import to_mutation
from trainyard.stores.graph.tables import Tables

Verb = Callable[[Tables, dict[str, Any]], Any]
VERBS: dict[str, Verb] = {
    "mutate": lambda tables, request: [
        asdict(o) for o in tables.mutate([to_mutation(mutation) for mutation in request["mutations"]])
    ],
    "has": lambda tables, request: tables.has(request["documents"]),
    "query": lambda tables, request: tables.query(request["cypher"], request["parameters"]),
    "stats": lambda tables, request: asdict(tables.stats(request["tenant"])),
    "dump": lambda tables, request: tables.dump(request["tenant"]),
}


def answer(tables: Tables, line: bytes) -> JsonObject:
    request = orjson.loads(line)
    try:
        return {"ok": VERBS[request["do"]](tables, request)}
    except TrainyardError as error:
        return {"error": {"kind": type(error).__name__, **error.as_dict()}}
    except RuntimeError as error:  # the database's own; it is open still
        unread = Unavailable(
            "The graph cannot be read.", why=" ".join(str(error).split())[:500], do="Try again.", code="E-GRAPH-STORE"
        )
        return {"error": {"kind": "Unavailable", **unread.as_dict()}}


def serve(path: Path, output: int) -> None:
    def say(value: JsonObject) -> None:
        rest = memoryview(orjson.dumps(value, default=str, option=orjson.OPT_APPEND_NEWLINE))
        while rest:
            rest = rest[os.write(output, rest) :]

    try:
        tables = Tables(path)
    except TrainyardError as error:
        say({"error": {"kind": type(error).__name__, **error.as_dict()}})
        return
    threading.Thread(target=preload_imports, daemon=True).start()
    say({"ok": "ready"})
    for line in sys.stdin.buffer:
        say(answer(tables, line))
    tables.close()


def preload_imports() -> None:
    """What the database imports at its first COPY takes half a second: not in the middle of somebody's batch."""
    importlib.import_module("pandas")


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    output = os.dup(1)
    os.dup2(2, 1)  # output of the database's library goes to the log, not between the answers
    serve(Path(sys.argv[1]), output)


if __name__ == "__main__":
    main()
