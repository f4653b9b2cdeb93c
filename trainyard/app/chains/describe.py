"""What can be written: the templates with their parameters, and the settings of nodes, jobs, nights and the machine."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, model_serializer, model_validator

from trainyard.app.context import Context
from trainyard.app.responses import Response
from trainyard.errors import NotFound
from trainyard.json_types import JsonObject
from trainyard.operations.chains import SchemaInput, TemplatesInput
from trainyard.operations.sweeps import SweepInput
from trainyard.settings import Settings
from trainyard.spec.chain import ChainSpec
from trainyard.spec.job import JobSpec
from trainyard.spec.model_schema import ModelSchema, SettingSection
from trainyard.spec.night import NightConfig
from trainyard.spec.nodes import NODE_CONFIGS
from trainyard.spec.templates import TEMPLATES, Template

SCHEMAS: dict[str, type[BaseModel]] = {
    "chain": ChainSpec,
    **NODE_CONFIGS,
    "job": JobSpec,
    "night": NightConfig,
    "sweep": SweepInput,
    "settings": Settings,
    **{name: template.model for name, template in TEMPLATES.items()},
}
"""Name -> the model that reads it."""


class TemplateRow(Response):
    """One template; its parameters where one was requested by its name."""

    name: str
    description: str
    nodes: tuple[str, ...]
    """Types of the nodes that are always there, in order."""
    parameters: tuple[SettingSection, ...] = ()


class TemplateRows(Response):
    templates: tuple[TemplateRow, ...]


class ShownSchema(Response):
    """The settings of a model in words; as JSON, its JSON Schema."""

    sections: tuple[SettingSection, ...]
    document: JsonObject

    @model_validator(mode="before")
    @classmethod
    def from_document(cls, value: object) -> object:
        """Take what `as_document` has written, too: the answer of a service."""
        return value if not isinstance(value, dict) or "sections" in value else {"sections": (), "document": value}

    @model_serializer
    def as_document(self) -> dict[str, object]:
        return self.document


def show_templates(request: TemplatesInput, _context: Context) -> TemplateRows:
    """Return every template, or one with its parameters. Raises `NotFound` (`E-PARAMETER`)."""
    if request.name is None:
        return TemplateRows(templates=tuple(template_row(name) for name in TEMPLATES))
    template: Template = find_named(TEMPLATES, request.name, "template")
    sections = tuple(ModelSchema(template.model, request.name).sections())
    return TemplateRows(templates=(template_row(request.name, sections),))


def template_row(name: str, parameters: tuple[SettingSection, ...] = ()) -> TemplateRow:
    template = TEMPLATES[name]
    return TemplateRow(name=name, description=template.description, nodes=template.core, parameters=parameters)


def show_schema(request: SchemaInput, _context: Context) -> ShownSchema:
    """Return the settings of one model, or the names of all. Raises `NotFound` (`E-PARAMETER`)."""
    if request.name is not None:
        schema = ModelSchema(find_named(SCHEMAS, request.name, "schema"), request.name)
        return ShownSchema(sections=tuple(schema.sections()), document=schema.root)
    texts = {name: (model.__doc__ or "").partition("\n")[0] for name, model in SCHEMAS.items()}
    sections = tuple(SettingSection(name, text, ()) for name, text in texts.items())
    return ShownSchema(sections=sections, document={name: model.model_json_schema() for name, model in SCHEMAS.items()})


def find_named(table: JsonObject, name: str, word: str) -> Any:
    if name not in table:
        raise NotFound(
            f"There is no {word} {name!r}.", why=f"There are {', '.join(table)}.", do="Correct the name.",
            code="E-PARAMETER",
        )  # fmt: skip
    return table[name]
