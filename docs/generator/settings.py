"""Pages of settings, from the JSON Schema of the models of `spec/` and of the settings of a machine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from docs.generator.markdown import anchor, cell, code, page, paragraph, table
from trainyard.settings import Settings
from trainyard.spec.chain import ChainSpec
from trainyard.spec.job import JobSpec
from trainyard.spec.night import NightConfig
from trainyard.spec.nodes import NODE_CONFIGS, NodeBase
from trainyard.spec.templates import TEMPLATES

MACHINE_FIELDS = {"working_folder", "home"}
"""Settings whose default is a folder of the machine that writes the page."""


class Schema:
    """The settings of one model: a table for the model itself, and one for each model inside it.

    `seen` has the models that the page describes already, each with its heading; pages with several roots share it.
    """

    def __init__(self, model: type[BaseModel], name: str, seen: dict[str, str]) -> None:
        self.root = model.model_json_schema()
        self.models: Mapping[str, Any] = self.root.get("$defs", {})
        self.name, self.seen = name, seen

    def sections(self, level: str = "###") -> Iterator[str]:
        """The table of the root, then a section for each model below it that the page has not described yet."""
        inner = [*self.inner(self.root, self.name)]
        yield self.settings(self.root)
        for path, model in inner:
            text = paragraph(model.get("description"))
            yield "\n\n".join(part for part in (f"{level} {path}", text, self.settings(model)) if part)

    def inner(self, model: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for name, field in model.get("properties", {}).items():
            for reference in dict.fromkeys(references(field)):
                below = self.models[reference]
                if "properties" in below and reference not in self.seen:
                    tags = variants(below["properties"].get("type", {}))
                    self.seen[reference] = f"{path}.{name}" + (f".{' or '.join(tags)}" if tags else "")
                    yield self.seen[reference], below
                    yield from self.inner(below, self.seen[reference])

    def settings(self, model: Mapping[str, Any]) -> str:
        required = model.get("required", ())
        rows = [
            [
                code(name), self.type_of(field), cell(", ".join(limits(field))),
                "required" if name in required else default_of(field), cell(self.text_of(field)),
            ]
            for name, field in model["properties"].items()
        ]  # fmt: skip
        return table(["setting", "type", "range", "default", "what it is"], rows)

    def text_of(self, field: Mapping[str, Any]) -> str:
        """What a field says of itself, or else what its words or its model say."""
        if "description" in field:
            return str(field["description"])
        texts = [self.models[one].get("description", "") for one in references(field)]
        return texts[0].split("\n\n")[0] if len(texts) == 1 else ""

    def type_of(self, field: Mapping[str, Any]) -> str:
        """The values that a field takes."""
        if field.get("type") == "array":
            return f"list of {self.type_of(field.get('items') or field['prefixItems'][0])}"
        if field.get("type") == "object":
            values = field.get("additionalProperties")
            return f"mapping to {self.type_of(values)}" if isinstance(values, dict) and values else "mapping"
        return self.scalar(field)

    def scalar(self, field: Mapping[str, Any]) -> str:
        if "$ref" in field:
            name = field["$ref"].rsplit("/", 1)[-1]
            path = self.seen.get(name)
            place = path if path and "#" in path else f"#{anchor(path or '')}"
            return f"[{re.split('[.#]', path)[-1]}]({place})" if path else self.type_of(self.models[name])
        if "const" in field:
            return code(field["const"])
        if "enum" in field:
            return " ".join(map(code, field["enum"]))
        if alternatives := field.get("anyOf") or field.get("oneOf"):
            return " or ".join(dict.fromkeys(self.type_of(one) for one in alternatives if one.get("type") != "null"))
        kind = field.get("format") or field.get("type", "any value")
        return {"string": "text", "boolean": "true or false"}.get(kind, kind)


def variants(tag: Mapping[str, Any]) -> list[str]:
    """The words of `type` that pick a variant, by the schema of that field."""
    return [tag["const"]] if "const" in tag else list(tag.get("enum", ()))


def references(field: Any) -> Iterator[str]:
    """The names of the models that the schema of a field leads to."""
    if isinstance(field, dict):
        if isinstance(field.get("$ref"), str):
            yield field["$ref"].rsplit("/", 1)[-1]
        for key, one in field.items():
            if key not in ("default", "discriminator"):
                yield from references(one)
    elif isinstance(field, list):
        for one in field:
            yield from references(one)


BOUNDS = {
    "minimum": "≥ {}", "exclusiveMinimum": "> {}", "maximum": "≤ {}", "exclusiveMaximum": "< {}",
    "minItems": "at least {}", "maxItems": "at most {}", "maxLength": "at most {} characters", "pattern": "`{}`",
}  # fmt: skip


def limits(field: Mapping[str, Any]) -> list[str]:
    """The bounds of a field, those of its alternatives included."""
    parts = [field, *field.get("anyOf", ()), *([field["items"]] if isinstance(field.get("items"), dict) else [])]
    fixed = "prefixItems" in field or any("prefixItems" in one for one in parts)
    names = [name for name in BOUNDS if not (fixed and name.endswith("Items"))]
    found = [BOUNDS[name].format(number(one[name])) for one in parts for name in names if name in one]
    return [*dict.fromkeys(found)]


def number(value: object) -> str:
    return f"{value:,.0f}" if isinstance(value, int | float) and value == int(value) else str(value)


def default_of(field: Mapping[str, Any]) -> str:
    value = field.get("default")
    if value is None or (isinstance(value, dict) and value):
        return "–"
    return cell(code(value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)))


def nodes_page() -> str:
    seen: dict[str, str] = {}
    chain = Schema(ChainSpec, "chain", seen)
    chain.root["properties"]["nodes"] = {"type": "array", "items": {"type": "node"}, "description": "In order."}
    parts = ["## chain", chain.settings(chain.root), "## node", paragraph(NodeBase.__doc__)]
    parts += [*Schema(NodeBase, "node", seen).sections()]
    for kind, model in NODE_CONFIGS.items():
        parts += [f"## {kind}", paragraph(model.__doc__), *Schema(model, kind, seen).sections()]
    parts += ["## job", paragraph(JobSpec.__doc__), *Schema(JobSpec, "job", seen).sections()]
    introduction = (
        "The settings of every node of a [chain](../chains.md) and of a [job](../jobs.md). `–` means no value; the "
        "last column says what that means. A key that is not here is refused with `E-SPEC-KEY`, a value out of "
        "range with `E-SPEC-VALUE`. The words of an axis are on the page of [axes](axes.md)."
    )
    return page("Nodes and their settings", introduction, parts)


def templates_page() -> str:
    seen: dict[str, str] = {}
    parts = []
    for name, template in TEMPLATES.items():
        core = " → ".join(map(code, template.core))
        parts += [f"## {name}", f"{template.description} Core nodes: {core}."]
        parts += Schema(template.model, name, seen).sections()
    introduction = (
        "The parameters of the four templates, as `-p key=value`, as a form of the Prefect UI or under `parameters:` "
        "in a file. Groups that templates share are described where they are met first. See [chains](../chains.md)."
    )
    return page("Templates", introduction, parts)


def night_page() -> str:
    introduction = "The config of a [night](../nightly.md): a preset of `deployments/presets` or the form of `nightly`."
    return page(
        "The night's config",
        introduction,
        Schema(NightConfig, "night", {"TrainerConfig": "nodes.md#trainer"}).sections("##"),
    )


def settings_page() -> str:
    schema = Schema(Settings, "settings", {})
    for name in MACHINE_FIELDS & schema.root["properties"].keys():
        schema.root["properties"][name].pop("default", None)
    introduction = (
        "What an operator sets once for a machine: a key of `TRAINYARD_HOME/trainyard.toml`, or a variable "
        "`TRAINYARD_<KEY>`, which wins. Nothing here is part of a chain. A wrong value is refused with `E-SETTINGS`."
    )
    return page("Settings of the machine", introduction, schema.sections("##"))
