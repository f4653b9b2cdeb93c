"""`/chat/completions` and `/completions`: passed on to the model server, which has OpenAI's shape itself.

The model is looked up here, so that a tenant reaches its own adapters only; the bytes of the answer pass through as
they are made. When the client leaves, the request to the model server ends, and with it the generation.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack

import httpx
import orjson
from starlette.responses import Response, StreamingResponse

from trainyard.app.chat import ANSWER_S
from trainyard.json_types import JsonObject
from trainyard.surfaces.openai.calls import WireCall
from trainyard.surfaces.openai.errors import WireError, missing_parameter
from trainyard.surfaces.openai.models import ServedModel, resolve_model

CONNECT_S = 10.0
ASKING = "adapters ask"
"""The operation whose scope a completion needs."""


def find_model(call: WireCall) -> ServedModel:
    """Return where the model of a body answers. Raises `WireError`."""
    call.require_scope(ASKING)
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
        open_answer = stack.pop_all()

    async def parts() -> AsyncIterator[bytes]:
        async with open_answer:
            async for part in answer.aiter_raw():
                yield part

    return StreamingResponse(parts(), media_type="text/event-stream", headers={"cache-control": "no-store"})


def refuse(status: int, body: bytes) -> WireError:
    """Return a refusal of the model server as the wire answers it."""
    try:
        error: JsonObject = orjson.loads(body)["error"]
        message, param = str(error["message"]), error.get("param")
    except (ValueError, KeyError, TypeError):
        message, param = f"The model server answered {status}.", None
    status = 400 if status in (413, 415, 422) else status
    return WireError(status, message, param=str(param) if param is not None else None)
