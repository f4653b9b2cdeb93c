"""llama.cpp's `llama-server`: base and adapter as GGUF files, one server a version.

It takes adapters only when it starts and gives them weights afterwards (`/lora-adapters`), so the deployer starts a
server for each version beside the one that answers. A whole model is served from its own GGUF file. Requests may name
any model: the server has one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainyard.compute.services import free_port
from trainyard.errors import Reason, TrainyardError
from trainyard.serve.conversion.files import base_gguf, tools_of
from trainyard.serve.conversion.layouts import Layout, peft_writer
from trainyard.serve.targets.calling import call
from trainyard.serve.targets.contract import Actions, TargetDeployment
from trainyard.serve.targets.openai import ask_canary
from trainyard.serve.targets.started import (
    bring_up,
    check_layout,
    check_started,
    converted,
    retire,
    settings_of,
    switch,
    tool_folder,
    undo,
)

BACKEND = "llamacpp"
ADAPTER_FILE = "adapter.gguf"
KEPT_MODEL = Path("gguf") / "model-f32.gguf"
"""What the llamacpp backend leaves in a model folder."""
CONTEXT = 4096


def check(site: TargetDeployment) -> list[Reason]:
    program = tools_of(tool_folder(site, BACKEND)) / "bin" / "llama-server"
    return [*check_started(site, program, BACKEND), *check_layout(site)]


def load(site: TargetDeployment) -> None:
    """Make the files, start the server, and see that it has the adapter applied."""
    environment, settings = tool_folder(site, BACKEND), settings_of(site)
    version = site.registry.path(site.new)
    argv = [str(tools_of(environment) / "bin" / "llama-server"), "--host", "127.0.0.1", "--jinja"]
    if site.candidate.kind == "adapter":
        base = Path(site.candidate.base_path)
        adapter = converted(site) / ADAPTER_FILE
        peft_writer(Layout.GGUF)(version, adapter, base)
        argv += ["-m", str(base_gguf(base, settings, environment)), "--lora", str(adapter)]
    else:
        own = version / KEPT_MODEL
        argv += ["-m", str(own if own.is_file() else base_gguf(version, settings, environment))]
    port = free_port()
    argv += [
        "--port",
        str(port),
        "-c",
        str(CONTEXT),
        "--alias",
        f"{site.new.name},{site.new.alias}",
        *template(version),
    ]
    bring_up(site, argv, port)
    if site.candidate.kind == "adapter":
        require_applied(site)


def template(version: Path) -> list[str]:
    """The chat template that the version was trained with; llama-server takes Jinja."""
    for folder in (version / "tokenizer", version):
        if (folder / "chat_template.jinja").is_file():
            return ["--chat-template-file", str(folder / "chat_template.jinja")]
    return []


def require_applied(site: TargetDeployment) -> None:
    """Raises `TrainyardError` (`E-SERVER-REFUSED`) unless the server says that the adapter has its full weight."""
    held: Any = call(site, "GET", "/lora-adapters")
    if isinstance(held, list) and [entry.get("scale") for entry in held] == [1.0]:
        return
    raise TrainyardError(
        f"{site.where} does not apply the adapter.",
        why=f"It lists {held!r}.",
        do="Read its log in the services folder of TRAINYARD_HOME.",
        code="E-SERVER-REFUSED",
    )


ACTIONS = Actions(check, load, ask_canary, switch, undo, retire)
