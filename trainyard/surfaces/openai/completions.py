"""`/chat/completions` and `/completions`: passed on to the model server, which has OpenAI's shape itself.

The model is looked up here, so that a tenant reaches its own adapters only; the bytes of the answer pass through as
they are made. When the client leaves, the request to the model server ends, and with it the generation.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack

import anyio
import httpx
import orjson
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from trainyard.app.chat import ANSWER_S
from trainyard.json_types import JsonObject
from trainyard.surfaces.openai.calls import WireCall
from trainyard.surfaces.openai.errors import WireError, missing_parameter
from trainyard.surfaces.openai.fields import refuse_fields
from trainyard.surfaces.openai.models import ServedModel, resolve_model

CONNECT_S = 10.0
INDEX = re.compile(r"\.(\d+)(?=\.|$)")
"""A place in a list, as the model server writes it in the path of a field."""
ASKING = "adapters ask"
"""The operation whose scope a completion needs."""


def find_model(call: WireCall, path: str) -> ServedModel:
    """Return where the model of a body answers. Raises `WireError`, also for a field that has no effect."""
    call.require_scope(ASKING)
    refuse_fields(path, call.body)
    model = call.body.get("model")
    if model is None:
        raise missing_parameter("model")
    if not isinstance(model, str) or not model:
        raise WireError(400, "Invalid type for 'model': expected a string.", param="model", code="invalid_type")
    return resolve_model(call, model)


async def pass_on(model: ServedModel, path: str, body: Mapping[str, object]) -> Response:
    """Return the model server's answer, as a stream where it is one. Raises `WireError`."""
    async with AsyncExitStack() as stack:
        timeout = httpx.Timeout(ANSWER_S, connect=CONNECT_S)
        client = httpx.AsyncClient(base_url=model.url, trust_env=False, timeout=timeout)
        await stack.enter_async_context(client)
        content = json.dumps({**body, "model": model.name}).encode()
        headers = {"content-type": "application/json"}
        try:
            answer = await stack.enter_async_context(client.stream("POST", path, content=content, headers=headers))
            kind = answer.headers.get("content-type", "")
            if not answer.is_success:
                raise refuse(answer.status_code, await answer.aread())
            if not kind.startswith("text/event-stream"):
                return Response(await answer.aread(), media_type="application/json")
        except httpx.HTTPError as error:
            text = f"The model server did not answer: {type(error).__name__}."
            raise WireError(503, text, code="E-SERVER-UNREACHABLE") from error
        return PassedStream(answer, stack.pop_all())


class PassedStream(StreamingResponse):
    """An event stream of the model server. Its request is closed with the response, also of a client that has left."""

    def __init__(self, answer: httpx.Response, opened: AsyncExitStack) -> None:
        super().__init__(read_events(answer), media_type="text/event-stream", headers={"cache-control": "no-store"})
        self.opened = opened

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            with anyio.CancelScope(shield=True):
                await self.opened.aclose()


async def read_events(answer: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the events as they come, and an error where the model server ends in the middle."""
    try:
        async for part in answer.aiter_raw():
            yield part
    except httpx.HTTPError as error:
        text = f"The model server ended the answer: {type(error).__name__}."
        body = orjson.dumps(WireError(503, text, code="E-SERVER-UNREACHABLE").body())
        yield b"data: " + body + b"\n\n"


def refuse(status: int, body: bytes) -> WireError:
    """Return a refusal of the model server as the wire answers it."""
    try:
        error: JsonObject = orjson.loads(body)["error"]
        message, param = str(error["message"]), error.get("param")
    except (ValueError, KeyError, TypeError):
        message, param = f"The model server answered {status}.", None
    status = 400 if status in (413, 415, 422) else status
    if param is None:
        return WireError(status, message)
    path = INDEX.sub(r"[\1]", str(param))
    return WireError(status, message.replace(str(param), path), param=path)
