"""SkyPilot's API server (0.14) as an engine: a machine is a cluster of one node, whose task is the worker.

    GET  /enabled_clouds                      ["Lambda", …]
    POST /list_accelerators {clouds, …}       {GPU: [[cloud, instance, GPU, count, vCPUs, GiB, RAM, USD, spot, region]]}
    POST /validate {dag}                      refuses a task before anything costs money
    POST /launch {task, cluster_name}         not waited for; the same name is the same cluster
    POST /status, /cost_report {cluster_names}
    POST /down {cluster_name}, /api/cancel {request_ids}
    GET  /api/get?request_id, /api/status     the result of a request; the requests of a cluster

Most answers are a request's id in `X-Skypilot-Request-ID`; `/api/get` then waits for the result. `autostop` with `down`
and `wait_for: none` ends the cluster at max_duration, whatever becomes of this machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import httpx
import yaml

from trainyard.compute.rent.rentals import Offer, OfferQuery, Rental, Work
from trainyard.compute.rent.wire import Pod, RentService, ReplyLost
from trainyard.errors import TrainyardError, Unavailable

REQUEST_ID = "X-Skypilot-Request-ID"
LAUNCH = "sky.launch"
GONE = "ClusterDoesNotExist"
ENDED = frozenset({"SUCCEEDED", "CANCELLED"})
NO_DEADLINE = frozenset({"hyperbolic", "primeintellect", "verda", "yotta"})
"""Clouds on which SkyPilot 0.14 ends no machine automatically; it refuses a task with `autostop` there."""
COLORS = re.compile(r"\x1b\[[0-9;]*m")
FIELDS = ("request_id", "name", "cluster_name", "status", "created_at")


@dataclass(frozen=True)
class RequestResult:
    """Result of a request."""

    value: Any
    error: str = ""
    """Name of the server's exception."""
    message: str = ""


