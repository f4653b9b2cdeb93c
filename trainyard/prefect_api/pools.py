"""The work pool of a home, with a template for its jobs.

The template of a container pool is that of Prefect's own worker class, so that its variables are those that the worker
knows, with `deployments/pools/<type>.yaml` merged in and the operator's `pool_variables` as defaults.
"""

from __future__ import annotations

import difflib
from typing import Any

import jsonschema
import yaml
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.utilities.templating import find_placeholders
from prefect.workers.base import BaseWorker

from trainyard.compute.pools import list_variables, require_pool
from trainyard.errors import Conflict, InvalidInput
from trainyard.locations import checkout
from trainyard.settings import Settings

HOME_VOLUME = "home"


def ensure_pool(prefect: SyncPrefectClient, settings: Settings) -> None:
    """Create the work pool and its queues, and bring the template of a container pool up to date.

    Raises `Conflict` (`E-CONFLICT`) for a pool of another type, `InvalidInput` (`E-SETTINGS`) for job variables that no
    job has.
    """
    template = render_template(settings)
    try:
        pool = prefect.read_work_pool(settings.work_pool)
    except ObjectNotFound:
        pool = prefect.create_work_pool(
            WorkPoolCreate(name=settings.work_pool, type=settings.work_pool_type, base_job_template=template)
        )
    if pool.type != settings.work_pool_type:
        raise Conflict(
            f"The work pool {settings.work_pool} of this server is of type {pool.type}, not {settings.work_pool_type}.",
            do="Name another pool by the setting work_pool, or set work_pool_type.", code="E-CONFLICT",
        )  # fmt: skip
    if template and pool.base_job_template != template:
        prefect.update_work_pool(settings.work_pool, WorkPoolUpdate(base_job_template=template))
    for queue in dict.fromkeys((*settings.work_queues, *settings.host_classes)):
        ensure_queue(prefect, settings.work_pool, queue)


def ensure_queue(prefect: SyncPrefectClient, pool: str, queue: str) -> None:
    """Create a work queue; one that is there stays as it is."""
    try:
        prefect.create_work_queue(name=queue, work_pool_name=pool)
    except ObjectAlreadyExists:
        return


def find_worker_class(kind: str) -> type[BaseWorker[Any, Any, Any]]:
    """Return Prefect's worker of a type of pool."""
    worker: type[BaseWorker[Any, Any, Any]]
    if kind == "kubernetes":
        from prefect_kubernetes.worker import KubernetesWorker  # extra kubernetes

        worker = KubernetesWorker
    else:
        from prefect_gcp.workers.vertex import VertexAIWorker  # extra vertex

        worker = VertexAIWorker
    return worker


def render_template(settings: Settings) -> dict[str, Any]:
    """Return the base job template of the pool; empty for processes, which have Prefect's own.

    Raises `InvalidInput` (`E-SETTINGS`) and `Unavailable` (`E-PACKAGE-MISSING`).
    """
    require_pool(settings)
    if settings.work_pool_type == "process":
        return {}
    template = find_worker_class(settings.work_pool_type).get_default_base_job_template()
    path = checkout() / "deployments" / "pools" / f"{settings.work_pool_type}.yaml"
    additions = yaml.safe_load(path.read_text(encoding="utf-8"))
    properties: dict[str, Any] = merge(template["variables"]["properties"], additions["variables"])
    configuration = merge(template["job_configuration"], additions.get("job_configuration", {}))
    require_known(settings, properties)
    defaults = {"image": settings.image, **settings.pool_variables}
    if settings.work_pool_type == "kubernetes":
        defaults["home_path"] = str(settings.home)
        if settings.pool_variables.get("home_claim") == "":
            pod = configuration["job_manifest"]["spec"]["template"]["spec"]
            pod["volumes"] = [volume for volume in pod["volumes"] if volume["name"] != HOME_VOLUME]
            pod["volumes"].append({"name": HOME_VOLUME, "emptyDir": {}})
    for name, value in defaults.items():
        properties[name] = {**properties[name], "default": value}
    required = [name for name in template["variables"].get("required", ()) if "default" not in properties[name]]
    variables = {**template["variables"], "properties": properties, "required": required}
    return {**template, "variables": variables, "job_configuration": configuration}


def merge(value: Any, addition: Any) -> Any:
    """Return a JSON value with another one merged in: objects by key, lists item by item."""
    if isinstance(value, dict) and isinstance(addition, dict):
        return value | {key: merge(value[key], item) if key in value else item for key, item in addition.items()}
    if isinstance(value, list) and isinstance(addition, list):
        pairs = zip(value, addition, strict=False)
        return [*(merge(item, added) for item, added in pairs), *value[len(addition) :], *addition[len(value) :]]
    return addition


def require_known(settings: Settings, properties: dict[str, Any]) -> None:
    """Raise `InvalidInput` (`E-SETTINGS`) for a job variable that the template does not have, or of another type."""
    for place, variables in list_variables(settings):
        for name in sorted(variables.keys() - properties.keys()):
            close = difflib.get_close_matches(name, properties, n=1)
            raise InvalidInput(
                f"{place} has {name!r}, which a job of the pool {settings.work_pool} does not have.",
                why=f"It has: {', '.join(sorted(properties))}.",
                do=f"Write {close[0]}." if close else "Remove it.", code="E-SETTINGS",
            )  # fmt: skip
        for name, value in variables.items():
            checker = jsonschema.Draft202012Validator(properties[name])
            if error := jsonschema.exceptions.best_match(checker.iter_errors(value)):
                raise InvalidInput(
                    f"{place}.{name} is not valid: {error.message}.", do="Correct trainyard.toml.", code="E-SETTINGS"
                )


def list_placeholders(value: Any) -> set[str]:
    """Return the names of the variables that a template uses."""
    return {placeholder.name for placeholder in find_placeholders(value)}
