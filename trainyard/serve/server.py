"""A small OpenAI-compatible server for local causal language models and their adapters, on the CPU.

    python -m trainyard.serve.server --model FOLDER --model FOLDER --port 0 --adapter name=folder

Chat and text completions with streaming, logprobs and enforced `json_schema`; adapters and aliases that come and go
while it runs, with vLLM's paths, status codes and texts. Off loopback it starts only with a token. Each base answers
one request at a time: it exists so that a chain works without a GPU, a hub or an account, not to carry load.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.middleware.trustedhost import TrustedHostMiddleware
from transformers.utils import logging as transformers_logging

from trainyard.compute.services import Service
from trainyard.errors import InvalidInput, LimitExceeded, TrainyardError
from trainyard.json_types import JsonObject
from trainyard.serve import protocol
from trainyard.serve.answers import Answers
from trainyard.serve.base_sources import WIDTHS, BaseSources, find_bases, require_room
from trainyard.serve.failures import AnswerFailures
from trainyard.serve.inference import ModelRunner, Worker
from trainyard.serve.listening import (
    AnnouncedServer,
    bind_guarded,
    build_url,
    has_token,
    list_allowed_hosts,
    print_record,
)
from trainyard.serve.protocol import Alias, ApiError, from_trainyard, read_request
from trainyard.serve.served import ServedBase, ServedModels
from trainyard.settings import settings

LOG = logging.getLogger("trainyard.serve")
MAX_TOKENS = 4096
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in WIDTHS}


def build_app(served: ServedModels, answers: Answers, *, token: str | None, hosts: list[str]) -> FastAPI:
    """Return the HTTP application over an engine that is already loaded."""
    app = FastAPI(title="Trainyard model server", docs_url=None, redoc_url=None, openapi_url=None)
    # A page in a browser may point its own name at 127.0.0.1; it cannot choose the Host header.
    app.add_middleware(AnswerFailures, answer=answer_crash, log=LOG)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts)

    @app.exception_handler(ApiError)
    async def answer_error(request: Request, error: ApiError) -> Response:
        answers.metrics.requests.labels(request.url.path, error.status).inc()
        return JSONResponse(error.body(), status_code=error.status)

    @app.exception_handler(TrainyardError)
    async def answer_refusal(request: Request, error: TrainyardError) -> Response:
        full = ApiError(503, str(error), "ServiceUnavailableError")
        return await answer_error(request, full if isinstance(error, LimitExceeded) else from_trainyard(error))

    @app.exception_handler(404)
    @app.exception_handler(405)
    async def answer_unknown_path(request: Request, error: Exception) -> Response:
        status = getattr(error, "status_code", 404)
        unknown = ApiError(status, f"{request.method} {request.url.path} is not served here.", "NotFoundError")
        return JSONResponse(unknown.body(), status_code=status)

    add_routes(app, served, answers, Depends(bearer_check(token)))
    return app


def answer_crash(request: Request, error: Exception) -> Response:
    crash = ApiError(500, f"The server failed: {type(error).__name__}. Its log has more.", "InternalServerError")
    return JSONResponse(crash.body(), status_code=500)


def add_routes(app: FastAPI, served: ServedModels, answers: Answers, authorised: Any) -> None:
    def count_request(request: Request, response: Response) -> Response:
        answers.metrics.requests.labels(request.url.path, response.status_code).inc()
        return response

    @app.get("/health")
    async def health() -> Response:
        alive = all(base.worker.thread.is_alive() for base in served.bases.values())
        return JSONResponse({"status": "ok" if alive else "failed"}, status_code=200 if alive else 503)

    @app.get("/metrics", dependencies=[authorised])
    async def metrics() -> Response:
        return Response(generate_latest(answers.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/models", dependencies=[authorised])
    async def models() -> JsonObject:
        return {"object": "list", "data": served.models()}

    @app.get("/v1/models/{name:path}", dependencies=[authorised])
    async def model(name: str) -> JsonObject:
        return served.model(name)

    @app.post("/v1/chat/completions", dependencies=[authorised])
    async def chat(request: Request) -> Response:
        return count_request(request, await answers.chat(request, await read_request(protocol.ChatRequest, request)))

    @app.post("/v1/completions", dependencies=[authorised])
    async def completions(request: Request) -> Response:
        body = await read_request(protocol.CompletionRequest, request)
        return count_request(request, await answers.completion(request, body))

    @app.post("/v1/load_lora_adapter", dependencies=[authorised])
    async def load_adapter(request: Request) -> Response:
        return count_request(
            request, PlainTextResponse(await served.load(await read_request(protocol.LoadAdapter, request)))
        )

    @app.post("/v1/unload_lora_adapter", dependencies=[authorised])
    async def unload_adapter(request: Request) -> Response:
        body = await read_request(protocol.UnloadAdapter, request)
        return count_request(request, PlainTextResponse(await served.unload(body)))

    @app.post("/v1/aliases", dependencies=[authorised])
    async def aliases(request: Request) -> Response:
        return count_request(request, JSONResponse(served.set_alias(await read_request(protocol.Alias, request))))


def bearer_check(token: str | None) -> Any:
    async def check(request: Request) -> None:
        if not has_token(request, token):
            raise ApiError(401, "The bearer token is missing or wrong.", "AuthenticationError")

    return check


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m trainyard.serve.server", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model", action="append", help="`starter` (default), or the folder of a causal language model; may repeat"
    )
    parser.add_argument("--host", default="127.0.0.1", help="another one than loopback needs TRAINYARD_TOKEN")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one, which the ready file names")
    parser.add_argument("--adapter", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--alias", action="append", default=[], metavar="ALIAS=NAME")
    parser.add_argument("--adapter-root", action="append", default=[], type=Path, metavar="FOLDER")
    parser.add_argument("--folder", type=Path, help="where embedded.json is written once the server answers")
    parser.add_argument("--threads", type=int, default=0, help="threads of the computation; 0: one per physical core")
    parser.add_argument("--max-tokens", type=int, default=MAX_TOKENS, help="most tokens that one request may ask for")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="float32")
    return parser.parse_args(argv)


def prepare(arguments: argparse.Namespace, sources: BaseSources) -> ServedModels:
    """Load the bases and everything else that the arguments name. Raises `TrainyardError`."""
    require_room(sources.bases, arguments.dtype, settings())
    quiet: Any = transformers_logging.disable_progress_bar
    quiet()
    torch.set_num_threads(arguments.threads or psutil.cpu_count(logical=False) or 1)
    dtype = DTYPES[arguments.dtype]
    # Reading weights in another dtype than torch's default changes that default meanwhile, for every thread: the bases
    # of such a server share one.
    shared = None if dtype is torch.get_default_dtype() else Worker()
    bases = [
        ServedBase(source, ModelRunner(Path(source.location), dtype=dtype), shared or Worker())
        for source in sources.bases
    ]
    roots = [settings().adapters, settings().artifacts, *arguments.adapter_root]
    served = ServedModels(bases, roots, sources.aliases)
    for name, folder in map(parse_pair, arguments.adapter):
        path = Path(folder).resolve()
        try:
            served.put(name, path, served.find_base(path))
        except ApiError as error:
            raise InvalidInput(f"The adapter {name!r} cannot be served: {error}", code="E-ADAPTER-INVALID") from error
    for alias, model in map(parse_pair, arguments.alias):
        try:
            served.set_alias(Alias(alias=alias, model=model))
        except ApiError as error:
            raise InvalidInput(f"The alias {alias!r} cannot be set: {error}", code="E-ADAPTER-INVALID") from error
    return served


def parse_pair(text: str) -> tuple[str, str]:
    """`NAME=VALUE` as two texts. Raises `InvalidInput` (`E-ADAPTER-INVALID`)."""
    name, separator, value = text.partition("=")
    if not separator:
        message = f"--adapter {text!r} is not NAME=FOLDER."
        raise InvalidInput(message, do="Write NAME=FOLDER.", code="E-ADAPTER-INVALID")
    return name, value


def serve(arguments: argparse.Namespace, announce: Callable[[Service], None] = print_record) -> str:
    """Answer until SIGINT or SIGTERM; returns the address. `announce` is called once the server answers."""
    # PEFT asks transformers for a property by its old name.
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
    token = os.environ.get("TRAINYARD_TOKEN") or None
    danger = "Off loopback anybody could load adapters and use the model."
    # Before the models are read: a taken port is known at once.
    with bind_guarded(arguments.host, arguments.port, token, danger) as listener:
        url = build_url(listener)
        sources = find_bases(arguments.model or ["starter"], settings())
        served = prepare(arguments, sources)
        answers = Answers(served, max_tokens=arguments.max_tokens)
        app = build_app(served, answers, token=token, hosts=list_allowed_hosts(arguments.host))
        server = AnnouncedServer(app, listener, arguments.folder, sources.title, sources.sha256, announce=announce)
        server.run(sockets=[listener])
        for base in served.bases.values():
            base.worker.stop()
    return url


def main(argv: list[str] | None = None) -> int:
    try:
        serve(parse_arguments(sys.argv[1:] if argv is None else argv))
    except TrainyardError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
