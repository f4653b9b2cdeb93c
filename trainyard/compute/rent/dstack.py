"""dstack's server (0.22) as an engine: a machine is a fleet of at most one instance, and the run in it is the worker.

    POST /api/project/{project}/runs/get_plan {run_spec, for_offers_only}    {job_plans: [{offers, total_offers}]}
    POST …/fleets/apply {plan: {spec}, force}                                a fleet, which costs nothing while empty
    POST …/runs/apply {plan: {run_spec}, force}                              the run, which brings the instance
    POST …/fleets/list {}, …/fleets/get {name}                               fleets with their instances
    POST …/runs/get {run_name}, /api/runs/list {project_name, only_active}
    POST …/runs/stop {runs_names, abort}, …/fleets/delete {names}

A fleet of its own keeps the run from another's machine, and its `idle_duration` of 0 ends the instance with the run.
`max_duration` and `max_price` are the server's own limits. A finished run does not keep its name: a second order with
it would be a second machine, so an order is sent once.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal

import httpx

from trainyard.compute.rent.rentals import Offer, OfferQuery, Rental, Work
from trainyard.compute.rent.wire import Pod, RentService, ReplyLost
from trainyard.errors import Denied, InvalidInput, NotFound, TrainyardError, Unavailable
from trainyard.json_types import JsonObject

NAME = re.compile(r"[a-z][a-z0-9-]{1,40}")
MAX_OFFERS = 10_000
"""The most that the server lists; they are ordered by price."""
IN_STOCK = frozenset({"available", "unknown"})
FINISHED = frozenset({"terminated", "failed", "done"})
MISSING = "resource_not_exists"
PAGE = 100


class DstackService(RentService):
    """Client of one project."""

    service = "dstack"
    title = "dstack"
    key_name = "DSTACK_TOKEN"
    timeout_s = 60.0
    confirm_s = 90.0

    def __init__(
        self, base_url: str, token: str, project: str, plan_work: Callable[[Rental], Work],
        client: httpx.Client | None = None,
    ) -> None:  # fmt: skip
        super().__init__(base_url, token, client)
        self.project, self.plan_work = project, plan_work

    # Offers

    def list_offers(self, query: OfferQuery) -> list[Offer]:
        """Return the offers of the project's backends that are in stock."""
        configuration = {
            "type": "task", "commands": ["true"], "resources": describe_resources(query.gpus),
            "spot_policy": "auto" if query.spot is None else describe_spot(query.spot),
        }  # fmt: skip
        body = {"run_spec": {"configuration": configuration}, "max_offers": MAX_OFFERS, "for_offers_only": True}
        plans = self.look("runs/get_plan", body)["job_plans"]
        offers = [self.read_offer(item) for item in plans[0]["offers"] if item["availability"] in IN_STOCK]
        return [offer for offer in offers if query.accepts(offer)]

    def read_offer(self, item: JsonObject) -> Offer:
        resources = item["instance"]["resources"]
        gpus = resources["gpus"]
        return Offer(
            service="dstack", provider=item["backend"], instance=item["instance"]["name"], region=item["region"],
            gpu=gpus[0]["name"] if gpus else "", gpus=len(gpus),
            gpu_memory_gb=gpus[0]["memory_mib"] / 1024 if gpus else 0.0, spot=bool(resources["spot"]),
            usd_per_hour=Decimal(str(item["price"])), source="dstack offers", date=self.today,
        )  # fmt: skip

    # Machines

    def create_pod(self, rental: Rental) -> Pod:
        """Order a machine, once: its fleet, then its run. Raises `TrainyardError` for a refusal, `ReplyLost`."""
        if not NAME.fullmatch(rental.name):
            raise InvalidInput(f"{rental.key!r} is too long a key for dstack.",
                               do="Use a key of at most 22 letters and digits.", code="E-NAME")  # fmt: skip
        self.post("fleets/apply", {"plan": {"spec": build_fleet(rental)}, "force": False})
        try:
            run_spec = build_run(rental, self.plan_work(rental))
            self.post("runs/apply", {"plan": {"run_spec": run_spec}, "force": False})
        except (ReplyLost, Unavailable):
            raise
        except TrainyardError:
            self.delete_fleet(rental.name)
            raise
        return Pod(id=rental.name, name=rental.name)

    def list_pods(self, prefix: str) -> list[Pod]:
        """Return the machines whose names begin with a prefix, the runs that wait for one, and empty fleets."""
        fleets = {fleet["name"]: fleet for fleet in self.look("fleets/list", {})["data"]}
        runs = {run["run_spec"]["run_name"]: run for run in self.list_active_runs()}
        names = sorted(name for name in fleets.keys() | runs.keys() if name.startswith(prefix))
        return [pod for name in names if (pod := describe(name, fleets.get(name), runs.get(name))) is not None]

    def list_active_runs(self) -> list[JsonObject]:
        """Return the project's runs that are not finished."""
        body: JsonObject = {"project_name": self.project, "only_active": True, "limit": PAGE}
        runs: list[JsonObject] = []
        while True:
            page = self.read("POST", "/api/runs/list", json=body)["data"]
            runs += page
            if len(page) < PAGE:
                return runs
            body |= {"prev_submitted_at": page[-1]["submitted_at"], "prev_run_id": page[-1]["id"]}

    def find_pod(self, pod_id: str) -> Pod | None:
        """Return a machine, or why it ended; None where nothing is left of it."""
        return describe(pod_id, self.find("fleets/get", {"name": pod_id}), self.find("runs/get", {"run_name": pod_id}))

    def find(self, path: str, body: JsonObject) -> JsonObject | None:
        try:
            return self.look(path, body)
        except NotFound:
            return None

    def delete_pod(self, pod_id: str) -> None:
        """End a run at once, then its fleet; either may be gone already."""
        self.post("runs/stop", {"runs_names": [pod_id], "abort": True})
        self.delete_fleet(pod_id)

    def delete_fleet(self, name: str) -> None:
        """Delete a fleet; one that is in use until its run has ended stays, and is deleted by the next look."""
        try:
            self.post("fleets/delete", {"names": [name]})
        except (Denied, Unavailable):
            raise
        except TrainyardError as error:
            if "try again" not in error.what.lower() and "in use" not in error.what:
                raise

    # Requests

    def look(self, path: str, body: JsonObject) -> JsonObject:
        return self.repeat(lambda: self.post(path, body))

    def post(self, path: str, body: JsonObject) -> JsonObject:
        return self.request("POST", f"/api/project/{self.project}/{path}", json=body)

    def check_reply(self, reply: httpx.Response, action: str) -> None:
        """Raise also `Denied` (`E-RENT`) for a project that there is not; that never means that a machine is gone."""
        if reply.status_code == 404:
            raise Denied(f"dstack has no project {self.project!r} for this token.", do="Set dstack_project.",
                         code="E-RENT")  # fmt: skip
        super().check_reply(reply, action)

    def is_missing(self, reply: httpx.Response) -> bool:
        """Return whether a reply has the code of what there is not; other refusals are 400, too."""
        if reply.status_code != 400:
            return False
        try:
            detail = reply.json()["detail"]
        except (ValueError, KeyError, TypeError):
            return False
        items = detail if isinstance(detail, list) else []
        return any(isinstance(item, dict) and item.get("code") == MISSING for item in items)


