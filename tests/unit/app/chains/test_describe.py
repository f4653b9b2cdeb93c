"""`trainyard templates` and `trainyard schema`: what can be written, without the manual."""

from __future__ import annotations

import json

import jsonschema
import pytest
from click.testing import CliRunner

from trainyard.app.chains.describe import SCHEMAS
from trainyard.spec.model_schema import ModelSchema
from trainyard.spec.templates import TEMPLATES
from trainyard.surfaces.cli.main import app


def print_schema(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_every_template_is_listed_with_its_nodes() -> None:
    lines = print_schema("templates").splitlines()
    assert [line.split()[0] for line in lines] == ["template", *TEMPLATES]
    assert "data_source → ai_generator → trainer" in lines[1]


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_shows_every_parameter_of_its_form(name: str) -> None:
    text = print_schema("templates", name)
    for field in TEMPLATES[name].model.model_fields:
        assert any(line.split()[0] == field for line in text.splitlines() if line.strip())


def test_a_setting_has_type_range_default_and_meaning() -> None:
    (row,) = [line for line in print_schema("schema", "trainer").splitlines() if line.startswith("max_length ")]
    assert "integer" in row
    assert "≥" in row
    (needed,) = [line for line in print_schema("schema", "job").splitlines() if line.startswith("dataset ")]
    assert "required" in needed


@pytest.mark.parametrize("name", SCHEMAS)
def test_json_is_the_json_schema_itself(name: str) -> None:
    schema = json.loads(print_schema("schema", name, "--json"))
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema == json.loads(json.dumps(SCHEMAS[name].model_json_schema(), default=str))


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_words_contain_no_markdown_and_cover_every_field(name: str) -> None:
    schema = ModelSchema(SCHEMAS[name], name)
    own_section, *inner = schema.sections()
    assert {row.name for row in own_section.rows} == set(schema.root["properties"])
    assert not any("](" in row.type for section in (own_section, *inner) for row in section.rows)


def test_without_a_name_the_names_are_listed() -> None:
    assert [line.split()[0] for line in print_schema("schema").splitlines()] == ["name", *SCHEMAS]
    assert set(json.loads(print_schema("schema", "--json"))) == set(SCHEMAS)


@pytest.mark.parametrize("command", ["templates", "schema"])
def test_an_unknown_name_lists_those_that_there_are(command: str) -> None:
    result = CliRunner().invoke(app, [command, "trainr"])
    assert "E-PARAMETER" in str(result.exception)
    assert ("trainer" if command == "schema" else "qa-pipeline") in str(result.exception)
