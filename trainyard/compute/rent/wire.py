"""Requests to a service that rents machines: its errors by their kind, and its clock.

A request that creates something is sent once: its lost reply does not justify a second machine. Times are those of the
service, from the `Date` of its replies, so that a clock of this machine that is set back lengthens no rental.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar, Self, TypeVar

import httpx
from pydantic import BaseModel, ConfigDict, field_validator

from trainyard.compute.rent.rentals import Offer, OfferQuery, Rental, RentalService
from trainyard.errors import Denied, NotFound, TrainyardError, Unavailable
from trainyard.json_types import JsonObject

T = TypeVar("T")
TIMEOUT_S = 30.0
READS = 3
"""Times that a request which changes nothing is sent until its reply arrives."""


def as_utc(time: datetime) -> datetime:
    """Return a time in UTC; one without a zone is in UTC already."""
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


class ReplyLost(Unavailable):
    """The service may or may not have carried the request out."""

    default_code = "E-RENT"


class Pod(BaseModel):
    """A machine at a service, as far as it is read here."""

    model_config = ConfigDict(frozen=True)

    id: str
    name: str
    created_at: datetime | None = None
    """When it began to cost money; None while the service still looks for a machine."""
    price: Decimal | None = None
    """USD per hour; None where the service does not say."""
    address: str = ""
    """`user@host -p port`; empty until the machine is reachable, and where the service gives none."""
    is_order: bool = True
    """Whether it is a machine, or will become one; False for the empty rest of an order."""
    end: str = ""
    """Why there is no machine any more; empty while there is."""

    @field_validator("created_at")
    @classmethod
    def read_without_zone(cls, value: datetime | None) -> datetime | None:
        """Return the time in UTC, which a time without a zone is."""
        return None if value is None else as_utc(value)


class RentService(ABC):
    """Client of one account at one service; `testing/` has a double of each."""

    service: ClassVar[RentalService]
    title: ClassVar[str]
    key_name: ClassVar[str]
    """Environment variable with the key of the account."""
    timeout_s: ClassVar[float] = TIMEOUT_S
    confirm_s: ClassVar[float] = 0.0
    """How long a release is looked at until the machine is gone; a service that ends it at once needs none."""

    def __init__(self, base_url: str, api_key: str, client: httpx.Client | None = None) -> None:
        self.base_url = base_url.rstrip("/")
        self.headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.client = client or httpx.Client(timeout=httpx.Timeout(self.timeout_s, connect=10.0))
        self.time = datetime.now(UTC)
        """The service's time at its last reply."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    @abstractmethod
    def list_offers(self, query: OfferQuery) -> list[Offer]:
        """Return what can be rented now."""

    @abstractmethod
    def create_pod(self, rental: Rental) -> Pod:
        """Order a machine, once. Raises `ReplyLost` where it may have been ordered all the same."""

    @abstractmethod
    def list_pods(self, prefix: str) -> list[Pod]:
        """Return the machines whose names begin with a prefix, and the rests of their orders."""

    @abstractmethod
    def find_pod(self, pod_id: str) -> Pod | None:
        """Return a machine; None where it is gone."""

    @abstractmethod
    def delete_pod(self, pod_id: str) -> None:
        """Release a machine; one that is gone already is accepted."""

    @property
    def today(self) -> date:
        return self.time.date()

    def read_age(self, pod: Pod) -> float:
        """Return the age of a machine by the service's clock, in seconds; 0 for one that is still looked for."""
        return 0.0 if pod.created_at is None else max(0.0, (self.time - pod.created_at).total_seconds())

    def request(self, method: str, path: str, **options: Any) -> JsonObject:
        """Return the body of a reply; a list is `{data: […]}`. Raises as `check_reply` and `send` do."""
        reply = self.send(method, path, **options)
        self.check_reply(reply, f"{method} {path}")
        try:
            body = reply.json() if reply.content else {}
        except ValueError as error:
            raise ReplyLost(f"The reply of {method} {path} is not JSON.") from error
        return body if isinstance(body, dict) else {"data": body}

    def read(self, method: str, path: str, **options: Any) -> JsonObject:
        """Return the body of a reply to a request that changes nothing; it is repeated where the reply is lost."""
        return self.repeat(lambda: self.request(method, path, **options))

    def repeat(self, read: Callable[[], T]) -> T:
        """Repeat a request that changes nothing while its reply is lost: a look that is missed costs money.

        A reply that is only late is not waited for again.
        """
        for attempt in range(1, READS + 1):
            try:
                return read()
            except ReplyLost as error:
                if attempt == READS or isinstance(error.__cause__, httpx.TimeoutException):
                    raise
        raise AssertionError("the last attempt returns or raises")

    def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request once. Raises `Unavailable` where nothing was sent, and `ReplyLost`."""
        try:
            reply = self.client.request(method, self.base_url + path, headers=self.headers, **options)
        except httpx.ConnectError as error:
            raise Unavailable(f"{self.base_url} does not answer: {error}", do="Try again.", code="E-RENT") from error
        except httpx.HTTPError as error:
            raise ReplyLost(f"The reply of {method} {path} was lost: {type(error).__name__}.") from error
        except httpx.InvalidURL as error:
            raise Unavailable(
                f"{self.base_url!r} is not an address: {error}", do="Correct it.", code="E-RENT"
            ) from error
        if date_text := reply.headers.get("Date"):
            with suppress(ValueError):  # a date that is not one: the time of the reply before is the latest known
                self.time = as_utc(parsedate_to_datetime(date_text))
        return reply

    def check_reply(self, reply: httpx.Response, action: str) -> None:
        """Raise `Denied`, `NotFound`, `ReplyLost` or `TrainyardError` (all `E-RENT`) for a reply without success."""
        if reply.status_code in (401, 403):
            raise Denied(
                f"{self.title} refuses the key.", why=read_message(reply),
                do=f"Set {self.key_name} to a valid key.", code="E-RENT",
            )  # fmt: skip
        if self.is_missing(reply):
            raise NotFound(f"{action}: it is not there.", code="E-RENT")
        if reply.status_code >= 500:
            raise ReplyLost(f"{action} failed with {reply.status_code}.")
        if not reply.is_success:
            raise TrainyardError(
                f"{self.title} refuses {action}: {read_message(reply)}", do="Choose another offer.", code="E-RENT"
            )

    def is_missing(self, reply: httpx.Response) -> bool:
        """Return whether a reply says that the service does not have the object."""
        return reply.status_code == 404


def read_message(reply: httpx.Response) -> str:
    """Return what a refusal says, without what it refuses: that may have a key in it."""
    try:
        detail = reply.json()["detail"]
    except (ValueError, KeyError, TypeError):
        return reply.text[:300]
    if isinstance(detail, list):
        items = [item for item in detail if isinstance(item, dict)]
        places = (".".join(map(str, item.get("loc") or ())) for item in items)
        parts = (f"{place}: {item.get('msg')}".removeprefix(": ") for place, item in zip(places, items, strict=True))
        return "; ".join(parts)[:300]
    if isinstance(detail, dict):
        return str(detail.get("message") or detail.get("msg"))[:300]
    return str(detail)[:300]
