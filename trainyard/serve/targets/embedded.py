"""The embedded server: vLLM's endpoints for adapters, and one more that lets an alias mean a version."""

from __future__ import annotations

from trainyard.errors import Reason
from trainyard.serve.targets.calling import ask_canary, call
from trainyard.serve.targets.contract import Actions, TargetDeployment
from trainyard.serve.targets.vllm import (
    check_base,
    list_models,
    load_adapter,
    refuse_whole_model,
    retire_previous,
    undo_load,
)


def check(site: TargetDeployment) -> list[Reason]:
    return [*refuse_whole_model(site), *check_base(site)]


def switch_alias(site: TargetDeployment) -> None:
    site.alias_before = read_alias(site)
    site.switched = True
    call(site, "POST", "/v1/aliases", {"alias": site.new.alias, "model": site.new.name})


def read_alias(site: TargetDeployment) -> str | None:
    """Return the version that the alias means on this server now."""
    card = next((card for card in list_models(site) if card.get("id") == site.new.alias), {})
    return str(card["alias_of"]) if card.get("alias_of") else None


def undo(site: TargetDeployment) -> None:
    if site.switched and site.alias_before != read_alias(site):
        call(site, "POST", "/v1/aliases", {"alias": site.new.alias, "model": site.alias_before})
    site.switched = False
    undo_load(site)


ACTIONS = Actions(check, load_adapter, ask_canary, switch_alias, undo, retire_previous)
