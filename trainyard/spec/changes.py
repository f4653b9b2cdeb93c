"""Settings by their dotted names, what differs between two sets of them, and what differs from the defaults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from trainyard.json_types import JsonMapping, JsonObject
from trainyard.spec.axes.axis import Variant

ABSENT = object()
"""The value of a setting that the chosen variant does not have."""
Change = tuple[str, Any, Any]
"""(name, value before, value after); None where there is none."""


def flatten_settings(settings: JsonMapping, prefix: str = "") -> JsonObject:
    """Return nested settings as `group.name` -> value."""
    flat: JsonObject = {}
    for name, value in settings.items():
        nested = isinstance(value, Mapping)
        flat |= flatten_settings(value, f"{prefix}{name}.") if nested else {f"{prefix}{name}": value}
    return flat


def read_setting(config: Any, setting: str) -> Any:
    """Return the value of a setting by its name as it is written, such as `method.rank`; of a variant its word.

    `ABSENT` where the variant that is chosen has no such setting.
    """
    value = config
    for name in setting.split("."):
        if isinstance(value, Variant) and name not in type(value).model_fields:
            return ABSENT
        value = getattr(value, name)
    return value.type if isinstance(value, Variant) else value


def list_changes(before: Mapping[str, object], after: Mapping[str, object]) -> Iterator[Change]:
    """Yield every setting that is not the same.

    Of a variant of another type the types are all: the settings of one are not those of the other.
    """
    old, new = flatten_settings(before), flatten_settings(after)
    changed = [name for name in old | new if old.get(name) != new.get(name)]
    groups = tuple(name.removesuffix("type") for name in changed if name.endswith(".type"))
    for name in changed:
        if name.endswith(".type") or not name.startswith(groups):
            yield name.removesuffix(".type"), old.get(name), new.get(name)


def list_node_changes(first: Mapping[str, object], second: Mapping[str, object]) -> Iterator[Change]:
    """Yield every setting that differs between the nodes of two chains; a node that only one has is one entry."""
    for name in first.keys() ^ second.keys():
        yield name, "a node" if name in first else None, "a node" if name in second else None
    for name in first.keys() & second.keys():
        yield from list_changes({name: first[name]}, {name: second[name]})


def read_change(nodes: Mapping[str, object], name: str) -> object:
    """Return the value, in one chain, of a name that `list_node_changes` gave."""
    if name in nodes:
        return "a node"
    flat = flatten_settings(nodes)
    return flat.get(name, flat.get(f"{name}.type"))


def drop_defaults(config: BaseModel) -> dict[str, object]:
    """Return the settings of a config that differ from their defaults, as JSON; a variant keeps its `type`."""
    settings: JsonObject = drop_default_fields(config, config.model_dump(mode="json"))
    return settings


def drop_default_fields(value: Any, dumped: Any) -> Any:
    """Return the dump of a value without the fields of its models that have their defaults."""
    if isinstance(value, BaseModel):
        fields = {name: field for name, field in type(value).model_fields.items() if name in dumped}
        return {
            name: drop_default_fields(getattr(value, name), dumped[name])
            for name, field in fields.items()
            if name == "type" or getattr(value, name) != field.get_default(call_default_factory=True)
        }
    if isinstance(value, Mapping):
        return {str(key): drop_default_fields(part, dumped[str(key)]) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [drop_default_fields(part, dumped[index]) for index, part in enumerate(value)]
    return dumped
