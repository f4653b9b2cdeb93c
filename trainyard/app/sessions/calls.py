"""Calls of an open session: the eight verbs, results that were not waited for, and stored outputs.

The session's record names its tenant, its socket answers; Prefect is not asked. A reply has the same numbers as in the
session's process, to the bit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from trainyard.app.context import Context
from trainyard.app.responses import Blob, Response
from trainyard.backends.sessions.frames import SessionLost, ask
from trainyard.backends.sessions.records import (
    RECORD_FILE,
    SessionState,
    SessionStatus,
    find_socket,
    folder_of_session,
    no_session_error,
    read_status,
    read_unchanged,
)
from trainyard.errors import Conflict, InvalidInput, NotFound
from trainyard.json_types import JsonObject
from trainyard.operations import sessions as requests
from trainyard.stores.whole import file_sha256

WAIT_S = 30.0
"""Of one request over a network; a caller on this machine asks again until the result is there."""
MARGIN_S = 30.0
STATUS_TIMEOUT_S = 5.0
END_WAIT_S, POLL_S = 15.0, 0.1
"""How long a call that lost its session waits for the reason."""
ENDS = (SessionState.ENDED, SessionState.FAILED, SessionState.LOST)


def require_session(context: Context, session: str) -> Path:
    """Return the folder of a session of the caller's tenant. Raises `NotFound` (`E-NOT-FOUND`) for any other."""
    folder = folder_of_session(context.settings, session)
    record = read_unchanged(f"{folder}/{RECORD_FILE}")
    if record is None or context.caller.tenant not in ("", record.get("tenant")):
        raise no_session_error(session)
    return folder


def ask_session(context: Context, session: str, header: JsonObject, body: bytes = b"") -> JsonObject:
    """Return one call of an open session. Raises its error; `Conflict` (`E-SESSION-STATE`) for one that is not open,
    or that ends during the call, with the reason."""
    folder = require_session(context, session)
    address = find_socket(folder)
    if address is None:
        raise not_open_error(session, read_status(context.settings, session))
    try:
        return ask(address, header, body, timeout_s=header.get("wait_s", 0.0) + MARGIN_S)
    except SessionLost as error:
        status = wait_for_end(context, session)
        raise not_open_error(session, status) if status.state in ENDS else error from None


def wait_for_end(context: Context, session: str) -> SessionStatus:
    """Return the status of a session whose process is ending, once its parent knows why, or after a while."""
    deadline = time.monotonic() + END_WAIT_S
    while (status := read_status(context.settings, session)).state not in ENDS and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return status


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


SAFETENSORS = "application/x-safetensors"
State = Literal["pending", "running", "done"]


class Operated(Response):
    """An operation of a session; a future while `state` is not `done`."""

    session: str
    op_seq: int
    verb: str
    state: State


class OutputReference(Response):
    """Logits (B, T, V) or hidden states (layers, B, T, D) of a forward, as `sessions output` gives them."""

    name: str
    shape: tuple[int, ...]
    sha256: str


class ForwardReply(Operated):
    forward_id: str | None = None
    """For `backward`; empty for a batch without labels."""
    loss: float | None = None
    """None without labels, and for a number that JSON does not have."""
    units: int | None = None
    """Unit over which the loss is a mean: labelled tokens, pairs or rows."""
    metrics: dict[str, float | None] = Field(default_factory=dict)
    """Sums over the units."""
    outputs: tuple[OutputReference, ...] = ()


class BackwardReply(Operated):
    accumulated: int | None = None
    """Backwards since the last step."""
    grad_norm: float | None = None
    overflow: bool | None = None


class StepReply(Operated):
    skipped: bool | None = None
    global_step: int | None = None
    learning_rate: float | None = None
    grad_norm: float | None = None
    """Before the clip."""


class SessionCompletion(Response):
    """A completion of a prompt."""

    prompt: int
    """Index of its prompt."""
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...]
    """Of each token, under the distribution that it was drawn from."""
    logprobs_at_one: tuple[float, ...]
    """At temperature 1 without top-p."""
    stop_reason: Literal["end", "length"]


class GenerateReply(Operated):
    completions: tuple[SessionCompletion, ...] = ()


class LogprobsReply(Operated):
    ids: tuple[tuple[int, ...], ...] = ()
    logprobs: tuple[tuple[float | None, ...], ...] = ()
    """Of each token given those before it; None for the first of a row."""


class SaveReply(Operated):
    name: str | None = None
    kind: str | None = None
    sha256: str | None = None
    path: str | None = None
    """Folder of a result, on the machine of the session."""


class LoadReply(Operated):
    name: str | None = None
    sha256: str | None = None


class ResultReply(Operated):
    result: JsonObject | None = None
    """Fields of the verb's reply next to these; None while it is not done."""


