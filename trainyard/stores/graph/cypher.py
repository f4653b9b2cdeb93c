"""Allowed Cypher of callers: one statement that reads the graph and nothing else.

The database itself refuses writes in a read-only transaction, but lets such a transaction read and write *files*
(`LOAD FROM`, `COPY … TO`, `EXPORT DATABASE`) and change its settings (`CALL`). So a statement has to begin like a
query, and may not contain the keywords of anything else outside of strings and quoted names.
"""

from __future__ import annotations

import re

from trainyard.errors import InvalidInput

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
