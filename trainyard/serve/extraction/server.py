"""The embedded server's model `rules`: OpenAI's chat route, answered by the rule-based extractor.

    python -m trainyard.serve.extraction.server --port 0 --folder DIR

Same routes, shapes and texts as `trainyard.serve.server`, without a model to load: it answers within a second of its
start, so that starting, warming, draining and stopping a server are real on any machine. Torch-free.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
import uuid
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from trainyard.errors import InvalidInput, TrainyardError
from trainyard.json_types import JsonObject
from trainyard.serve.extraction.rules import MODEL, answer
from trainyard.serve.listening import AnnouncedServer, bind
from trainyard.serve.protocol import ApiError, ChatRequest, from_trainyard, not_found_error, read_request

WARM_UP = "warm"
CARD = {"id": MODEL, "object": "model", "owned_by": "trainyard", "root": MODEL, "parent": None}


class RulesServer:
    """Counts what runs, as the metrics of every server do."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self.running, self.answered, self.delay_s = 0, 0, delay_s

    async def chat(self, request: Request) -> Response:
        self.running += 1
        try:
            body = await read_request(ChatRequest, request)
            if body.model != MODEL:
                raise not_found_error(body.model, [MODEL])
            for name, value in (("stream", body.stream), ("n", (body.n or 1) > 1), ("tools", body.tools)):
                if value:
                    raise ApiError(400, f"{name} is not supported by the model `rules`.", param=name)
            for at, message in enumerate(body.messages):
                if extra := set(message.for_template()) - {"role", "content"}:
                    path = f"messages.{at}.{min(extra)}"
                    raise ApiError(400, f"{path} is not supported by the model `rules`.", param=path)
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            messages = [message.for_template() for message in body.messages]
            text = reply_to(messages)
            self.answered += 1
        finally:
            self.running -= 1
        return JSONResponse(completion(body, messages, text))

    async def health(self, _request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def models(self, _request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [CARD]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name != MODEL:
            raise not_found_error(name, [MODEL])
        return JSONResponse(CARD)

    async def metrics(self, _request: Request) -> Response:
        return PlainTextResponse(
            f"trainyard_server_running {self.running}\ntrainyard_server_waiting 0\n"
            f'trainyard_server_requests_total{{path="/v1/chat/completions",status="200"}} {self.answered}\n'
        )

    def app(self) -> Starlette:
        routes = [
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            Route("/health", self.health),
            Route("/metrics", self.metrics),
        ]
        hosts = Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
        return Starlette(routes=routes, middleware=[hosts], exception_handlers={ApiError: refuse})


async def refuse(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body(), status_code=error.status)


def reply_to(messages: list[dict[str, str]]) -> str:
    """Return the answer; a prompt without a document (a warm-up) gets the empty one."""
    if messages[-1]["content"].strip() == WARM_UP:
        return '{"entities":[],"relations":[]}'
    try:
        return answer(messages)
    except InvalidInput as error:
        raise from_trainyard(error) from error


def completion(body: ChatRequest, messages: list[dict[str, str]], text: str) -> JsonObject:
    """Tokens are counted as four characters each: there is no tokenizer."""
    prompt, written = sum(len(message["content"]) for message in messages) // 4, len(text) // 4
    message = {"role": "assistant", "content": text}
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": body.model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written},
    }


def serve(arguments: argparse.Namespace) -> None:
    listener = bind("127.0.0.1", arguments.port)
    app = RulesServer(arguments.delay).app()
    AnnouncedServer(app, listener, arguments.folder, MODEL).run(sockets=[listener])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainyard.serve.extraction.server")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before each answer, to try out a slow model")
    try:
        serve(parser.parse_args(argv))
    except TrainyardError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
