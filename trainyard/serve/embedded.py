"""The embedded model server of this machine: started detached, found again by any process, ended on request.

`services/embedded.json` says where it answers. A process id alone proves nothing after a reboot, so the file carries
the process's start time too, and a file whose process is another one counts as stale. Torch-free.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from trainyard.compute.logs import rotate_log
from trainyard.errors import Conflict, Unavailable
from trainyard.inherited import UMASK, child_environment
from trainyard.serve.chat_templates import check_folder
from trainyard.settings import Settings
from trainyard.stores.adapters import AdapterRegistry
from trainyard.stores.models import resolve_model
from trainyard.stores.processes import Start, find_process

READY_FILE = "embedded.json"
LOG_FILE = "embedded.log"
START_S, STOP_S, POLL_S = 180.0, 10.0, 0.1
LAUNCHED: list[subprocess.Popen[bytes]] = []
"""Servers that this process started; the interpreter reaps those that ended."""


@dataclass(frozen=True)
class Instance:
    """A server that was started: the contents of the ready file."""

    pid: int
    create_time: Start
    port: int
    url: str
    model: str = ""
    model_sha256: str = ""
    started: float = 0.0

    def process(self) -> psutil.Process | None:
        """The process, if it still is the one that was started."""
        return find_process(self.pid, self.create_time)

    def answers(self, timeout_s: float = 2.0) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=timeout_s, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False


def instance(settings: Settings) -> Instance | None:
    """What the ready file says, if its process lives; a stale or unreadable file counts as none."""
    path = settings.services / READY_FILE
    try:
        found = Instance(**json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return None
    return found if found.process() is not None else None


def running(settings: Settings) -> str | None:
    """Address of the embedded server if it answers now, such as `http://127.0.0.1:40123`."""
    found = instance(settings)
    return found.url if found is not None and found.answers() else None


def start(
    settings: Settings, model: str = "starter", *, threads: int = 0, adapters: dict[str, Path] | None = None
) -> str:
    """Start the embedded server unless it already answers with this model; returns its address.

    It outlives the caller. A server that still holds an older build of the same model is replaced.

    Raises `Conflict` (`E-EMBEDDED-MODEL`) if it serves another model, `Unavailable` (`E-EMBEDDED-START`) with the last
    line of its log if it does not come up, and what `resolve_model` and `check_chat_template` raise.
    """
    source = resolve_model(model, settings)
    if source.path is not None:
        check_folder(source.path)
    settings.services.mkdir(parents=True, exist_ok=True)
    with only_one_starter(settings.services):
        found = instance(settings)
        if found is not None and found.model != model and found.answers():
            raise Conflict(
                f"The embedded server at {found.url} serves {found.model!r}, not {model!r}.",
                do="Call `trainyard down` first, or use the model that is served.",
                code="E-EMBEDDED-MODEL",
            )
        if found is not None and found.model_sha256 == source.sha256 and found.answers():
            return found.url
        stop(settings)
        return launch(settings, model, threads=threads, adapters=adapters or {})


def restore_live(settings: Settings, url: str) -> list[str]:
    """Load the registry's live adapters into a fresh server, each under its version's name and its alias.

    A server forgets its adapters when it ends; the registry does not. Returns one line for each adapter: that it
    answers again, or why the server does not take it (it was trained on another base, say).
    """
    registry = AdapterRegistry(settings.adapters)
    roles = dict.fromkeys((one.tenant, one.role) for one in registry.list() if one.kind == "adapter")
    lines = []
    with httpx.Client(base_url=url, timeout=60) as client:
        for tenant, role in roles:
            number = registry.live(tenant, role).version
            if number is not None:
                name, alias = f"{tenant}/{role}/v{number}", f"{tenant}/{role}"
                path = str(registry.path(registry.show(name)))
                loaded = client.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": path})
                if loaded.is_success:
                    client.post("/v1/aliases", json={"alias": alias, "model": name}).raise_for_status()
                lines.append(f"{name} answers again" if loaded.is_success else f"{name} is not served: {said(loaded)}")
    return lines


def said(reply: httpx.Response) -> str:
    """The server's own words for a refusal."""
    error = reply.json().get("error", {})
    return str(error.get("message", reply.text)) if isinstance(error, dict) else str(error)


@contextlib.contextmanager
def only_one_starter(services: Path) -> Iterator[None]:
    with (services / ".embedded.lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def launch(settings: Settings, model: str, *, threads: int, adapters: dict[str, Path]) -> str:
    command = [sys.executable, "-m", "trainyard.serve.server", "--model", model]
    command += ["--port", str(settings.embedded_port), "--folder", str(settings.services), "--threads", str(threads)]
    for name, folder in adapters.items():
        command += ["--adapter", f"{name}={folder}"]
    log = settings.services / LOG_FILE
    rotate_log(log)
    with log.open("wb") as stream:
        # A session of its own: the terminal's Ctrl-C and hang-up are not for this server.
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=child_environment({"OMP_WAIT_POLICY": "passive"}),  # an idle server must not take a trainer's core
            umask=UMASK,
        )
    LAUNCHED.append(child)
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and child.poll() is None:
        found = instance(settings)
        if found is not None and found.pid == child.pid and found.answers():
            return found.url
        time.sleep(POLL_S)
    ended = child.poll()
    if ended is None:
        end_tree(psutil.Process(child.pid))
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    raise Unavailable(
        f"The embedded server did not come up {f'(status {ended})' if ended is not None else f'within {START_S:g} s'}.",
        why=lines[-1][:500] if lines else "Its log is empty.",
        do=f"Read {log.name} in the services folder of TRAINYARD_HOME.",
        code="E-EMBEDDED-START",
    )


def stop(settings: Settings) -> bool:
    """End the embedded server and what it started; True if there was one. Nothing else is ever signalled."""
    found = instance(settings)
    process = found.process() if found is not None else None
    if process is not None:
        end_tree(process)
    (settings.services / READY_FILE).unlink(missing_ok=True)
    return process is not None


def end_tree(process: psutil.Process) -> None:
    """Terminate a process and its descendants, and kill what is left after ten seconds."""
    try:
        tree = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for member in tree:
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended by itself, which is what is wanted
            member.terminate()
    for member in psutil.wait_procs(tree, timeout=STOP_S)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    psutil.wait_procs(tree, timeout=STOP_S)
