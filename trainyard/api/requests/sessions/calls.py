"""Requests of the eight verbs. Each is an operation of the session, numbered by `op_seq`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Base64Bytes, Field

from trainyard.api.requests.fields import Option
from trainyard.api.requests.sessions.life import SessionInput

SEQ = "Number of this operation, 1 for the first; the same call with the same number is carried out once."
WAIT = "Wait for the result; without, the reply is a future with its op_seq."
ROW = "A row of the stage's data: messages, a pair of answers, a text."
PROMPT = "A user's question, its messages, {text} as it is, or tokens."
MOST_ROWS = 4096

Row = str | dict[str, Any]
"""A row as it is in a data set; a text is JSON, or a document."""
Prompt = str | list[int] | dict[str, Any]


class VerbInput(SessionInput):
    op_seq: int | None = Field(None, ge=1, le=2**53, description=SEQ)
    wait: Annotated[bool, Option("--wait/--no-wait")] = Field(True, description=WAIT)


class ForwardInput(VerbInput):
    rows: Annotated[tuple[Row, ...], Option("--row")] = Field((), max_length=MOST_ROWS, description=ROW)
    batch: dict[str, Any] = Field({}, description="input_ids, labels, attention_mask …, as lists of numbers.")
    tensors: Base64Bytes | None = Field(None, description="The batch as a safetensors file.")
    normalizer: float | None = Field(None, gt=0, description="What the sum is divided by; default: the batch's units.")
    outputs: tuple[Literal["logits", "hidden_states"], ...] = Field((), max_length=2, description="What to keep.")


class BackwardInput(VerbInput):
    forward_id: str = Field(max_length=64, description="Of the forward whose graph is used.")
    scale: float = Field(1.0, allow_inf_nan=False, description="Factor of the loss, such as an advantage.")
    measure: bool = Field(True, description="Compute the norm of the gradients.")


class StepInput(VerbInput):
    max_grad_norm: float | None = Field(None, gt=0, description="Instead of the session's own.")
    learning_rate: float | None = Field(None, ge=0, le=1, description="Instead of the schedule's, for this step.")
    metric: float | None = Field(None, allow_inf_nan=False, description="For a schedule that waits for a plateau.")


class ZeroGradInput(VerbInput):
    """Nothing but the session."""


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
    optimizer: bool = Field(True, description="The whole state; without, the weights alone.")


class ResultInput(SessionInput):
    op_seq: int = Field(ge=1, le=2**53, description="Of the operation.")
    wait: Annotated[bool, Option("--wait/--no-wait")] = Field(False, description="Wait until it is done.")


class OutputInput(SessionInput):
    name: str = Field(
        pattern=r"^forward-[0-9]{1,15}-(logits|hidden_states)$", description="As a reply of forward names it."
    )
