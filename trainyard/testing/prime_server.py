"""Double of Prime Intellect's REST API: availability and pods, on a clock that a test moves, with faults.

It has the routes, names and rules that the client of the service (PyPI `prime` 0.18) uses: names of letters, digits and
dashes, one key per account, pods that start as PENDING and cost from their creation, 404 for what is gone. The paid
service itself was never called.

    double = PrimeDouble()
    with double.serve() as url:
        PrimeService(url, double.key)
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainyard.testing.rent_account import STARTS_S, Answer, Machine, Query, RentAccount

NAME = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9-]+")
API = "/api/v1"


class PodOrder(BaseModel):
    """The `pod` of an order, with the service's names."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    name: str = Field(pattern=r"^[A-Za-z0-9-]+$")
    cloud_id: str = Field(alias="cloudId")
    gpu_type: str = Field(alias="gpuType")
    socket: str | None = None
    gpu_count: int = Field(alias="gpuCount", ge=1)
    disk_size: int | None = Field(None, alias="diskSize")
    image: str | None = None
    data_center: str | None = Field(None, alias="dataCenterId")
    max_price: float | None = Field(None, alias="maxPrice")
    restart: bool = Field(False, alias="autoRestart")
    variables: list[dict[str, str]] = Field([], alias="envVars")


class OrderBody(BaseModel):
    """Body of `POST /pods`."""

    model_config = ConfigDict(extra="forbid")

    pod: PodOrder
    provider: dict[str, str]
    disks: list[str] | None = None
    team: dict[str, str] | None = None


@dataclass
class PrimeDouble(RentAccount):
    """The account of one customer."""

    key: str = "prime-key"
    offers: list[dict[str, Any]] = field(default_factory=list)
    address: str = "root@127.0.0.1 -p 22"

    def __post_init__(self) -> None:
        self.offers = self.offers or [
            build_offer("h100-a", "H100_80GB", 80, 2.0), build_offer("h100-b", "H100_80GB", 80, 1.5, community=True),
            build_offer("a6000", "RTX_A6000_48GB", 48, 0.5),
            build_offer("h100-none", "H100_80GB", 80, 0.9, stock="Unavailable"),
        ]  # fmt: skip

    def deny(self) -> Answer:
        return 401, {"detail": "Invalid API key"}

    def answer(self, method: str, path: str, query: Query, body: Any) -> Answer:
        """Return status and body."""
        parts = path.removeprefix(API).strip("/").split("/")
        if (method, parts) == ("GET", ["availability", "gpus"]):
            return 200, self.list_offers(query)
        if (method, parts) == ("POST", ["pods"]):
            return self.create(body)
        return self.answer_pods(method, parts, query) if parts[0] == "pods" else (404, {"detail": "Not Found"})

    def answer_pods(self, method: str, parts: list[str], query: Query) -> Answer:
        """Answer a request about machines that are there."""
        pods = self.visible()
        if parts == ["pods"]:
            offset, limit = int(query.get("offset", ["0"])[0]), int(query.get("limit", ["100"])[0])
            data = [self.describe(pod) for pod in pods[offset : offset + limit]]
            return 200, {"total_count": len(pods), "offset": offset, "limit": limit, "data": data}
        if parts == ["pods", "status"]:
            return 200, {"data": [self.describe_status(pod) for pod in pods if pod.id in query.get("pod_ids", [])]}
        pod = next((pod for pod in pods if [pod.id] == parts[1:]), None)
        if pod is None:
            return 404, {"detail": "Pod not found"}
        if method == "DELETE":
            self.end(pod, self.now)
            return 200, {}
        return 200, self.describe(pod)

    def list_offers(self, query: Query) -> dict[str, Any]:
        count = int(query.get("gpu_count", ["0"])[0])
        page, size = int(query.get("page", ["1"])[0]), int(query.get("page_size", ["100"])[0])
        items = [] if self.faults.no_offers else [o for o in self.offers if count in (0, o["gpuCount"])]
        return {"totalCount": len(items), "items": items[(page - 1) * size : page * size]}

    def create(self, body: Any) -> Answer:
        self.creates += 1
        if self.faults.drop_create:
            return 0, None
        try:
            order = OrderBody.model_validate(body)
        except ValidationError as error:
            return 422, {"detail": json.loads(error.json(include_url=False))}
        offer = next((o for o in self.offers if o["cloudId"] == order.pod.cloud_id), None)
        if offer is None or self.faults.no_offers or not NAME.fullmatch(order.pod.name):
            return 400, {"detail": "No such configuration is available"}
        prices = offer["prices"]
        price = (prices["communityPrice"] or prices["onDemand"]) * self.faults.price_factor
        if order.pod.max_price is not None and price > order.pod.max_price and self.faults.price_factor == 1.0:
            return 400, {"detail": "The price is above maxPrice"}
        pod = self.add_machine(order.pod.name, order.pod, offer["provider"], price)
        return (0, None) if self.faults.lose_create_reply else (200, self.describe(pod))

    def describe(self, pod: Machine) -> dict[str, Any]:
        active = self.now - pod.created >= STARTS_S
        created = datetime.fromtimestamp(pod.created, UTC).isoformat().replace("+00:00", "Z")
        return {
            "id": pod.id, "name": pod.order.name, "gpuName": pod.order.gpu_type, "gpuCount": pod.order.gpu_count,
            "status": "ACTIVE" if active else "PENDING", "createdAt": created, "providerType": pod.provider,
            "installationStatus": "FINISHED" if active else None, "priceHr": pod.price, "ip": None, "resources": None,
            "sshConnection": self.address if active else [None], "socket": pod.order.socket, "type": "HOSTED",
        }  # fmt: skip

    def describe_status(self, pod: Machine) -> dict[str, Any]:
        page = self.describe(pod)
        names = ("status", "sshConnection", "priceHr", "ip")
        return {"podId": pod.id, "providerType": pod.provider, **{name: page[name] for name in names}}


def build_offer(
    cloud_id: str, gpu: str, memory: int, price: float, *, community: bool = False, stock: str = "High", count: int = 1
) -> dict[str, Any]:
    """Return an item of `/availability/gpus`."""
    sized = {"minCount": None, "defaultCount": 100, "maxCount": None, "pricePerUnit": 0.0, "step": None,
             "defaultIncludedInPrice": True, "additionalInfo": None}  # fmt: skip
    prices = {"onDemand": None if community else price, "communityPrice": price if community else None,
              "isVariable": False, "currency": "USD"}  # fmt: skip
    return {
        "cloudId": cloud_id, "gpuType": gpu, "socket": "PCIe", "provider": "double", "dataCenter": "EU-1",
        "country": "NL", "gpuCount": count, "gpuMemory": memory, "disk": sized, "vcpu": sized, "memory": sized,
        "internetSpeed": None, "interconnect": None, "interconnectType": None, "provisioningTime": 60,
        "stockStatus": stock, "security": "secure_cloud", "prices": prices, "images": ["ubuntu_22_cuda_12"],
        "isSpot": False, "prepaidTime": None,
    }  # fmt: skip
