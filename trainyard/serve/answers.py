"""From a request to an answer: prompt, generation in the worker, then the JSON or the event stream of OpenAI's API."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from jinja2.exceptions import TemplateError
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from trainyard.data.renderers.rendering import Renderer
from trainyard.errors import LimitExceeded, TrainyardError
from trainyard.json_types import JsonObject
from trainyard.serve import protocol
from trainyard.serve.calls import AnsweredTurn, ThoughtReader, TurnReader
from trainyard.serve.inference import Generation, ModelRunner, Step, TokenLogprob, Worker
from trainyard.serve.prompt_fields import find_hidden_field
from trainyard.serve.protocol import MAX_PROMPTS, ApiError, ChatRequest, CompletionRequest, SamplingRequest, sse
from trainyard.serve.served import ServedBase, ServedModels

DEFAULT_MAX_TOKENS = 512
DISCONNECT_POLL_S = 0.2
MAX_REQUEST_TOKENS = 65_536
"""Tokens of all prompts and answers of one request: some minutes of a CPU."""
MAX_REQUEST_LOGPROBS = 1 << 20
"""Log probabilities in one answer: about 50 MB of JSON."""
CLIENT_CLOSED_REQUEST = 499
"""The status that proxies log for a client that hung up."""
LOWEST_LOGPROB = -9999.0
"""JSON has no minus infinity; vLLM writes the same number."""


class ServerMetrics:
    """Metrics behind `/metrics`, in a registry of their own."""

    def __init__(self, served: ServedModels) -> None:
        workers = {base.worker for base in served.bases.values()}
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "trainyard_server_requests", "Answered requests.", ["path", "status"], registry=self.registry
        )
        self.prompt_tokens = Counter("trainyard_server_prompt_tokens", "Prompt tokens read.", registry=self.registry)
        self.generated = Counter("trainyard_server_generated_tokens", "Tokens generated.", registry=self.registry)
        self.cancelled = Counter("trainyard_server_cancelled", "Requests whose client left.", registry=self.registry)
        self.seconds = Histogram(
            "trainyard_server_generation_seconds", "Seconds from the first to the last token.", registry=self.registry
        )
        waiting = Gauge("trainyard_server_waiting", "Requests that wait.", registry=self.registry)
        waiting.set_function(lambda: sum(worker.waiting.qsize() for worker in workers))
        running = Gauge("trainyard_server_running", "Requests being computed.", registry=self.registry)
        running.set_function(lambda: sum(worker.busy for worker in workers))
        adapters = Gauge("trainyard_server_adapters", "Adapters loaded.", registry=self.registry)
        adapters.set_function(lambda: len(served.adapters))


class Ticket:
    """A request's generations, as an asynchronous sequence of what the worker sends."""

    def __init__(self, worker: Worker, work: Callable[[Ticket], None]) -> None:
        self.loop, self.events = asyncio.get_running_loop(), asyncio.Queue[Any]()
        self.cancelled = threading.Event()
        try:
            future = worker.submit(lambda: None if self.cancelled.is_set() else work(self))
        except LimitExceeded as error:
            raise ApiError(503, str(error), "ServiceUnavailableError") from error
        future.add_done_callback(lambda done: self.send(done.exception()))

    def send(self, event: Any) -> None:
        """Called in the worker thread. None ends the sequence, an exception is raised where it is read."""
        with contextlib.suppress(RuntimeError):  # the server's loop has ended: nobody waits any more
            self.loop.call_soon_threadsafe(self.events.put_nowait, event)

    async def __aiter__(self) -> AsyncIterator[Any]:
        try:
            while (event := await self.events.get()) is not None:
                if isinstance(event, TrainyardError):
                    raise protocol.from_trainyard(event) from event
                if isinstance(event, BaseException):
                    raise event
                yield event
        finally:
            self.cancelled.set()


