"""The routes of the wire below `/tinker/api/v1/`, for `TINKER_BASE_URL=http://127.0.0.1:PORT/tinker`."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import orjson
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from trainyard.app.context import Caller
from trainyard.app.tenant_view import hide_error
from trainyard.errors import Denied, InvalidInput, NotFound, TrainyardError
from trainyard.operations.table import Scope
from trainyard.settings import Settings
from trainyard.surfaces.bodies import PROTOBUF_TYPE, media_type
from trainyard.surfaces.problems import http_status
from trainyard.surfaces.tinker import requests
from trainyard.surfaces.tinker.audit import RequestAudit
from trainyard.surfaces.tinker.bodies import decompress, read_json, read_json_step, read_proto_step
from trainyard.surfaces.tinker.futures import Future
from trainyard.surfaces.tinker.service import TinkerService, live_checkpoints, moment, sequence_ids, tenant_of

LOG = logging.getLogger("trainyard.tinker")
PREFIX = "/tinker"
API, FILES = f"{PREFIX}/api/v1", f"{PREFIX}/files"
CLIENT_CONFIG = {
    "pjwt_auth_enabled": False,
    "credential_default_source": "api_key",
    "parallel_fwdbwd_chunks": True,
    "proto_write_fwdbwd": True,
    "proto_compress_fwdbwd": False,
    "fwd_via_fwdbwd": True,
    "create_model_via_load_weights": True,
    "sample_max_concurrent_requests": 128,
    "sample_use_retrieve_futures": False,
    "sample_join_sampling_session": False,
    "custom_loss_server_side": False,
    "use_pyqwest_transport": True,
}
"""Flags of the SDK: optional paths are off, steps come as protobuf."""
DYNAMIC_CONFIG = {"refresh_interval_sec": 300, "sample_cancel_enabled": True, "sample_cancel_max_batch_size": 64}
CHECKPOINT = "/training_runs/{run}/checkpoints/{kind}/{name}"
PATIENCE_S = 20.0
"""How long a request for a future waits before it says: try again. The SDK waits for 45 s at most."""
POLL_S = 0.02
PAGE = 100
Handler = Callable[[Request, str], Awaitable[Response]]


def tinker_routes(settings: Settings, authenticate: Callable[[Request], Caller]) -> list[Route]:
    """Return the routes of the wire for a home."""
    wire = TinkerWire(settings, authenticate)
    routes = [
        Route(f"{API}{path}", wire.endpoint(handler, scope, name_request(method, path)), methods=[method])
        for method, path, handler, scope in wire.table()
    ]
    return [*routes, Route(f"{FILES}/{{code}}/{{name:path}}", wire.send_file, methods=["GET"])]


class TinkerWire:
    """The handlers, each with its path and the scope that it needs."""

    def __init__(self, settings: Settings, authenticate: Callable[[Request], Caller]) -> None:
        self.settings, self.authenticate = settings, authenticate
        self.service = TinkerService(settings)

    def table(self) -> list[tuple[str, str, Handler, Scope]]:
        """Return (method, path, handler, scope) of every route."""
        service, read, run = self.service, Scope.READ, Scope.RUN
        call = self.call
        numbered = self.numbered
        return [
            ("POST", "/client/config", self.answer(CLIENT_CONFIG), read),
            ("POST", "/client/dynamic_config", self.answer(DYNAMIC_CONFIG), read),
            ("GET", "/healthz", self.answer({"status": "ok"}), read),
            ("POST", "/telemetry", self.answer({"status": "accepted"}), read),
            ("GET", "/get_server_capabilities", self.capabilities, read),
            ("POST", "/create_session", call(requests.CreateSession, service.create_session), run),
            ("POST", "/session_heartbeat", call(requests.SessionBody, service.heartbeat), run),
            ("POST", "/sessions/{session}/finish", self.finish, run),
            ("GET", "/sessions", self.list_sessions, read),
            ("GET", "/sessions/{session}", self.show_session, read),
            ("POST", "/create_model", call(requests.CreateModel, service.create_model), run),
            ("POST", "/unload_model", call(requests.ModelBody, self.unload), run),
            ("POST", "/get_info", call(requests.ModelBody, self.info), read),
            ("POST", "/forward_backward", partial(self.step, forward_only=False), run),
            ("POST", "/forward", partial(self.step, forward_only=True), run),
            ("POST", "/optim_step", call(requests.OptimStep, self.optimize), run),
            ("POST", "/save_weights", numbered(requests.SaveWeights, "save"), run),
            ("POST", "/save_weights_for_sampler", numbered(requests.SaveForSampler, "save_for_sampler"), run),
            ("POST", "/save_weights_external", numbered(requests.SaveExternal, "save_external"), run),
            ("POST", "/load_weights", call(requests.LoadWeights, service.load), run),
            ("POST", "/create_sampling_session", call(requests.CreateSampler, service.create_sampler), run),
            ("POST", "/asample", self.sample, run),
            ("POST", "/retrieve_future", self.retrieve, run),
            ("POST", "/cancel_future", call(requests.Retrieve, self.cancel), run),
            ("GET", "/samplers/{sampler}", self.show_sampler, read),
            ("POST", "/weights_info", call(requests.WeightsInfo, self.weights_info), read),
            ("GET", "/training_runs", self.list_runs, read),
            ("GET", "/training_runs/{run}", self.show_run, read),
            ("GET", "/training_runs/{run}/checkpoints", self.list_checkpoints, read),
            ("DELETE", CHECKPOINT, self.delete_checkpoint, run),
            ("PUT", f"{CHECKPOINT}/ttl", self.set_lifetime, run),
            ("GET", f"{CHECKPOINT}/external_weights_urls", self.list_files, read),
            ("GET", f"{CHECKPOINT}/archive", self.show_archive, read),
            ("GET", "/checkpoints", self.list_all_checkpoints, read),
        ]

    def endpoint(self, handler: Handler, scope: Scope, name: str) -> Callable[[Request], Awaitable[Response]]:
        """Return what answers a route: the caller's tenant, its scope, and errors as the SDK reads them."""

        async def respond(request: Request) -> Response:
            caller = self.authenticate(request)
            audit = request.state.audit = RequestAudit(name, request, caller, self.settings)
            try:
                tenant = tenant_of(caller, scope)
            except Denied as error:
                audit.note_denied(error)
                return problem(hide_error(caller, error, self.settings))
            try:
                return await handler(request, tenant)
            except TrainyardError as error:
                return problem(hide_error(caller, error, self.settings))

        return respond

    # Kinds of handlers

    def answer(self, value: dict[str, Any]) -> Handler:
        """Return a handler that always answers the same, once the body has been read."""

        async def handle(request: Request, tenant: str) -> Response:
            del tenant  # the same for all
            await request.body()
            return JSONResponse(value)

        return handle

    def call(self, model: Any, work: Callable[[str, Any], Any]) -> Handler:
        """Return a handler that reads a body and calls (tenant, body) on a thread."""

        async def handle(request: Request, tenant: str) -> Response:
            raw = await request.body()

            def run() -> Any:
                body = read_json(raw, model)
                return request.state.audit.run(body, lambda: work(tenant, body))

            return respond_with(await anyio.to_thread.run_sync(run))

        return handle

    def numbered(self, model: Any, name: str) -> Handler:
        """Return a handler for a request about a model that has a number."""

        def work(tenant: str, body: Any) -> Future:
            return self.service.submit(tenant, body.model_id, body.seq_id, body.model_dump_json(), name, body)

        return self.call(model, work)

    # Steps, samples and their futures

    async def step(self, request: Request, tenant: str, *, forward_only: bool) -> Response:
        """Enter rows to score or to learn from, as JSON or protobuf."""
        raw, encoding, kind = await request.body(), request.headers.get("content-encoding", ""), media_type(request)

        def work() -> Future:
            body = decompress(raw, encoding)
            if kind == PROTOBUF_TYPE:
                step = read_proto_step(body)
                step.forward_only = step.forward_only or forward_only
            else:
                step = read_json_step(body, forward_only=forward_only)
            audit: RequestAudit = request.state.audit
            return audit.run(step, lambda: self.service.submit_step(tenant, step))

        return respond_with(await anyio.to_thread.run_sync(work))

    def optimize(self, tenant: str, body: requests.OptimStep) -> Future:
        return self.service.submit(tenant, body.model_id, body.seq_id, body.model_dump_json(), "optimize", body)

    async def sample(self, request: Request, tenant: str) -> Response:
        body = await request.body()

        def work() -> Response:
            sample = read_json(body, requests.Sample)
            digest = hashlib.sha256(body).hexdigest()
            future = request.state.audit.run(sample, lambda: self.service.sample(tenant, sample, digest))
            return JSONResponse({"request_id": future.id, "sample_sequence_ids": sequence_ids(future, sample)})

        return await anyio.to_thread.run_sync(work)

    async def retrieve(self, request: Request, tenant: str) -> Response:
        """Return what a request has come to; 408 while it runs, 410 where it is not known (any more)."""
        body = read_json(await request.body(), requests.Retrieve)
        future = self.service.find_future(tenant, body.request_id)
        if future is None:
            return JSONResponse({"detail": "This request is not known any more; send it again."}, status_code=410)
        with anyio.move_on_after(PATIENCE_S):
            while not future.done.is_set() and not await request.is_disconnected():
                await anyio.sleep(POLL_S)
        if future.answer is None:
            state: dict[str, Any] = {"type": "try_again", "request_id": future.id, "queue_state": future.queue_state}
            if future.queue_reason:
                state["queue_state_reason"] = future.queue_reason
            return JSONResponse(state, status_code=408)
        answer = future.answer
        if answer.protobuf is not None and PROTOBUF_TYPE in request.headers.get("accept", ""):
            return Response(answer.protobuf, media_type=PROTOBUF_TYPE)
        return Response(orjson.dumps(answer.json), media_type="application/json")

    def cancel(self, tenant: str, body: requests.Retrieve) -> dict[str, Any]:
        """Cancel a sample that has not begun; one that has runs to its end."""
        future = self.service.futures.find(tenant, body.request_id)
        if future is not None and future.model_id is None:
            future.canceled = True
        return {}

    # Reading

    async def capabilities(self, request: Request, tenant: str) -> Response:
        del request, tenant  # the same for all
        names = dict.fromkeys((self.settings.default_base_model or "starter", "starter"))
        models = [{"model_name": name, "trainable": True, "sampleable": True} for name in names]
        return JSONResponse({"supported_models": models})

    def info(self, tenant: str, body: requests.ModelBody) -> dict[str, Any]:
        _, model = self.service.store.model(tenant, body.model_id)
        data = {"arch": "", "model_name": model.base, "tokenizer_id": self.tokenizer_of(tenant, model.base)}
        return {
            "type": "get_info", "model_data": data, "model_id": model.id, "is_lora": True, "lora_rank": model.rank,
            "model_name": model.base, "optimizer_config": {"type": "adamw"},
        }  # fmt: skip

    def tokenizer_of(self, tenant: str, base: str) -> str:
        """Return where a client on this machine finds the tokenizer of a base: its folder."""
        return str(self.service.engines.find_base(tenant, base).path or base)

    def weights_info(self, tenant: str, body: requests.WeightsInfo) -> dict[str, Any]:
        model, _ = self.service.store.checkpoint(tenant, body.tinker_path)
        return {
            "base_model": model.base, "is_lora": True, "lora_rank": model.rank, "train_unembed": model.train_unembed,
            "train_mlp": model.train_mlp, "train_attn": model.train_attn, "optimizer_config": {"type": "adamw"},
        }  # fmt: skip

    async def show_sampler(self, request: Request, tenant: str) -> Response:
        sampler = self.service.store.sampler(tenant, request.path_params["sampler"])
        return JSONResponse({"sampler_id": sampler.id, "base_model": sampler.base, "model_path": sampler.model_path})

    async def finish(self, request: Request, tenant: str) -> Response:
        body = read_json(await request.body() or b"{}", requests.FinishSession)
        reason = str((body.reason or {}).get("type", "success"))[:40]
        work = partial(self.service.finish_session, tenant, request.path_params["session"], reason)
        await anyio.to_thread.run_sync(request.state.audit.run, body, work)
        return Response(status_code=204)

    async def list_sessions(self, request: Request, tenant: str) -> Response:
        limit, offset = page_of(request)
        names = [session.id for session in self.service.store.list(tenant)]
        return JSONResponse({"sessions": names[offset : offset + limit]})

    async def show_session(self, request: Request, tenant: str) -> Response:
        session = self.service.store.find(tenant, request.path_params["session"])
        return JSONResponse(
            {
                "training_run_ids": list(session.models), "sampler_ids": list(session.samplers),
                "user_metadata": session.user_metadata, "display_name": session.display_name,
            }
        )  # fmt: skip

    async def list_runs(self, request: Request, tenant: str) -> Response:
        limit, offset = page_of(request)
        models = self.service.list_models(tenant)
        rows = [self.service.run_row(tenant, model) for model in models[offset : offset + limit]]
        cursor = {"offset": offset, "limit": limit, "total_count": len(models)}
        return JSONResponse({"training_runs": rows, "cursor": cursor})

    async def show_run(self, request: Request, tenant: str) -> Response:
        _, model = self.service.store.model(tenant, request.path_params["run"])
        return JSONResponse(self.service.run_row(tenant, model))

    async def list_checkpoints(self, request: Request, tenant: str) -> Response:
        _, model = self.service.store.model(tenant, request.path_params["run"])
        rows = [self.service.checkpoint_row(model, checkpoint) for checkpoint in live_checkpoints(model)]
        return JSONResponse({"checkpoints": rows})

    async def list_all_checkpoints(self, request: Request, tenant: str) -> Response:
        limit, offset = page_of(request)
        rows = [
            self.service.checkpoint_row(model, checkpoint)
            for model in self.service.list_models(tenant)
            for checkpoint in live_checkpoints(model)
        ]
        cursor = {"offset": offset, "limit": limit, "total_count": len(rows)}
        return JSONResponse({"checkpoints": rows[offset : offset + limit], "cursor": cursor})

    async def delete_checkpoint(self, request: Request, tenant: str) -> Response:
        path = request.path_params
        work = partial(self.service.delete_checkpoint, tenant, path["run"], f"{path['kind']}/{path['name']}")
        await anyio.to_thread.run_sync(request.state.audit.run, None, work)
        return Response(status_code=204)

    async def set_lifetime(self, request: Request, tenant: str) -> Response:
        body = read_json(await request.body(), requests.Lifetime)
        work = partial(self.service.set_lifetime, tenant, checkpoint_path(request), body)
        await anyio.to_thread.run_sync(request.state.audit.run, body, work)
        return Response(status_code=204)

    async def list_files(self, request: Request, tenant: str) -> Response:
        """Return a link for each file of a checkpoint as a PEFT adapter."""
        codes, expires = await anyio.to_thread.run_sync(self.service.file_links, tenant, checkpoint_path(request))
        urls = {name: link_of(request, code, name) for name, code in codes.items()}
        return JSONResponse({"urls": urls, "expires": moment(expires)})

    async def show_archive(self, request: Request, tenant: str) -> Response:
        """Redirect to the archive of a checkpoint as a PEFT adapter."""
        code, expires = await anyio.to_thread.run_sync(self.service.archive_link, tenant, checkpoint_path(request))
        headers = {"location": link_of(request, code, "archive.tar"), "expires": formatdate(expires, usegmt=True)}
        return Response(status_code=302, headers=headers)

    async def send_file(self, request: Request) -> Response:
        """Send the file of a link, which needs no token."""
        try:
            path = self.service.downloads.find(request.path_params["code"])
        except NotFound as error:
            return problem(error)
        return FileResponse(path, media_type="application/octet-stream")

    def unload(self, tenant: str, body: requests.ModelBody) -> Future:
        return self.service.unload(tenant, body.model_id)


