"""Where an adapter version is made to answer: one row per kind of server, each the same six functions.

    check   what speaks against it, before anything is touched      load     bring the version in, beside the live one
    canary  it has to answer a prompt                               switch   let the alias mean it
    undo    take back whatever of this was done                     retire   drop the version that was live before

Every function takes the `Site`: the target, the version and what has been done there so far. A version is always
loaded under its own name, which is never used again, so no server can answer from another version's prefix cache.

    registry.py      the pointer that everybody follows           llama_server.py  llama.cpp's server, started here
    openai.py        embedded and vLLM: adapters while they run    mlx.py           mlx-lm's server, started here
    ollama.py        a model made of base and adapter             local.py         servers that a deployment starts
"""

from __future__ import annotations

from trainyard.serve.targets import llama_server, mlx, ollama
from trainyard.serve.targets.calling import http_client
from trainyard.serve.targets.contract import Actions, Candidate, Site, no_objection, nothing
from trainyard.serve.targets.openai import (
    ask_canary,
    base_card,
    check_embedded,
    check_vllm,
    load_adapter,
    retire_previous,
    switch_alias,
    undo_embedded,
    undo_load,
)
from trainyard.serve.targets.registry import point_registry, unpoint_registry
from trainyard.spec.axes import TargetType

__all__ = [
    "SERVERS",
    "TARGETS",
    "Actions",
    "Candidate",
    "Site",
    "ask_canary",
    "base_card",
    "http_client",
    "load_adapter",
]

TARGETS: dict[TargetType, Actions] = {
    TargetType.REGISTRY: Actions(no_objection, nothing, nothing, point_registry, unpoint_registry, nothing),
    TargetType.EMBEDDED: Actions(
        check_embedded, load_adapter, ask_canary, switch_alias, undo_embedded, retire_previous
    ),
    TargetType.VLLM: Actions(check_vllm, load_adapter, ask_canary, nothing, undo_load, retire_previous),
    TargetType.LLAMA_SERVER: llama_server.ACTIONS,
    TargetType.OLLAMA: ollama.ACTIONS,
    TargetType.MLX: mlx.ACTIONS,
}
SERVERS = frozenset({TargetType.EMBEDDED, TargetType.VLLM, TargetType.OLLAMA})
"""Targets that are there before the deployment and are spoken to over HTTP; the others are started by it."""