class Answers:
    """The two completion endpoints: each request goes to the base that its `model` means."""

    def __init__(self, served: ServedModels, *, max_tokens: int) -> None:
        self.served, self.metrics = served, ServerMetrics(served)
        self.by_base = {
            name: BaseAnswers(base, served, self.metrics, max_tokens=max_tokens) for name, base in served.bases.items()
        }

    async def chat(self, request: Request, body: ChatRequest) -> Response:
        base, adapter = self.served.find(body.model)
        return await self.by_base[base.name].chat(request, body, adapter)

    async def completion(self, request: Request, body: CompletionRequest) -> Response:
        base, adapter = self.served.find(body.model)
        return await self.by_base[base.name].completion(request, body, adapter)


class BaseAnswers:
    """The answers of one base and its adapters, one after the other."""

    def __init__(self, base: ServedBase, served: ServedModels, metrics: ServerMetrics, *, max_tokens: int) -> None:
        self.engine, self.worker, self.served, self.max_tokens = base.engine, base.worker, served, max_tokens
        self.metrics = metrics

    async def chat(self, request: Request, body: ChatRequest, adapter: str | None) -> Response:
        if body.top_logprobs is not None and not body.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs to be true.", param="top_logprobs")
        options = self.options(body, adapter)
        options["top_logprobs"] = (body.top_logprobs or 0) if body.logprobs else None
        max_tokens = body.max_completion_tokens or body.max_tokens

        def work(ticket: Ticket) -> None:
            prompt = self.chat_prompt(body)
            budget = self.budget(len(prompt), max_tokens, min(DEFAULT_MAX_TOKENS, self.max_tokens), adapter)
            self.require_small(body, len(prompt) + budget)
            for seed in self.iterate_seeds(body, ticket):
                generation = Generation(prompt, budget, cancelled=ticket.cancelled, seed=seed, **options)
                self.generate(ticket, generation)

        ticket = Ticket(self.worker, work)
        reader = TurnReader(lambda: self.renderer, body.offered() is not None, not body.parallel_tool_calls)
        shape = ChatShape(body, self.engine, reader)
        return await (self.stream(request, ticket, shape) if body.stream else self.whole(request, ticket, shape))

    async def completion(self, request: Request, body: CompletionRequest, adapter: str | None) -> Response:
        prompts = body.prompts()
        whole = len(prompts) > 1 or body.echo or body.prompt_logprobs is not None
        if not prompts or (body.stream and whole):
            text = "prompt is empty, or a stream has more than one prompt, echo or prompt_logprobs."
            raise ApiError(400, text, param="prompt")
        if len(prompts) > MAX_PROMPTS:
            raise ApiError(400, f"prompt has {len(prompts):,} texts; one request takes {MAX_PROMPTS}.", param="prompt")
        options = self.options(body, adapter)
        options["top_logprobs"] = body.logprobs
        max_tokens = 16 if body.max_tokens is None else body.max_tokens
        scored = body.prompt_logprobs is not None or (body.echo and body.logprobs is not None)
        top = max(body.logprobs or 0, body.prompt_logprobs or 0)

        def work(ticket: Ticket) -> None:
            tokenised = [self.text_prompt(prompt) for prompt in prompts]
            budgets = [self.budget(len(ids), max_tokens, max_tokens, adapter) for ids in tokenised]
            self.require_small(body, sum(map(len, tokenised)) + sum(budgets))
            for ids, budget in zip(tokenised, budgets, strict=True):
                for seed in self.iterate_seeds(body, ticket):
                    generation = Generation(ids, budget, cancelled=ticket.cancelled, seed=seed, **options)
                    self.generate(ticket, generation, self.engine.score(generation, top) if scored else None)

        ticket = Ticket(self.worker, work)
        shape = CompletionShape(body, self.engine)
        return await (self.stream(request, ticket, shape) if body.stream else self.whole(request, ticket, shape))

    def require_small(self, body: SamplingRequest, tokens: int) -> None:
        """Refuse work for minutes. `tokens` are those of the prompts and budgets. Raises `ApiError` 400."""
        tokens *= body.n or 1
        logprobs = body.logprobs_per_token()
        if tokens > MAX_REQUEST_TOKENS or tokens * logprobs > MAX_REQUEST_LOGPROBS:
            raise ApiError(
                400,
                f"The request is for {tokens:,} tokens with {logprobs} log probabilities each; one request takes at "
                f"most {MAX_REQUEST_TOKENS:,} tokens and {MAX_REQUEST_LOGPROBS:,} log probabilities. Send fewer "
                "prompts.",
                param="prompt",
            )

    def iterate_seeds(self, body: SamplingRequest, ticket: Ticket) -> Iterator[int | None]:
        """Return the seed of each choice, until the client leaves."""
        return itertools.takewhile(lambda _: not ticket.cancelled.is_set(), body.seeds())

    def options(self, body: SamplingRequest, adapter: str | None) -> JsonObject:
        biases = body.logit_bias or {}
        if beyond := [token for token in biases if token >= self.engine.vocabulary]:
            text = f"logit_bias has the token {beyond[0]}; this model's are 0 to {self.engine.vocabulary - 1}."
            raise ApiError(400, text, param="logit_bias")
        return {
            "frequency_penalty": body.frequency_penalty,
            "presence_penalty": body.presence_penalty,
            "logit_bias": biases,
            "adapter": adapter,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "stops": body.stops(),
            "schema": body.response_format.schema_to_enforce() if body.response_format else None,
        }

    def generate(self, ticket: Ticket, generation: Generation, echoed: list[TokenLogprob | None] | None = None) -> None:
        """Runs in the worker: sends (generation, echoed logprobs), then each step.

        The first token is computed before anything is sent, so that what is refused there still gets its status.
        """
        if generation.adapter is not None and generation.adapter not in self.engine.adapters:
            raise protocol.not_found_error(generation.adapter, self.served.names())
        started, count = time.perf_counter(), 0
        steps = self.engine.generate(generation)
        first = list(itertools.islice(steps, 1))
        ticket.send((generation, echoed))
        for step in itertools.chain(first, steps):
            count += step.token >= 0
            ticket.send(step)
        self.metrics.prompt_tokens.inc(len(generation.prompt))
        self.metrics.generated.inc(count)
        self.metrics.seconds.observe(time.perf_counter() - started)
        if generation.finish_reason == "cancelled":
            self.metrics.cancelled.inc()

    def chat_prompt(self, body: ChatRequest) -> list[int]:
        """Ids of the prompt. Raises `ApiError` 400 where the template refuses the turns or hides a field of them."""
        if self.engine.tokenizer.chat_template is None:
            raise ApiError(400, "This model has no chat template; use /v1/completions.", param="messages")
        messages, tools = body.turns(), body.offered()
        try:
            text = self.renderer.text(messages, tools, ask=True)
            hidden = find_hidden_field(self.renderer, messages, tools, text)
            ids = self.renderer.ids(text)
        except (TemplateError, RecursionError) as error:
            raise ApiError(400, f"The chat template does not take these messages: {error}", param="messages") from error
        if hidden is not None:
            raise refuse_field(hidden)
        return ids

    @cached_property
    def renderer(self) -> Renderer:
        """Writes prompts as training does; control tokens in a message stay text."""
        return Renderer(self.engine.tokenizer)

    def text_prompt(self, prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, str):
            return list(self.engine.tokenizer(prompt)["input_ids"])
        if not all(0 <= token < self.engine.vocabulary for token in prompt):
            raise ApiError(400, f"prompt has a token outside 0 to {self.engine.vocabulary - 1}.", param="prompt")
        return prompt

    def budget(self, prompt_tokens: int, max_tokens: int | None, default: int, adapter: str | None = None) -> int:
        """Tokens that may be generated. Raises `ApiError` 400 when the prompt or the wish is too long."""
        if prompt_tokens == 0:
            raise ApiError(400, "The prompt has no tokens.", param="prompt")
        if max_tokens is not None and max_tokens > self.max_tokens:
            raise ApiError(
                400, f"max_tokens is {max_tokens}; this server allows {self.max_tokens}.", param="max_tokens"
            )
        context = self.engine.find_context(adapter)
        left = context - prompt_tokens
        if left < max(1 if max_tokens is None else 0, max_tokens or 0):
            raise ApiError(
                400,
                f"This model's maximum context length is {context} tokens. However, you requested "
                f"{prompt_tokens + (max_tokens or 1)} tokens ({prompt_tokens} in the prompt, {max_tokens or 1} in "
                "the completion). Please reduce the length of the prompt or of the completion.",
                param="max_tokens",
            )
        return min(default, left) if max_tokens is None else max_tokens

    async def whole(self, request: Request, ticket: Ticket, shape: AnswerShape) -> Response:
        watcher = asyncio.create_task(cancel_when_gone(request, ticket))
        try:
            async for event in ticket:
                shape.take(event)
        finally:
            watcher.cancel()
        if await request.is_disconnected():
            return Response(status_code=CLIENT_CLOSED_REQUEST)  # nobody reads it
        # Megabytes of JSON: the other clients are answered meanwhile.
        return Response(await asyncio.to_thread(shape.json), media_type="application/json")

    async def stream(self, request: Request, ticket: Ticket, shape: AnswerShape) -> Response:
        """Waits for the generation to begin, so that a refused request still gets its status code."""
        watcher = asyncio.create_task(cancel_when_gone(request, ticket))
        events = aiter(ticket)
        try:
            shape.take(await anext(events))
        finally:
            watcher.cancel()
        return StreamingResponse(self.chunks(events, shape), media_type="text/event-stream")

    async def chunks(self, events: AsyncIterator[Any], shape: AnswerShape) -> AsyncIterator[str]:
        async with contextlib.aclosing(events):  # type: ignore[type-var]
            for chunk in shape.opening():
                yield sse(chunk)
            try:
                async for event in events:
                    if not isinstance(event, Step):
                        for chunk in shape.ended():
                            yield sse(chunk)
                    shape.take(event)
                    for chunk in shape.chunks(event):
                        yield sse(chunk)
            except ApiError as error:
                yield sse(error.body())
            for chunk in shape.closing():
                yield sse(chunk)
            yield "data: [DONE]\n\n"


