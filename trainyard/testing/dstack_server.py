"""Double of dstack's server (0.22): fleets, runs and offers of one project, with faults.

It has the routes, fields and refusals of the server: unknown fields are refused, a name that is not there is 400 with a
code, an unknown project 404, a wrong token 403; a fleet in use is not deleted, a run that is active is not replaced, a
finished one is. A stop takes 20 s, during which the machine costs money.

    double = DstackDouble()
    with double.serve() as url:
        DstackService(url, double.key, "main", plan)
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainyard.testing.rent_account import STARTS_S, Answer, Machine, Query, RentAccount, Task

PROJECT = "main"
STOPS_S = 20.0
NAME = r"^[a-z][a-z0-9-]{1,40}$"
SpotPolicy = Literal["spot", "on-demand", "auto"]


class DstackBody(BaseModel):
    """Base of bodies and of their parts."""

    model_config = ConfigDict(extra="forbid")


class Count(DstackBody):
    min: int
    max: int


class Gpu(DstackBody):
    count: Count


class DstackResources(DstackBody):
    gpu: Gpu


class RunProfile(DstackBody):
    """Where and how long a run may be."""

    spot_policy: SpotPolicy | None = None
    fleets: list[str] | None = None
    backends: list[str] | None = None
    regions: list[str] | None = None
    instance_types: list[str] | None = None
    max_price: float | None = Field(None, gt=0)
    max_duration: int | None = Field(None, ge=0)
    stop_duration: int | None = Field(None, ge=0)
    idle_duration: int | None = None
    retry: bool | None = None


class TaskConfiguration(RunProfile):
    """A task."""

    type: Literal["task"]
    name: str | None = Field(None, pattern=NAME)
    python: Literal["3.10", "3.11", "3.12", "3.13"] | None = None
    commands: list[str] = Field(min_length=1)
    env: dict[str, str] = {}
    resources: DstackResources


class RunSpec(DstackBody):
    run_name: str | None = Field(None, pattern=NAME)
    configuration: TaskConfiguration


class PlanBody(DstackBody):
    """Body of `runs/get_plan`."""

    run_spec: RunSpec
    max_offers: int | None = Field(None, ge=1, le=10_000)
    for_offers_only: bool = False


class RunPlan(DstackBody):
    run_spec: RunSpec


class ApplyRun(DstackBody):
    """Body of `runs/apply`."""

    plan: RunPlan
    force: bool


class Nodes(DstackBody):
    min: int = 0
    max: int | None = None


class FleetConfiguration(DstackBody):
    type: Literal["fleet"]
    name: str = Field(pattern=NAME)
    nodes: Nodes
    idle_duration: int | None = None
    max_price: float | None = Field(None, gt=0)
    spot_policy: SpotPolicy | None = None


class FleetSpec(DstackBody):
    configuration: FleetConfiguration
    profile: dict[str, Any]


class FleetPlan(DstackBody):
    spec: FleetSpec


class ApplyFleet(DstackBody):
    """Body of `fleets/apply`."""

    plan: FleetPlan
    force: bool


class RunName(DstackBody):
    run_name: str


class FleetName(DstackBody):
    name: str


class Names(DstackBody):
    names: list[str]


class StopBody(DstackBody):
    """Body of `runs/stop`."""

    runs_names: list[str]
    abort: bool


class ListRuns(DstackBody):
    """Body of `/api/runs/list`."""

    project_name: str | None = None
    only_active: bool = False
    limit: int = Field(100, ge=0, le=100)
    prev_submitted_at: datetime | None = None
    prev_run_id: str | None = None


BODIES: dict[str, type[DstackBody]] = {
    "runs/get_plan": PlanBody, "runs/apply": ApplyRun, "runs/get": RunName, "runs/stop": StopBody,
    "runs/list": ListRuns, "fleets/apply": ApplyFleet, "fleets/get": FleetName, "fleets/list": DstackBody,
    "fleets/delete": Names,
}  # fmt: skip


@dataclass
class Run:
    """A run, and why it ended."""

    id: str
    spec: RunSpec
    submitted: float
    machine: Machine | None
    ends: float | None = None
    reason: str = ""


@dataclass
class DstackDouble(RentAccount):
    """A server with one project."""

    reads: ClassVar[frozenset[str]] = frozenset({"get", "list", "get_plan"})

    key: str = "dstack-token"
    stops_s: float = STOPS_S
    project: str = PROJECT
    offers: list[dict[str, Any]] = field(default_factory=list)
    fleets: dict[str, FleetSpec] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.offers = self.offers or [
            build_offer("h100-a", "H100", 80, 2.0), build_offer("h100-b", "H100", 80, 1.5),
            build_offer("a6000", "A6000", 48, 0.5), build_offer("h100-none", "H100", 80, 0.9, stock="not_available"),
        ]  # fmt: skip

    def deny(self) -> Answer:
        return 403, {"detail": {"msg": "Invalid token", "code": None}}

    def answer(self, method: str, path: str, query: Query, body: Any) -> Answer:
        """Return status and body."""
        parts = path.removeprefix("/api/").split("/")
        if parts[0] == "project":
            if parts[1] != self.project:
                return 404, {"detail": {"msg": "Not found", "code": None}}
            parts = parts[2:]
        name = "/".join(parts)
        if method != "POST" or name not in BODIES:
            return 405, {"detail": "Method Not Allowed"}
        try:
            fields = BODIES[name].model_validate(body)
        except ValidationError as error:
            return 422, {"detail": json.loads(error.json(include_url=False))}
        slot = getattr(self, name.replace("/", "_"))
        answer: Answer = slot(fields)
        return answer

    # Offers and runs

    def runs_get_plan(self, body: PlanBody) -> Answer:
        count = body.run_spec.configuration.resources.gpu.count
        items = [] if self.faults.no_offers else [
            offer for offer in self.offers if count.min <= len(offer["instance"]["resources"]["gpus"]) <= count.max
        ]  # fmt: skip
        return 200, {"job_plans": [{"offers": items, "total_offers": len(items), "max_price": None}]}

    def runs_apply(self, body: ApplyRun) -> Answer:
        """Submit a run; one with the name of a finished run is another one."""
        self.creates += 1
        if self.faults.drop_create:
            return 0, None
        spec = body.plan.run_spec
        name, active = spec.run_name or "", self.runs.get(spec.run_name or "")
        if active is not None and not self.is_finished(active):
            return refuse("Cannot override active run. Stop the run first.")
        if not set(spec.configuration.fleets or ()) & self.fleets.keys():
            return refuse("Failed to find fleets")
        run = self.runs[name] = Run(f"run-{len(self.runs)}", spec, self.now, None)
        offer, configuration = self.choose(spec.configuration), spec.configuration
        if offer is None:
            run.ends, run.reason = self.now, "No offers matching the run requirements in fleet"
        else:
            price = offer["price"] * self.faults.price_factor
            task = Task(" && ".join(configuration.commands), configuration.env)
            run.machine = self.add_machine(name, configuration, offer["backend"], price, task)
            if configuration.max_duration is not None:
                run.machine.ends = run.machine.created + STARTS_S + configuration.max_duration + self.stops_s
        return (0, None) if self.faults.lose_create_reply else (200, self.describe_run(run))

    def choose(self, configuration: TaskConfiguration) -> dict[str, Any] | None:
        """Return the cheapest offer that a run may have."""
        fitting = [
            offer for offer in (() if self.faults.no_offers else self.offers)
            if offer["availability"] == "available"
            and offer["backend"] in (configuration.backends or [offer["backend"]])
            and offer["region"] in (configuration.regions or [offer["region"]])
            and offer["instance"]["name"] in (configuration.instance_types or [offer["instance"]["name"]])
            and (self.faults.price_factor > 1 or offer["price"] <= (configuration.max_price or offer["price"]))
        ]  # fmt: skip
        return min(fitting, key=lambda offer: offer["price"], default=None)

    def runs_get(self, body: RunName) -> Answer:
        run = self.runs.get(body.run_name)
        return refuse("Run not found", "resource_not_exists") if run is None else (200, self.describe_run(run))

    def runs_list(self, body: ListRuns) -> Answer:
        runs = [run for run in self.runs.values() if not (body.only_active and self.is_finished(run))]
        after = body.prev_submitted_at.timestamp() if body.prev_submitted_at else None
        rows = [self.describe_run(run) for run in reversed(runs) if after is None or run.submitted < after]
        return 200, rows[: body.limit]

    def runs_stop(self, body: StopBody) -> Answer:
        """Stop runs; a name that is not there is accepted."""
        for name in body.runs_names:
            run = self.runs.get(name)
            if run is None or self.is_finished(run) or run.ends is not None:
                continue
            run.ends, run.reason = self.now + self.stops_s, "terminated_by_user"
            if run.machine is not None and run.machine.ended is None:
                run.machine.ends = min(run.ends, run.machine.ends or run.ends)
                self.end_due()
        return 200, None

    def is_finished(self, run: Run) -> bool:
        ended = run.machine is not None and run.machine.ended is not None
        return ended or (run.ends is not None and self.now >= run.ends)

    def describe_run(self, run: Run) -> dict[str, Any]:
        reason = run.reason or "instance_unreachable"
        status = "failed" if run.machine is None else "terminated"
        if not self.is_finished(run):
            age = self.now - run.submitted
            status = "terminating" if run.ends is not None else "running" if age >= STARTS_S else "provisioning"
        job = {"status": status, "termination_reason": reason, "termination_reason_message": reason}
        return {
            "id": run.id, "project_name": self.project, "user": "admin", "submitted_at": write_time(run.submitted),
            "status": status, "run_spec": run.spec.model_dump(), "latest_job_submission": job, "jobs": [], "cost": 0.0,
        }  # fmt: skip

    # Fleets

    def fleets_apply(self, body: ApplyFleet) -> Answer:
        name = body.plan.spec.configuration.name
        if name in self.fleets and not body.force:
            return refuse("Failed to apply plan. Resource has been changed. Try again or use force apply.")
        self.fleets[name] = body.plan.spec
        return 200, self.describe_fleet(name)

    def fleets_get(self, body: FleetName) -> Answer:
        if body.name not in self.fleets:
            return refuse("Resource not found", "resource_not_exists")
        return 200, self.describe_fleet(body.name)

    def fleets_list(self, _body: DstackBody) -> Answer:
        return 200, [self.describe_fleet(name) for name in self.fleets]

    def fleets_delete(self, body: Names) -> Answer:
        for name in body.names:
            run = self.runs.get(name)
            if name in self.fleets and run is not None and not self.is_finished(run):
                return refuse(f"Failed to delete fleet {name}. Fleet is in use.")
            self.fleets.pop(name, None)
        return 200, None

    def describe_fleet(self, name: str) -> dict[str, Any]:
        instances = [
            {"id": machine.id, "project_name": self.project, "name": f"{name}-0", "instance_num": 0,
             "created": write_time(self.runs[name].submitted), **self.describe_purchase(machine)}
            for machine in self.machines if machine.name == name and machine.ended is None
        ]  # fmt: skip
        return {"id": f"fleet-{name}", "name": name, "project_name": self.project, "status": "active",
                "spec": self.fleets[name].model_dump(), "instances": instances}  # fmt: skip

    def describe_purchase(self, machine: Machine) -> dict[str, Any]:
        """Return the fields that an instance has once its machine is bought; before, its row is there and empty."""
        if self.now < machine.created:
            return {"status": "pending", "backend": None, "price": None}
        created = write_time(machine.created)
        return {"status": "busy", "backend": machine.provider, "price": machine.price, "created": created}


def refuse(message: str, code: str = "error") -> Answer:
    return 400, {"detail": [{"msg": message, "code": code}]}


def write_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def build_offer(
    name: str, gpu: str, memory_gb: int, price: float, *, count: int = 1, stock: str = "available"
) -> dict[str, Any]:
    """Return an offer of `runs/get_plan`."""
    gpus = [{"name": gpu, "memory_mib": memory_gb * 1024, "vendor": "nvidia"} for _ in range(count)]
    resources = {"cpus": 26, "memory_mib": 204_800, "gpus": gpus, "spot": False, "disk": {"size_mib": 102_400}}
    return {
        "backend": "lambda", "instance": {"name": name, "resources": resources}, "region": "us-east-1", "price": price,
        "backend_data": {}, "availability": stock, "availability_zones": None, "instance_runtime": "shim", "blocks": 1,
        "total_blocks": 1,
    }  # fmt: skip
