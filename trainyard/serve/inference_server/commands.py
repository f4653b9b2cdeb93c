"""Profiles, and the command line of each engine: one function a row. Flags: vLLM's "vllm serve", llama.cpp's README."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import yaml
from pydantic import ValidationError

from trainyard.compute.services import HOST
from trainyard.errors import InvalidInput, NotFound, Unavailable
from trainyard.serve.extraction.extraction import RULES
from trainyard.serve.inference_server import profiles, vllm
from trainyard.serve.inference_server.profiles import Release, ServerProfile
from trainyard.settings import Settings

WEIGHTS_ROOM = 1.5
"""Sleep level 1 copies the weights while the server still runs: half as much again has to be free."""


def read_profile(path: Path) -> ServerProfile:
    """Return a profile file. Raises `NotFound` (`E-PROFILE`) or `InvalidInput` (`E-PROFILE`)."""
    if not path.is_file():
        names = ", ".join(sorted(file.stem for file in path.parent.glob("*.yaml"))) or "none"
        raise NotFound(
            f"There is no model profile {path.stem!r}.", why=f"Known here: {names}.",
            do="Name one of them, or write the file.", code="E-PROFILE",
        )  # fmt: skip
    try:
        return with_template(
            ServerProfile.model_validate(yaml.safe_load(path.read_text(encoding="utf-8"))), path.parent
        )
    except (yaml.YAMLError, ValidationError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"The model profile {path.name} is not valid.", why=" ".join(str(error).split())[:600],
            do="Correct the file; docs/nightly.md lists the fields.", code="E-PROFILE",
        ) from error  # fmt: skip


def with_template(profile: ServerProfile, folder: Path) -> ServerProfile:
    """The profile with the path of its chat template. Raises `NotFound` (`E-PROFILE`) where there is no such file."""
    engine = profile.engine
    if not isinstance(engine, profiles.VllmEngine) or engine.chat_template is None:
        return profile
    template = folder / engine.chat_template
    if not template.is_file():
        raise NotFound(
            f"There is no chat template {engine.chat_template!r}.", why=f"Looked in {folder}.",
            do="Put the file next to the profile, or give its whole path.", code="E-PROFILE",
        )  # fmt: skip
    return profile.model_copy(update={"engine": engine.model_copy(update={"chat_template": str(template)})})


def vllm_command(engine: profiles.VllmEngine, port: int, profile: ServerProfile, settings: Settings) -> list[str]:
    flags: dict[str, object] = {
        "--host": HOST,
        "--port": port,
        "--served-model-name": engine.served_name or engine.model,
        "--load-format": "safetensors",  # a Hub name that is not on this machine may lead to pickled weights
        "--quantization": engine.quantization,
        "--max-model-len": engine.max_model_len,
        "--kv-cache-dtype": engine.kv_cache_dtype,
        "--gpu-memory-utilization": engine.gpu_memory_utilization,
        "--max-num-seqs": engine.max_num_seqs,
        "--reasoning-parser": engine.reasoning_parser,
        "--chat-template": engine.chat_template,
        "--max-lora-rank": engine.lora_rank,
    }
    argv = [str(vllm.program(settings, engine.program)), "serve", engine.model]
    argv += [word for flag, value in flags.items() if value is not None for word in (flag, str(value))]
    argv += ["--enable-prefix-caching" if engine.prefix_caching else "--no-enable-prefix-caching"]
    argv += ["--enable-lora"] if engine.lora_rank else []
    argv += ["--enable-sleep-mode"] if profile.release is not Release.STOP else []
    return [*argv, *engine.options]


def llama_command(engine: profiles.LlamaServerEngine, port: int, *_arguments: object) -> list[str]:
    program = shutil.which(engine.program)
    if program is None:
        raise Unavailable(
            f"The program {engine.program!r} is not installed here.", do="Install llama.cpp, or give its path.",
            code="R-PACKAGE-MISSING",
        )  # fmt: skip
    if not Path(engine.model).is_file():
        raise NotFound(
            f"There is no GGUF file {engine.model!r}.", do="Give the path of the file.", code="E-MODEL-NOT-FOUND"
        )
    argv = [program, "-m", engine.model, "--host", HOST, "--port", str(port), "--alias", engine.model, "--metrics"]
    argv += ["-c", str(engine.context * engine.slots), "-np", str(engine.slots), "-ngl", str(engine.gpu_layers)]
    return [*argv, *engine.options]


def build_embedded_command(engine: profiles.EmbeddedEngine, port: int, *_arguments: object) -> list[str]:
    if engine.model == RULES:
        return [sys.executable, "-P", "-m", "trainyard.serve.extraction.server", "--port", str(port)]
    server = [sys.executable, "-P", "-m", "trainyard.serve.server", "--model", engine.model]
    return [*server, "--port", str(port), "--threads", str(engine.threads)]


COMMANDS: dict[str, Callable[..., list[str]]] = {
    "vllm": vllm_command,
    "llama_server": llama_command,
    "embedded": build_embedded_command,
}
ON_GPU = frozenset({"vllm", "llama_server"})
RUNNING_GAUGES = {
    "vllm": ("vllm:num_requests_running", "vllm:num_requests_waiting"),
    "llama_server": ("llamacpp:requests_processing", "llamacpp:requests_deferred"),
    "embedded": ("trainyard_server_running", "trainyard_server_waiting"),
}
"""Names in /metrics of what is under way."""


def command(profile: ServerProfile, port: int, settings: Settings) -> list[str]:
    """Return the server's argv. Raises `Unavailable` or `NotFound` when its program or file is not here."""
    return COMMANDS[profile.engine.type](profile.engine, port, profile, settings)


def variables(profile: ServerProfile, argv: list[str]) -> Mapping[str, str]:
    """Return the server's own environment variables."""
    if profile.engine.type != "vllm":
        return {"OMP_WAIT_POLICY": "passive"}
    # The endpoints that put it to sleep exist only in its development mode; it listens on loopback alone.
    sleeping = {"VLLM_SERVER_DEV_MODE": "1"} if profile.release is not Release.STOP else {}
    loading = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"} if profile.engine.lora_rank else {}
    # The tools of vLLM's environment are found (it compiles kernels with its `ninja`), no API key is required of
    # Trainyard's own requests, and nothing is reported home.
    path = f"{Path(argv[0]).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {"PATH": path, "VLLM_API_KEY": "", "VLLM_NO_USAGE_STATS": "1", **sleeping, **loading}


def choose_release(profile: ServerProfile, free_mb: int | None = None) -> Release:
    """How the device is given back on this host: `auto` is decided by the free memory, in favour of what is sure."""
    if profile.release is not Release.AUTO:
        return profile.release
    weights = profile.engine.weights_mb if isinstance(profile.engine, profiles.VllmEngine) else None
    free = psutil.virtual_memory().available >> 20 if free_mb is None else free_mb
    return Release.SLEEP_WEIGHTS_IN_RAM if weights and free >= WEIGHTS_ROOM * weights else Release.STOP
