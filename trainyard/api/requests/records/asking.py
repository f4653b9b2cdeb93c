"""Request to ask an adapter version and its base the same."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trainyard.api.requests.base import Request
from trainyard.api.requests.fields import Argument, Option

LONGEST_TEXT = 100_000
Text = Annotated[str, Field(max_length=LONGEST_TEXT)]


class EarlierTurn(Request):
    """A question with both answers, as an earlier call gave them."""

    question: Text
    base: Text
    adapter: Text


class AskInput(Request):
    adapter: Annotated[str, Argument("ADAPTER", completes="adapter")] = Field(
        min_length=1, max_length=200, description="ROLE, TENANT/ROLE, a version of it, or an ended job."
    )
    question: Annotated[Text, Argument("QUESTION")] = Field(min_length=1, description="What both are asked.")
    turns: Annotated[tuple[EarlierTurn, ...], Option("--turn", local=False)] = Field(
        (), max_length=100, description="The conversation so far; each answers with its own part of it."
    )
    system: Text = Field("", description="System message of both conversations.")
    max_tokens: int = Field(256, ge=1, le=4096, description="Most tokens of an answer.")
    temperature: float = Field(0.0, ge=0, le=2, description="0 takes the likeliest token.")
    seed: int = Field(0, ge=0, le=2**53, description="Of the random numbers, where temperature is not 0.")
