"""A vLLM server for as long as one node needs it: found, started under supervision, watched until ready, ended.

    with serving("org/model", "writer", folder, settings) as base_url:
        client = ChatClient(base_url, "writer")

vLLM pins another torch than ours, so it is a program in an environment of its own: `TRAINYARD_HOME/envs/vllm` if it is
there, else `vllm` on the PATH. It runs under `trainyard.compute.shim`, a sub-reaper, so its engine processes end with
it whatever happens to them or to us. Torch-free.

Command line: vLLM's documentation, "vllm serve"; environment variables: "Environment Variables".
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

import httpx

from trainyard.compute.child import LOG_FILE
from trainyard.compute.gpus import GpuReadings, read_gpus
from trainyard.compute.supervise import Outcome, Wanted, last_log_line, supervise
from trainyard.errors import TrainyardError, Unavailable
from trainyard.settings import Settings

HOST = "127.0.0.1"
START_S = 1800.0
"""A large model is downloaded, loaded and compiled; a server that dies meanwhile is noticed at once."""
STOP_S = 30.0
KILL_S = 15.0
"""What the shim has, beyond the program's grace, for ending the tree."""
POLL_S, ANSWER_S = 0.2, 2.0

Probe = Callable[[], GpuReadings]


def environment(settings: Settings) -> Path:
    """The virtual environment that is vLLM's own."""
    return settings.home / "envs" / "vllm"


def executable(settings: Settings) -> Path | None:
    """The program `vllm` of its own environment, else of the PATH."""
    found = shutil.which(environment(settings) / "bin" / "vllm") or shutil.which("vllm")
    return Path(found).absolute() if found else None


def install_line(settings: Settings) -> str:
    """The shell line that makes the environment."""
    folder = shlex.quote(str(environment(settings)))
    return f"python3 -m venv {folder} && {folder}/bin/pip install vllm"


def required(settings: Settings, read: Probe = read_gpus) -> Path:
    """The executable, on a machine that can run it. Raises `Unavailable` (`R-VLLM-CUDA`, `R-VLLM-MISSING`)."""
    readings = read()
    if not readings.gpus:
        raise Unavailable(
            "The engine vllm starts a server on a CUDA device, and this machine has none.",
            why=f"NVML says: {readings.state}.",
            do="Use engine openai with the address of a server, or engine local.",
            code="R-VLLM-CUDA",
        )
    program = executable(settings)
    if program is None:
        raise Unavailable(
            "The program vllm is not installed here.",
            why="It is neither in its own environment under TRAINYARD_HOME nor on the PATH.",
            do=f"Install it with `{install_line(settings)}`, or use engine openai or local.",
            code="R-VLLM-MISSING",
        )
    return program


@contextmanager
def serving(
    model: str,
    name: str,
    folder: Path,
    settings: Settings,
    *,
    start_s: float = START_S,
    stop_s: float = STOP_S,
    read: Probe = read_gpus,
) -> Iterator[str]:
    """A vLLM server inside the block; yields its base URL, which ends in `/v1`.

    `model` is a folder or a Hub name, `name` what the server calls it. The log is `folder/child.log`. It has `start_s`
    seconds to become ready and `stop_s` to end by itself before its process tree is killed. `read` tells the GPUs.

    Raises `Unavailable`: `R-VLLM-CUDA` and `R-VLLM-MISSING` before anything is started, `E-VLLM-START` with the log's
    last line if the server dies or does not answer in time.
    """
    program, port = required(settings, read), free_port()
    shim = [sys.executable, "-m", "trainyard.compute.shim", str(folder), "--grace", str(stop_s), "--"]
    argv = [*shim, *command(program, model, name, port), *settings.vllm_options]
    ending = threading.Event()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="vllm") as thread:
        # The kernel ends the child when the thread that started it ends; this one waits for the child.
        server = thread.submit(
            supervise,
            argv,
            folder,
            env=variables(program),
            wanted=lambda: Wanted.CANCEL if ending.is_set() else Wanted.RUN,
            grace_s=stop_s + KILL_S,
            poll_s=POLL_S,
        )
        try:
            wait_until_ready(f"http://{HOST}:{port}", server, folder, start_s)
            yield f"http://{HOST}:{port}/v1"
        finally:
            ending.set()
            server.result()
            confirm_closed(port)


def command(program: Path, model: str, name: str, port: int) -> list[str]:
    """Safetensors only: a Hub name that is not on this machine may lead to pickled weights."""
    listen = ["--host", HOST, "--port", str(port)]
    return [str(program), "serve", model, *listen, "--served-model-name", name, "--load-format", "safetensors"]


def variables(program: Path) -> dict[str, str]:
    """The child's own environment variables.

    The tools of vLLM's environment are found (it compiles kernels with its `ninja`), no key of the caller's is asked
    of our own requests, and nothing is reported home.
    """
    path = f"{program.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {"PATH": path, "VLLM_API_KEY": "", "VLLM_NO_USAGE_STATS": "1"}


def free_port() -> int:
    """A port that nobody listens on now. A server that loses the race for it ends, and its log says so."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


def wait_until_ready(url: str, server: Future[Outcome], folder: Path, start_s: float) -> None:
    """Return when `/health` answers. Raises `Unavailable` (`E-VLLM-START`) if the server ends or takes too long."""
    deadline = time.monotonic() + start_s
    with httpx.Client(base_url=url, trust_env=False, timeout=ANSWER_S) as http:
        while time.monotonic() < deadline:
            if server.done():
                raise not_started("ended before it was ready", why_ended(server.result()), folder)
            if healthy(http):
                return
            wait([server], timeout=POLL_S)
    raise not_started(f"was not ready within {start_s:g} s", last_log_line(folder), folder)


def healthy(http: httpx.Client) -> bool:
    try:
        return http.get("/health").status_code == 200
    except httpx.HTTPError:
        return False


def why_ended(outcome: Outcome) -> str:
    """The last line that the server wrote, or how it was ended."""
    error = outcome.error or {}
    return str(error.get("why") or error.get("what") or f"It stopped with exit code {outcome.exit_code}.")


def not_started(how: str, why: str, folder: Path) -> Unavailable:
    return Unavailable(
        f"The vLLM server {how}.",
        why=why or "Its log is empty.",
        do=f"Read {folder / LOG_FILE}; arguments such as --max-model-len go into vllm_options of trainyard.toml.",
        code="E-VLLM-START",
    )


def confirm_closed(port: int) -> None:
    """Raise `TrainyardError` (`E-VLLM-STOP`) if somebody still listens after our process tree has ended."""
    with socket.socket() as probe:
        probe.settimeout(ANSWER_S)
        if probe.connect_ex((HOST, port)) == 0:
            raise TrainyardError(
                f"Port {port} still answers after the vLLM server was ended.",
                do="See which process listens there; none of ours is left.",
                code="E-VLLM-STOP",
            )
