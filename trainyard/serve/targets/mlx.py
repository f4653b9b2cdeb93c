"""mlx-lm's server: the base's own folder and the adapter in mlx-lm's layout, one server a version.

It loads what a request names, from the Hub if need be, so every request is sent with `default_model`, which means what
the server was started with. It has no key and listens on the loopback interface only. DoRA is served.
"""

from __future__ import annotations

from trainyard.compute.services import free_port
from trainyard.errors import Reason
from trainyard.serve.conversion.layouts import Layout, peft_writer
from trainyard.serve.targets.contract import Actions, TargetDeployment
from trainyard.serve.targets.openai import ask_canary
from trainyard.serve.targets.started import (
    bring_up,
    check_layout,
    check_started,
    convert_version,
    retire,
    switch,
    template_file,
    tool_folder,
    undo,
)

BACKEND = "mlx"
DEFAULT_MODEL = "default_model"
VARIABLES = {"USE_TORCH": "0", "TRANSFORMERS_VERBOSITY": "error"}


def check(site: TargetDeployment) -> list[Reason]:
    program = tool_folder(site, BACKEND) / "bin" / "python"
    return [*check_started(site, program, BACKEND), *check_layout(site)]


def load(site: TargetDeployment) -> None:
    """Make the files and start the server."""
    version = site.registry.path(site.new)
    port = free_port()
    argv = [str(tool_folder(site, BACKEND) / "bin" / "python"), "-m", "mlx_lm", "server", "--host", "127.0.0.1"]
    argv += ["--port", str(port), "--allowed-origins", f"http://127.0.0.1:{port}", "--temp", "0"]
    if site.candidate.kind == "adapter":
        peft_writer(Layout.MLX)(version, convert_version(site))
        argv += ["--model", site.candidate.base_path, "--adapter-path", str(convert_version(site))]
    else:
        argv += ["--model", str(version)]
    if template := template_file(version):
        argv += ["--chat-template", template.read_text(encoding="utf-8")]
    bring_up(site, argv, port, VARIABLES)


def canary(site: TargetDeployment) -> None:
    ask_canary(site, DEFAULT_MODEL)


ACTIONS = Actions(check, load, canary, switch, undo, retire)
