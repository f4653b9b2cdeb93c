"""Talk to an adapter and its base side by side: each question goes to both, each with its own conversation.

The embedded server answers if it is running and has the base; the adapter is loaded there if it is not, and stays.
Otherwise a model server of this command's own answers, which ends with it. `ask` is for callers without a terminal:
nothing is kept between two calls, so the caller sends the conversation so far.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import httpx
from pydantic import Field

from trainyard.app.adapters.trained import find_served
from trainyard.app.context import Context
from trainyard.app.responses import Response
from trainyard.callbacks import ignore
from trainyard.cancellation import CALLER_HOOKS, require_caller
from trainyard.compute.services import HOST, SupervisedService, free_port
from trainyard.errors import InvalidInput, NotFound, TrainyardError, Unavailable
from trainyard.inherited import child_environment
from trainyard.json_types import JsonObject
from trainyard.operations.adapters import AskInput
from trainyard.operations.serving import ChatInput
from trainyard.serve import embedded
from trainyard.serve.base_sources import NamedAdapter, check_origin, find_base, read_origin, require_room
from trainyard.serve.targets.calling import server_message
from trainyard.serve.targets.vllm import LOAD_PATH, load_request
from trainyard.settings import Settings
from trainyard.stores.models import ModelSource, read_json

ANSWER_S = 1800.0
"""For one answer: thousands of tokens of a large model on a CPU."""
ASK_S = 60.0
"""Timeout of requests that run no model, and of loading an adapter."""
GRACE_S = 5.0
RESET, QUIT = "/reset", "/quit"
"""Instead of a question: forget the conversation, end it."""


class ChatTurn(Response):
    """A question and both answers; an answer is None if the server refused it."""

    question: str
    base: str | None = Field(description="The base's answer.")
    adapter: str | None = Field(description="The adapter's answer.")
    error: str | None = None
    """Why it was refused: the conversation is longer than the model's context, say."""


class ChatOutput(Response):
    base: str
    adapter: str
    turns: tuple[ChatTurn, ...]
    streamed: bool = True
    """Each turn was handed over when it was there."""

    @property
    def exit_code(self) -> Literal[0, 1]:
        """1 if a question was refused."""
        return 1 if any(turn.error for turn in self.turns) else 0


@dataclass
class Conversation:
    """Conversation with one model."""

    client: httpx.Client
    model: str
    settings: ChatInput
    messages: list[dict[str, str]] = field(default_factory=list)

    def reset(self) -> None:
        self.messages = [{"role": "system", "content": self.settings.system}] if self.settings.system else []

    def ask(self, question: str, on_text: Callable[[str], None] = ignore) -> str:
        """Return the answer; `on_text` gets as much of it as there is, again and again, while it is written.

        Raises `TrainyardError` (`E-SERVER-REFUSED`) when the server refuses the question, or fails while it answers.
        """
        messages = [*self.messages, {"role": "user", "content": question}]
        options = {
            "max_tokens": self.settings.max_tokens,
            "temperature": self.settings.temperature,
            "seed": self.settings.seed,
        }
        body = {"model": self.model, "messages": messages, "stream": True, **options}
        text = ""
        with self.client.stream("POST", "/v1/chat/completions", json=body, timeout=ANSWER_S) as answer:
            if not answer.is_success:
                answer.read()
                raise refused_question_error(server_message(answer))
            for line in answer.iter_lines():
                require_caller()
                if (chunk := parse_chunk(line)) is None:
                    continue
                if "error" in chunk:
                    raise refused_question_error(str(chunk["error"].get("message", chunk["error"])))
                text += "".join(str(choice["delta"].get("content") or "") for choice in chunk["choices"])
                on_text(text)
        self.messages = [*messages, {"role": "assistant", "content": text}]
        return text


