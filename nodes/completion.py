"""Who answers a generator's prompts: composed of the chain's config, the settings and the servers that are up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nodes.runner import NodeContext
from trainyard.data.generation import Complete
from trainyard.errors import Reason, Refused
from trainyard.serve import embedded
from trainyard.serve.client import api_key_from, completer
from trainyard.settings import Settings
from trainyard.spec.axes import Engine
from trainyard.spec.nodes import AiGeneratorConfig


@contextmanager
def completion(context: NodeContext) -> Iterator[Complete | None]:
    """The function that answers prompts; None for the extractive engine, which asks nobody.

    Raises `Refused` (`R-ENGINE-UNRESOLVED`) for a model without an endpoint: it is never replaced by another one.
    """
    config: AiGeneratorConfig = context.node.config
    if config.engine is Engine.EXTRACTIVE:
        yield None
        return
    base_url, model, key = address(context.node.id, config, context.settings)
    context.say(f"asking {model} at {base_url}")
    yield completer(config, base_url, model, key)


def address(node_id: str, config: AiGeneratorConfig, settings: Settings) -> tuple[str, str, str | None]:
    """(base URL, the server's name for the model, API key) of a generator."""
    if config.engine is Engine.LOCAL:
        name = config.model or settings.default_base_model
        url = embedded.running(settings) or embedded.start(settings, name)
        return f"{url}/v1", name, None
    endpoint = settings.endpoints.get(config.model or "")
    base_url = config.base_url or (endpoint.base_url if endpoint else None)
    if base_url is None:
        raise unresolved(node_id, config)
    variable = config.api_key_env or (endpoint.api_key_env if endpoint else None)
    model = (endpoint.model if endpoint else None) or config.model or settings.default_base_model
    return base_url, model, api_key_from(variable)


def unresolved(node_id: str, config: AiGeneratorConfig) -> Refused:
    because = f"no endpoint is configured for the model {config.model!r}, and none is given in the chain."
    instead = f'[endpoints."{config.model}"] base_url = "…" in trainyard.toml, or base_url in the node, or no model.'
    return Refused([Reason("R-ENGINE-UNRESOLVED", node_id, "config.model", because, instead)])
