"""Templates of container pools, against Prefect's worker classes and the official types of Kubernetes and Vertex AI."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from prefect.client.schemas.objects import FlowRun
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration

from trainyard.compute.pools import adapt_project, list_problems, run_environment, run_variables
from trainyard.errors import TrainyardError
from trainyard.locations import checkout
from trainyard.prefect_api.pools import list_placeholders, render_template
from trainyard.settings import Settings
from trainyard.testing.kubernetes.api import find_invalid, require_type
from trainyard.testing.kubernetes.objects import list_unknown_fields

IMAGE = "registry.example.com/trainyard:1"
PREFECTS_OWN = {f"spec.template.spec.{name}" for name in ("parallelism", "completions")}
"""Prefect's manifest has these two in the pod, where Kubernetes does not know them, and insists on them."""
VERTEX: dict[str, Any] = {"region": "europe-west4", "service_account_name": "yard@project.iam.gserviceaccount.com"}


@pytest.fixture(autouse=True)
def no_server() -> Iterator[None]:
    """Prefect would start a server to look for blocks in a template."""
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        yield


def settings(kind: str = "kubernetes", **values: Any) -> Settings:
    defaults = {"image": IMAGE, "pool_variables": VERTEX if kind == "vertex-ai" else {}}
    return Settings(home=Path("/srv/yard"), work_pool_type=kind, **{**defaults, **values})


def render_job(pool: Settings, **job_variables: Any) -> dict[str, Any]:
    """Return the manifest of a run, as Prefect's worker makes it."""
    values = {"env": {"PREFECT_API_URL": "https://yard.example.com/api"}, **job_variables}
    making = KubernetesWorkerJobConfiguration.from_template_and_values(render_template(pool), values)
    configuration = asyncio.run(making)
    configuration.prepare_for_flow_run(FlowRun(id=uuid4(), flow_id=uuid4(), name="guide-1"))
    return configuration.job_manifest


@pytest.mark.parametrize("kind", ["kubernetes", "vertex-ai"])
def test_every_placeholder_has_a_variable(kind: str) -> None:
    template = render_template(settings(kind))
    names = list_placeholders(template["job_configuration"])
    assert names <= template["variables"]["properties"].keys()
    assert {"image", "command", "env"} <= names
    additions = yaml.safe_load((checkout() / "deployments" / "pools" / f"{kind}.yaml").read_text())["variables"]
    assert additions.keys() <= names | {"stream_output", "job_watch_poll_interval"}, "a variable without an effect"


@pytest.mark.parametrize("job_variables", [{}, {"gpus": "2", "node_selector": {"class": "l4"}, "memory_limit": "64Gi"}])
@pytest.mark.parametrize("pool_variables", [{}, {"home_claim": ""}, {"namespace": "ml", "grace_s": 90}])
def test_a_job_fits_the_official_types(pool_variables: dict[str, Any], job_variables: dict[str, Any]) -> None:
    manifest = render_job(settings(pool_variables=pool_variables), **job_variables)
    require_type(manifest, "V1Job")
    assert set(list_unknown_fields(manifest, "V1Job")) == PREFECTS_OWN
    assert find_invalid(manifest) == ""
    assert manifest["metadata"]["namespace"] == pool_variables.get("namespace", "default")


def test_a_pod_is_not_root_has_limits_and_time_to_save() -> None:
    manifest = render_job(
        settings(host_classes={"l4": {"gpus": "1"}}),
        **run_variables(settings(host_classes={"l4": {"gpus": "1"}}), "l4"),
    )
    pod = manifest["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert container["resources"]["limits"] == {"memory": "16Gi", "nvidia.com/gpu": "1"}
    assert pod["terminationGracePeriodSeconds"] >= 45, "a run saves within 22 s and then writes its state"
    assert manifest["spec"]["backoffLimit"] == 0
    assert [*container["command"], *container["args"]] == ["/usr/bin/env", "python", "-P", "-m", "prefect.engine"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"home": "/srv/yard", "services": "/srv/yard/services", "shm": "/dev/shm"}
    assert container["envFrom"] == [{"secretRef": {"name": "trainyard", "optional": True}}]
    assert container["image"] == IMAGE


def test_prefect_yaml_differs_by_the_pool_and_the_image_alone() -> None:
    text = (checkout() / "prefect.yaml").read_text()
    process = adapt_project(yaml.safe_load(text), Settings(), "")
    assert process == yaml.safe_load(text)
    pods = adapt_project(yaml.safe_load(text), settings(), "https://yard.example.com/api")
    assert pods.pop("pull") == [{"prefect.deployments.steps.set_working_directory": {"directory": "/opt/trainyard"}}]
    for before, after in zip(process["deployments"], pods["deployments"], strict=True):
        variables = after.pop("work_pool")["job_variables"]
        assert variables["image"] == IMAGE
        assert variables["env"]["PREFECT_API_URL"] == "https://yard.example.com/api"
        assert after == {key: value for key, value in before.items() if key != "work_pool"}


def test_a_run_sees_the_home_where_its_pod_has_it() -> None:
    assert run_environment(settings())["TRAINYARD_HOME"] == "/srv/yard"
    assert run_environment(settings(pool_variables={"home_claim": ""})) == {}
    assert run_environment(settings("vertex-ai")) == {}


@pytest.mark.parametrize(
    ("pool", "problem"),
    [
        (settings(image=""), "the setting image is empty"),
        (settings("vertex-ai", pool_variables={"region": "x"}), "pool_variables has no service_account_name"),
        (settings("process"), "The setting image has no effect"),
        (settings("process", image="", host_classes={"l4": {"gpus": "1"}}), "host_classes.l4 have no effect"),
        (settings(pool_variables={"gpu": 1}), r"pool_variables has 'gpu'.*Do: Write gpus"),
        (settings(host_classes={"l4": {"memory": "1Gi"}}), "host_classes.l4 has 'memory'"),
        (settings(pool_variables={"gpus": 1}), "pool_variables.gpus is not valid: 1 is not of type 'string'"),
        (
            settings(pool_variables={"user_id": 0}),
            "pool_variables.user_id is not valid: 0 is less than the minimum",
        ),
    ],
)
def test_what_is_missing_or_misspelt_is_named(pool: Settings, problem: str) -> None:
    with pytest.raises(TrainyardError, match=rf"(?s)E-SETTINGS: .*{problem}"):
        render_template(pool)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainyard.compute.pools.find_spec", lambda name: None)
    (problem,) = list_problems(settings())
    assert str(problem).startswith("E-PACKAGE-MISSING")
    assert "pip install 'trainyard[kubernetes]'" in problem.do
