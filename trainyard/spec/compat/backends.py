"""Limits of backends: one row, one wording, for chains, jobs and nights. The limits are data of its axis.

Whether a backend is installed, and what needs its packages or a device, is asked at run by the backend itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from trainyard.errors import Reason
from trainyard.spec.axes.axis import Strict
from trainyard.spec.axes.backends import ALONE, EXTRA_CODE, OWN_KEYS, SERVICE_VARIABLES, BackendName
from trainyard.spec.axes.data import Port
from trainyard.spec.axes.devices import Device
from trainyard.spec.axes.stages import Stage
from trainyard.spec.axes.strategies import Strategy
from trainyard.spec.compat.context import Match, NodeView, Row, answers, fill, join_words
from trainyard.spec.model_schema import ABSENT, read_setting
from trainyard.spec.training import STARTER, EvalSettings, TrainerConfig

OUTPUT_LAYER = "lm_head"
USUAL = TrainerConfig()
HELD_OUT = EvalSettings(set="heldout")
"""The evaluation that a cloud provider takes: the held-out rows of the data source as a second file."""
UNLESS_NAMED: dict[str, tuple[object, ...]] = {"adapter": ("continue",), "launch.launcher": ("auto",)}
"""What a backend supports of these settings where its row does not name them."""


class Limit(NamedTuple):
    """A setting, and the values that a backend supports."""

    setting: str
    allowed: tuple[Any, ...]
    why: str = ""


def limits(config: TrainerConfig) -> Iterator[Limit]:
    """Yield every limit of the backend of a trainer; the stricter one of a setting is last."""
    facts, launch = config.backend.facts, config.launch
    if facts.runs_scripts and launch.script is not None:
        return
    yield Limit("stage", facts.stages)
    yield Limit("method", facts.methods)
    yield Limit("device", (Device.AUTO, *facts.devices))
    yield Limit("hyperparameters.optimizer", tuple(facts.optimizers))
    yield Limit("hyperparameters.schedule", tuple(facts.schedules))
    yield Limit("launch.strategy", facts.strategies)
    if facts.strategies == ALONE:
        yield Limit("launch.processes", (1,))
    unread = {"launch.launcher"} if launch.strategy is Strategy.SINGLE else set()
    unread |= {"stage.loss"} if config.stage.type is not Stage.DPO else set()
    yield from (Limit(*row) for row in {**UNLESS_NAMED, **facts.settings}.items() if row[0] not in unread)
    yield from (Limit(setting, (read_setting(USUAL, setting),)) for setting in facts.default_only)
    if config.backend not in OWN_KEYS:
        yield Limit("extra", (None,))
    if facts.provider is not None:
        yield Limit("eval", (None, HELD_OUT))
    if not facts.remote:
        yield Limit("service", (None,))
    if launch.strategy in facts.strategies and launch.strategy.facts.sharded:
        why = f"with {launch.strategy} each process has a part of the weights"
        yield from (Limit(setting, allowed, why) for setting, allowed in facts.sharded.items())
    if config.method.type in facts.cuda_methods:
        yield Limit("device", (Device.AUTO, Device.CUDA), f"method {config.method} has kernels for CUDA only")


def find_refused_settings(config: TrainerConfig) -> dict[str, Limit]:
    """Setting -> the limit of its backend that it breaks."""
    values = {limit: read_setting(config, limit.setting) for limit in limits(config)}
    unmet = {
        limit.setting: limit
        for limit, value in values.items()
        if value not in (ABSENT, *limit.allowed) and not is_filled_later(limit.setting, value)
    }
    facts, targets = config.backend.facts, read_setting(config, "method.target_modules")
    for setting in facts.whole_numbers:
        value = read_setting(config, setting)
        if value not in (ABSENT, None) and not float(value).is_integer():
            unmet[setting] = Limit(setting, ("a whole number",))
    if facts.is_stage("headless", config.stage.type) and isinstance(targets, tuple) and OUTPUT_LAYER in targets:
        why = f"stage {config.stage} multiplies by the output layer itself, so an adapter on it would not learn"
        unmet["method.target_modules"] = Limit("method.target_modules", (f"modules without {OUTPUT_LAYER}",), why)
    return unmet


def is_filled_later(setting: str, value: object) -> bool:
    """Return whether a setting of an adapter is left out, and takes what the backend or its profile has."""
    return value is None and setting.startswith("method.")


def supporters(config: TrainerConfig, setting: str) -> list[str]:
    """Return the other backends of this machine that support the value of a setting with this stage, method and
    strategy.
    """
    named = {"stage", "method", "launch.strategy", setting}
    candidates = [name for name in BackendName if not name.facts.runs_scripts and not name.facts.remote]
    copies = {
        name.value: config.model_copy(update={"backend": name}) for name in candidates if name is not config.backend
    }
    return [name for name, copy in copies.items() if not named & find_refused_settings(copy).keys()]


def format_value(value: object) -> str:
    if isinstance(value, tuple):
        return join_words(value) or "none"
    if isinstance(value, Strict):
        return (
            ", ".join(f"{name} {format_value(item)}" for name, item in value if name in value.model_fields_set) or "{}"
        )
    return str(value).lower() if isinstance(value, bool) else "none" if value is None else str(value)


def unsupported(config: TrainerConfig, _: NodeView | None = None) -> Match:
    """Return the words of each setting that the backend of a trainer does not support."""
    facts, matches = config.backend.facts, []
    for setting, limit in find_refused_settings(config).items():
        value, alternatives = read_setting(config, setting), supporters(config, setting)
        why = limit.why or facts.why.get(str(value)) or facts.why.get(setting, "")
        instead = [
            join_words(map(format_value, limit.allowed)),
            f"backend {join_words(alternatives)}" if alternatives else "",
        ]
        instead.append("a script of your own in launch.script" if facts.runs_scripts else "")
        matches.append({
            "setting": setting,
            "name": setting.rpartition(".")[2],
            "value": format_value(value),
            "why": f": {why}" if why else "",
            "instead": ", or ".join(filter(None, instead)),
        })  # fmt: skip
    return matches


def extra_keys(config: TrainerConfig, _: NodeView) -> Match:
    """Return each key of `extra` that is not a chain's to give, and each module that is not part of the tool."""
    managed, matches = OWN_KEYS.get(config.backend), []
    if managed is None or config.extra is None:
        return False
    matches = [{"key": key, "why": managed[key]} for key in config.extra if key in managed]
    key, begins = EXTRA_CODE[config.backend]
    listed_modules = config.extra.get(key)
    for module in listed_modules if isinstance(listed_modules, list) else [listed_modules] if listed_modules else ():
        if not str(module).startswith(begins):
            matches.append({"key": key, "why": f"{module} is code that is not part of {config.backend} ({begins}…)"})
    return matches