def parse_chunk(line: str) -> JsonObject | None:
    """Return the object of a line of server-sent events; None for any other line, and for the last one."""
    data = line.removeprefix("data:").strip()
    if not line.startswith("data:") or data == "[DONE]":
        return None
    chunk: dict[str, object] = json.loads(data)
    return chunk


def refused_question_error(why: str) -> TrainyardError:
    return TrainyardError(
        f"The model server refused the question: {why}",
        do=f"Ask something shorter, or start again with {RESET}.",
        code="E-SERVER-REFUSED",
    )


def chat(request: ChatInput, context: Context) -> ChatOutput:
    """Answer each question twice. Raises what `find_served` and `serving` raise."""
    adapter = find_served(request.adapter, context)
    questions = read_questions(request, context)
    try:
        with serving(adapter, context) as (url, base), model_client(url) as client:
            both = [Conversation(client, name, request) for name in (base, adapter.name)]
            turns = tuple(converse(both, questions, context))
    except httpx.HTTPError as error:
        raise unreachable_error(error) from error
    return ChatOutput(base=base, adapter=adapter.name, turns=turns)


def unreachable_error(error: httpx.HTTPError) -> Unavailable:
    return Unavailable(
        "The model server does not answer any more.",
        why=f"{type(error).__name__}: {error}",
        do="Start the command again.",
        code="E-SERVER-UNREACHABLE",
    )


def read_questions(request: ChatInput, context: Context) -> Iterator[str]:
    """Return the questions of the request, else those of the user. Raises `InvalidInput` (`E-PARAMETER`) without
    any.
    """
    if request.questions:
        return iter(request.questions)
    if context.next_input is None:
        raise InvalidInput("There are no questions.", do="Give `questions`.", code="E-PARAMETER")
    return iter(context.next_input, None)


def converse(both: list[Conversation], questions: Iterator[str], context: Context) -> Iterator[ChatTurn]:
    """Ask both models until the questions end or /quit; /reset forgets both conversations."""
    for conversation in both:
        conversation.reset()
    for question in map(str.strip, questions):
        if question == QUIT:
            return
        if question == RESET:
            for conversation in both:
                conversation.reset()
            context.say("both conversations begin again")
        elif question:
            turn = ask_both(both, question, context)
            context.on_part(turn)
            yield turn


def ask_both(both: list[Conversation], question: str, context: Context) -> ChatTurn:
    """Return both answers, one after the other. What there is of them is reported as events `answer`, then
    `answered`.
    """
    before = [conversation.messages for conversation in both]

    def report(node: str) -> Callable[[str], None]:
        return lambda text: context.on_progress({"event": "answer", "node": node, "text": text})

    try:
        base, adapter = (
            conversation.ask(question, report(node))
            for conversation, node in zip(both, ("base", "adapter"), strict=True)
        )
    except TrainyardError as error:
        for conversation, messages in zip(both, before, strict=True):
            conversation.messages = messages
        return ChatTurn(question=question, base=None, adapter=None, error=f"{error.what} {error.do}")
    finally:
        context.on_progress({"event": "answered", "node": "adapter", "text": ""})
    return ChatTurn(question=question, base=base, adapter=adapter)


@contextmanager
def serving(adapter: NamedAdapter, context: Context) -> Iterator[tuple[str, str]]:
    """Yield (address, name of the base) of a server that has the adapter and its base."""
    url = embedded.find_running(context.settings)
    base = load_adapter(url, adapter) if url is not None else None
    if url is not None and base is not None:
        yield url, base
        return
    source = find_adapter_base(adapter, context.settings)
    with run_own_server(source, adapter, context) as server_url:
        yield server_url, source.name


def model_client(url: str) -> httpx.Client:
    """Return a client of a model server; the answer that it waits for ends with the caller who asked."""
    return httpx.Client(base_url=url, trust_env=False, timeout=ASK_S, event_hooks=CALLER_HOOKS)