def forward(request: requests.ForwardInput, context: Context) -> ForwardReply:
    body = request.tensors or b""
    rows = [build_row(row) for row in request.rows]
    fields = {"rows": rows, "batch": request.batch, "normalizer": request.normalizer, "outputs": list(request.outputs)}
    return ForwardReply(**operate("forward", fields, request, context, body))


def backward(request: requests.BackwardInput, context: Context) -> BackwardReply:
    fields = request.model_dump(include={"forward_id", "scale", "measure"})
    return BackwardReply(**operate("backward", fields, request, context))


def step(request: requests.StepInput, context: Context) -> StepReply:
    fields = request.model_dump(include={"max_grad_norm", "learning_rate", "metric"})
    return StepReply(**operate("step", fields, request, context))


def zero_grad(request: requests.ZeroGradInput, context: Context) -> Operated:
    return Operated(**operate("zero_grad", {}, request, context))


def generate(request: requests.GenerateInput, context: Context) -> GenerateReply:
    """Complete prompts with the weights as they are. A text is a user's question."""
    sampling = request.model_dump(include={"max_new_tokens", "temperature", "top_p", "seed"})
    sampling |= {"stop_ids": list(request.stop_ids)} if request.stop_ids else {}
    prompts = [build_prompt(prompt, bare="question") for prompt in request.prompts]
    fields = {"prompts": prompts, "samples": request.samples, "sampling": sampling}
    return GenerateReply(**operate("generate", fields, request, context))


def logprobs(request: requests.LogprobsInput, context: Context) -> LogprobsReply:
    """Log-probabilities of tokens that are there. A text is taken as it is."""
    fields = {"rows": [build_prompt(row, bare="text") for row in request.rows]}
    return LogprobsReply(**operate("logprobs", fields, request, context))


def save(request: requests.SaveInput, context: Context) -> SaveReply:
    return SaveReply(**operate("save", request.model_dump(include={"name", "kind"}), request, context))


def load(request: requests.LoadInput, context: Context) -> LoadReply:
    return LoadReply(**operate("load", request.model_dump(include={"name", "optimizer"}), request, context))


def show_result(request: requests.ResultInput, context: Context) -> ResultReply:
    """Return the reply of an operation, once it is done. Raises its error if it has failed."""
    result = ask_result(context, request.session, request.op_seq, wait=request.wait)
    return ResultReply(session=request.session, **result)


def read_output(request: requests.OutputInput, context: Context) -> Blob:
    """Return the safetensors file of an output. Raises `NotFound` (`E-NOT-FOUND`) for one that is not kept any more."""
    path = require_session(context, request.session) / "outputs" / f"{request.name}.safetensors"
    if not path.is_file():
        raise NotFound(
            f"The session {request.session} has no output {request.name!r}.", why="Its newest 64 are kept.",
            do="Call forward with outputs again.", code="E-NOT-FOUND",
        )  # fmt: skip
    return Blob(path=path, name=path.name, media_type=SAFETENSORS, sha256=file_sha256(path))


def operate(
    verb: str, fields: JsonObject, request: requests.VerbInput, context: Context, body: bytes = b""
) -> JsonObject:
    """Carry out a verb; the fields of its reply."""
    reply = call_verb(context, request.session, verb, fields, op_seq=request.op_seq, wait=request.wait, body=body)
    result = reply.pop("result") or {}
    return {"session": request.session, **reply, **result}


def build_row(row: requests.Row) -> JsonObject:
    """Return a row of data; a text is JSON if it begins like an object, else a document."""
    if not isinstance(row, str):
        return row
    return read_json(row) if row.lstrip().startswith("{") else {"text": row}


def build_prompt(prompt: requests.Prompt, *, bare: Literal["question", "text"]) -> dict[str, object]:
    """Return a prompt by one of the words that a session knows: tokens, text or messages. `bare` is what a text alone
    is.
    """
    if isinstance(prompt, str) and prompt.lstrip().startswith("{"):
        prompt = read_json(prompt)
    if isinstance(prompt, str):
        return {"text": prompt} if bare == "text" else {"messages": [{"role": "user", "content": prompt}]}
    if isinstance(prompt, list):
        return {"tokens": prompt}
    if len({"tokens", "text", "messages"} & prompt.keys()) != 1:
        raise InvalidInput(
            f"A prompt has the keys {', '.join(prompt) or 'none'}.", do="Give it one of messages, text and tokens.",
            code="E-PARAMETER",
        )  # fmt: skip
    return prompt


def read_json(text: str) -> JsonObject:
    """Return an object that a shell gives as a text."""
    try:
        value: dict[str, object] = json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"{text[:60]!r} is not valid JSON: {error}.", code="E-PARAMETER") from error
    return value
