"""Cost of a training while it runs: metered, stored every few seconds, and stopped at the limits.

    device      hours × price × devices, and the energy of its GPUs where the driver measures it
    service     the newest `cost` event of the training, else the tokens of its `usage` events, or its steps, × price

A limit that is reached is a request to stop like a pause: the training saves at its next safe point, and the reason is
in the run's log. Only saving is paid for after that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from trainyard.backends.job import TrainingJob
from trainyard.backends.results import TrainingStopped
from trainyard.callbacks import ignore
from trainyard.compute.energy import EnergyMeter, keep_energy
from trainyard.compute.events import Event
from trainyard.compute.gpus import import_nvml
from trainyard.compute.supervise import DesiredState, keep_running
from trainyard.errors import LimitExceeded
from trainyard.settings import Settings
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.devices import Device
from trainyard.spec.money import SOURCE_CHARS, ZERO, Price, PriceUnit, format_usd, hours_cost, round_usd
from trainyard.stores.metrics import number
from trainyard.stores.spending import SpendingEntry, SpendingStore, sum_usd

COST_EVENT = "cost"
"""Event of a service with what it charges: {amount_usd, source}; the last one counts."""
USAGE_EVENT = "usage"
"""Event of a service with the tokens that it bills for one of its jobs: {tokens, job}."""
OF_CHAIN = "max_spend of the chain"
METER_S = 2.0
"""Seconds between two readings of power and of what other trainings have spent."""
WRITE_S = 5.0
"""Seconds between two writes of a training's entry."""
JOULES_PER_KWH = 3_600_000


def find_price(backend: BackendName, settings: Settings, today: date | None = None) -> Price | None:
    """Return the price of a backend's trainings: its own of the settings, else of this machine's devices."""
    if (listed := settings.prices.get(backend.value)) is not None:
        return Price(usd=listed.usd, per=PriceUnit(listed.per), source=listed.source, date=listed.date)
    if backend.facts.remote or (settings.price_per_hour is None and settings.price_per_kwh is None):
        return None
    when = settings.price_date or today or datetime.now(UTC).date()
    energy = "" if settings.price_per_kwh is None else f" and {settings.price_per_kwh} USD per kWh"
    source = f"this machine's price_per_hour{energy}"
    return Price(usd=settings.price_per_hour or ZERO, source=source, date=when)


@dataclass(frozen=True)
class SpendingLimit:
    """Limit of money: its amount, its name, and what has been spent of it without the training that asks."""

    usd: Decimal
    name: str
    """`max_spend of the chain`."""
    setting: str
    """The setting that raises it; of a chain, its own `max_spend`."""
    others: Decimal = ZERO
    is_monthly: bool = False
    """Whether it is about all runs of a month."""

    @property
    def do(self) -> str:
        """What continues a run that has reached it."""
        if self.setting == OF_CHAIN:
            return "`trainyard jobs retry RUN --max-spend USD` continues from its checkpoint with more."
        return f"Raise {self.setting}, then resume the run: it continues from its checkpoint."

    def left(self) -> Decimal:
        return self.usd - self.others


def name_spending(job: TrainingJob) -> tuple[str, str]:
    """Return the run and the node under which the cost of a training is stored."""
    return job.run or job.work_name, job.node or "training"


def list_limits(
    settings: Settings, run: str, max_spend: Decimal | None, when: datetime, without: str = ""
) -> list[SpendingLimit]:
    """Return every limit of a run with the amount spent; `without` names the entry of the training that asks."""
    limits: list[SpendingLimit] = []
    store, tenant, month = SpendingStore(settings.spending), settings.tenant, f"{when:%Y-%m}"
    of_run = [(max_spend, OF_CHAIN, OF_CHAIN),
              (settings.max_spend_per_run, "max_spend_per_run", "max_spend_per_run in trainyard.toml")]  # fmt: skip
    if run_limits := [limit for limit in of_run if limit[0] is not None]:
        spent = sum_usd(entry for entry in store.list_run(run) if run and entry.name != without)
        limits += [SpendingLimit(usd or ZERO, name, setting, spent) for usd, name, setting in run_limits]
    of_tenant = settings.max_spend_of_tenants.get(tenant)
    if settings.max_spend_per_month is None and of_tenant is None:
        return limits
    entries = [entry for entry in store.list_month(month) if (entry.run, entry.name) != (run, without)]
    if settings.max_spend_per_month is not None:
        name = f"max_spend_per_month in {month}"
        limits.append(SpendingLimit(settings.max_spend_per_month, name, "max_spend_per_month in trainyard.toml",
                                    sum_usd(entries), is_monthly=True))  # fmt: skip
    if of_tenant is not None:
        name = f"max_spend_of_tenants.{tenant} in {month}"
        limits.append(SpendingLimit(of_tenant, name, f"max_spend_of_tenants.{tenant} in trainyard.toml",
                                    sum_usd(entry for entry in entries if entry.tenant == tenant),
                                    is_monthly=True))  # fmt: skip
    return limits


