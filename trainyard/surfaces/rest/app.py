"""The application: the operations below /api/v1, `/health`, and errors as problem documents.

The pages of the dashboard: the build of `web/`, which asks the REST API with the cookie of a login.

The application reads the page from the path, so that every path below /dashboard answers the same document. The names
of the files stay while their content changes, so that each answer has the digest of its content as ETag: a browser that
has the file gets 304.
"""

from __future__ import annotations

import logging
import os
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path

import anyio
from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import Scope

import trainyard
from trainyard.app.context import ConfinedCalls
from trainyard.app.live.service_threads import WorkerWatch
from trainyard.errors import InvalidInput, NotFound, TrainyardError
from trainyard.operations.table import API
from trainyard.serve.failures import AnswerFailures
from trainyard.settings import Settings
from trainyard.surfaces.bodies import read_trace_id
from trainyard.surfaces.mcp.server import HttpApp
from trainyard.surfaces.openai.app import build_wire
from trainyard.surfaces.openai.prefix import PREFIX
from trainyard.surfaces.problems import answer_problem, describe_bug
from trainyard.surfaces.rest.measured import ApiMetrics, MeasuredRequests, read_gpus, read_jobs, read_trainings
from trainyard.surfaces.rest.openapi import openapi_document
from trainyard.surfaces.rest.replays import Replays
from trainyard.surfaces.rest.routes import (
    PLAIN_PATHS,
    TRACE_HEADER,
    ApiParts,
    Authenticate,
    add_operations,
    answer_refusal,
)
from trainyard.surfaces.tinker.routes import PREFIX as TINKER
from trainyard.surfaces.tinker.routes import problem as tinker_problem
from trainyard.surfaces.tinker.routes import tinker_routes

FOLDER = Path(__file__).parents[1] / "web"
ICON = "icon.svg"
MOST_FILES = 1000


class BuiltFiles(StaticFiles):
    """Files of a build with the digest of their content as ETag.

    Starlette's ETag is of time and size: two builds of equal length, installed from wheels with equal times, share it.
    """

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        etag = f'"{digest_file(str(full_path), stat_result.st_mtime_ns, stat_result.st_size)}"'
        response = FileResponse(full_path, status_code, headers={"etag": etag}, stat_result=stat_result)
        if Headers(scope=scope).get("if-none-match") and self.is_not_modified(response.headers, Headers(scope=scope)):
            return NotModifiedResponse(response.headers)
        return response


@lru_cache(maxsize=MOST_FILES)
def digest_file(path: str, mtime_ns: int, size: int) -> str:
    """Return the SHA-256 of a file, which is read again when its time or its size has changed."""
    return sha256(Path(path).read_bytes()).hexdigest()


def add_pages(app: FastAPI) -> None:
    """Add the pages and their files. They contain nothing of this home, so that the login page needs no token."""

    files = BuiltFiles(directory=FOLDER)

    async def page(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)

    async def icon(request: Request) -> Response:
        return await files.get_response(ICON, request.scope)

    app.mount("/dashboard/assets", BuiltFiles(directory=FOLDER / "assets"), name="assets")
    app.add_route(f"/dashboard/{ICON}", icon, methods=["GET"])
    app.add_route("/dashboard", page, methods=["GET"])
    app.add_route("/dashboard/{path:path}", page, methods=["GET"])


LOG = logging.getLogger("trainyard.rest")


def build_app(settings: Settings, authenticate: Authenticate, confined: ConfinedCalls | None = None) -> FastAPI:
    """Return the application of a home. `authenticate` returns the caller of a request, or raises `Denied`."""
    app = FastAPI(title="Trainyard", version=trainyard.__version__, openapi_url=None, docs_url=None, redoc_url=None)
    app.router.redirect_slashes = False  # 404: a redirect would repeat what a client wrote
    replays = Replays(settings.services / "replays.sqlite3")
    add_operations(app, ApiParts(settings, authenticate, replays, confined))
    document: dict[str, object] = {}
    workers = WorkerWatch(settings)
    measured = ApiMetrics((partial(read_jobs, settings), partial(read_trainings, settings), read_gpus))
    app.add_middleware(AnswerFailures, answer=answer_bug, log=LOG, trace=read_trace_id)
    app.add_middleware(MeasuredRequests, metrics=measured)  # around it, so that failures are counted

    @app.get("/health")
    async def health() -> Response:
        worker = await anyio.to_thread.run_sync(workers.state)
        return JSONResponse({"status": "ok", "version": trainyard.__version__, "worker": worker})

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        authenticate(request)
        return Response(await anyio.to_thread.run_sync(measured.text), media_type=CONTENT_TYPE_LATEST)

    @app.get(f"{API}/openapi.json")
    async def openapi(request: Request) -> Response:
        authenticate(request)
        if not document:
            document.update(await anyio.to_thread.run_sync(openapi_document))
        return JSONResponse(document)

    app.router.routes.extend(tinker_routes(settings, authenticate))
    app.router.routes.append(Route("/mcp", HttpApp(settings, authenticate, confined)))
    app.router.routes.append(Mount(PREFIX, build_wire(settings, authenticate, confined)))
    add_pages(app)
    add_error_answers(app)
    return app


def list_methods(request: Request) -> list[str]:
    """Return the methods that the path of a request has, of all routes with this path."""
    methods, path = set[str](), request.url.path
    for route in request.app.routes:
        if isinstance(route, Route) and (
            route.path == path or (path not in PLAIN_PATHS and route.path_regex.match(path))
        ):
            methods |= route.methods or set()
    return sorted(methods)


def add_error_answers(app: FastAPI) -> None:
    @app.exception_handler(TrainyardError)
    async def answer_error(request: Request, error: TrainyardError) -> Response:
        return answer_refusal(request, error)

    @app.exception_handler(HTTPException)
    async def answer_unknown(request: Request, error: HTTPException) -> Response:
        path = request.url.path[:200]
        if error.status_code == 405:
            allowed = ", ".join(list_methods(request))
            refused: TrainyardError = InvalidInput(
                f"{request.method} is not for {path}.", why=f"It takes {allowed}.", code="E-METHOD"
            )
            return answer_problem(refused, read_trace_id(request), headers={"allow": allowed})
        refused = NotFound(f"There is nothing at {path}.", do="See /api/v1/openapi.json.", code="E-NOT-FOUND")
        return answer_problem(refused, read_trace_id(request))


def answer_bug(request: Request, error: Exception) -> Response:
    """Return the answer to an exception that nothing handles, in the shape of the surface that the path belongs to."""
    trace = read_trace_id(request)
    bug = describe_bug(error, trace)
    answer = tinker_problem(bug) if request.url.path.startswith(f"{TINKER}/") else answer_problem(bug, trace)
    answer.headers[TRACE_HEADER] = trace
    return answer
