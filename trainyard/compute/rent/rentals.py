"""Offers and rentals as data, and their records: one JSON file per rental, below `TRAINYARD_HOME/rentals`.

The record is written before the machine is requested: whatever happens to the renter, the name of the machine and its
limits are there for the next command that looks.
"""

from __future__ import annotations

import hashlib
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from trainyard.callbacks import ignore
from trainyard.errors import Corrupt, InvalidInput, NotFound, TrainyardError
from trainyard.spec.money import ZERO, Dollars
from trainyard.stores.files import DISK, Files, make_folders
from trainyard.stores.schema import add_version, read_versioned
from trainyard.stores.whole import write_json_durably

KEY = re.compile(r"[a-z0-9]{4,32}")
RentalService = Literal["prime", "skypilot", "dstack"]
"""What rents a machine: Prime Intellect, called from here, or the server of another engine."""


class Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class OfferSize(Frozen):
    """The GPUs of an offer."""

    gpu: str
    gpus: int
    gpu_memory_gb: float
    spot: bool = False


class Offer(OfferSize):
    """Machine that a provider rents out, with its price."""

    service: RentalService | Literal["catalog"]
    """Where the offer is from; the catalog only compares."""
    provider: str
    instance: str
    region: str = ""
    usd_per_hour: Dollars
    currency: Literal["USD"] = "USD"
    source: str
    date: date
    """When the price was read, or the catalog's date."""
    order: dict[str, str | int | None] = Field(default_factory=dict)
    """Fields that an order has to repeat."""

    def cost(self, hours: float) -> Decimal:
        return self.usd_per_hour * Decimal(str(hours))


class OfferQuery(Frozen):
    """Machines that would do."""

    gpu: str = ""
    gpus: int = 1
    gpu_memory_gb: float = 0.0
    max_price: Dollars | None = None
    spot: bool | None = None

    def accepts(self, offer: Offer) -> bool:
        """Return whether an offer has the GPUs at this price."""
        part, name = normalize_gpu(self.gpu), normalize_gpu(offer.gpu)
        return (
            (not part or part in name)
            and offer.gpus == self.gpus
            and offer.gpu_memory_gb >= self.gpu_memory_gb
            and (self.max_price is None or offer.usd_per_hour <= self.max_price)
            and (self.spot is None or offer.spot is self.spot)
        )


def normalize_gpu(name: str) -> str:
    """`H100_80GB` and `h100-80gb` are one GPU."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


class RentalLimits(Frozen):
    """Limits of a rental, in the words of dstack."""

    max_price: Dollars
    """USD per hour."""
    max_duration_s: float = Field(gt=0)
    max_spend: Dollars
    """USD."""
    idle_duration_s: float = Field(gt=0)


class Work(Frozen):
    """What an engine runs on the machine that it rents."""

    script: str
    """Lines for `sh`."""
    variables: dict[str, str]
    secrets: dict[str, str] = Field(default_factory=dict)
    """Variables that the engine hides where it can."""


class RentalState(StrEnum):
    """State of a rental."""

    REQUESTED = "requested"
    """The order was sent, or is about to be; whether there is a machine is not known."""
    ACTIVE = "active"
    RELEASING = "releasing"
    """It has to go, and the service has not confirmed that it is gone."""
    RELEASED = "released"


class Rental(Frozen):
    """Record of one rental."""

    key: str
    name: str
    """Of the machine at the service; begins with the prefix of this home."""
    state: RentalState = RentalState.REQUESTED
    offer: Offer
    limits: RentalLimits
    created: float
    """Seconds of the epoch, of this machine's clock."""
    checked: float = 0.0
    """When the service was last asked about it, by this machine's clock."""
    pod_id: str = ""
    age_s: float = 0.0
    """How long the machine has existed at the last look, by the service's clock."""
    busy_age_s: float = 0.0
    """The part of it until it last worked."""
    usd: Dollars = ZERO
    """What it has cost until the last look."""
    ssh: str = ""
    """`user@host -p port`, once it is known."""
    host_key: str = ""
    """The machine's public key, once it was reached over SSH."""
    reason: str = ""
    """Why it was released."""

    @property
    def seconds_left(self) -> float:
        """The rest of max_duration; at least one second."""
        return max(1.0, self.limits.max_duration_s - self.age_s)

    @property
    def is_open(self) -> bool:
        return self.state is not RentalState.RELEASED


class RentalStore:
    """The rentals of a home."""

    def __init__(self, folder: Path, files: Files = DISK) -> None:
        self.folder, self.files = folder, files

    @property
    def prefix(self) -> str:
        """Beginning of the names of this home's machines; other homes may use the same account."""
        digest = hashlib.sha256(f"{socket.gethostname()}\n{self.folder.resolve()}".encode()).hexdigest()
        return f"trainyard-{digest[:8]}-"

    def path(self, key: str) -> Path:
        """Return the file of a record. Raises `InvalidInput` (`E-NAME`)."""
        if not KEY.fullmatch(key):
            raise InvalidInput(f"{key!r} is not the key of a rental.", do="`trainyard gpus ps` lists them.",
                               code="E-NAME")  # fmt: skip
        return self.folder / f"{key}.json"

    def put(self, rental: Rental) -> Rental:
        """Write a record whole."""
        make_folders(self.files, self.folder)
        write_json_durably(self.path(rental.key), add_version("rental", rental.model_dump(mode="json")), self.files)
        return rental

    def find(self, key: str) -> Rental | None:
        """Return a record by its key; None without one. Raises `Corrupt`, `Conflict` (`E-SCHEMA`)."""
        path = self.path(key)
        if not self.files.exists(path):
            return None
        try:
            return Rental.model_validate(read_versioned("rental", self.files.read(path), path))
        except ValueError as error:
            raise Corrupt(
                f"The record {path} of a rental cannot be read.", why=str(error).splitlines()[0][:200],
                do="Move it away: its machine is released then, by its name.",
            ) from error  # fmt: skip

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let no other process of this home begin a rental meanwhile."""
        make_folders(self.files, self.folder)
        with self.files.locked(self.folder / ".lock"):
            yield

    def get(self, key: str) -> Rental:
        """Return a record by its key. Raises `NotFound` (`E-RENTAL`)."""
        rental = self.find(key)
        if rental is None:
            raise NotFound(f"There is no rental {key!r}.", do="`trainyard gpus ps` lists them.", code="E-RENTAL")
        return rental

    def list(self, report: Callable[[str], None] = ignore) -> list[Rental]:
        """Return every record that can be read, the newest first; `report` gets a line about each other one."""
        return sorted(self.read_all(report), key=lambda rental: rental.created, reverse=True)

    def read_all(self, report: Callable[[str], None]) -> Iterator[Rental]:
        names = self.files.listdir(self.folder) if self.files.is_folder(self.folder) else []
        for name in (name for name in names if name.endswith(".json")):
            try:
                rental = self.find(name.removesuffix(".json"))
            except TrainyardError as error:
                report(str(error))
                continue
            if rental is not None:
                yield rental
