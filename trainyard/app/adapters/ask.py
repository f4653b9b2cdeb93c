"""Ask an adapter version and its base the same question: `trainyard chat` for callers without a terminal.

Nothing is kept between two calls: the caller sends the conversation so far, and each model gets its own part of it.
"""

from __future__ import annotations

import httpx

from trainyard.app.adapters.trained import find_served
from trainyard.app.chat import Conversation, ask_both, model_client, serving, unreachable
from trainyard.app.context import Context
from trainyard.app.responses import Response
from trainyard.operations.adapters import AskInput
from trainyard.operations.serving import ChatInput


class AskedAnswer(Response):
    """Both answers to one question."""

    question: str
    base: str | None
    """The base's answer; None if the server refused the question."""
    adapter: str | None
    error: str | None = None
    """Why it was refused: the conversation is longer than the model's context, say."""
    base_model: str
    adapter_version: str


def ask(given: AskInput, context: Context) -> AskedAnswer:
    """Ask both. Raises what `find_served` and `serving` raise, and `Unavailable` (`E-SERVER-UNREACHABLE`)."""
    adapter = find_served(given.adapter, context)
    options = given.model_dump(include={"adapter", "system", "max_tokens", "temperature", "seed"})
    try:
        with serving(adapter, context) as (url, base), model_client(url) as client:
            both = [Conversation(client, name, ChatInput(**options)) for name in (base, adapter.name)]
            for one, side in zip(both, ("base", "adapter"), strict=True):
                one.reset()
                for turn in given.turns:
                    one.messages.append({"role": "user", "content": turn.question})
                    one.messages.append({"role": "assistant", "content": getattr(turn, side)})
            turn_asked = ask_both(both, given.question, context)
    except httpx.HTTPError as error:
        raise unreachable(error) from error
    return AskedAnswer(**turn_asked.model_dump(), base_model=base, adapter_version=adapter.name)