def lacks_cuda(config: TrainerConfig, at: NodeView) -> bool:
    """Return a method whose kernels are for CUDA, where `device: auto` finds no such device."""
    asks = config.method.type in config.backend.facts.cuda_methods and config.device is Device.AUTO
    return asks and at.facts.devices is not None and Device.CUDA not in at.facts.devices


def has_no_address(config: TrainerConfig, _: NodeView) -> bool:
    """Return whether nothing says which Trainyard is trained at."""
    service = config.service
    return config.backend is BackendName.REMOTE and (service is None or not (service.endpoint or service.base_url))


def sends_key_elsewhere(config: TrainerConfig, _: NodeView) -> Match:
    """Return the variable with the address of a service whose key would go to one that a chain names."""
    provider = config.backend.facts.provider
    if config.service is None or config.service.base_url is None:
        return False
    if provider is not None:
        return not provider.opens_without_key and {"variable": provider.address}
    return config.backend in SERVICE_VARIABLES and {"variable": SERVICE_VARIABLES[config.backend].url}


def lacks_base(config: TrainerConfig, _: NodeView) -> bool:
    """Return whether a provider's job names no base."""
    return config.backend.facts.provider is not None and config.base_model in (None, STARTER)


def is_served_elsewhere(_: object, at: NodeView) -> Match:
    """Return a trainer before an evaluator or deployer whose provider gives no weights out."""
    for node in at.sources(Port.ADAPTER, Port.MODEL):
        provider = node.config.backend.facts.provider if isinstance(node.config, TrainerConfig) else None
        if provider is not None and not provider.weights:
            return {"earlier": node.id, "provider": provider.title}
    return False


