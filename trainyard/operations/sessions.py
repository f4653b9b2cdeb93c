"""Step sessions: their life and the eight verbs. Requests, texts and rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Base64Bytes, Field

from trainyard.json_types import JsonObject
from trainyard.operations.base import Parameters, Request
from trainyard.operations.chains import PARAMETERS
from trainyard.operations.fields import Argument, Option
from trainyard.operations.table import Operation, Scope
from trainyard.operations.tables import format_table

if TYPE_CHECKING:
    from trainyard.app.responses import Blob
    from trainyard.app.sessions.calls import GenerateReply
    from trainyard.app.sessions.life import SessionInfo, SessionList

SEQ = "Number of this operation, 1 for the first; the same call with the same number is carried out once."
WAIT_RESULT = "Wait for the result; without, the reply is a future with its op_seq."
ROW = "A row of the stage's data: messages, a pair of answers, a text."
PROMPT = "A user's question, its messages, {text} as it is, or tokens."
MOST_ROWS = 4096

Row = str | dict[str, Any]
"""A row as it is in a data set; a text is JSON, or a document."""
Prompt = str | list[int] | dict[str, Any]


class SessionInput(Request):
    session: Annotated[str, Argument("SESSION", completes="session")] = Field(
        pattern=r"^session-[0-9a-f]{12}$", description="Id of a session."
    )


class VerbInput(SessionInput):
    op_seq: int | None = Field(None, ge=1, le=2**53, description=SEQ)
    wait: Annotated[bool, Option("--wait/--no-wait")] = Field(True, description=WAIT_RESULT)


class ForwardInput(VerbInput):
    rows: Annotated[tuple[Row, ...], Option("--row")] = Field((), max_length=MOST_ROWS, description=ROW)
    batch: JsonObject = Field({}, description="input_ids, labels, attention_mask …, as lists of numbers.")
    tensors: Base64Bytes | None = Field(None, description="The batch as a safetensors file.")
    normalizer: float | None = Field(None, gt=0, description="Divisor of the sum; default: the batch's units.")
    outputs: tuple[Literal["logits", "hidden_states"], ...] = Field((), max_length=2, description="What to keep.")


class BackwardInput(VerbInput):
    forward_id: str = Field(max_length=64, description="Of the forward whose graph is used.")
    scale: float = Field(1.0, allow_inf_nan=False, description="Factor of the loss, such as an advantage.")
    measure: Annotated[bool, Option("--measure/--no-measure")] = Field(
        True, description="Compute the norm of the gradients."
    )


class StepInput(VerbInput):
    max_grad_norm: float | None = Field(None, gt=0, description="Instead of the session's own.")
    learning_rate: float | None = Field(None, ge=0, le=1, description="Instead of the schedule's, for this step.")
    metric: float | None = Field(None, allow_inf_nan=False, description="For a schedule that waits for a plateau.")


class ZeroGradInput(VerbInput):
    """Request with the session alone."""


class GenerateInput(VerbInput):
    prompts: Annotated[tuple[Prompt, ...], Option("--prompt")] = Field(
        min_length=1, max_length=MOST_ROWS, description=PROMPT
    )
    samples: int = Field(1, ge=1, le=64, description="Completions of each prompt.")
    max_new_tokens: int = Field(64, ge=1, le=32_768, description="Most tokens of one.")
    temperature: float = Field(1.0, ge=0, le=100, description="0 takes the likeliest token.")
    top_p: float = Field(1.0, gt=0, le=1, description="Mass of the tokens that are drawn from.")
    seed: int = Field(0, ge=0, le=2**63 - 1, description="Of this call alone; training draws from other numbers.")
    stop_ids: tuple[int, ...] = Field((), max_length=64, description="Tokens that end one; default: the model's own.")


class LogprobsInput(VerbInput):
    rows: Annotated[tuple[Prompt, ...], Option("--row")] = Field(
        min_length=1, max_length=MOST_ROWS, description="A text, messages, or tokens."
    )


class SaveInput(VerbInput):
    name: str = Field(min_length=1, max_length=128, description="Of the saved state; none is overwritten.")
    kind: Literal["full", "weights", "result"] = Field(
        "full", description="The whole state, the trained weights, or the adapter or model for other programs."
    )


class LoadInput(VerbInput):
    name: str = Field(min_length=1, max_length=128, description="Of a saved state.")
    optimizer: Annotated[bool, Option("--optimizer/--no-optimizer")] = Field(
        True, description="The whole state; without, the weights alone."
    )


class ResultInput(SessionInput):
    op_seq: int = Field(ge=1, le=2**53, description="Of the operation.")
    wait: Annotated[bool, Option("--wait/--no-wait")] = Field(False, description="Wait until it is done.")


class OutputInput(SessionInput):
    name: str = Field(
        pattern=r"^forward-[0-9]{1,15}-(logits|hidden_states)$", description="As a reply of forward names it."
    )


WAIT = "Wait until it takes calls; in a request over a network, look at its state instead."


class CreateSessionInput(Request):
    file: Annotated[Path | None, Argument("FILE", local=True)] = Field(
        None, description="A session: the settings of a trainer without a data set."
    )
    parameters: Parameters = Field({}, description=PARAMETERS)
    wait: Annotated[bool, Option("--wait/--no-wait", local=True)] = Field(False, description=WAIT)


class SessionsInput(Request):
    limit: int = Field(50, ge=1, le=1000, description="Maximum number of results.")


class ResumeSessionInput(SessionInput):
    wait: Annotated[bool, Option("--wait/--no-wait", local=True)] = Field(False, description=WAIT)


FACTS = ("session", "op_seq", "verb", "state")
MOST_CHARS = 60


def sessions_text(result: SessionList) -> str:
    rows = [
        [
            session.id,
            session.name,
            session.state.value,
            str(session.stage.value),
            str(session.processes),
            number(session.global_step),
            number(session.op_seq),
            session.detail[:MOST_CHARS],
        ]
        for session in result.sessions
    ]
    return (
        format_table(rows, ("id", "name", "state", "stage", "processes", "step", "op", "detail"))
        if rows
        else "no sessions yet"
    )


def session_text(result: SessionInfo) -> str:
    """Return one session in a few lines, with what can be done next."""
    detail = f" ({result.detail})" if result.detail else ""
    shared = f", {result.processes} processes" if result.processes > 1 else ""
    lines = [
        f"{result.name} ({result.id}): {result.state.value}{detail}",
        f"stage {result.stage.value}, method {result.method.value}, base {result.base_model}{shared}",
    ]
    if result.op_seq is not None:
        saved = number(result.saved_op_seq)
        lines.append(f"step {number(result.global_step)}, operation {result.op_seq}, saved up to {saved}")
    if result.state.value in ("ended", "failed", "lost"):
        lines.append(f"Continue it by `trainyard sessions resume {result.id}`.")
    return "\n".join(lines)


def number(value: int | None) -> str:
    return "-" if value is None else str(value)


def reply_text(result: Any) -> str:
    """Return an operation in one line, then each of its fields that has a value."""
    lines = [f"{result.verb} {result.op_seq}: {result.state}"]
    for name, value in result.model_dump(mode="json").items():
        if name not in FACTS and value not in (None, {}, []):
            lines.append(f"  {name}: {value}")
    return "\n".join(lines)


def completions_text(result: GenerateReply) -> str:
    """Return the completions, one after another."""
    if not result.completions:
        return reply_text(result)
    return "\n".join(f"[{completion.prompt}] {completion.text}" for completion in result.completions)


def output_text(result: Blob) -> str:
    return str(result.path)


READ, RUN, ADMIN = Scope


def call_row(summary: str, verb: str, request: type[Request], text: Callable[..., str] = reply_text) -> Operation:
    """Return the row of a call of an open session; its reply is kept for a caller that repeats it."""
    return Operation(
        summary, request=request, run=f"app.sessions.calls:{verb}", text=text, scope=RUN,
        route=f"POST /api/v1/sessions/{{session}}/{verb}", keeps_replies=True, tenants=True,
    )  # fmt: skip


ROWS: dict[str, Operation] = {
    "sessions create": Operation(
        "Open a step session: a model on a device that is driven call by call, without a data set.",
        request=CreateSessionInput, run="app.sessions.life:create_session", text=session_text, scope=RUN,
        example="trainyard sessions create -p base_model=starter --wait",
        route="POST /api/v1/sessions", status=202, tenants=True, body="parameters",
        body_schema="spec.job:SessionSpec",
    ),
    "sessions list": Operation(
        "The newest sessions, their states and how far they are.",
        request=SessionsInput, run="app.sessions.life:list_sessions", text=sessions_text, scope=READ,
        route="GET /api/v1/sessions", tenants=True,
    ),
    "sessions show": Operation(
        "One session: state, step, the number of its next operation, and its saved states.",
        request=SessionInput, run="app.sessions.life:show_session", text=session_text, scope=READ,
        route="GET /api/v1/sessions/{session}", tenants=True,
    ),
    "sessions heartbeat": Operation(
        "Keep an open session while its client computes: its idle time begins again.",
        request=SessionInput, run="app.sessions.life:touch_session", text=session_text, scope=RUN,
        route="POST /api/v1/sessions/{session}/heartbeat", tenants=True,
    ),
    "sessions close": Operation(
        "End a session with a checkpoint; its device is free then.",
        request=SessionInput, run="app.sessions.life:close_session", text=session_text, scope=RUN,
        route="POST /api/v1/sessions/{session}/close", tenants=True,
    ),
    "sessions resume": Operation(
        "Continue a session that has ended, failed or was killed, from its newest valid checkpoint.",
        request=ResumeSessionInput, run="app.sessions.life:resume_session", text=session_text, scope=RUN,
        route="POST /api/v1/sessions/{session}/resume", status=202, tenants=True,
    ),
    "sessions forward": call_row(
        "Score a batch of rows and keep its graph for one backward.",
        "forward", ForwardInput,
    ),
    "sessions backward": call_row(
        "Add the gradients of a forward, times a factor.",
        "backward", BackwardInput,
    ),
    "sessions step": call_row(
        "Clip the gradients, update the weights and the schedule.",
        "step", StepInput,
    ),
    "sessions zero-grad": call_row(
        "Clear the gradients, and drop a graph that waits.",
        "zero_grad", ZeroGradInput,
    ),
    "sessions generate": call_row(
        "Complete prompts with the weights as they are: text, tokens, and the log-probability of each.",
        "generate", GenerateInput, text=completions_text,
    ),
    "sessions logprobs": call_row(
        "The log-probability of each token of a text, of messages or of tokens.",
        "logprobs", LogprobsInput,
    ),
    "sessions save": call_row(
        "Save the session's state, its weights, or the adapter or model for other programs, by a name.",
        "save", SaveInput,
    ),
    "sessions load": call_row(
        "Take a saved state back, or its weights alone.",
        "load", LoadInput,
    ),
    "sessions result": Operation(
        "The reply of an operation that was not waited for.",
        request=ResultInput, run="app.sessions.calls:show_result", text=reply_text, scope=READ,
        route="GET /api/v1/sessions/{session}/results/{op_seq}", tenants=True,
    ),
    "sessions output": Operation(
        "Logits or hidden states that a forward has kept, as a safetensors file.",
        request=OutputInput, run="app.sessions.calls:read_output", text=output_text, scope=READ,
        route="GET /api/v1/sessions/{session}/outputs/{name}", tenants=True,
    ),
}  # fmt: skip
"""Name -> row, in the order of the help."""
