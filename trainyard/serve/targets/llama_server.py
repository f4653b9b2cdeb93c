"""llama.cpp's `llama-server`: base and adapter as GGUF files, one server a version.

It takes adapters only when it starts and gives them weights afterwards (`/lora-adapters`), so the deployer starts a
server for each version next to the one that answers. A whole model is served from its own GGUF file. Requests may name
any model: the server has one.
"""

from __future__ import annotations

from pathlib import Path

from trainyard.compute.services import free_port
from trainyard.errors import Reason, TrainyardError
from trainyard.serve.conversion.files import base_gguf, find_tools
from trainyard.serve.targets import merged, started
from trainyard.serve.targets.calling import ask_canary, call
from trainyard.serve.targets.contract import Actions, TargetDeployment

BACKEND = "llamacpp"
ADAPTER_FILE = "adapter.gguf"
KEPT_MODEL = Path("gguf") / "model-f32.gguf"
"""What the llamacpp backend leaves in a model folder."""
CONTEXT = 4096


def check(site: TargetDeployment) -> list[Reason]:
    program = find_tools(started.tool_folder(site, BACKEND)) / "bin" / "llama-server"
    return [*started.check_started(site, program, BACKEND), *started.check_layout(site)]


def load_version(site: TargetDeployment) -> None:
    """Make the files, start the server, and see that it has the adapter applied."""
    model, adapter = gguf_files(site)
    argv = [
        str(find_tools(started.tool_folder(site, BACKEND)) / "bin" / "llama-server"),
        "--host",
        "127.0.0.1",
        "--jinja",
    ]
    argv += ["-m", str(model), *(["--lora", str(adapter)] if adapter else [])]
    port = free_port()
    argv += ["--port", str(port), "-c", str(CONTEXT), "--alias", f"{site.new.name},{site.new.alias}"]
    template = started.template_file(site.registry.path(site.new))
    started.bring_up(site, [*argv, *(["--chat-template-file", str(template)] if template else [])], port)
    if adapter:
        require_applied(site)


def gguf_files(site: TargetDeployment) -> tuple[Path, Path | None]:
    """Return the version as GGUF files: its base and the adapter, or the whole or merged model and None."""
    environment, settings = started.tool_folder(site, BACKEND), started.get_settings(site)
    version = site.registry.path(site.new)
    if site.target.merged is not None:
        return merged.find_gguf(site), None
    if site.candidate.kind != "adapter":
        model = version / KEPT_MODEL
        return model if model.is_file() else base_gguf(version, settings, environment), None
    base, adapter = Path(site.candidate.base_path), started.convert_version(site) / ADAPTER_FILE
    from trainyard.serve.conversion.gguf import peft_to_gguf  # imports numpy

    peft_to_gguf(version, adapter, base)
    return base_gguf(base, settings, environment), adapter


def require_applied(site: TargetDeployment) -> None:
    """Raises `TrainyardError` (`E-SERVER-REFUSED`) unless the server says that the adapter has its full weight."""
    listed: object = call(site, "GET", "/lora-adapters")
    if isinstance(listed, list) and [entry.get("scale") for entry in listed] == [1.0]:
        return
    raise TrainyardError(
        f"{site.where} does not apply the adapter.",
        why=f"It lists {listed!r}.",
        do="Read its log in the services folder of TRAINYARD_HOME.",
        code="E-SERVER-REFUSED",
    )


ACTIONS = Actions(check, load_version, ask_canary, started.switch, started.undo, started.retire)
