"""Calls of an open session: its record says whose it is, its socket answers. Asks no server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainyard.app.context import Context
from trainyard.backends.sessions.frames import ask
from trainyard.backends.sessions.records import (
    RECORD_FILE,
    SessionStatus,
    find_socket,
    folder_of_session,
    no_session_error,
    read_status,
    read_unchanged,
)
from trainyard.errors import Conflict
from trainyard.json_types import JsonObject

WAIT_S = 30.0
"""Of one request over a network; a caller on this machine asks again until the result is there."""
MARGIN_S = 30.0
STATUS_TIMEOUT_S = 5.0


def require_session(context: Context, session: str) -> Path:
    """Return the folder of a session of the caller's tenant. Raises `NotFound` (`E-NOT-FOUND`) for any other."""
    folder = folder_of_session(context.settings, session)
    record = read_unchanged(f"{folder}/{RECORD_FILE}")
    if record is None or context.caller.tenant not in ("", record.get("tenant")):
        raise no_session_error(session)
    return folder


def ask_session(context: Context, session: str, header: JsonObject, body: bytes = b"") -> JsonObject:
    """Return one call of an open session. Raises its error; `Conflict` (`E-SESSION-STATE`) for one that is not open."""
    folder = require_session(context, session)
    address = find_socket(folder)
    if address is None:
        raise not_open_error(session, read_status(context.settings, session))
    return ask(address, header, body, timeout_s=header.get("wait_s", 0.0) + MARGIN_S)


def call_verb(
    context: Context,
    session: str,
    verb: str,
    arguments: Mapping[str, Any],
    *,
    op_seq: int | None,
    wait: bool,
    body: bytes = b"",
) -> dict[str, Any]:
    """Carry out a verb, or enter it without `wait`: {op_seq, verb, state, result}.

    The same idempotency key of a caller is the same operation.
    """
    header = {"call": "verb", "verb": verb, "given": arguments, "op_seq": op_seq, "wait_s": WAIT_S if wait else 0.0}
    if context.idempotency_key:
        header["key"] = f"{context.caller.identity} {context.idempotency_key}"
    return follow(context, session, ask_session(context, session, header, body), wait=wait)


def ask_result(context: Context, session: str, op_seq: int, *, wait: bool) -> dict[str, object]:
    header = {"call": "result", "op_seq": op_seq, "wait_s": WAIT_S if wait else 0.0}
    return follow(context, session, ask_session(context, session, header), wait=wait)


def follow(context: Context, session: str, reply: JsonObject, *, wait: bool) -> JsonObject:
    """Ask again until the operation is done; over a network the caller does."""
    while wait and not context.caller.remote and reply["state"] != "done":
        header = {"call": "result", "op_seq": reply["op_seq"], "wait_s": WAIT_S}
        reply = ask_session(context, session, header)
    return reply


def ask_status(folder: Path) -> dict[str, object] | None:
    """Return what an open session says of itself; None if none answers."""
    address = find_socket(folder)
    if address is None:
        return None
    try:
        return ask(address, {"call": "status"}, timeout_s=STATUS_TIMEOUT_S)
    except Conflict:
        return None


def not_open_error(session: str, status: SessionStatus) -> Conflict:
    waits = status.state.value == "pending"
    detail = f" ({status.detail})" if status.detail else ""
    return Conflict(
        f"The session {session} is {status.state.value}{detail} and takes no calls.",
        do="Wait until it is open." if waits else f"Continue it by `trainyard sessions resume {session}`.",
        code="E-SESSION-STATE",
    )