@dataclass
class SpendingMeter:
    """Meter of one start of a training."""

    job: TrainingJob
    settings: Settings
    price: Price | None
    desired: Callable[[], DesiredState] = keep_running
    hand_on: Callable[[Event], None] = ignore
    now: Callable[[], float] = time.time
    clock: Callable[[], float] = time.monotonic
    started: float = 0.0
    find_nvml: Callable[[], Any] = import_nvml
    counted: dict[str, float] = field(default_factory=dict)
    """First and last step, tokens, and tokens that a service bills, of this start."""
    statement: Event | None = None
    """The newest `cost` event."""
    reached: SpendingLimit | None = None

    def __post_init__(self) -> None:
        self.started = self.last = self.clock()
        config = self.job.config
        devices = () if config.backend.facts.remote or config.device is Device.CPU else self.job.devices
        self.energy = EnergyMeter(devices, self.clock, self.find_nvml)
        self.written = 0.0
        self.store = SpendingStore(self.settings.spending)
        self.run, node = name_spending(self.job)
        self.name = f"{node}-{int(self.now() * 1000)}"
        self.statement_name = f"{node}-statement"
        self.limits: list[SpendingLimit] = []

    def require_open(self) -> None:
        """Raise `LimitExceeded` (`E-SPEND`) where a limit is reached before the training starts."""
        self.refresh_limits()
        if self.price is None:
            return
        if (reached := self.find_reached(ZERO)) is not None:
            raise LimitExceeded(
                f"{reached.name} is reached: {format_usd(reached.others)} of {format_usd(reached.usd)} are spent.",
                why="The training would cost more.",
                do=reached.do,
                code="E-SPEND",
            )

    def desired_state(self) -> DesiredState:
        """Return the state that the caller wants, or `spend` once a limit is reached."""
        self.advance()
        if self.reached is None and (reached := self.find_reached(self.cost())) is not None:
            self.reached = reached
            self.hand_on({"event": "warning", "code": "E-SPEND", "text": self.describe_reached()})
        desired = self.desired()
        return DesiredState.SPEND if desired is DesiredState.RUN and self.reached is not None else desired

    def on_event(self, event: Event) -> None:
        if event["event"] == COST_EVENT:
            if self.statement is None:
                self.withdraw()
            self.statement = event
        elif event["event"] == USAGE_EVENT:
            self.counted["billed"] = self.counted.get("billed", 0.0) + (number(event.get("tokens")) or 0.0)
        elif event["event"] == "progress" and (step := number(event.get("step"))) is not None:
            self.counted.setdefault("first", step)
            self.counted["last"] = step
            self.counted["tokens"] = max(self.counted.get("tokens", 0.0), number(event.get("tokens")) or 0.0)
        self.hand_on(event)

    def advance(self) -> None:
        """Read the energy and the limits every two seconds, and write the entry every five."""
        now = self.clock()
        if now - self.last >= METER_S:
            self.last = now
            self.energy.advance()
            self.refresh_limits()
        if now - self.written >= WRITE_S:
            self.written = now
            self.write()

    def refresh_limits(self) -> None:
        when = datetime.fromtimestamp(self.now(), UTC)
        self.limits = list_limits(self.settings, self.run, self.job.max_spend, when, self.entry_name)

    @property
    def entry_name(self) -> str:
        """Name of the entry: a service's statement is about all starts of its job, a meter about one."""
        return self.name if self.statement is None else self.statement_name

    def find_reached(self, cost: Decimal) -> SpendingLimit | None:
        return next((limit for limit in self.limits if cost >= limit.left()), None)

    def cost(self) -> Decimal:
        """Return the cost of this start so far, or the service's statement."""
        if self.statement is not None:
            return round_usd(Decimal(str(self.statement["amount_usd"])))
        if self.price is None:
            return ZERO
        if self.price.per is PriceUnit.MILLION_TOKENS:
            return self.price.cost(self.counted.get("billed", self.counted.get("tokens", 0.0)))
        if self.price.per is PriceUnit.STEP:
            return self.price.cost(self.counted["last"] - self.counted["first"] + 1 if "last" in self.counted else 0.0)
        hours = hours_cost(self.price, self.clock() - self.started, len(self.job.devices))
        return hours + round_usd((self.settings.price_per_kwh or ZERO) * Decimal(str(self.energy_kwh or 0.0)))

    @property
    def energy_kwh(self) -> float | None:
        return None if self.energy.joules is None else self.energy.joules / JOULES_PER_KWH

    def withdraw(self) -> None:
        """Take the metered amount back in every month: the service's statement, which comes next, replaces it."""
        for entry in self.store.list_run(self.run):
            if entry.name == self.name:
                self.store.write(entry.model_copy(update={"usd": ZERO}))

    def write(self) -> None:
        """Write the amount spent so far; nothing where no price is known and the service says none.

        A month's entry has what came after the entries of the months before.
        """
        if self.job.is_probe or (self.price is None and self.statement is None):
            return
        when = datetime.fromtimestamp(self.now(), UTC)
        month, name = f"{when:%Y-%m}", self.entry_name
        earlier = [e for e in self.store.list_run(self.run) if e.name == name and e.month != month]
        seconds = self.clock() - self.started - sum(entry.seconds for entry in earlier)
        energy_kwh = self.energy_kwh
        if energy_kwh is not None:
            energy_kwh = max(0.0, energy_kwh - sum(entry.energy_kwh or 0.0 for entry in earlier))
        source = str(self.statement.get("source", "")) if self.statement else self.price.text if self.price else ""
        self.store.write(
            SpendingEntry(
                usd=max(ZERO, self.cost() - sum_usd(earlier)),
                source=source[:SOURCE_CHARS],
                date=when.date() if self.statement or self.price is None else self.price.date,
                energy_kwh=energy_kwh,
                month=month,
                run=self.run,
                node=name_spending(self.job)[1],
                name=name,
                tenant=self.settings.tenant,
                seconds=max(0.0, round(seconds, 3)),
                updated=self.now(),
            )
        )

    def describe_reached(self) -> str:
        assert self.reached is not None
        spent = format_usd(self.reached.others + self.cost())
        return f"{self.reached.name} is reached: {spent} of {format_usd(self.reached.usd)} are spent."

    def explain(self, error: TrainingStopped) -> TrainingStopped:
        """Return the error of a training that a limit stopped, with the limit and what to do; any other as it is."""
        if self.reached is None or error.reason != DesiredState.SPEND.value:
            return error
        return TrainingStopped(f"{error.what} {self.describe_reached()}", why=error.reason, do=self.reached.do)


@contextmanager
def meter_training(
    job: TrainingJob,
    settings: Settings,
    work: Path,
    desired: Callable[[], DesiredState],
    hand_on: Callable[[Event], None],
) -> Iterator[SpendingMeter]:
    """Yield the meter of a training that is about to start, and store its cost and energy however the training ends.

    Raises `LimitExceeded` (`E-SPEND`) where a limit is reached already.
    """
    meter = SpendingMeter(job, settings, find_price(job.config.backend, settings), desired, hand_on)
    if not job.is_probe:
        meter.require_open()
    try:
        yield meter
    except TrainingStopped as error:
        raise meter.explain(error) from error
    finally:
        meter.energy.advance()
        meter.write()
        if meter.energy.joules is not None:
            keep_energy(work, meter.energy.joules)