def describe_resources(gpus: int) -> JsonObject:
    return {"gpu": {"count": {"min": gpus, "max": gpus}}}


def describe_spot(spot: bool) -> str:
    return "spot" if spot else "on-demand"


def build_fleet(rental: Rental) -> JsonObject:
    """Return the fleet of a rental: empty until its run starts, and again when that has ended."""
    configuration = {
        "type": "fleet", "name": rental.name, "nodes": {"min": 0, "max": 1}, "idle_duration": 0,
        "max_price": float(rental.limits.max_price), "spot_policy": describe_spot(rental.offer.spot),
    }  # fmt: skip
    return {"configuration": configuration, "profile": {}}


def build_run(rental: Rental, work: Work) -> JsonObject:
    """Return the run: the offer as it was chosen, the limits that dstack has, and the worker."""
    offer, limits = rental.offer, rental.limits
    configuration = {
        "type": "task", "name": rental.name, "python": "3.11", "commands": [f"sh -c {shlex.quote(work.script)}"],
        "env": work.variables | work.secrets, "resources": describe_resources(offer.gpus), "fleets": [rental.name],
        "backends": [offer.provider], "regions": [offer.region], "instance_types": [offer.instance],
        "spot_policy": describe_spot(offer.spot), "max_price": float(limits.max_price),
        "max_duration": int(limits.max_duration_s), "stop_duration": 30, "idle_duration": 0, "retry": False,
    }  # fmt: skip
    return {"run_name": rental.name, "configuration": configuration}


def describe(name: str, fleet: JsonObject | None, run: JsonObject | None) -> Pod | None:
    """Return what a fleet and its run are together; None where neither is there."""
    instances = [item for item in (fleet or {}).get("instances", []) if item["status"] != "terminated"]
    is_active = run is not None and run["status"] not in FINISHED
    if not instances and not is_active:
        if fleet is None:
            return None
        return Pod(id=name, name=name, is_order=False, end=read_end(run))
    bought = [
        item for item in instances if item.get("price") is not None
    ]  # the others wait for an offer, or found none
    created = min((datetime.fromisoformat(item["created"]) for item in bought), default=None)
    prices = [Decimal(str(item["price"])) for item in bought]
    return Pod(id=name, name=name, created_at=created, price=sum(prices) if prices else None)


def read_end(run: JsonObject | None) -> str:
    """Return why a run ended, in dstack's words."""
    if run is None:
        return "its run is gone"
    job = run.get("latest_job_submission") or {}
    reason = job.get("termination_reason_message") or job.get("termination_reason") or run.get("termination_reason")
    return f"the run is {run['status']}: {str(reason or 'no reason').splitlines()[0][:300]}"
