"""Double of SkyPilot's API server (0.14): requests and their results, clusters, offers of one cloud, with faults.

Bodies are checked as the server's own models do, but unknown fields are refused, so that a misspelt one fails a test.
Nothing is started: a launch is done at once, and its cluster ends by `down` or by its `autostop`.

    double = SkyPilotDouble()
    with double.serve() as url:
        SkyPilotService(url, double.key, plan)
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainyard.testing.rent_account import STARTS_S, Answer, Machine, Query, RentAccount, Task

CLOUD = "Lambda"


class SkyPilotBody(BaseModel):
    """Base of bodies and of the parts of a task."""

    model_config = ConfigDict(extra="forbid")


class Autostop(SkyPilotBody):
    """When a cluster ends itself."""

    idle_minutes: int = Field(ge=0)
    down: bool = False
    wait_for: Literal["jobs_and_ssh", "jobs", "none"] = "jobs_and_ssh"


class SkyPilotResources(SkyPilotBody):
    """Machine of a task."""

    infra: str = Field(pattern=r"^[a-z]+(/[\w-]+)?$")
    accelerators: dict[str, float]
    instance_type: str | None = None
    use_spot: bool = False
    max_hourly_cost: float | None = Field(None, gt=0)
    autostop: Autostop | None = None


class TaskFile(SkyPilotBody):
    """A task as YAML has it."""

    name: str
    num_nodes: int = 1
    resources: SkyPilotResources
    envs: dict[str, str] = {}
    secrets: dict[str, str] = {}
    run: str


class ClusterName(SkyPilotBody):
    cluster_name: str = Field(pattern=r"^[a-zA-Z]([-_.a-zA-Z0-9]*[a-zA-Z0-9])?$")


class LaunchBody(ClusterName):
    """Body of `POST /launch`."""

    task: str


class ValidateBody(SkyPilotBody):
    """Body of `POST /validate`, whose options are null or an object, and never left out."""

    dag: str
    request_options: dict[str, Any] | None


class StatusBody(SkyPilotBody):
    """Body of `POST /status`."""

    cluster_names: list[str] | None = None
    include_credentials: bool = True
    include_handle: bool = True


class AcceleratorsBody(SkyPilotBody):
    """Body of `POST /list_accelerators`."""

    clouds: list[str] | str | None = None
    name_filter: str | None = None
    quantity_filter: int | None = None
    all_regions: bool = False
    case_sensitive: bool = True


class CostBody(SkyPilotBody):
    """Body of `POST /cost_report`."""

    cluster_names: list[str] | None = None
    days: int | None = 30


class CancelBody(SkyPilotBody):
    """Body of `POST /api/cancel`."""

    request_ids: list[str] | None = None


BODIES: dict[str, type[SkyPilotBody]] = {
    "launch": LaunchBody, "validate": ValidateBody, "status": StatusBody, "list_accelerators": AcceleratorsBody,
    "cost_report": CostBody, "api/cancel": CancelBody, "down": ClusterName,
}  # fmt: skip


@dataclass
class ServerRequest:
    """A request, and its result."""

    id: str
    name: str
    cluster: str | None
    created: float
    status: str = "SUCCEEDED"
    value: Any = None
    error: dict[str, str] | None = None

    def describe(self, *, short: bool = False) -> dict[str, Any]:
        """Return the request as `/api/get` and `/api/status` do: results are JSON in a text."""
        row = {
            "request_id": self.id, "name": self.name, "cluster_name": self.cluster, "status": self.status,
            "created_at": self.created, "request_body": "null", "entrypoint": "", "user_id": "", "pid": None,
            "schedule_type": "short", "return_value": "null", "error": "null", "should_retry": False,
        }  # fmt: skip
        return row if short else row | {"return_value": json.dumps(self.value), "error": json.dumps(self.error)}


@dataclass
class SkyPilotDouble(RentAccount):
    """An API server with one cloud enabled."""

    reads: ClassVar[frozenset[str]] = frozenset({"status", "list_accelerators", "cost_report", "validate"})

    key: str = "sky_double"
    clouds: tuple[str, ...] = (CLOUD,)
    offers: list[list[Any]] = field(default_factory=list)
    requests: dict[str, ServerRequest] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.offers = self.offers or [
            [CLOUD, "h100-a", "H100-80GB", 1.0, 26, 80.0, 200, 2.0, None, "us-east-1"],
            [CLOUD, "h100-b", "H100-80GB", 1.0, 26, 80.0, 200, 1.5, None, "us-east-1"],
            [CLOUD, "a6000", "RTX-A6000", 1.0, 14, 48.0, 100, 0.5, None, "us-west-1"],
        ]

    def deny(self) -> Answer:
        return 401, {"detail": "Service account authentication disabled"}

    @property
    def reply_headers(self) -> dict[str, str]:
        return {"X-Skypilot-Request-ID": f"request-{len(self.requests) - 1}"}

    def answer(self, method: str, path: str, query: Query, body: Any) -> Answer:
        """Return status and body: of most requests only an id, in a header."""
        name = path.strip("/")
        if (method, name) == ("GET", "api/get"):
            return self.get_request(query["request_id"][0])
        if (method, name) == ("GET", "api/status"):
            return 200, self.list_requests(query)
        if (method, name) == ("GET", "enabled_clouds"):
            self.add_request(name, None, list(self.clouds))
            return 200, None
        return self.answer_body(name, body) if method == "POST" and name in BODIES else (404, {"detail": "Not Found"})

    def answer_body(self, name: str, body: Any) -> Answer:
        try:
            fields = BODIES[name].model_validate(body)
        except ValidationError as error:
            return 422, {"detail": json.loads(error.json(include_url=False))}
        if isinstance(fields, LaunchBody):
            return self.launch(fields)
        if isinstance(fields, ValidateBody):
            return self.validate(fields)
        self.add_request(name, getattr(fields, "cluster_name", None), *self.run_request(name, fields))
        return 200, None

    def run_request(self, name: str, fields: Any) -> tuple[Any, dict[str, str] | None]:
        """Return the result of a request, and its error."""
        machines = {machine.name: machine for machine in self.visible()}
        if name == "down":
            machine = machines.get(fields.cluster_name)
            if machine is None:
                message = f"Cluster {fields.cluster_name!r} does not exist."
                return None, {"object": "", "type": "ClusterDoesNotExist", "message": message}
            self.end(machine, self.now)
            return None, None
        if name == "api/cancel":
            return [request for request in fields.request_ids or () if self.cancel(request)], None
        if name == "list_accelerators":
            return self.list_accelerators(fields), None
        named = [
            each for each in machines.values() if fields.cluster_names is None or each.name in fields.cluster_names
        ]
        return [self.report(machine) if name == "cost_report" else describe(machine) for machine in named], None

    # Machines

    def launch(self, body: LaunchBody) -> Answer:
        self.creates += 1
        if self.faults.drop_create:
            return 0, None
        request = self.add_request("launch", body.cluster_name, None)
        try:
            task = TaskFile.model_validate(yaml.safe_load(body.task))
            self.start(task, body.cluster_name)
        except (ValueError, yaml.YAMLError) as error:
            request.status, request.error = (
                "FAILED",
                {"object": "", "type": type(error).__name__, "message": str(error)},
            )
        return (0, None) if self.faults.lose_create_reply else (200, None)

    def start(self, task: TaskFile, name: str) -> None:
        """Make a cluster, unless one with the name is there. Raises `ValueError` where no offer fits."""
        if any(machine.name == name and machine.ended is None for machine in self.machines):
            return
        resources = task.resources
        row = next((row for row in self.offers if row[1] == resources.instance_type), None)
        price = 0.0 if row is None else row[7] * self.faults.price_factor
        highest = resources.max_hourly_cost
        is_dear = highest is not None and price > highest and self.faults.price_factor == 1.0
        if row is None or self.faults.no_offers or is_dear or {row[2]: row[3]} != resources.accelerators:
            raise ValueError("Failed to provision all possible launchable resources.")
        machine = self.add_machine(name, task, row[0], price, Task(task.run, task.envs | task.secrets))
        if (stop := resources.autostop) is not None and stop.down and stop.wait_for == "none":
            machine.ends = machine.created + stop.idle_minutes * 60

    def validate(self, body: ValidateBody) -> Answer:
        """Answer a check of a task, whose file has a document with the name of the whole before it."""
        try:
            _, task = yaml.safe_load_all(body.dag)
            TaskFile.model_validate(task)
        except (ValueError, yaml.YAMLError) as error:
            return 400, {"detail": {"type": "InvalidSkyPilotConfigError", "message": str(error), "stacktrace": ""}}
        return 200, None

    def list_accelerators(self, body: AcceleratorsBody) -> dict[str, list[list[Any]]]:
        rows: dict[str, list[list[Any]]] = {}
        for row in () if self.faults.no_offers else self.offers:
            if body.quantity_filter in (None, row[3]) and (body.clouds is None or row[0] in body.clouds):
                rows.setdefault(row[2], []).append(row)
        return rows

    def report(self, machine: Machine) -> dict[str, Any]:
        now = self.now
        return {"name": machine.name, "launched_at": int(machine.created), "duration": int(machine.lived(now)),
                "num_nodes": 1, "total_cost": machine.price * int(machine.lived(now)) / 3600}  # fmt: skip

    # Requests

    def add_request(
        self, name: str, cluster: str | None, value: Any, error: dict[str, str] | None = None
    ) -> ServerRequest:
        request = ServerRequest(
            f"request-{len(self.requests)}", f"sky.{name.replace('/', '_')}", cluster, self.now,
            "FAILED" if error else "SUCCEEDED", value, error,
        )  # fmt: skip
        self.requests[request.id] = request
        return request

    def get_request(self, request_id: str) -> Answer:
        request = self.requests.get(request_id)
        if request is None:
            return 404, {"detail": f"Request {request_id!r} not found"}
        return (500, {"detail": request.describe()}) if request.error else (200, request.describe())

    def list_requests(self, query: Query) -> list[dict[str, Any]]:
        """Return requests; a launch is running until its cluster is in lists and has started."""
        clusters, everything = query.get("cluster_name"), query.get("all_status") == ["true"]
        rows = []
        for request in self.requests.values():
            row = request.describe(short=True) | {"status": self.read_status(request)}
            if (clusters is None or request.cluster in clusters) and (everything or row["status"] == "RUNNING"):
                rows.append(row)
        return rows

    def read_status(self, request: ServerRequest) -> str:
        if request.name != "sky.launch" or request.status != "SUCCEEDED":
            return request.status
        machine = next((each for each in reversed(self.machines) if each.name == request.cluster), None)
        is_starting = machine is not None and machine.ended is None and (
            self.now < machine.visible_from or self.now - machine.created < STARTS_S
        )  # fmt: skip
        return "RUNNING" if is_starting else "SUCCEEDED"

    def cancel(self, request_id: str) -> bool:
        """Cancel a launch; a cluster that is not in lists yet is not made."""
        request = self.requests.get(request_id)
        if request is None or self.read_status(request) != "RUNNING":
            return False
        request.status = "CANCELLED"
        for machine in self.machines:
            if machine.name == request.cluster and machine.ended is None and self.now < machine.created:
                self.end(machine, self.now)
        return True


def describe(machine: Machine) -> dict[str, Any]:
    """Return a record of `/status`."""
    return {
        "name": machine.name, "launched_at": int(machine.created), "status": "UP", "autostop": 60, "to_down": True,
        "cluster_hash": machine.id, "cluster_ever_up": True, "user_hash": "fcd1e5cf", "user_name": "root",
        "workspace": "default", "is_managed": False, "nodes": 1, "cloud": machine.provider, "labels": {},
        "last_use": "", "status_updated_at": 0, "handle": "gASu", "storage_mounts_metadata": "gASu",
    }  # fmt: skip