class SkyPilotService(RentService):
    """Client of one API server."""

    service = "skypilot"
    title = "SkyPilot"
    key_name = "SKYPILOT_SERVICE_ACCOUNT_TOKEN"
    timeout_s = 180.0  # a server that has just started needs a minute for its first answer
    confirm_s = 60.0

    def __init__(
        self, base_url: str, token: str, plan_work: Callable[[Rental], Work], client: httpx.Client | None = None
    ) -> None:
        super().__init__(base_url, token, client)
        self.plan_work = plan_work

    # Offers

    def list_offers(self, query: OfferQuery) -> list[Offer]:
        """Return the offers of the clouds that the server may use. Raises `Unavailable` (`E-OFFERS`) without one."""
        enabled = [cloud for cloud in self.look("GET", "/enabled_clouds") if cloud.lower() not in NO_DEADLINE]
        if not enabled:
            raise Unavailable(
                "SkyPilot has no cloud on which it ends a machine at a deadline.",
                do="Give it an account: `sky check` in its environment says how.", code="E-OFFERS",
            )  # fmt: skip
        body: dict[str, Any] = {"clouds": enabled, "quantity_filter": query.gpus, "all_regions": True}
        if query.gpu:
            letters = re.sub(r"[^A-Za-z0-9]", "", query.gpu)  # H100_80GB is H100-80GB there
            body |= {"name_filter": "[^A-Za-z0-9]*".join(letters), "case_sensitive": False}
        rows = [row for rows in self.look("POST", "/list_accelerators", json=body).values() for row in rows]
        offers = [offer for row in rows for offer in self.read_row(row)]
        return [offer for offer in offers if query.accepts(offer)]

    def read_row(self, row: list[Any]) -> list[Offer]:
        """Return a row of the catalog as offers: on demand and spot, each where it has a price."""
        cloud, instance, gpu, count, _, memory, _, price, spot_price, region = row
        prices = [(value, spot) for value, spot in ((price, False), (spot_price, True)) if value and value > 0]
        return [
            Offer(
                service="skypilot", provider=str(cloud), instance=str(instance or ""), region=str(region or ""),
                gpu=str(gpu), gpus=int(count), gpu_memory_gb=float(memory or 0), spot=spot,
                usd_per_hour=Decimal(str(value)), source="SkyPilot catalog", date=self.today,
            )
            for value, spot in prices
        ]  # fmt: skip

    # Machines

    def create_pod(self, rental: Rental) -> Pod:
        """Order a cluster, once. Raises `TrainyardError` for a task that the server refuses, and `ReplyLost`."""
        task = self.build_task(rental)
        dag = yaml.safe_dump_all([{"name": rental.name}, task], sort_keys=False)
        self.request("POST", "/validate", json={"dag": dag, "request_options": None})
        body = {"task": yaml.safe_dump(task, sort_keys=False), "cluster_name": rental.name}
        self.request("POST", "/launch", json=body)
        return Pod(id=rental.name, name=rental.name)

    def build_task(self, rental: Rental) -> dict[str, Any]:
        """Return the task: the offer as it was chosen, the limits that SkyPilot has, and the worker."""
        offer, limits, work = rental.offer, rental.limits, self.plan_work(rental)
        resources: dict[str, Any] = {
            "infra": f"{offer.provider.lower()}/{offer.region}" if offer.region else offer.provider.lower(),
            "accelerators": {offer.gpu: offer.gpus},
            "use_spot": offer.spot,
            "max_hourly_cost": float(limits.max_price),
            "autostop": {"idle_minutes": max(1, int(limits.max_duration_s // 60)), "down": True, "wait_for": "none"},
        }
        if offer.instance:
            resources["instance_type"] = offer.instance
        return {
            "name": rental.name, "num_nodes": 1, "resources": resources, "envs": work.variables,
            "secrets": work.secrets, "run": work.script,
        }  # fmt: skip

    def list_pods(self, prefix: str) -> list[Pod]:
        """Return the clusters whose names begin with a prefix, and the orders that will become one."""
        body = {"include_credentials": False, "include_handle": False}
        records = [record for record in self.look("POST", "/status", json=body) if record["name"].startswith(prefix)]
        pods = {record["name"]: self.read_record(record) for record in records}
        for row in self.list_requests():
            name = row.get("cluster_name") or ""
            if row.get("name") == LAUNCH and name.startswith(prefix):
                pods.setdefault(name, Pod(id=name, name=name))
        return list(pods.values())

    def find_pod(self, pod_id: str) -> Pod | None:
        """Return a cluster with its price, or why its order came to nothing; None where it is gone."""
        body = {"cluster_names": [pod_id], "include_credentials": False, "include_handle": False}
        for record in self.look("POST", "/status", json=body):
            return self.read_record(record).model_copy(update={"price": self.read_price(pod_id)})
        launches = [row for row in self.list_requests(pod_id, all_status=True) if row.get("name") == LAUNCH]
        last = max(launches, key=lambda row: float(row.get("created_at") or 0), default={"status": "SUCCEEDED"})
        if last["status"] in ENDED:
            return None
        if last["status"] == "FAILED":
            return Pod(id=pod_id, name=pod_id, end=f"no machine: {self.wait(last['request_id']).message[:300]}")
        return Pod(id=pod_id, name=pod_id)

    def read_record(self, record: dict[str, Any]) -> Pod:
        launched = datetime.fromtimestamp(record["launched_at"], UTC)
        return Pod(id=record["name"], name=record["name"], created_at=launched)

    def read_price(self, name: str) -> Decimal | None:
        """Return what an hour of a cluster costs by the server's own account; None in its first seconds."""
        reports = self.look("POST", "/cost_report", json={"cluster_names": [name]})
        last: dict[str, Any] = max(reports, key=lambda report: report.get("launched_at") or 0, default={})
        cost, seconds = last.get("total_cost") or 0, last.get("duration") or 0
        return round(Decimal(str(cost)) * 3600 / Decimal(seconds), 4) if cost > 0 and seconds >= 1 else None

    def delete_pod(self, pod_id: str) -> None:
        """End a cluster, and its order where it is still worked at; one that is gone already is accepted."""
        ids = [row["request_id"] for row in self.list_requests(pod_id) if row.get("name") == LAUNCH]
        if ids:
            self.ask("POST", "/api/cancel", json={"request_ids": ids})
        outcome = self.wait(self.start("POST", "/down", json={"cluster_name": pod_id}))
        if outcome.error not in ("", GONE):
            raise Unavailable(f"SkyPilot did not end {pod_id}: {outcome.message[:300]}",
                              do="Look again by `trainyard gpus ps`.", code="E-RENT")  # fmt: skip

    # Requests

    def list_requests(self, cluster: str = "", *, all_status: bool = False) -> list[dict[str, Any]]:
        """Return the requests that are not finished, or all; without their bodies, which have secrets."""
        params: dict[str, Any] = {"fields": list(FIELDS), "all_status": all_status}
        rows: list[dict[str, Any]] = self.read(
            "GET", "/api/status", params=params | ({"cluster_name": cluster} if cluster else {})
        )["data"]
        return rows

    def look(self, method: str, path: str, **options: Any) -> Any:
        """Return the result of a request that changes nothing; it is repeated where a reply is lost."""
        return self.repeat(lambda: self.ask(method, path, **options))

    def ask(self, method: str, path: str, **options: Any) -> Any:
        """Return the result of a request. Raises `TrainyardError` (`E-RENT`) where it failed."""
        outcome = self.wait(self.start(method, path, **options))
        if outcome.error:
            raise TrainyardError(
                f"SkyPilot failed at {path}: {outcome.message[:300]}", why=outcome.error,
                do="See the log of its server: `sky api logs`.", code="E-RENT",
            )  # fmt: skip
        return outcome.value

    def start(self, method: str, path: str, **options: Any) -> str:
        """Send a request; returns its id."""
        reply = self.send(method, path, **options)
        self.check_reply(reply, f"{method} {path}")
        if not (request_id := reply.headers.get(REQUEST_ID)):
            raise ReplyLost(f"The reply of {method} {path} has no {REQUEST_ID}.")
        return str(request_id)

    def wait(self, request_id: str) -> RequestResult:
        """Return the result of a request; a request that failed is answered with 500 and its error."""
        reply = self.send("GET", "/api/get", params={"request_id": request_id})
        try:
            body = reply.json()
            detail = body.get("detail") if reply.status_code == 500 else None
            if isinstance(detail, dict):
                error = json.loads(detail["error"])
                return RequestResult(None, str(error["type"]), COLORS.sub("", str(error["message"])))
            self.check_reply(reply, "GET /api/get")
            return RequestResult(json.loads(body["return_value"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ReplyLost("The reply of GET /api/get has no result.") from error

    def is_missing(self, reply: httpx.Response) -> bool:
        """Return False: a request reports a cluster that is gone, and 404 never does."""
        return False
