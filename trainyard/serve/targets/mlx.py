"""mlx-lm's server: the base's own folder and the adapter in mlx-lm's layout, one server a version.

It loads what a request names, from the Hub if need be, so every request is sent with `default_model`, which means what
the server was started with. It has no key and listens on the loopback interface only. DoRA is served.
"""

from __future__ import annotations

from trainyard.compute.services import free_port
from trainyard.errors import Reason
from trainyard.serve.targets import merged, started
from trainyard.serve.targets.calling import ask_canary
from trainyard.serve.targets.contract import Actions, TargetDeployment

BACKEND = "mlx"
DEFAULT_MODEL = "default_model"
VARIABLES = {"USE_TORCH": "0", "TRANSFORMERS_VERBOSITY": "error"}


def check(site: TargetDeployment) -> list[Reason]:
    program = started.tool_folder(site, BACKEND) / "bin" / "python"
    return [*started.check_started(site, program, BACKEND), *started.check_layout(site)]


def load_version(site: TargetDeployment) -> None:
    """Make the files and start the server."""
    version = site.registry.path(site.new)
    port = free_port()
    argv = [str(started.tool_folder(site, BACKEND) / "bin" / "python"), "-m", "mlx_lm", "server", "--host", "127.0.0.1"]
    argv += ["--port", str(port), "--allowed-origins", f"http://127.0.0.1:{port}", "--temp", "0"]
    if site.target.merged is not None:
        argv += ["--model", str(merged.model_folder(site))]
    elif site.candidate.kind == "adapter":
        from trainyard.serve.conversion.mlx import peft_to_mlx  # imports numpy

        peft_to_mlx(version, started.convert_version(site))
        argv += ["--model", site.candidate.base_path, "--adapter-path", str(started.convert_version(site))]
    else:
        argv += ["--model", str(version)]
    if template := started.template_file(version):
        argv += ["--chat-template", template.read_text(encoding="utf-8")]
    started.bring_up(site, argv, port, VARIABLES)


def canary(site: TargetDeployment) -> None:
    ask_canary(site, DEFAULT_MODEL)


ACTIONS = Actions(check, load_version, canary, started.switch, started.undo, started.retire)