def name_request(method: str, path: str) -> str:
    """Return the name of a request in the audit log: the last word of its path."""
    return "delete_checkpoint" if method == "DELETE" else path.rpartition("/")[2]


def checkpoint_path(request: Request) -> str:
    path = request.path_params
    return f"tinker://{path['run']}/{path['kind']}/{path['name']}"


def link_of(request: Request, code: str, name: str) -> str:
    """Return the address of a link, as the client calls this server."""
    return str(request.url.replace(path=f"{FILES}/{code}/{name}", query=""))


def page_of(request: Request) -> tuple[int, int]:
    """Return limit and offset of a listing. Raises `InvalidInput` (`E-PARAMETER`)."""
    values = [request.query_params.get(name, default) for name, default in (("limit", PAGE), ("offset", 0))]
    if not all(str(value).isdecimal() and len(str(value)) < 10 for value in values):
        raise InvalidInput("limit and offset are whole numbers.", do="Leave them out.", code="E-PARAMETER")
    return int(values[0]), int(values[1])


def respond_with(result: Any) -> Response:
    """Return a future's id, or an answer that is there already."""
    if isinstance(result, Future):
        return JSONResponse({"request_id": result.id, "model_id": result.model_id})
    return JSONResponse(result)


def problem(error: TrainyardError) -> Response:
    """Return an error as the SDK reads it: its text in `detail`. A finished session is 410: heartbeats end then."""
    status = 404 if isinstance(error, NotFound) else http_status(error)
    status = {422: 400, 409: 410 if error.code == "E-SESSION-STATE" else 400}.get(status, status)
    return JSONResponse({"detail": str(error), "code": error.code}, status_code=status)
