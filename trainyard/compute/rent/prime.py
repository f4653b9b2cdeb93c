"""Prime Intellect's REST API: offers and pods, as its own client (PyPI `prime` 0.18) calls it.

    GET    /api/v1/availability/gpus?gpu_count&page&page_size    {items, totalCount}
    POST   /api/v1/pods {pod, provider}                          the pod
    GET    /api/v1/pods?offset&limit                             {data, total_count}
    GET    /api/v1/pods/{id}, /api/v1/pods/status?pod_ids        a pod; {data: [{status, sshConnection, …}]}
    DELETE /api/v1/pods/{id}

A `POST` is sent once: its lost reply does not justify a second machine. Times are those of the service, from the `Date`
of its replies, so that a clock of this machine that is set back lengthens no rental.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from email.utils import parsedate_to_datetime
from typing import Any, Self

import httpx
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from trainyard.compute.rent.rentals import Offer, OfferQuery
from trainyard.errors import Denied, NotFound, TrainyardError, Unavailable
from trainyard.json_types import JsonObject

API = "/api/v1"
PAGE = 100
TIMEOUT_S = 30.0
IN_STOCK = frozenset({"Available", "High", "Medium", "Low"})
GONE = frozenset({"TERMINATED", "DELETED"})
"""States of a pod that costs nothing any more; in most cases the service answers 404."""


class ReplyLost(Unavailable):
    """The service may or may not have done what it was asked for."""

    default_code = "E-RENT"


class Pod(BaseModel):
    """A pod, as far as it is read here."""

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


class PrimeService:
    """Client of one account."""

    def __init__(self, base_url: str, api_key: str, client: httpx.Client | None = None) -> None:
        self.base_url = base_url.rstrip("/") + API
        self.headers = {"Authorization": f"Bearer {api_key}"}
        self.client = client or httpx.Client(timeout=httpx.Timeout(TIMEOUT_S, connect=10.0))
        self.time = datetime.now(UTC)
        """The service's time at its last reply."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def list_offers(self, query: OfferQuery) -> list[Offer]:
        """Return the offers in stock. A page that fails is an error: a partial list may lack the cheapest offer."""
        offers: list[Offer] = []
        page, seen = 1, 0
        while True:
            params = {"gpu_count": str(query.gpus), "page": page, "page_size": PAGE}
            body = self.request("GET", "/availability/gpus", params=params)
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

    def read_age(self, pod: Pod) -> float:
        """Return the age of a pod by the service's clock, in seconds."""
        return max(0.0, (self.time - pod.created_at).total_seconds())

    @property
    def today(self) -> date:
        return self.time.date()

    def create_pod(self, name: str, offer: Offer, max_price: Decimal) -> Pod:
        """Order a machine, once. Raises `ReplyLost` where it may have been ordered all the same."""
        order = dict(offer.order)
        provider = order.pop("provider", None)
        pod: JsonObject = {**order, "name": name, "maxPrice": float(max_price), "autoRestart": False, "envVars": []}
        body = {"pod": pod, "provider": {"type": provider} if provider else {}, "disks": None, "team": None}
        return self.read_pod(self.request("POST", "/pods", json=body))

    def list_pods(self, prefix: str) -> list[Pod]:
        """Return the pods whose names begin with a prefix."""
        return [pod for pod in self.read_pods() if (pod.name or "").startswith(prefix)]

    def read_pods(self) -> Iterator[Pod]:
        offset = 0
        while True:
            body = self.request("GET", "/pods", params={"offset": offset, "limit": PAGE})
            data = body.get("data") or []
            yield from (pod for pod in map(self.read_pod, data) if pod.status not in GONE)
            offset += len(data)
            if not data or offset >= int(body.get("total_count") or 0):
                return

    def find_pod(self, pod_id: str) -> Pod | None:
        """Return a pod with its address; None where it is gone."""
        try:
            pod = self.read_pod(self.request("GET", f"/pods/{pod_id}"))
            statuses = self.request("GET", "/pods/status", params={"pod_ids": [pod_id]}).get("data") or []
        except NotFound:
            return None
        values = pod.model_dump(by_alias=True) | {"priceHr": pod.price}
        for status in statuses:
            values |= {name: status[name] for name in ("status", "sshConnection", "priceHr") if status.get(name)}
        pod = Pod.model_validate(values)
        return None if pod.status in GONE else pod

    def delete_pod(self, pod_id: str) -> None:
        """Release a machine; one that is gone already is accepted."""
        try:
            self.request("DELETE", f"/pods/{pod_id}")
        except NotFound:
            return

    def read_pod(self, body: JsonObject) -> Pod:
        """Raises `Unavailable` (`E-RENT`) for a body that is not a pod."""
        try:
            return Pod.model_validate(body)
        except ValidationError as error:
            raise ReplyLost("The service answered with no pod.", why=str(error.errors()[0]["msg"])) from error

    def request(self, method: str, path: str, **options: Any) -> JsonObject:
        """Return the body of a reply. Raises `Denied`, `NotFound`, `ReplyLost` and `TrainyardError` (`E-RENT`)."""
        try:
            reply = self.client.request(method, self.base_url + path, headers=self.headers, **options)
        except httpx.ConnectError as error:
            raise Unavailable(f"{self.base_url} does not answer: {error}", do="Try again.", code="E-RENT") from error
        except httpx.HTTPError as error:
            raise ReplyLost(f"The reply of {method} {path} was lost: {type(error).__name__}.") from error
        if date_text := reply.headers.get("Date"):
            self.time = parsedate_to_datetime(date_text).astimezone(UTC)
        if reply.status_code in (401, 403):
            raise Denied("Prime Intellect refuses the key.", do="Set PRIME_API_KEY to a valid key.", code="E-RENT")
        if reply.status_code == 404:
            raise NotFound(f"{path} is not there.", code="E-RENT")
        if reply.status_code >= 500:
            raise ReplyLost(f"{method} {path} failed with {reply.status_code}.")
        if reply.status_code >= 400:
            raise TrainyardError(
                f"Prime Intellect refuses {method} {path}: {reply.text[:300]}", do="Choose another offer.",
                code="E-RENT",
            )  # fmt: skip
        try:
            body = reply.json() if reply.content else {}
        except ValueError as error:
            raise ReplyLost(f"The reply of {method} {path} is not JSON.") from error
        return body if isinstance(body, dict) else {"data": body}
