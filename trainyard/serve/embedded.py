"""The embedded model server of this machine: started detached, found again by any process, ended on request.

`services/embedded.json` says where it answers (`compute/services.py`). Torch-free.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from trainyard.compute import services
from trainyard.errors import Conflict
from trainyard.inherited import child_environment
from trainyard.serve.base_sources import find_bases, require_room
from trainyard.serve.targets.calling import server_message
from trainyard.serve.targets.vllm import LOAD_PATH, load_request
from trainyard.settings import Settings
from trainyard.spec.training import STARTER
from trainyard.stores.adapters import AdapterRegistry
from trainyard.stores.files import RealFiles
from trainyard.stores.whole import write_whole

START_S = 180.0
PORT_FILE = "embedded.port"
"""Among the services of a home."""


def instance(settings: Settings) -> services.Service | None:
    """Return the embedded server of this home, if its process lives."""
    return services.find_service(services.record_path(settings, services.EMBEDDED))


def find_running(settings: Settings) -> str | None:
    """Address of the embedded server if it answers now, such as `http://127.0.0.1:40123`."""
    server = instance(settings)
    return server.url if server is not None and server.answers() else None


def start(settings: Settings, *models: str, threads: int = 0, adapters: dict[str, Path] | None = None) -> str:
    """Start the embedded server unless it already answers with these models; returns its address.

    It outlives the caller. A server that still has an older build of the same models is replaced.

    Raises `Conflict` (`E-MODEL-NOT-FOUND`) if it serves other models, `Unavailable` (`E-SERVER-START`) with the last
    line of its log if it does not come up, and what `find_bases` and `require_room` raise.
    """
    sources = find_bases(models or (STARTER,), settings)
    settings.services.mkdir(parents=True, exist_ok=True)
    with RealFiles().locked(settings.services / ".embedded.lock"):
        server = instance(settings)
        if server is not None and server.model != sources.title and server.answers():
            raise Conflict(
                f"The embedded server at {server.url} serves {server.model!r}, not {sources.title!r}.",
                do="Call `trainyard down` first, or use the model that is served.",
                code="E-MODEL-NOT-FOUND",
            )
        if server is not None and server.model_sha256 == sources.sha256 and server.answers():
            return server.url
        stop(settings)
        require_room(sources.bases, "float32", settings)
        return launch(settings, models or (STARTER,), threads=threads, adapters=adapters or {})


def restore_live(settings: Settings, url: str) -> list[str]:
    """Load the registry's live adapters into a fresh server, each under its version's name and its alias.

    A server forgets its adapters when it ends; the registry does not. Returns one line for each adapter: that it
    answers again, or why the server does not take it (it was trained on another base, say).
    """
    registry = AdapterRegistry(settings.adapters)
    roles = dict.fromkeys((version.tenant, version.role) for version in registry.list() if version.kind == "adapter")
    lines = []
    with httpx.Client(base_url=url, timeout=60) as client:
        for tenant, role in roles:
            number = registry.live(tenant, role).version
            if number is not None:
                name, alias = f"{tenant}/{role}/v{number}", f"{tenant}/{role}"
                path = str(registry.path(registry.show(name)))
                loaded = client.post(LOAD_PATH, json=load_request(name, path))
                if loaded.is_success:
                    client.post("/v1/aliases", json={"alias": alias, "model": name}).raise_for_status()
                lines.append(
                    f"{name} answers again" if loaded.is_success else f"{name} is not served: {server_message(loaded)}"
                )
    return lines


def server_options(models: Sequence[str], adapters: Mapping[str, Path], *, port: int, threads: int) -> list[str]:
    """Return the options of a model server."""
    options = ["--port", str(port), "--threads", str(threads)]
    for name in models:
        options += ["--model", name]
    for name, folder in adapters.items():
        options += ["--adapter", f"{name}={folder}"]
    return options


def server_command(models: Sequence[str], adapters: Mapping[str, Path], *, port: int, threads: int) -> list[str]:
    """Return the argv of a model server."""
    options = server_options(models, adapters, port=port, threads=threads)
    return [sys.executable, "-P", "-m", "trainyard.serve.server", *options]


def read_last_port(settings: Settings) -> int:
    """Return the port that the server of this home had last, if it is free; else 0, which picks one.

    Clients that were pointed at the server find it again after `down` and `up`.
    """
    with suppress(OSError, ValueError):
        port = int((settings.services / PORT_FILE).read_text(encoding="ascii"))
        return port if services.free_port(port) == port else 0
    return 0


def launch(settings: Settings, models: Sequence[str], *, threads: int, adapters: Mapping[str, Path]) -> str:
    port = settings.embedded_port or read_last_port(settings)
    command = server_command(models, adapters, port=port, threads=threads)
    command += ["--folder", str(settings.services)]
    # An idle server must not take a trainer's core. It serves adapters of this home only.
    environment = child_environment({"OMP_WAIT_POLICY": "passive", "TRAINYARD_HOME": str(settings.home)})
    service = services.spawn_service(command, environment, settings.services / f"{services.EMBEDDED}.log")
    url = services.await_ready(
        service, "The embedded server", START_S, services.record_path(settings, services.EMBEDDED)
    ).url
    write_whole(RealFiles(), settings.services / PORT_FILE, f"{urlsplit(url).port}\n".encode())
    return url


def stop(settings: Settings) -> bool:
    """End the embedded server and what it started; True if there was one. Nothing else is ever signalled."""
    return services.stop_service(services.record_path(settings, services.EMBEDDED))
