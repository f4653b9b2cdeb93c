"""The whole paths of the models that a chain names by relative folders: a worker has another working folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainyard.app.plan.parse import ChainRequest
from trainyard.settings import Settings
from trainyard.spec.chain import ChainSpec
from trainyard.spec.nodes import DeployerConfig, ValidatorConfig
from trainyard.spec.training import TrainerConfig
from trainyard.stores.models import model_folder


def locate_request(request: ChainRequest, settings: Settings) -> ChainRequest:
    """Return the same with whole paths of its models, in the chain and in what the deployment is given."""
    spec = locate_models(request.spec, settings)
    if "spec" in request.parameters:
        parameters: dict[str, Any] = {"spec": spec.model_dump(mode="json")}
    elif "job" in request.parameters:
        parameters = {"job": locate_parameters(request.parameters["job"], settings)}
    else:
        parameters = locate_parameters(request.parameters, settings)
    return request.model_copy(update={"spec": spec, "parameters": parameters})


def locate_models(spec: ChainSpec, settings: Settings) -> ChainSpec:
    """Return the chain with whole paths of its models: a worker has another working folder than its caller."""
    nodes = []
    for node in spec.nodes:
        updates = locate_fields(node.config, settings)
        nodes.append(node.model_copy(update={"config": node.config.model_copy(update=updates)}) if updates else node)
    return spec.model_copy(update={"nodes": tuple(nodes)})


def locate_fields(config: Any, settings: Settings) -> dict[str, Any]:
    """Return the fields of a node's config that name a model by a relative folder, with its whole path."""
    updates: dict[str, Any] = {}
    if isinstance(config, DeployerConfig):
        base_models = (target.base_model and locate_model(target.base_model, settings) for target in config.targets)
        located = (
            target.model_copy(update={"base_model": base_model})
            for target, base_model in zip(config.targets, base_models, strict=True)
        )
        updates = {"targets": tuple(located)}
    elif isinstance(config, TrainerConfig):
        teacher = config.stage.teacher_model
        updates = {"base_model": locate_model(config.base_model, settings)} if config.base_model else {}
        if teacher:
            updates["stage"] = config.stage.model_copy(update={"teacher": locate_model(teacher, settings)})
    elif isinstance(config, ValidatorConfig) and config.tokenizer:
        updates = {"tokenizer": locate_model(config.tokenizer, settings)}
    return {name: value for name, value in updates.items() if value != getattr(config, name)}


def locate_model(name: str, settings: Settings) -> str:
    """Return the whole path of a model's folder that is named relative to the caller's folder; any other name as it
    is.
    """
    folder = None if Path(name).is_absolute() else model_folder(name, settings)
    return name if folder is None else str(folder)


def locate_parameters(parameters: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Parameters of a template or a job with the whole paths of their base model and their teacher."""
    located, stage = dict(parameters), parameters.get("stage")
    if isinstance(name := located.get("base_model"), str):
        located["base_model"] = locate_model(name, settings)
    if isinstance(stage, Mapping) and isinstance(teacher := stage.get("teacher"), str):
        located["stage"] = {**stage, "teacher": locate_model(teacher, settings)}
    return located
