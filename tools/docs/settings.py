"""Pages of settings, from the JSON Schema of the models of `spec/` and of the settings of a machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pydantic import BaseModel

from tools.docs.markdown import anchor, cell, code, page, paragraph, table
from trainyard.settings import Settings
from trainyard.spec.chain import ChainSpec
from trainyard.spec.job import JobSpec
from trainyard.spec.model_schema import NO_DEFAULT, ModelSchema, SettingRow, section_name
from trainyard.spec.night import NightConfig
from trainyard.spec.nodes import NODE_CONFIGS, NodeBase
from trainyard.spec.templates import TEMPLATES

MACHINE_FIELDS = {"working_folder", "home"}
"""Settings whose default is a folder of the machine that writes the page."""


class Schema(ModelSchema):
    """The settings of one model as Markdown: a table for the model itself, and one for each model inside it."""

    def __init__(self, model: type[BaseModel], name: str, seen: dict[str, str]) -> None:
        super().__init__(model, name, seen, word=code, link=section_link)

    def parts(self, level: str = "###") -> Iterator[str]:
        """The table of the root, then a section for each model below it that the page has not described yet."""
        first_section, *inner = self.sections()
        yield table_of(first_section.rows)
        for section in inner:
            yield "\n\n".join(
                part for part in (f"{level} {section.path}", paragraph(section.text), table_of(section.rows)) if part
            )


def section_link(path: str) -> str:
    return f"[{section_name(path)}]({path if '#' in path else f'#{anchor(path)}'})"


def table_of(rows: Iterable[SettingRow]) -> str:
    cells = [[code(row.name), row.type, cell(row.limits), default_cell(row.default), cell(row.text)] for row in rows]
    return table(["setting", "type", "range", "default", "what it is"], cells)


def default_cell(default: str) -> str:
    return default if default in ("required", NO_DEFAULT) else cell(code(default))


def nodes_page() -> str:
    seen: dict[str, str] = {}
    chain = Schema(ChainSpec, "chain", seen)
    chain.root["properties"]["nodes"] = {"type": "array", "items": {"type": "node"}, "description": "In order."}
    parts = ["## chain", table_of(chain.rows(chain.root)), "## node", paragraph(NodeBase.__doc__)]
    parts += [*Schema(NodeBase, "node", seen).parts()]
    for kind, model in NODE_CONFIGS.items():
        parts += [f"## {kind}", paragraph(model.__doc__), *Schema(model, kind, seen).parts()]
    parts += ["## job", paragraph(JobSpec.__doc__), *Schema(JobSpec, "job", seen).parts()]
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
        parts += Schema(template.model, name, seen).parts()
    introduction = (
        "The parameters of the templates, as `-p key=value`, as a form of the Prefect UI or under `parameters:` "
        "in a file. Groups that templates share are described where they are met first. See [chains](../chains.md)."
    )
    return page("Templates", introduction, parts)


def night_page() -> str:
    introduction = "The config of a [night](../nightly.md): a preset of `deployments/presets` or the form of `nightly`."
    return page(
        "The night's config",
        introduction,
        Schema(NightConfig, "night", {"TrainerConfig": "nodes.md#trainer"}).parts("##"),
    )


def settings_page() -> str:
    schema = Schema(Settings, "settings", {})
    for name in MACHINE_FIELDS & schema.root["properties"].keys():
        schema.root["properties"][name].pop("default", None)
    introduction = (
        "What an operator sets once for a machine: a key of `TRAINYARD_HOME/trainyard.toml`, or a variable "
        "`TRAINYARD_<KEY>`, which wins. Nothing here is part of a chain. A wrong value is refused with `E-SETTINGS`."
    )
    return page("Settings of the machine", introduction, schema.parts("##"))