def refuse_field(path: str) -> ApiError:
    """Return the refusal of a request with a field that the model would not see."""
    if path.startswith("tools.") and path.endswith(".name"):
        return ApiError(400, "This model's chat template has no place for tools.", param="tools")
    text = f"`{path}` would not reach the model: its chat template does not write this field. Leave it out."
    return ApiError(400, text, param=path)


async def cancel_when_gone(request: Request, ticket: Ticket) -> None:
    """Stop the generation of a client that hung up."""
    while not await request.is_disconnected():
        await asyncio.sleep(DISCONNECT_POLL_S)
    ticket.cancelled.set()


class AnswerShape:
    """The JSON of one answer, filled from the worker's events: (generation, echoed logprobs), then its steps."""

    object = chunk_object = prefix = ""
    last_part: Mapping[str, Any] = {}
    """Fields of the last chunk of a choice, in place of text."""

    def __init__(self, body: SamplingRequest, engine: ModelRunner) -> None:
        self.body, self.engine = body, engine
        self.generations: list[Generation] = []
        self.echoed: list[list[TokenLogprob | None] | None] = []
        self.steps: list[list[Step]] = []
        self.head = {"id": f"{self.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": body.model}

    def take(self, event: tuple[Generation, Any] | Step) -> None:
        if isinstance(event, Step):
            self.steps[-1].append(event)
        else:
            self.generations.append(event[0])
            self.echoed.append(event[1])
            self.steps.append([])

    def usage(self) -> dict[str, int]:
        choices = self.body.n or 1
        prompt = sum(len(generation.prompt) for generation in self.generations[::choices])
        completion = sum(step.token >= 0 for steps in self.steps for step in steps)
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def finish_reason(self, number: int) -> str:
        reason = self.generations[number].finish_reason
        return "stop" if reason == "cancelled" else reason

    def json(self) -> bytes:
        choices = [
            {"index": number, **self.choice(number), "finish_reason": self.finish_reason(number)}
            for number in range(len(self.generations))
        ]
        body = {**self.head, "object": self.object, "choices": choices, "usage": self.usage()}
        return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()

    def build_chunk(self, **choice: Any) -> JsonObject:
        choices = [{"index": len(self.generations) - 1, "logprobs": None, "finish_reason": None, **choice}]
        return {**self.head, "object": self.chunk_object, "choices": choices}

    def chunks(self, event: tuple[Generation, Any] | Step) -> list[JsonObject]:
        """What a stream sends for an event that was taken: a choice's beginning, or a step that says something."""
        if not isinstance(event, Step):
            return self.opening()
        return [self.chunk(event)] if event.text or event.logprob is not None else []

    def ended(self) -> list[JsonObject]:
        """Return the last parts of the present choice."""
        return [self.build_chunk(**self.last_part, finish_reason=self.finish_reason(len(self.generations) - 1))]

    def closing(self) -> list[JsonObject]:
        chunks = self.ended()
        if self.body.stream_options and self.body.stream_options.include_usage:
            chunks.append({**self.head, "object": self.chunk_object, "choices": [], "usage": self.usage()})
        return chunks

    def opening(self) -> list[JsonObject]:
        return []

    def choice(self, number: int) -> JsonObject:
        raise NotImplementedError

    def chunk(self, step: Step) -> JsonObject:
        raise NotImplementedError

    def text(self, token: int) -> str:
        return self.engine.token_bytes[token].decode("utf-8", errors="replace")


