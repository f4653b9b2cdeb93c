"""Summaries of nodes in one line: the settings that distinguish them. Editors, job pages, notebooks and plans show it.

sft · lora r32 · 3 epochs · lr 2e-4
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

from pydantic import BaseModel

from trainyard.spec.axes.axis import Strict
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.data import DataFormat, GenerationTemplate
from trainyard.spec.axes.methods import LowRankSettings
from trainyard.spec.axes.targets import TargetType
from trainyard.spec.nodes import (
    AiGeneratorConfig,
    DataSourceConfig,
    DeployerConfig,
    EvaluatorConfig,
    SetFields,
    ValidatorConfig,
)
from trainyard.spec.training import TrainerConfig, resolve_trainer

SEPARATOR = " · "
MOST_SETS = 3
"""Sets of a data source that are named; more are counted."""
BASELINES = {"base": "against the base", "live": "against the live adapter", "both": "against base and live adapter"}
SHORT_NUMBER = 1e-3
"""Rates below it are written with an exponent."""


def summarize_node(config: Strict, default_base_model: str = "") -> str:
    """Return what a node of this config does, in one line; empty for a type without a summary."""
    if isinstance(config, TrainerConfig):
        config = resolve_trainer(config, default_base_model)
    for model, summarize in SUMMARIES.items():
        if isinstance(config, model):
            return SEPARATOR.join(part for part in summarize(config, default_base_model) if part)
    return ""


def list_defaults(config: Strict, default_base_model: str = "") -> dict[str, object]:
    """Return the value that a run takes for each setting of a trainer that is left out: path of the field -> value."""
    if not isinstance(config, TrainerConfig):
        return {}
    return dict(compare_fields("", config, resolve_trainer(config, default_base_model)))


def compare_fields(path: str, written: BaseModel, resolved: BaseModel) -> list[tuple[str, object]]:
    """Return each field whose value changes when a config is resolved, with the value that it gets."""
    changes: list[tuple[str, object]] = []
    dumped = resolved.model_dump(mode="json")
    for name in type(resolved).model_fields:
        before, after = getattr(written, name, None), getattr(resolved, name)
        if isinstance(after, BaseModel) and isinstance(before, BaseModel):
            changes += compare_fields(f"{path}{name}.", before, after)
        elif before != after and name in dumped:
            changes.append((f"{path}{name}", dumped[name]))
    return changes


def format_rate(rate: float) -> str:
    """Return a learning rate as people write it: `2e-4`, `0.001`."""
    if rate >= SHORT_NUMBER or rate <= 0:
        return f"{rate:g}"
    mantissa, exponent = f"{rate:e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def format_count(number: float, noun: str) -> str:
    return f"{number:,g} {noun}" if number == 1 else f"{number:,g} {noun}s"


def describe_source(config: DataSourceConfig, _base: str) -> list[str]:
    if config.mix is not None:
        return ["mix of " + format_count(len(config.mix.sets), "set"), ", ".join(list(config.mix.sets)[:MOST_SETS])]
    if len(config.sets) > MOST_SETS:
        return [format_count(len(config.sets), "set")]
    if config.sets:
        return [f"{port}: {name_set(source)}" for port, source in config.sets.items()]
    form = "" if config.format is DataFormat.AUTO else config.format.value
    limit = f"at most {format_count(config.max_rows, 'row')}" if config.max_rows else ""
    return [name_set(config), form, limit]


def name_set(fields: SetFields) -> str:
    """Return the end of a set's path or address, which is what it is called."""
    if fields.hub is not None:
        return f"hub:{fields.hub.name}"
    if fields.sql is not None:
        return fields.sql.database or ", ".join(fields.sql.files) or "query"
    address = fields.path or fields.repository or fields.url or ""
    return PurePath(address.partition("?")[0].rstrip("/")).name or address


def describe_generator(config: AiGeneratorConfig, _base: str) -> list[str]:
    writer = config.model or config.endpoint or (config.engine.value if config.engine else "by rule")
    kind = "" if config.template is GenerationTemplate.QA else config.template.value
    best = f"best of {config.best_of}" if config.best_of > 1 else ""
    return ["by rule" if writer == "extractive" else writer, kind, format_count(config.count, "row"), best]


def describe_validator(config: ValidatorConfig, _base: str) -> list[str]:
    held_out = f"{config.holdout.documents:.0%} held out" if config.holdout.documents else "none held out"
    return [f"up to {config.max_tokens:,} tokens", held_out]


def describe_trainer(resolved: TrainerConfig, _base: str) -> list[str]:
    hyper, method = resolved.hyperparameters, resolved.method
    rank = f" r{method.rank}" if isinstance(method, LowRankSettings) and method.rank else ""
    length = format_count(hyper.max_steps, "step") if hyper.max_steps else format_count(hyper.epochs or 0, "epoch")
    stage = f"{resolved.stage.type.value} control" if resolved.control else resolved.stage.type.value
    backend = "" if resolved.backend is BackendName.NATIVE else resolved.backend.value
    rate = f"lr {format_rate(hyper.learning_rate)}" if hyper.learning_rate else ""
    return [stage, f"{method.type.value}{rank}", length, rate, backend]


def describe_evaluator(config: EvaluatorConfig, _base: str) -> list[str]:
    baseline = BASELINES.get(config.baseline, f"against {config.baseline}")
    names = [benchmark.name for benchmark in config.benchmarks]
    more = ", …" if len(names) > MOST_SETS else ""
    return [baseline, ", ".join(names[:MOST_SETS]) + more]


def describe_deployer(config: DeployerConfig, _base: str) -> list[str]:
    targets = [target.type.value for target in config.targets if target.type is not TargetType.REGISTRY]
    role = f"role {config.role}" if config.role else "role of its data"
    return [role + (f" → {', '.join(targets)}" if targets else "")]


SUMMARIES: Mapping[type[Strict], Callable[[Any, str], list[str]]] = {
    DataSourceConfig: describe_source,
    AiGeneratorConfig: describe_generator,
    ValidatorConfig: describe_validator,
    TrainerConfig: describe_trainer,
    EvaluatorConfig: describe_evaluator,
    DeployerConfig: describe_deployer,
}
"""Config of a node -> the parts of its line."""
