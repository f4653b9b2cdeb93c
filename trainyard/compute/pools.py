"""Work pools whose runs are containers: what they need, and what their runs get.

The image, the flows and the chains are the same in every pool. A process pool runs them on a machine with a worker;
here each run is a job of Kubernetes or Vertex AI with a machine of its own.

    setting            kubernetes                              vertex-ai
    image              the same image                          the same image
    pool_variables     gpus, node_selector, memory_limit …     region, service_account_name, machine_type …
    home               a volume at the path of this home       the job's own disk, which ends with it
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from pydantic import JsonValue

from trainyard.errors import InvalidInput, TrainyardError, Unavailable
from trainyard.settings import Settings

PACKAGES = {"kubernetes": ("prefect_kubernetes", "kubernetes"), "vertex-ai": ("prefect_gcp", "vertex")}
"""Type of a pool -> the module of its worker, and the extra that brings it."""
REQUIRED: Mapping[str, tuple[str, ...]] = {"vertex-ai": ("region", "service_account_name")}
"""Job variables without a default."""
SECRET_SETTINGS = "PREFECT_INTEGRATIONS_KUBERNETES_WORKER_API_AUTH_STRING_SECRET"
CLUSTER_VARIABLES = ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
"""Of kubectl, and of a worker that is a pod itself."""
AUTH_KEY = "PREFECT_API_AUTH_STRING"
"""Key of the login in the secret of the pods."""
DEFAULT_SECRET = "trainyard"


def is_container_pool(settings: Settings) -> bool:
    return settings.work_pool_type != "process"


def has_shared_home(settings: Settings) -> bool:
    """Return whether runs see this home: processes do, and pods with a volume of it."""
    kind = settings.work_pool_type
    return kind == "process" or (kind == "kubernetes" and settings.pool_variables.get("home_claim") != "")


def list_problems(settings: Settings) -> Iterator[TrainyardError]:
    """Yield what is missing for the runs of this pool, each as the error that `up` would raise."""
    kind = settings.work_pool_type
    if kind == "process":
        yield from list_useless(settings)
        return
    module, extra = PACKAGES[kind]
    if find_spec(module) is None:
        yield Unavailable(
            f"The work pool {settings.work_pool} is of type {kind}, whose worker is not installed.",
            do=f"pip install 'trainyard[{extra}]'", code="E-PACKAGE-MISSING",
        )  # fmt: skip
    if not settings.image:
        yield InvalidInput(
            f"The work pool {settings.work_pool} is of type {kind}, and the setting image is empty.",
            do="Build deployments/image/Containerfile, push it, and set image to its address.", code="E-SETTINGS",
        )  # fmt: skip
    for name in REQUIRED.get(kind, ()):
        for place, variables in list_variables(settings):
            if not variables.get(name):
                yield InvalidInput(
                    f"{place} has no {name}, without which Vertex AI starts no job.",
                    do=f'Add {name} = "…" to [pool_variables].', code="E-SETTINGS",
                )  # fmt: skip


def list_useless(settings: Settings) -> Iterator[InvalidInput]:
    """Yield the settings that a pool of processes would ignore."""
    for name in ("image", "pool_variables", "pool_api_url"):
        if getattr(settings, name):
            yield InvalidInput(
                f"The setting {name} has no effect: the work pool {settings.work_pool} is of type process.",
                do='Set work_pool_type to "kubernetes" or "vertex-ai", or remove it.', code="E-SETTINGS",
            )  # fmt: skip
    for queue, variables in settings.host_classes.items():
        if variables:
            yield InvalidInput(
                f"The job variables of host_classes.{queue} have no effect in a work pool of type process.",
                do=f"Leave them empty: host_classes.{queue} = {{}}.", code="E-SETTINGS",
            )  # fmt: skip


def list_variables(settings: Settings) -> list[tuple[str, dict[str, JsonValue]]]:
    """Return the job variables of runs without and with a host class, each with the name of the setting."""
    variables = {f"host_classes.{name}": settings.pool_variables | own for name, own in settings.host_classes.items()}
    return [("pool_variables", settings.pool_variables), *variables.items()]


def require_pool(settings: Settings) -> None:
    """Raise the first problem of the pool (`E-SETTINGS`, `E-PACKAGE-MISSING`)."""
    for problem in list_problems(settings):
        raise problem


def find_run_url(settings: Settings, url: str, exposed: tuple[str, ...]) -> str:
    """Return the address of the Prefect server for runs in containers.

    The setting, else the first exposed address, else that of the server where it is not on loopback. Raises
    `InvalidInput` (`E-SETTINGS`): a container that asks loopback asks itself.
    """
    address = settings.pool_api_url or next((f"{each}/api" for each in exposed), url)
    if not settings.pool_api_url and is_loopback_address(address):
        raise InvalidInput(
            f"Runs in containers cannot reach the Prefect server at {address}.",
            do="Start it by `trainyard up --expose`, attach one by PREFECT_API_URL, or set pool_api_url.",
            code="E-SETTINGS",
        )  # fmt: skip
    return address


def is_loopback_address(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def run_environment(settings: Settings) -> dict[str, str]:
    """Return the folders of a run: those of this machine, where its home is there too."""
    if not has_shared_home(settings):
        return {}
    return {"TRAINYARD_WORKING_FOLDER": str(settings.working_folder), "TRAINYARD_HOME": str(settings.home)}


def run_variables(settings: Settings, queue: str) -> dict[str, JsonValue]:
    """Return the job variables of the host class of a queue."""
    return dict(settings.host_classes.get(queue, {}))


def worker_variables(settings: Settings) -> dict[str, str]:
    """Return the variables by which a Kubernetes worker finds its cluster, and gives pods the login by their secret."""
    if settings.work_pool_type != "kubernetes":
        return {}
    secret = str(settings.pool_variables.get("secret") or DEFAULT_SECRET)
    variables = {f"{SECRET_SETTINGS}_NAME": secret, f"{SECRET_SETTINGS}_KEY": AUTH_KEY}
    cluster = {name: os.environ[name] for name in CLUSTER_VARIABLES if name in os.environ}
    return {**{name: os.environ.get(name, value) for name, value in variables.items()}, **cluster}


def container_environment(settings: Settings, run_url: str) -> dict[str, str | None]:
    """Return the variables of a run in a container; None removes one that the worker would pass on."""
    paths = {} if has_shared_home(settings) else {"PREFECT_HOME": None}
    return {"PREFECT_API_URL": run_url, "PREFECT_API_SSL_CERT_FILE": None, "TRAINYARD_DEVICE_LIMITS": "false", **paths}


def adapt_project(project: dict[str, Any], settings: Settings, run_url: str) -> dict[str, Any]:
    """Return prefect.yaml for this pool: its name; in containers also the image, its folder and the server."""
    for deployment in project["deployments"]:
        pool = dict(deployment["work_pool"], name=settings.work_pool)
        if is_container_pool(settings):
            variables = dict(pool.get("job_variables", {}))
            environment = {**variables.get("env", {}), **container_environment(settings, run_url)}
            pool["job_variables"] = {**variables, "image": settings.image, "env": environment}
        deployment["work_pool"] = pool
    if is_container_pool(settings):
        step = "prefect.deployments.steps.set_working_directory"
        project["pull"] = [{step: {"directory": str(settings.image_folder)}}]
    return project