class ChatShape(AnswerShape):
    object, chunk_object, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"
    last_part: Mapping[str, Any] = {"delta": {}}

    def __init__(self, body: ChatRequest, engine: ModelRunner, reader: TurnReader) -> None:
        """Where tools are offered a stream sends an answer whole: only its end shows whether its text is
        a call.
        """
        super().__init__(body, engine)
        self.reader = reader
        self.turns: dict[int, AnsweredTurn | None] = {}
        self.following: ThoughtReader | None = None
        """Of the choice that is being streamed."""

    def answered_turn(self, number: int) -> AnsweredTurn | None:
        """Return the calls or thoughts of a choice that has ended; None for one that is text alone."""
        if number not in self.turns:
            self.turns[number] = self.reader.read(self.generations[number], self.steps[number])
        return self.turns[number]

    def finish_reason(self, number: int) -> str:
        if not self.reader.offers_tools:
            return super().finish_reason(number)
        turn = self.answered_turn(number)
        return "tool_calls" if turn is not None and turn.calls else super().finish_reason(number)

    def choice(self, number: int) -> JsonObject:
        steps, turn = self.steps[number], self.answered_turn(number)
        message = {"role": "assistant", "content": "".join(step.text for step in steps), "refusal": None}
        return {"message": message | (turn.message if turn is not None else {}), "logprobs": self.logprobs(steps)}

    def ended(self) -> list[JsonObject]:
        if self.reader.offers_tools:
            number = len(self.generations) - 1
            turn, text = self.answered_turn(number), "".join(step.text for step in self.steps[number])
            delta: JsonObject = {"content": text} if text else {}
            if turn is not None:
                delta = dict(turn.message)
                if turn.calls:
                    delta["tool_calls"] = [{"index": at, **call} for at, call in enumerate(turn.calls)]
        else:
            delta = {} if self.following is None else dict(self.following.end())
        return [*([self.build_chunk(delta=delta)] if delta else []), *super().ended()]

    def logprobs(self, steps: list[Step]) -> JsonObject | None:
        if self.generations[0].top_logprobs is None:
            return None
        content = [
            {**self.token(entry.token, entry.logprob), "top_logprobs": [self.token(*pair) for pair in entry.top]}
            for entry in (step.logprob for step in steps)
            if entry is not None
        ]
        return {"content": content, "refusal": None}

    def token(self, token: int, logprob: float) -> JsonObject:
        raw = list(self.engine.token_bytes[token])
        return {"token": self.text(token), "logprob": max(logprob, LOWEST_LOGPROB), "bytes": raw}

    def opening(self) -> list[JsonObject]:
        self.following = None if self.reader.offers_tools else self.reader.follow(self.generations[-1])
        return [self.build_chunk(delta={"role": "assistant", "content": ""})]

    def chunks(self, event: tuple[Generation, Any] | Step) -> list[JsonObject]:
        if not isinstance(event, Step) or (self.following is None and not self.reader.offers_tools):
            return super().chunks(event)
        delta = {} if self.following is None else self.following.add(event)
        has_chunk = bool(delta) or event.logprob is not None
        return [self.build_chunk(delta=delta, logprobs=self.logprobs([event]))] if has_chunk else []

    def chunk(self, step: Step) -> JsonObject:
        return self.build_chunk(delta={"content": step.text}, logprobs=self.logprobs([step]))


