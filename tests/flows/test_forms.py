"""The flows as Prefect's pages, `prefect deployment run` and prefect.yaml see them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from prefect import Flow
from prefect.cli.deploy._models import DeploymentConfig, PrefectYamlModel
from prefect.flows import load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema
from pydantic import ValidationError

from trainyard.spec.templates import TEMPLATES, build_template

REPOSITORY = Path(__file__).parent.parent.parent
YAML = yaml.safe_load((REPOSITORY / "prefect.yaml").read_text(encoding="utf-8"))
PRESETS = sorted((REPOSITORY / "deployments" / "presets").glob("*.yaml"))
EXPECTED = {
    "chain/adhoc",
    "qa-pipeline/local",
    "alignment-pipeline/local",
    "rlhf/local",
    "grpo/local",
    "rag-tuning/local",
    "code-tuning/local",
    "training-job/local",
    "sweep/local",
    "nightly/two-phase",
    "session/worker",
}
REQUIRED: dict[str, dict[str, Any]] = {
    "chain": {"spec": {"nodes": [{"type": "data_source", "config": {"path": "docs"}}]}},
    "qa-pipeline": {"documents": "docs"},
    "rag-tuning": {"documents": "docs"},
    "alignment-pipeline": {"sft": "a.jsonl", "preference": "b.jsonl"},
    "rlhf": {"sft": "a.jsonl", "preference": "b.jsonl"},
    "grpo": {"rows": "a.jsonl"},
    "session": {"session_id": "session-0123456789ab"},
    "training-job": {"job": {"dataset": {"path": "a.jsonl"}}},
    "sweep": {
        "spec": {
            "name": "s",
            "trainer": "trainer",
            "chain": {"nodes": [{"type": "data_source", "config": {"path": "docs"}}, {"type": "trainer"}]},
            "parameters": {"trainer.learning_rate": {"type": "choice", "options": [0.1, 0.2]}},
        }
    },
}
"""Parameters without a default."""


def load_flow(deployment: dict[str, Any]) -> Flow[..., Any]:
    return load_flow_from_entrypoint(str(REPOSITORY / deployment["entrypoint"]))


FLOWS = {load_flow(deployment).name: load_flow(deployment) for deployment in YAML["deployments"]}


def build_schema(name: str) -> dict[str, Any]:
    return parameter_schema(FLOWS[name].fn).model_dump_for_openapi()


def violations(name: str, parameters: dict[str, Any]) -> list[str]:
    """What the server would answer to these parameters, by the schema of the flow's form."""
    schema = {**build_schema(name), "additionalProperties": False}
    return [error.message for error in Draft202012Validator(schema).iter_errors(parameters)]


def test_prefect_yaml_names_exactly_the_deployments_that_are_promised() -> None:
    assert {f"{load_flow(deployment).name}/{deployment['name']}" for deployment in YAML["deployments"]} == EXPECTED


@pytest.mark.parametrize("deployment", YAML["deployments"], ids=lambda deployment: deployment["entrypoint"])
def test_a_deployment_has_no_key_that_prefect_would_ignore(deployment: dict[str, Any]) -> None:
    assert set(deployment) <= set(DeploymentConfig.model_fields)
    assert set(deployment["work_pool"]) <= {"name", "work_queue_name", "job_variables"}
    assert deployment["work_pool"]["job_variables"]["env"] == {
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
        "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "true",
        "PREFECT_CLIENT_MAX_RETRIES": "7",
    }
    assert (
        violations(
            load_flow(deployment).name,
            {**REQUIRED.get(load_flow(deployment).name, {}), **deployment.get("parameters", {})},
        )
        == []
    )


def test_prefect_yaml_has_no_unknown_section() -> None:
    assert set(YAML) <= set(PrefectYamlModel.model_fields) | {"prefect-version", "definitions"}


