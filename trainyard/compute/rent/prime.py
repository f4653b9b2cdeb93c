"""Prime Intellect's REST API: offers and pods, as its own client (PyPI `prime` 0.18) calls it.

GET    /api/v1/availability/gpus?gpu_count&page&page_size    {items, totalCount}
POST   /api/v1/pods {pod, provider}                          the pod
GET    /api/v1/pods?offset&limit                             {data, total_count}
GET    /api/v1/pods/{id}, /api/v1/pods/status?pod_ids        a pod; {data: [{status, sshConnection, …}]}
DELETE /api/v1/pods/{id}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from trainyard.compute.rent.rentals import Offer, OfferQuery, Rental
from trainyard.compute.rent.wire import Pod, RentService, ReplyLost
from trainyard.errors import NotFound
from trainyard.json_types import JsonObject

API = "/api/v1"
PAGE = 100
IN_STOCK = frozenset({"Available", "High", "Medium", "Low"})
GONE = frozenset({"TERMINATED", "DELETED"})
"""States of a pod that costs nothing any more; in most cases the service answers 404."""


class PrimePod(BaseModel):
    """A pod as the service writes it, as far as it is read here."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str
    name: str | None = None
    status: str = ""
    created_at: datetime = Field(alias="createdAt")
    price: Decimal | None = Field(None, validation_alias=AliasChoices("priceHr"))
    ssh: str | list[str | None] | None = Field(None, alias="sshConnection")

    @property
    def address(self) -> str:
        """`user@host -p port`; empty until the machine is reachable."""
        first = self.ssh[0] if isinstance(self.ssh, list) and self.ssh else self.ssh
        return first.removeprefix("ssh ").strip() if isinstance(first, str) else ""

    def describe(self) -> Pod:
        """Return the pod in the words of all services."""
        return Pod(id=self.id, name=self.name or "", created_at=self.created_at, price=self.price, address=self.address)


class PrimeService(RentService):
    """Client of one account."""

    service = "prime"
    title = "Prime Intellect"
    key_name = "PRIME_API_KEY"

    def list_offers(self, query: OfferQuery) -> list[Offer]:
        """Return the offers in stock. A page that fails is an error: a partial list may lack the cheapest offer."""
        offers: list[Offer] = []
        page, seen = 1, 0
        while True:
            params = {"gpu_count": str(query.gpus), "page": page, "page_size": PAGE}
            body = self.read("GET", f"{API}/availability/gpus", params=params)
            items = body.get("items") or []
            offers += [offer for item in items if (offer := self.read_offer(item)) is not None]
            seen, page = seen + len(items), page + 1
            if not items or seen >= int(body.get("totalCount") or 0):
                return [offer for offer in offers if query.accepts(offer)]

    def read_offer(self, item: Mapping[str, Any]) -> Offer | None:
        """Return an item as an offer; None for one without a price in USD or without stock."""
        prices = item.get("prices") or {}
        community = prices.get("communityPrice")
        price = prices.get("onDemand") if community is None else community
        if price is None or (prices.get("currency") or "USD") != "USD" or item.get("stockStatus") not in IN_STOCK:
            return None
        images = item.get("images") or [None]
        disk = (item.get("disk") or {}).get("defaultCount")
        order = {
            "cloudId": item["cloudId"], "gpuType": item["gpuType"], "socket": item.get("socket"),
            "gpuCount": item["gpuCount"], "diskSize": disk, "image": images[0], "dataCenterId": item.get("dataCenter"),
            "provider": item.get("provider"),
        }  # fmt: skip
        return Offer(
            service="prime", provider=str(item.get("provider") or "prime"), instance=str(item["cloudId"]),
            region=str(item.get("dataCenter") or item.get("country") or ""), gpu=str(item["gpuType"]),
            gpus=int(item["gpuCount"]), gpu_memory_gb=float(item["gpuMemory"]), spot=bool(item.get("isSpot")),
            usd_per_hour=Decimal(str(price)), source="Prime Intellect availability", date=self.today, order=order,
        )  # fmt: skip

    def create_pod(self, rental: Rental) -> Pod:
        """Order a machine, once. Raises `ReplyLost` where it may have been ordered all the same."""
        order = dict(rental.offer.order)
        provider = order.pop("provider", None)
        price = float(rental.limits.max_price)
        pod: JsonObject = {**order, "name": rental.name, "maxPrice": price, "autoRestart": False, "envVars": []}
        body = {"pod": pod, "provider": {"type": provider} if provider else {}, "disks": None, "team": None}
        return self.read_pod(self.request("POST", f"{API}/pods", json=body)).describe()

    def list_pods(self, prefix: str) -> list[Pod]:
        """Return the pods whose names begin with a prefix."""
        return [pod.describe() for pod in self.read_pods() if (pod.name or "").startswith(prefix)]

    def read_pods(self) -> Iterator[PrimePod]:
        offset = 0
        while True:
            body = self.read("GET", f"{API}/pods", params={"offset": offset, "limit": PAGE})
            data = body.get("data") or []
            yield from (pod for pod in map(self.read_pod, data) if pod.status not in GONE)
            offset += len(data)
            if not data or offset >= int(body.get("total_count") or 0):
                return

    def find_pod(self, pod_id: str) -> Pod | None:
        """Return a pod with its address; None where it is gone."""
        try:
            pod = self.read_pod(self.read("GET", f"{API}/pods/{pod_id}"))
            statuses = self.read("GET", f"{API}/pods/status", params={"pod_ids": [pod_id]}).get("data") or []
        except NotFound:
            return None
        values = pod.model_dump(by_alias=True) | {"priceHr": pod.price}
        for status in statuses:
            values |= {name: status[name] for name in ("status", "sshConnection", "priceHr") if status.get(name)}
        pod = PrimePod.model_validate(values)
        return None if pod.status in GONE else pod.describe()

    def delete_pod(self, pod_id: str) -> None:
        """Release a machine; one that is gone already is accepted."""
        try:
            self.request("DELETE", f"{API}/pods/{pod_id}")
        except NotFound:
            return

    def read_pod(self, body: JsonObject) -> PrimePod:
        """Raises `Unavailable` (`E-RENT`) for a body that is not a pod."""
        try:
            return PrimePod.model_validate(body)
        except ValidationError as error:
            raise ReplyLost("The service answered with no pod.", why=str(error.errors()[0]["msg"])) from error