def reads_service_settings(config: TrainerConfig, _: NodeView) -> Match:
    """Return a setting of `service` that the backend of a trainer does not read."""
    service, provider = config.service, config.backend.facts.provider
    if service is None:
        return False
    unread = [
        *(["suffix"] if service.suffix and provider is None else []),
        *(["flavor"] if service.flavor and config.backend is not BackendName.HF_JOBS else []),
    ]
    return [{"setting": setting} for setting in unread]


def begins_elsewhere(config: TrainerConfig, at: NodeView) -> Match:
    """Return the earlier trainer whose weights a service would have to begin with."""
    sources = at.sources(Port.ADAPTER, Port.MODEL) if config.backend.facts.remote else []
    return bool(sources) and {"earlier": sources[0].id}


BACKEND_ROW = Row(
    "backend-setting", "R-BACKEND-SETTING", "trainer", "config.{setting}", unsupported,
    "The {config.backend} backend does not support {name} {value}{why}.", "Use {instead}.",
)  # fmt: skip
BACKEND_ROWS = (
    BACKEND_ROW,
    Row(
        "backend-extra", "R-BACKEND-SETTING", "trainer", "config.extra.{key}", extra_keys,
        "A chain does not give {key} to {config.backend}: {why}.", "Remove it from `extra`.",
    ),
    Row(
        "backend-setting-here", "R-BACKEND-SETTING", "trainer", "config.method", lacks_cuda,
        "The {config.backend} backend does not support method {config.method}: its kernels are for CUDA, and this "
        "machine has no such device.",
        "Use method lora, or backend native.", scope="run",
    ),
    Row(
        "service-address", "R-BACKEND-SETTING", "trainer", "config.service", has_no_address,
        "The {config.backend} backend trains at another Trainyard, and no address is given.",
        "Write `service: {{base_url: http://HOST:8898/tinker}}`, or `service: {{endpoint: NAME}}` for one of "
        "trainyard.toml with a key.",
    ),
    Row(
        "service-key", "R-BACKEND-SETTING", "trainer", "config.service.base_url", sends_key_elsewhere,
        "The {config.backend} backend sends a key, which belongs to an address that the operator names.",
        "Set {variable}, write `service: {{endpoint: NAME}}`, or use backend remote, which sends no key there.",
    ),
    Row(
        "provider-base", "R-BACKEND-SETTING", "trainer", "config.base_model", lacks_base,
        "The {config.backend} backend trains a model of the provider, and none is named.",
        "Write the provider's name of a model in base_model.",
    ),
    Row(
        "provider-served", "R-PROVIDER", "*", "type", is_served_elsewhere,
        "{provider} gives no weights out, so nothing here can load what {earlier} trains.",
        "Remove this node, or use backend together, fireworks or hf_jobs.", chained=True,
    ),
    Row(
        "service-setting", "R-BACKEND-SETTING", "trainer", "config.service.{setting}", reads_service_settings,
        "The {config.backend} backend does not read service.{setting}.", "Remove it.",
    ),
    Row(
        "service-earlier", "R-ADAPTER", "trainer", "config.backend", begins_elsewhere,
        "The {config.backend} backend cannot continue from {earlier}: its wire takes no weights of this machine.",
        "Use backend native here, or train both stages with one trainer.", chained=True,
    ),
)  # fmt: skip


def backend_reasons(config: TrainerConfig, node: str | None = None) -> list[Reason]:
    """Return every setting that the backend of a trainer does not support, for a job that reaches it without a
    chain.
    """
    return [
        fill(BACKEND_ROW, {"config": config, **arguments}, node, f"config.{arguments['setting']}")
        for arguments in answers(unsupported(config))
    ]
