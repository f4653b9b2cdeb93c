"""The settings of a model as rows of words, from its JSON Schema: for the manual and for the terminal.

    ModelSchema(JobSpec, "job").sections()      [(path, description, rows)], the model itself first

A model inside a model has a section of its own, under the path of the first setting that leads to it.

Settings by their dotted names, what differs between two sets of them, and what differs from the defaults.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from trainyard.json_types import JsonMapping, JsonObject
from trainyard.spec.axes.axis import Variant


def format_value(value: object) -> str:
    return str(value)


def section_name(path: str) -> str:
    """Return how a type names the section of a model: the last word of its path."""
    return re.split("[.#]", path)[-1]


@dataclass(frozen=True)
class SettingRow:
    """A setting of a model, in words."""

    name: str
    type: str
    limits: str
    default: str
    text: str


@dataclass(frozen=True)
class SettingSection:
    """A model: the table of its settings."""

    path: str
    text: str
    """Its description as written; empty for the model that was requested."""
    rows: tuple[SettingRow, ...]


@dataclass
class ModelSchema:
    """The settings of one model, and of each model inside it.

    `seen` contains the models that are described already, each with its path; several roots may share it. `word` writes
    a value and `link` refers to a section by its path.
    """

    model: type[BaseModel]
    name: str
    seen: dict[str, str] = field(default_factory=dict)
    word: Callable[[object], str] = format_value
    link: Callable[[str], str] = section_name
    root: JsonObject = field(init=False)

    def __post_init__(self) -> None:
        self.root = self.model.model_json_schema()

    @property
    def models(self) -> JsonMapping:
        definitions: JsonMapping = self.root.get("$defs", {})
        return definitions

    def sections(self) -> list[SettingSection]:
        """Return the root, then each model below it that has not been described yet."""
        inner = [*self.inner(self.root, self.name)]
        sections = [SettingSection(self.name, "", self.rows(self.root))]
        return [
            *sections,
            *(SettingSection(path, model.get("description", ""), self.rows(model)) for path, model in inner),
        ]

    def inner(self, model: JsonMapping, path: str) -> Iterator[tuple[str, JsonMapping]]:
        for name, property_schema in model.get("properties", {}).items():
            for reference in dict.fromkeys(references(property_schema)):
                below = self.models[reference]
                if "properties" in below and reference not in self.seen:
                    tags = variants(below["properties"].get("type", {}))
                    self.seen[reference] = f"{path}.{name}" + (f".{' or '.join(tags)}" if tags else "")
                    yield self.seen[reference], below
                    yield from self.inner(below, self.seen[reference])

    def rows(self, model: JsonMapping) -> tuple[SettingRow, ...]:
        required = model.get("required", ())
        return tuple(
            SettingRow(
                name=name,
                type=self.describe_type(field),
                limits=", ".join(limits(field)),
                default="required" if name in required else describe_default(field),
                text=self.text_of(field),
            )
            for name, field in model["properties"].items()
        )

    def text_of(self, field: JsonMapping) -> str:
        """Return what a field says of itself, or else what its words or its model say."""
        if "description" in field:
            return str(field["description"])
        texts = [self.models[reference].get("description", "") for reference in references(field)]
        return texts[0].split("\n\n")[0] if len(texts) == 1 else ""

    def describe_type(self, field: JsonMapping) -> str:
        """Return the values that a field takes."""
        if field.get("type") == "array":
            return f"list of {self.describe_type(field.get('items') or field['prefixItems'][0])}"
        if field.get("type") == "object":
            values = field.get("additionalProperties")
            return f"mapping to {self.describe_type(values)}" if isinstance(values, dict) and values else "mapping"
        return self.scalar(field)

    def scalar(self, field: JsonMapping) -> str:
        if "$ref" in field:
            name = field["$ref"].rsplit("/", 1)[-1]
            path = self.seen.get(name)
            return self.link(path) if path else self.describe_type(self.models[name])
        if "const" in field:
            return self.word(field["const"])
        if "enum" in field:
            return " ".join(map(self.word, field["enum"]))
        if alternatives := field.get("anyOf") or field.get("oneOf"):
            return join_types(
                self.describe_type(alternative) for alternative in alternatives if alternative.get("type") != "null"
            )
        kind = str(field.get("format") or field.get("type", "any value"))
        return {"string": "text", "boolean": "true or false"}.get(kind, kind)


def join_types(types: Iterable[str]) -> str:
    """Return the types as alternatives; a word that is one of the words before it is not repeated."""
    parts: list[str] = []
    for type_name in [part for text in types for part in text.split(" or ")]:
        if not any(type_name in part.split() or type_name == part for part in parts):
            parts.append(type_name)
    return " or ".join(parts)


def variants(tag: JsonMapping) -> list[str]:
    """Return the words of `type` that pick a variant, by the schema of that field."""
    return [tag["const"]] if "const" in tag else list(tag.get("enum", ()))


def references(field: object) -> Iterator[str]:
    """Yield the names of the models that the schema of a field leads to."""
    if isinstance(field, dict):
        if isinstance(field.get("$ref"), str):
            yield field["$ref"].rsplit("/", 1)[-1]
        for key, item in field.items():
            if key not in ("default", "discriminator"):
                yield from references(item)
    elif isinstance(field, list):
        for item in field:
            yield from references(item)


BOUNDS = {
    "minimum": "≥ {}", "exclusiveMinimum": "> {}", "maximum": "≤ {}", "exclusiveMaximum": "< {}",
    "minItems": "at least {}", "maxItems": "at most {}", "maxLength": "at most {} characters", "pattern": "`{}`",
}  # fmt: skip
NO_DEFAULT = "–"


def limits(field: JsonMapping) -> list[str]:
    """Return the bounds of a field, those of its alternatives included."""
    parts = [field, *field.get("anyOf", ()), *([field["items"]] if isinstance(field.get("items"), dict) else [])]
    fixed = "prefixItems" in field or any("prefixItems" in part for part in parts)
    names = [name for name in BOUNDS if not (fixed and name.endswith("Items"))]
    bounds = [BOUNDS[name].format(number(part[name])) for part in parts for name in names if name in part]
    return [*dict.fromkeys(bounds)]


def number(value: object) -> str:
    return f"{value:,.0f}" if isinstance(value, int | float) and value == int(value) else str(value)


def describe_default(field: Mapping[str, object]) -> str:
    value = field.get("default")
    if value is None or (isinstance(value, dict) and value):
        return NO_DEFAULT
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


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