def load_adapter(url: str, adapter: NamedAdapter) -> str | None:
    """Load the adapter into a running server, unless it is there; returns its base, None if that is not served."""
    name, sha256 = adapter.name, read_origin(adapter.folder).get("base_sha256")
    with model_client(url) as client:
        cards: dict[str, dict[str, object]] = {card["id"]: card for card in client.get("/v1/models").json()["data"]}
        if name in cards:
            return str(cards[name]["parent"])
        base = next((card["id"] for card in cards.values() if sha256 and card.get("sha256") == sha256), None)
        if base is None:
            return None
        loaded = client.post(LOAD_PATH, json=load_request(name, adapter.folder))
        if not loaded.is_success:
            raise TrainyardError(
                f"The model server at {url} did not load {name}.",
                why=server_message(loaded),
                do="Correct what it names.",
                code="E-SERVER-REFUSED",
            )
        return str(base)


def find_adapter_base(adapter: NamedAdapter, settings: Settings) -> ModelSource:
    """Return the base that the adapter was trained on, as it is on this machine.

    Raises `NotFound` (`E-MODEL-NOT-FOUND`), and `InvalidInput` (`E-ADAPTER-MISMATCH`) if it is another one by now.
    """
    origin = read_origin(adapter.folder)
    config = read_json(adapter.folder / "adapter_config.json", "E-ADAPTER-INVALID")
    candidates = (origin.get("base_model"), origin.get("base_path"), config.get("base_model_name_or_path"))
    names = [str(name) for name in dict.fromkeys(candidates) if name]
    failure: TrainyardError | None = None
    for name in names:
        try:
            source = find_base(name, settings, download=False)
            check_origin(adapter.folder, source)
            return source
        except (NotFound, InvalidInput) as error:
            failure = failure or error
    raise failure or NotFound(
        f"The files of {adapter.name} name no base model.",
        do="Start `trainyard serve --role model` with its base, and ask there.",
        code="E-MODEL-NOT-FOUND",
    )


@contextmanager
def run_own_server(base: ModelSource, adapter: NamedAdapter, context: Context) -> Iterator[str]:
    """Yield the address of a model server that ends with the block, and with this process."""
    settings = context.settings
    require_room([base], "float32", settings)
    folder, port = settings.services / f"chat-{os.getpid()}", free_port()
    folder.mkdir(parents=True, exist_ok=True)
    names = {adapter.name: adapter.folder}
    argv = embedded.server_command([base.name], names, port=port, threads=settings.threads)
    server, url = SupervisedService(folder, GRACE_S), f"http://{HOST}:{port}"
    context.say(f"starting a model server with {base.name} for this conversation")
    server.start(argv, child_environment({"OMP_WAIT_POLICY": "passive"}), port)
    try:
        server.await_ready("The model server", url, embedded.START_S, "")
    except BaseException:
        server.end()  # its folder stays, with the log
        raise
    try:
        yield url
    finally:
        server.end()
        shutil.rmtree(folder)


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


def ask(request: AskInput, context: Context) -> AskedAnswer:
    """Ask both. Raises what `find_served` and `serving` raise, and `Unavailable` (`E-SERVER-UNREACHABLE`)."""
    adapter = find_served(request.adapter, context)
    options = request.model_dump(include={"adapter", "system", "max_tokens", "temperature", "seed"})
    try:
        with serving(adapter, context) as (url, base), model_client(url) as client:
            both = [Conversation(client, name, ChatInput(**options)) for name in (base, adapter.name)]
            for conversation, side in zip(both, ("base", "adapter"), strict=True):
                conversation.reset()
                for turn in request.turns:
                    conversation.messages.append({"role": "user", "content": turn.question})
                    conversation.messages.append({"role": "assistant", "content": getattr(turn, side)})
            turn_asked = ask_both(both, request.question, context)
    except httpx.HTTPError as error:
        raise unreachable_error(error) from error
    return AskedAnswer(**turn_asked.model_dump(), base_model=base, adapter_version=adapter.name)
