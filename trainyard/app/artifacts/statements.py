"""In-toto statements with SLSA provenance: the predicate of a training's entry, about the outputs of the entry."""

from __future__ import annotations

import re

from trainyard.backends.ledger_entry import PREDICATE_TYPE, TREE_DIGEST
from trainyard.errors import Corrupt
from trainyard.json_types import JsonMapping, JsonObject

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
SHA256 = re.compile(r"[0-9a-f]{64}")


def build_statement(entry: JsonMapping) -> JsonObject | None:
    """Return the statement of an entry; None for one without a predicate, such as that of an earlier version.

    Raises `Corrupt` for a predicate or outputs that in-toto's own types do not take.
    """
    if entry.get("predicate_type") != PREDICATE_TYPE:
        return None
    outputs = {
        port: str(part.get("sha256", ""))
        for port, part in sorted((entry.get("outputs") or {}).items())
        if isinstance(part, dict)
    }
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": port, "digest": {TREE_DIGEST: sha256}} for port, sha256 in outputs.items()],
        "predicateType": PREDICATE_TYPE,
        "predicate": entry.get("predicate"),
    }
    validate_statement(statement)
    return statement


def validate_statement(statement: JsonMapping) -> None:
    """Read a statement, and its predicate, by the types of in-toto. Raises `Corrupt`."""
    # 0.1 s, and only a statement needs protobuf
    from google.protobuf.json_format import ParseDict, ParseError
    from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
    from in_toto_attestation.v1 import statement_pb2
    from in_toto_attestation.v1.statement import Statement

    try:
        message = ParseDict(dict(statement), statement_pb2.Statement())
        Statement.copy_from_pb(message).validate()
        ParseDict(statement["predicate"], provenance_pb2.Provenance())
        digests = [digest for subject in statement["subject"] for digest in subject["digest"].values()]
        if not all(SHA256.fullmatch(digest) for digest in digests):
            raise ValueError("a digest of the subject is not a SHA-256")
    except (ParseError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(
            "The provenance of an entry is not an in-toto statement.", why=str(error)[:200],
            do="Run `trainyard ledger verify`: it names an entry that was changed.",
        ) from error  # fmt: skip
