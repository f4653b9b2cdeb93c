"""The kinds of server by target, each the same six functions."""

from __future__ import annotations

from trainyard.callbacks import ignore
from trainyard.serve.targets import embedded, llama_server, mlx, ollama, vllm
from trainyard.serve.targets.contract import Actions, TargetDeployment, accept_site
from trainyard.spec.axes.targets import TargetType


def point_registry(site: TargetDeployment) -> None:
    """Let the registry's pointer mean the version: every deployment ends with it, listed or not."""
    site.registry.point(site.new.tenant, site.new.role, site.new.version, site.action)
    site.switched = True


def unpoint_registry(site: TargetDeployment) -> None:
    if site.switched:
        before = site.previous.version if site.previous else None
        site.registry.point(site.new.tenant, site.new.role, before, "undo")
        site.switched = False


TARGETS: dict[TargetType, Actions] = {
    TargetType.REGISTRY: Actions(accept_site, ignore, ignore, point_registry, unpoint_registry, ignore),
    TargetType.EMBEDDED: embedded.ACTIONS,
    TargetType.VLLM: vllm.ACTIONS,
    TargetType.LLAMA_SERVER: llama_server.ACTIONS,
    TargetType.OLLAMA: ollama.ACTIONS,
    TargetType.MLX: mlx.ACTIONS,
}
