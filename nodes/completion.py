"""Model server of a generator: chosen by the chain's config, the settings and the running servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nodes.runner import NodeContext
from trainyard.compute.gpus import device_numbers, read_gpus
from trainyard.data.generation.asking import Complete
from trainyard.errors import Reason, Refused
from trainyard.serve import embedded
from trainyard.serve.client.client import Completer, api_key_from
from trainyard.serve.inference_server import vllm
from trainyard.serve.inference_server.life import InferenceServer
from trainyard.settings import Settings
from trainyard.spec.axes.data import GeneratorKind
from trainyard.spec.nodes import AiGeneratorConfig
from trainyard.stores.models import resolve_model


@contextmanager
def completion(context: NodeContext, read: vllm.Probe = read_gpus) -> Iterator[Complete | None]:
    """Yield the function that answers prompts; None for the extractive engine, which needs no model.

    A server that the engine vllm started is ended with the block. `read` lists the GPUs of this machine.

    Raises `Refused` (`R-ENDPOINT`) for a model without an endpoint: it is never replaced by another one, and
    `Unavailable` for a server that cannot be started.
    """
    config = context.config(AiGeneratorConfig)
    if config.engine is GeneratorKind.EXTRACTIVE:
        yield None
    elif config.engine is GeneratorKind.VLLM:
        with start_server(context, config, read) as base_url:
            yield asking(context, config, base_url, find_endpoint_model(config, context.settings))
    else:
        yield asking(context, config, *address(context.node.id, config, context.settings))


def asking(
    context: NodeContext, config: AiGeneratorConfig, base_url: str, model: str, key: str | None = None
) -> Complete:
    context.say(f"asking {model} at {base_url}")
    return Completer(config, base_url, model, key, context.settings.private_hosts)


@contextmanager
def start_server(context: NodeContext, config: AiGeneratorConfig, read: vllm.Probe) -> Iterator[str]:
    """The base URL of a vLLM server of this node's own. Its log stays in the run's folder."""
    vllm.require_gpu(read)
    source = resolve_model(find_endpoint_model(config, context.settings), context.settings)
    folder = context.record.folder / "vllm" / context.node.id
    profile = vllm.build_profile(source.location, source.name, context.settings)
    context.say(f"starting vLLM with {source.name}; its log is in {folder}")
    with InferenceServer(profile, folder, context.settings, index=device_numbers()[0], read=read) as server:
        server.start()
        server.wait_ready()
        yield server.chat_url


def find_endpoint_model(config: AiGeneratorConfig, settings: Settings) -> str:
    return config.model or settings.default_base_model


def address(node_id: str, config: AiGeneratorConfig, settings: Settings) -> tuple[str, str, str | None]:
    """(base URL, the server's name for the model, API key) of a generator."""
    if config.engine is GeneratorKind.LOCAL:
        name = find_endpoint_model(config, settings)
        url = embedded.find_running(settings) or embedded.start(settings, name)
        return f"{url}/v1", name, None
    if config.base_url is not None:  # the chain's own address: no endpoint's key goes there, whatever the model's name
        return config.base_url, find_endpoint_model(config, settings), None
    if config.endpoint is not None:
        endpoint = settings.endpoint(config.endpoint)
        return endpoint.base_url, find_endpoint_model(config, settings), api_key_from(endpoint.api_key_env)
    if config.model not in settings.endpoints:
        raise unresolved_error(node_id, config)
    endpoint = settings.endpoint(config.model)
    return endpoint.base_url, endpoint.model or config.model, api_key_from(endpoint.api_key_env)


def unresolved_error(node_id: str, config: AiGeneratorConfig) -> Refused:
    because = f"no endpoint is configured for the model {config.model!r}, and none is given in the chain."
    instead = f'[endpoints."{config.model}"] base_url = "…" in trainyard.toml, or base_url in the node, or no model.'
    return Refused([Reason("R-ENDPOINT", node_id, "config.model", because, instead)])
