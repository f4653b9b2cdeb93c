"""A witness over HTTP: `trainyard ledger serve-witness --log VKEY` (c2sp.org/tlog-witness).

    POST /add-checkpoint               old size, proof of consistency and checkpoint -> the cosignature
    GET  /<origin hash>/checkpoint     the newest cosigned checkpoint of a log

It listens on loopback alone: a request has no caller, only the signature of a log. A proxy with TLS, or an SSH tunnel,
brings the requests of other machines.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio.to_thread
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from trainyard.app.context import Context
from trainyard.app.responses import Response as Answer
from trainyard.operations.ledger import WitnessServerInput
from trainyard.serve.listening import bind, build_url, server_config
from trainyard.stores.ledger.notes import PublicKey, parse_vkey
from trainyard.stores.ledger.witnessing import MAX_REQUEST_BYTES, Witness, WitnessReply

LOOPBACK = "127.0.0.1"


class ServedWitness(Answer):
    url: str
    key: str


def build_app(witness: Witness, logs: Sequence[PublicKey]) -> Starlette:
    """Return the two routes."""

    async def add_checkpoint(request: Request) -> Response:
        body = bytearray()
        try:
            async for part in request.stream():
                body += part
                if len(body) > MAX_REQUEST_BYTES:
                    return Response("the request is too long\n", status_code=413)
        except ClientDisconnect:
            return Response(status_code=400)
        return as_response(await anyio.to_thread.run_sync(witness.add_checkpoint, bytes(body), logs))

    async def read_checkpoint(request: Request) -> Response:
        name = request.path_params["origin_hash"]
        return as_response(await anyio.to_thread.run_sync(witness.read_published, name, logs))

    return Starlette(
        routes=[
            Route("/add-checkpoint", add_checkpoint, methods=["POST"]),
            Route("/{origin_hash}/checkpoint", read_checkpoint),
        ]
    )


def as_response(reply: WitnessReply) -> Response:
    return Response(reply.body, status_code=reply.status, headers={"content-type": reply.kind})


def serve_witness(request: WitnessServerInput, context: Context) -> ServedWitness:
    """Cosign until a signal. Raises `InvalidInput` for a key that is none, `LimitExceeded` (`E-PORT`)."""
    logs = [parse_vkey(text) for text in request.logs]
    witness = Witness(context.settings.home)
    listener = bind(LOOPBACK, request.port)
    served = ServedWitness(url=build_url(listener), key=witness.key().public.vkey)
    context.say(f"witness of {', '.join(log.name for log in logs)} at {served.url}; Ctrl-C ends it")
    context.say(f"its key: {served.key}")
    uvicorn.Server(server_config(build_app(witness, logs), graceful_s=5)).run(sockets=[listener])
    return served
