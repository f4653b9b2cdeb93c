"""Model servers that a deployment starts itself, because their adapters are fixed when they start.

A new version gets a new server beside the one that answers; when its canary has answered, the ready file
`services/<kind>-<tenant>-<role>.json` is switched to it, and the old server ended. Until then nobody notices. Whoever
sends requests reads the address from the ready file. How the server was started is kept in `services/started/` until a
deployment replaces it: `trainyard down` ends the servers, and `trainyard up` starts again those that do not live.
Torch-free.
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import psutil

from trainyard.compute.logs import rotate_log
from trainyard.errors import TrainyardError, Unavailable
from trainyard.inherited import UMASK, child_environment
from trainyard.serve.embedded import Instance, end_tree
from trainyard.settings import Settings
from trainyard.spec.axes.targets import TargetType
from trainyard.stores.artifacts import write_json_durably
from trainyard.stores.processes import process_start

START_S, POLL_S = 300.0, 0.1
KINDS = tuple(target.value for target in TargetType if target.facts.server == "started")
"""Targets whose servers are started here."""
LAUNCHED: list[subprocess.Popen[bytes]] = []
"""Servers that this process started; the interpreter reaps those that ended."""


@dataclass(frozen=True)
class ServerRecipe:
    """How a server was started, so that it can be started again."""

    argv: list[str]
    port: int
    log: str
    model: str
    variables: dict[str, str] = field(default_factory=dict)

    def at(self, port: int) -> ServerRecipe:
        """The same on another port: as an argument of its own, and at the end of an address."""
        words = [str(port) if word == str(self.port) else word for word in self.argv]
        tail = f":{self.port}"
        words = [f"{word.removesuffix(tail)}:{port}" if word.endswith(tail) else word for word in words]
        return replace(self, argv=words, port=port)

    def start(self) -> Instance:
        """Raises `Unavailable` (`E-SERVER-START`)."""
        return start(self.argv, self.port, Path(self.log), self.model, self.variables)


@dataclass
class Replacement:
    """A new server, and the one that it is to follow."""

    new: Instance
    old: Instance | None
    recipe: ServerRecipe
    before: ServerRecipe | None
    """How the one was started that should live until now, whether it does or not."""


def ready_file(settings: Settings, kind: str, tenant: str, role: str) -> Path:
    return settings.services / f"{kind}-{tenant}-{role}.json"


def recipe_file(path: Path) -> Path:
    """Where it is kept how the server of this ready file was started."""
    return path.parent / "started" / path.name


def recipe_of(path: Path) -> ServerRecipe | None:
    """How the server of this ready file was started; None if none should live."""
    try:
        return ServerRecipe(**json.loads(recipe_file(path).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def remember(path: Path, recipe: ServerRecipe | None) -> None:
    """Let this be the server that should live, or none."""
    kept = recipe_file(path)
    if recipe is None:
        kept.unlink(missing_ok=True)
        return
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_json_durably(kept, asdict(recipe))


def expected(settings: Settings) -> dict[Path, ServerRecipe]:
    """Ready file -> how its server is started, for every server that should live."""
    kept = sorted(path for kind in KINDS for path in (settings.services / "started").glob(f"{kind}-*.json"))
    found = {settings.services / path.name: recipe_of(settings.services / path.name) for path in kept}
    return {path: recipe for path, recipe in found.items() if recipe is not None}


def restore(settings: Settings) -> list[str]:
    """Start every server again that should live and whose process is gone. Returns a line for each."""
    lines = []
    for path, recipe in expected(settings).items():
        if running(path) is not None:
            continue
        try:
            found = (recipe if is_free(recipe.port) else recipe.at(free_port())).start()
        except (TrainyardError, OSError) as error:
            lines.append(f"{path.stem} ({recipe.model}) does not start: {error}")
            continue
        point(path, found)
        remember(path, recipe.at(found.port))
        lines.append(f"{path.stem} serves {recipe.model} again at {found.url}")
    return lines


def running(path: Path) -> Instance | None:
    """The server of a ready file, if its process lives."""
    try:
        found = Instance(**json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return None
    return found if found.process() is not None else None


def free_port() -> int:
    """A port of the loopback interface that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def is_free(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def start(
    argv: Sequence[str], port: int, log: Path, model: str, variables: Mapping[str, str] | None = None
) -> Instance:
    """Start a server detached and wait until `/health` answers; it outlives the caller.

    Raises `Unavailable` (`E-SERVER-START`) with the last line of its log if it does not come up.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    rotate_log(log)
    with log.open("wb") as stream:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # the terminal's Ctrl-C and hang-up are not for this server
            env=child_environment({"OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1", **(variables or {})}),
            umask=UMASK,
        )
    LAUNCHED.append(child)
    found = described(child, port, model)
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and child.poll() is None:
        if found is not None and found.answers():
            return found
        time.sleep(POLL_S)
    ended = child.poll()
    if found is not None:
        end(found)
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    how = f"(status {ended})" if ended is not None else f"within {START_S:g} s"
    raise Unavailable(
        f"{Path(argv[0]).name} did not come up {how}.",
        why=lines[-1][:500] if lines else "Its log is empty.",
        do=f"Read {log.name} in the services folder of TRAINYARD_HOME.",
        code="E-SERVER-START",
    )


def described(child: subprocess.Popen[bytes], port: int, model: str) -> Instance | None:
    try:
        born = process_start(child.pid)
    except psutil.NoSuchProcess:
        return None
    return Instance(child.pid, born, port, f"http://127.0.0.1:{port}", model, started=time.time())


def end(instance: Instance) -> None:
    """End a server and what it started. Nothing else is ever signalled."""
    process = instance.process()
    if process is not None:
        end_tree(process)


def end_all(settings: Settings) -> list[str]:
    """End every server that deployments started here; returns the names of their ready files.

    What should live stays written down.
    """
    ended = []
    for path in sorted(path for kind in KINDS for path in settings.services.glob(f"{kind}-*.json")):
        found = running(path)
        if found is not None:
            end(found)
            ended.append(path.stem)
        path.unlink(missing_ok=True)
    return ended


def point(path: Path, instance: Instance | None) -> None:
    """Let the ready file mean this server, or none."""
    if instance is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json_durably(path, asdict(instance))
