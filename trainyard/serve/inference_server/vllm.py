"""The program vLLM: where it is, how it is installed, its command line and its profile for one node.

vLLM pins another torch than ours, so it is a program in an environment of its own: `TRAINYARD_HOME/envs/vllm` if it is
there, else `vllm` on the PATH. `InferenceServer` starts it, awaits it and ends it. Torch-free.

Command line: vLLM's documentation, "vllm serve"; environment variables: "Environment Variables".
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from trainyard.compute.gpus import GpuReadings, read_gpus
from trainyard.errors import Unavailable
from trainyard.serve.inference_server.profiles import ServerProfile, VllmEngine
from trainyard.settings import Settings

START_S = 1800.0
"""A large model is downloaded, loaded and compiled; a server that dies meanwhile is noticed at once."""
STOP_S = 30.0

Probe = Callable[[], GpuReadings]


def environment(settings: Settings) -> Path:
    """Return the virtual environment that is vLLM's own."""
    return settings.home / "envs" / "vllm"


def executable(settings: Settings) -> Path | None:
    """Return the program `vllm` of its own environment, else of the PATH."""
    path = shutil.which(environment(settings) / "bin" / "vllm") or shutil.which("vllm")
    return Path(path).absolute() if path else None


def install_line() -> str:
    """Return the shell line that makes the environment, with the versions of `backends/requirements/vllm.txt`."""
    return "trainyard backends install vllm"


def require_gpu(read: Probe = read_gpus) -> None:
    """Raises `Unavailable` (`R-DEVICE`) on a machine that cannot run it."""
    readings = read()
    if not readings.gpus:
        raise Unavailable(
            "The engine vllm starts a server on a CUDA device, and this machine has none.",
            why=f"NVML says: {readings.state}.",
            do="Use engine openai with the address of a server, or engine local.",
            code="R-DEVICE",
        )


def program(settings: Settings, name: str | None = None) -> Path:
    """The executable: the given one, else as `executable` finds it. Raises `Unavailable` (`R-PACKAGE-MISSING`)."""
    path = shutil.which(name) if name else executable(settings)
    if path is None:
        raise Unavailable(
            "The program vllm is not installed here.",
            why=f"Looked for {name or 'its own environment under TRAINYARD_HOME, and the PATH'}.",
            do=f"Install it with `{install_line()}`, or use engine openai or local.",
            code="R-PACKAGE-MISSING",
        )
    return Path(path).absolute()


def build_profile(model: str, name: str, settings: Settings) -> ServerProfile:
    """Return a server for one node. `model` is a folder or a Hub name, `name` what the server calls it."""
    engine = VllmEngine(type="vllm", model=model, served_name=name, options=settings.vllm_options)
    return ServerProfile(engine=engine, ready_s=START_S, stop_s=STOP_S)