def test_prefect_accepts_every_schedule() -> None:
    """An unknown key of one schedule would refuse every deployment."""
    config = PrefectYamlModel.model_validate({key: value for key, value in YAML.items() if key != "definitions"})
    schedules = [schedule for deployment in config.deployments for schedule in deployment.schedules or []]
    assert schedules
    assert all(schedule.slug and not schedule.active for schedule in schedules)


def strip_texts(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: strip_texts(value) for key, value in schema.items() if key != "description"}
    return [strip_texts(value) for value in schema] if isinstance(schema, list) else schema


@pytest.mark.parametrize("name", TEMPLATES)
def test_prefect_shows_the_same_form_as_before(name: str) -> None:
    """What a change of a template's form changes for its users shows here."""
    golden = json.loads((REPOSITORY / "tests" / "golden" / "template_forms.json").read_text(encoding="utf-8"))
    schema = build_schema(name)
    assert strip_texts(schema) == golden[name]
    assert len(schema["properties"]) <= 10
    for field, info in TEMPLATES[name].model.model_fields.items():
        assert schema["properties"][field].get("description", info.description) == info.description


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_page_of_a_flow_explains_every_parameter(name: str) -> None:
    summary, _, arguments = (FLOWS[name].description or "").partition("\n\nArgs:\n")
    assert summary.endswith(".")
    lines = [line.strip().partition(": ") for line in arguments.splitlines()]
    assert [field for field, _, _ in lines] == list(TEMPLATES[name].model.model_fields)
    assert all(text.endswith(".") for _, _, text in lines)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_form_explains_every_field(name: str) -> None:
    schema = build_schema(name)
    for field, field_schema in schema["properties"].items():
        group = schema["definitions"].get(field_schema.get("$ref", "").rpartition("/")[2], {})
        assert field_schema.get("description") or group.get("description"), field


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_defaults_of_a_form_are_accepted_by_its_own_schema(name: str) -> None:
    schema = build_schema(name)
    defaults = {key: value["default"] for key, value in schema["properties"].items() if "default" in value}
    assert violations(name, {**defaults, **REQUIRED.get(name, {})}) == []
    build_template(name, {**defaults, **REQUIRED.get(name, {})})


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("qa-pipeline", {"count": 0}),
        ("qa-pipeline", {"training": {"epochz": 3}}),
        ("qa-pipeline", {"steps": {"validate": "maybe"}}),
        ("rag-tuning", {"grounding": 2}),
        ("code-tuning", {"learn_from": "dreams"}),
        ("alignment-pipeline", {"sft": "a.jsonl"}),
        ("training-job", {"job": {"dataset": {"path": "a.jsonl"}, "method": {"type": "lora", "rank": 999}}}),
        ("chain", {"spec": {"nodes": [{"type": "trainr", "config": {}}]}}),
        ("chain", {"spec": {"nodes": [{"type": "trainer", "config": {"unknown": 1}}]}}),
    ],
)
def test_wrong_parameters_are_refused_by_the_form(name: str, parameters: dict[str, Any]) -> None:
    assert violations(name, parameters)


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
def test_a_preset_is_accepted_by_its_flow(preset: Path) -> None:
    """`<flow>.<preset>.yaml`, or `nightly-<profile>.yaml`."""
    name = "nightly" if preset.stem.startswith("nightly-") else preset.stem.partition(".")[0]
    parameters = yaml.safe_load(preset.read_text(encoding="utf-8"))
    assert violations(name, parameters) == []


def test_a_misspelt_preset_would_be_refused() -> None:
    with pytest.raises(ValidationError, match="documentz"):
        build_template("qa-pipeline", {"documentz": "docs"})
    assert violations("qa-pipeline", {"documentz": "docs"})


def test_no_path_of_one_machine_is_in_the_deployments() -> None:
    for path in (REPOSITORY / "prefect.yaml", *PRESETS):
        assert str(REPOSITORY) not in path.read_text(encoding="utf-8")
