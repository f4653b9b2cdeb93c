"""Model servers that a deployment starts itself, because their adapters are fixed when they start.

A new version gets a new server next to the one that answers; when its canary has answered, the ready file
`services/<kind>-<tenant>-<role>.json` is switched to it, and the old server ended. Clients
read the address from the ready file. How the server was started is kept in `services/started/` until a
deployment replaces it: `trainyard down` ends the servers, and `trainyard up` starts again those that do not live.
Torch-free.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from trainyard.compute import services
from trainyard.errors import TrainyardError
from trainyard.inherited import child_environment
from trainyard.settings import Settings
from trainyard.spec.axes.targets import TargetType

START_S = 300.0
KINDS = tuple(target.value for target in TargetType if target.facts.server == "started")
"""Targets whose servers are started here."""


@dataclass(frozen=True)
class ServerRecipe:
    """Recipe of a server: how it was started, so that it can be started again."""

    argv: list[str]
    port: int
    log: str
    model: str
    variables: dict[str, str] = field(default_factory=dict)

    def at(self, port: int) -> ServerRecipe:
        """Return the same on another port: as an argument of its own, and at the end of an address."""
        argv = [str(port) if word == str(self.port) else word for word in self.argv]
        tail = f":{self.port}"
        argv = [f"{word.removesuffix(tail)}:{port}" if word.endswith(tail) else word for word in argv]
        return replace(self, argv=argv, port=port)

    def start(self) -> services.Service:
        """Start it and wait until it answers; it outlives the caller. Raises `Unavailable` (`E-SERVER-START`)."""
        variables = child_environment({"OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1", **self.variables})
        url = f"http://127.0.0.1:{self.port}"
        service = services.spawn_service(
            self.argv, variables, Path(self.log), url=url, port=self.port, model=self.model
        )
        return services.await_ready(service, Path(self.argv[0]).name, START_S)


@dataclass
class Replacement:
    """A new server, and the one that it is to follow."""

    new: services.Service
    old: services.Service | None
    recipe: ServerRecipe
    before: ServerRecipe | None
    """How the one was started that should live until now, whether it does or not."""


def ready_file(settings: Settings, kind: str, tenant: str, role: str) -> Path:
    return services.record_path(settings, f"{kind}-{tenant}-{role}")


def recipe_file(path: Path) -> Path:
    """Where it is kept how the server of this ready file was started."""
    return path.parent / "started" / path.name


def read_recipe(path: Path) -> ServerRecipe | None:
    """Return how the server of this ready file was started; None if none should live."""
    return services.read_fields(recipe_file(path), ServerRecipe)


def remember_server(path: Path, recipe: ServerRecipe | None) -> None:
    """Let this be the server that should live, or none."""
    services.write_record(recipe_file(path), recipe)


def list_expected(settings: Settings) -> dict[Path, ServerRecipe]:
    """Ready file -> how its server is started, for every server that should live."""
    paths = sorted(path for kind in KINDS for path in (settings.services / "started").glob(f"{kind}-*.json"))
    recipes = {settings.services / path.name: read_recipe(settings.services / path.name) for path in paths}
    return {path: recipe for path, recipe in recipes.items() if recipe is not None}


def restore_servers(settings: Settings) -> list[str]:
    """Start every server again that should live and whose process is gone. Returns a line for each."""
    lines = []
    for path, recipe in list_expected(settings).items():
        if services.find_service(path) is not None:
            continue
        try:
            service = recipe.at(services.free_port(recipe.port)).start()
        except (TrainyardError, OSError) as error:
            lines.append(f"{path.stem} ({recipe.model}) does not start: {error}")
            continue
        services.write_record(path, service)
        remember_server(path, recipe.at(service.port))
        lines.append(f"{path.stem} serves {recipe.model} again at {service.url}")
    return lines


def end_all(settings: Settings) -> list[str]:
    """End every server that deployments started here; returns the names of their ready files.

    What should live stays written down.
    """
    ended = []
    for path in sorted(path for kind in KINDS for path in settings.services.glob(f"{kind}-*.json")):
        if services.stop_service(path):
            ended.append(path.stem)
    return ended
