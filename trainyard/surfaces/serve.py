"""Answer in the foreground: over HTTP in one role until a signal, or an agent over MCP until standard input ends."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.app.adapters.trained import TrainedAdapter, find_served, find_version_or_job
from trainyard.app.chat import find_adapter_base
from trainyard.app.context import Context
from trainyard.app.graph import serve_graph
from trainyard.app.responses import Response
from trainyard.app.services import unreachable_error
from trainyard.app.stack.api_service import PORT
from trainyard.compute.child import silence_missing_kernel
from trainyard.compute.services import Service, is_healthy
from trainyard.errors import InvalidInput
from trainyard.operations.serving import McpInput, ServeInput
from trainyard.operations.table import Scope
from trainyard.serve.base_sources import NamedAdapter, find_bases, require_bases, require_room
from trainyard.serve.embedded import server_options
from trainyard.settings import Settings, load_settings

if TYPE_CHECKING:
    from trainyard.app.exposure import Exposure

GRAPH_PORT = 9081
EXPOSURE_FIELDS = ("tls_cert", "tls_key", "behind_proxy", "allow_host", "no_auth")
OWN_FIELDS: Mapping[str, tuple[str, ...]] = {
    "training": (*EXPOSURE_FIELDS, "controller", "data_workers"),
    "data": EXPOSURE_FIELDS,
    "graph": ("graph",),
    "model": ("job", "model", "adapters", "dtype", "threads"),
}
"""Role -> the fields of the request that not every role has."""


class Served(Response):
    url: str


def serve(request: ServeInput, context: Context) -> Served:
    """Serve until a signal. A job's name alone means the role model.

    Raises `InvalidInput` (`E-PARAMETER`) for a field of another role.
    """
    served = request.role or ("model" if request.job else "training")
    for role, names in OWN_FIELDS.items():
        other = [name for name in names if getattr(request, name) != ServeInput.model_fields[name].default]
        wrong = sorted(set(other) - set(OWN_FIELDS[served]))
        if wrong:
            option = "JOB" if wrong[0] == "job" else f"--{wrong[0].replace('_', '-')}"
            raise InvalidInput(
                f"{option} belongs to the role {role}, not to {served}.",
                do=f"Leave it out, or serve with --role {role}.",
                code="E-PARAMETER",
            )
    return Served(url=ROLES[served](request, context))


def answer_graph(request: ServeInput, context: Context) -> str:
    return serve_graph(request.graph, request.host, GRAPH_PORT if request.port is None else request.port, context)


def answer_models(request: ServeInput, context: Context) -> str:
    """Load the bases and the adapters, then answer; refusals come before a model is read.

    The base of a job's adapter is served without being named. Raises `InvalidInput` (`E-PARAMETER`) without a model,
    and what `find_served`, `find_bases`, `require_bases`, `require_room` and the server raise.
    """
    settings, dtype = context.settings, request.dtype or "float32"
    model = find_model(request.job, context) if request.job else None
    adapter_names = dict.fromkeys((*([request.job] if request.job and model is None else ()), *request.adapters))
    adapters = [find_served(word, context) for word in adapter_names]
    bases = (str(model),) if model is not None else base_names(adapters[0], context) if request.job else ()
    names = request.model or bases or settings.served_models
    if not names:
        raise InvalidInput(
            "No model is named, and serve_models is empty.", do="Name one, such as --model starter.", code="E-PARAMETER"
        )
    sources = find_bases(names, settings, download=True)
    require_bases(adapters, sources.bases)
    require_room(sources.bases, dtype, settings)
    argv = server_options(
        [*(base.name for base in sources.bases), *sources.aliases],
        {adapter.name: adapter.folder for adapter in adapters},
        port=request.port or 0,
        threads=settings.threads if request.threads is None else request.threads,
    )
    argv += ["--host", request.host, "--dtype", dtype]
    argv += [word for adapter in adapters if adapter.alias for word in ("--alias", f"{adapter.alias}={adapter.name}")]

    def announce(record: Service) -> None:
        answering = [sources.title, *(adapter.alias or adapter.name for adapter in adapters)]
        context.say(f"{', '.join(answering)} at {record.url}/v1; Ctrl-C ends it")

    context.say(f"loading {', '.join((sources.title, *(adapter.name for adapter in adapters)))}")
    silence_missing_kernel()
    from trainyard.serve import server  # imports torch; from here on this process is the server

    return str(server.serve(server.parse_arguments(argv), announce))


def find_model(word: str, context: Context) -> Path | None:
    """Return the folder of the whole model that a job has trained; None for an adapter. Raises as
    `find_version_or_job`.
    """
    versions = find_version_or_job(word, context)
    return versions.folder if isinstance(versions, TrainedAdapter) and not versions.is_adapter else None


def base_names(adapter: NamedAdapter, context: Context) -> tuple[str, ...]:
    """Return the base that an adapter was trained on, as this machine has it."""
    return (find_adapter_base(adapter, context.settings).name,)


def answer_api(request: ServeInput, context: Context) -> str:
    """Answer the REST API of this home."""
    from trainyard.surfaces.rest import service  # imports FastAPI

    settings = apply_integrations(request, context.settings)
    port, exposure = PORT if request.port is None else request.port, make_exposure(request)
    return service.serve_api(settings, port, context.say, exposure, everybody=request.no_auth)


def apply_integrations(request: ServeInput, settings: Settings) -> Settings:
    """Return the settings with the controller and the data workers of the request; every run gets them.

    Raises `InvalidInput` (`E-SETTINGS`), and `Unavailable` (`E-SERVER-UNREACHABLE`) for a controller that does not
    answer.
    """
    if request.controller is not None:
        url = request.controller.rstrip("/")
        url = url if url.endswith("/api") else f"{url}/api"
        if not is_healthy(url, timeout_s=10):
            raise unreachable_error(url)
        os.environ["PREFECT_API_URL"] = url
        os.environ.pop("PREFECT_HOME", None)  # with it, the address counts as the one of this home
    if not request.data_workers:
        return settings
    urls = [url.rstrip("/") for text in request.data_workers for url in text.split(",") if url]
    os.environ["TRAINYARD_DATA_WORKERS"] = json.dumps(urls)
    return load_settings(home=settings.home)


def answer_data(request: ServeInput, context: Context) -> str:
    """Answer the wire of the Hub with the repositories of this home."""
    from trainyard.surfaces.hub import service  # imports starlette

    port, exposure = service.PORT if request.port is None else request.port, make_exposure(request)
    return service.serve_data(context.settings, port, context.say, exposure, everybody=request.no_auth)


def make_exposure(request: ServeInput) -> Exposure:
    """Return the addresses of a request, and their protection."""
    from trainyard.app.exposure import Exposure  # only `serve` needs it

    return Exposure(
        request.host,
        str(request.tls_cert or ""),
        str(request.tls_key or ""),
        request.behind_proxy or "",
        request.allow_host,
    )


ROLES: Mapping[str, Callable[[ServeInput, Context], str]] = {
    "training": answer_api,
    "graph": answer_graph,
    "model": answer_models,
    "data": answer_data,
}


class McpEnded(Response):
    """The client has closed the input."""

    streamed: bool = True
    """Standard output was the client's: nothing is printed there."""


def serve_mcp(options: McpInput, context: Context) -> McpEnded:
    """Answer until standard input ends."""
    caller = replace(context.caller, name="mcp", scope=Scope(options.scope))
    from trainyard.surfaces.mcp.server import serve_stdio  # imports the MCP package

    serve_stdio(context.settings, caller)
    return McpEnded()