class CompletionShape(AnswerShape):
    object, chunk_object, prefix = "text_completion", "text_completion", "cmpl"
    last_part: Mapping[str, Any] = {"text": ""}

    def choice(self, number: int) -> JsonObject:
        generation, steps = self.generations[number], self.steps[number]
        echo = isinstance(self.body, CompletionRequest) and self.body.echo
        start = self.engine.tokenizer.decode(generation.prompt) if echo else ""
        text = start + "".join(step.text for step in steps)
        echoed = self.echoed[number]
        entry = {"text": text, "logprobs": self.logprobs(generation, steps, echoed if echo else None)}
        return entry | self.prompt_logprobs(echoed)

    def prompt_logprobs(self, scored: list[TokenLogprob | None] | None) -> JsonObject:
        """Return the field of that name, if it was requested, as vLLM writes it: id -> logprob, rank, text."""
        most = self.body.prompt_logprobs if isinstance(self.body, CompletionRequest) else None
        if most is None or scored is None:
            return {}
        positions: list[JsonObject | None] = []
        for entry in scored:
            best = entry.top[:most] if entry else []
            ranked: dict[int, tuple[int | None, float]] = {
                token: (rank, value) for rank, (token, value) in enumerate(best, 1)
            }
            if entry is not None and entry.token not in ranked:
                ranked[entry.token] = (None, entry.logprob)
            tokens = {
                str(token): {"logprob": max(value, LOWEST_LOGPROB), "rank": rank, "decoded_token": self.text(token)}
                for token, (rank, value) in ranked.items()
            }
            positions.append(tokens if entry is not None else None)
        return {"prompt_logprobs": positions}

    def logprobs(
        self, generation: Generation, steps: list[Step], echoed: list[TokenLogprob | None] | None = None
    ) -> JsonObject | None:
        if generation.top_logprobs is None:
            return None
        tokens = [*(generation.prompt if echoed else []), *(step.token for step in steps if step.token >= 0)]
        entries = [*(echoed or []), *(step.logprob for step in steps if step.token >= 0)]
        texts = [self.text(token) for token in tokens]
        offsets = [0, *itertools.accumulate(map(len, texts))][: len(texts)]
        most = generation.top_logprobs
        tops = [entry and {self.text(t): max(p, LOWEST_LOGPROB) for t, p in entry.top[:most]} for entry in entries]
        values = [entry and max(entry.logprob, LOWEST_LOGPROB) for entry in entries]
        return {"tokens": texts, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}

    def chunk(self, step: Step) -> JsonObject:
        return self.build_chunk(text=step.text, logprobs=self.logprobs(self.generations[0], [step]))
