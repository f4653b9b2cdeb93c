"""The kinds of server by target, each the same six functions."""

from __future__ import annotations

from trainyard.callbacks import ignore
from trainyard.serve.targets import llama_server, mlx, ollama
from trainyard.serve.targets.contract import Actions, no_objection
from trainyard.serve.targets.openai import (
    ask_canary,
    check_embedded,
    check_vllm,
    load_adapter,
    retire_previous,
    switch_alias,
    undo_embedded,
    undo_load,
)
from trainyard.serve.targets.registry import point_registry, unpoint_registry
from trainyard.spec.axes.targets import TargetType

TARGETS: dict[TargetType, Actions] = {
    TargetType.REGISTRY: Actions(no_objection, ignore, ignore, point_registry, unpoint_registry, ignore),
    TargetType.EMBEDDED: Actions(
        check_embedded, load_adapter, ask_canary, switch_alias, undo_embedded, retire_previous
    ),
    TargetType.VLLM: Actions(check_vllm, load_adapter, ask_canary, ignore, undo_load, retire_previous),
    TargetType.LLAMA_SERVER: llama_server.ACTIONS,
    TargetType.OLLAMA: ollama.ACTIONS,
    TargetType.MLX: mlx.ACTIONS,
}
