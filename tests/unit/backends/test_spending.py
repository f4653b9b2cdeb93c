"""What a training costs while it runs, and the limits that stop it; the clock is a number."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import cast

import pytest

from tests.small_jobs import Jobs
from trainyard.backends.cloud.contract import Provider, ProviderState, RemoteJob
from trainyard.backends.cloud.journal import JOURNAL_FILE
from trainyard.backends.cloud.submission import Submission
from trainyard.backends.ledger_entry import describe_training
from trainyard.backends.spending import SpendingMeter, find_price, list_limits
from trainyard.compute.child import EVENTS_FILE, Events
from trainyard.compute.energy import keep_energy, read_energy
from trainyard.compute.events import read_events
from trainyard.compute.supervise import DesiredState
from trainyard.errors import LimitExceeded
from trainyard.settings import Settings
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.money import round_usd
from trainyard.stores.spending import SpendingEntry, SpendingStore
from trainyard.testing.gpu_tools import SimulatedGpu, SimulatedNvml

START = datetime(2026, 11, 28, 12, tzinfo=UTC).timestamp()


@dataclass
class Clock:
    now: float = START

    def __call__(self) -> float:
        return self.now


def build_meter(
    jobs: Jobs, settings: Settings, clock: Clock, nvml: SimulatedNvml | None = None, **updates: object
) -> SpendingMeter:
    job = jobs().model_copy(update={"run": "a-run", "node": "trainer", **updates})
    price = find_price(job.config.backend, settings)
    return SpendingMeter(job, settings, price, now=clock, clock=clock, find_nvml=lambda: nvml)


@pytest.mark.parametrize("missing", ["", "energy", "power"])
def test_energy_is_counted_by_the_driver_or_from_its_power_and_paid_for(
    missing: str, jobs: Jobs, tmp_path: Path
) -> None:
    settings = Settings(home=tmp_path, price_per_hour=Decimal(0), price_per_kwh=Decimal("0.36"))
    gpus = [SimulatedGpu(missing=frozenset({missing})) for _ in range(2)]
    clock = Clock()
    meter = build_meter(jobs, settings, clock, SimulatedNvml(gpus), devices=(1,))
    assert meter.energy_kwh is None
    for _ in range(10):
        clock.now += 10
        gpus[1].millijoules += 2_000_000
        meter.desired_state()
    expected = {"": 20_000, "energy": 24_504, "power": 20_000}[missing]
    assert meter.energy.joules == pytest.approx(expected)
    assert meter.cost() == round_usd(Decimal("0.36") * expected / 3_600_000)


def test_energy_that_no_driver_measures_is_not_known_and_that_of_all_starts_is_added(
    jobs: Jobs, tmp_path: Path
) -> None:
    gpu = SimulatedGpu(missing=frozenset({"energy", "power"}))
    clock = Clock()
    meter = build_meter(jobs, Settings(home=tmp_path), clock, SimulatedNvml([gpu]), devices=(0,))
    clock.now += 10
    meter.desired_state()
    assert meter.energy.joules is None
    assert build_meter(jobs, Settings(home=tmp_path), clock, SimulatedNvml([gpu]), devices=(3,)).energy.joules is None
    assert read_energy(tmp_path) == 0
    keep_energy(tmp_path, 1.5)
    keep_energy(tmp_path, 2.0)
    assert read_energy(tmp_path) == 3.5


def write_spent(settings: Settings, usd: str, **fields: str) -> None:
    values = {"run": "other", "node": "t", "name": "t-1", "month": "2026-11", "tenant": "default", **fields}
    SpendingStore(settings.spending).write(SpendingEntry(usd=Decimal(usd), date=date(2026, 11, 1), **values))


def test_hours_of_every_device_are_stored_with_source_and_date(jobs: Jobs, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, price_per_hour=Decimal("3.6"), price_date=date(2026, 11, 1))
    clock = Clock()
    meter = build_meter(jobs, settings, clock, devices=(0, 1))
    clock.now += 50
    assert meter.desired_state() is DesiredState.RUN
    meter.write()
    (entry,) = SpendingStore(settings.spending).list_run("a-run")
    assert (entry.usd, entry.currency, entry.date) == (Decimal("0.1"), "USD", date(2026, 11, 1))
    assert entry.source.startswith("3.60 USD per hour")
    cost = SpendingStore(settings.spending).find_cost("a-run")
    assert cost is not None
    assert cost.usd == Decimal("0.1")


def test_a_limit_stops_the_training_and_says_which(jobs: Jobs, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, price_per_hour=Decimal(36))
    clock, events = Clock(), []
    meter = build_meter(jobs, settings, clock, max_spend=Decimal("0.5"))
    meter.hand_on = events.append
    meter.require_open()
    clock.now += 49
    assert meter.desired_state() is DesiredState.RUN
    clock.now += 2
    assert meter.desired_state() is DesiredState.SPEND
    assert meter.desired_state() is DesiredState.SPEND
    (warning,) = events
    assert warning["text"] == "max_spend of the chain is reached: 0.51 USD of 0.50 USD are spent."


def test_a_start_after_the_limit_is_refused(jobs: Jobs, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, price_per_hour=Decimal(1), max_spend_per_month=Decimal(10))
    write_spent(settings, "10.5")
    with pytest.raises(LimitExceeded, match=r"E-SPEND: max_spend_per_month in 2026-11 is reached: 10.50 USD of 10.00"):
        build_meter(jobs, settings, Clock()).require_open()


def test_a_tenant_pays_for_its_own_runs_of_this_month(tmp_path: Path) -> None:
    limits = {"a": Decimal(5), "b": Decimal(5)}
    settings = Settings(home=tmp_path, tenant="a", price_per_hour=Decimal(1), max_spend_of_tenants=limits)
    write_spent(settings, "2", tenant="a")
    write_spent(settings, "4", tenant="b", run="of-b")
    write_spent(settings, "3", tenant="a", month="2026-10")
    (limit,) = list_limits(settings, "new", None, datetime.fromtimestamp(START, UTC))
    assert (limit.usd, limit.others) == (5, 2)


def test_the_statement_of_a_service_counts_once(jobs: Jobs, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, price_per_hour=Decimal(36), max_spend_per_run=Decimal(2))
    clock = Clock()
    for amount in ("0.25", "1.5"):  # two starts of one remote job, whose statement is about both
        meter = build_meter(jobs, settings, clock)
        clock.now += 6
        meter.desired_state()
        meter.on_event({"event": "cost", "amount_usd": amount, "source": "provider"})
        assert meter.desired_state() is DesiredState.RUN
        meter.write()
    entries = SpendingStore(settings.spending).list_run("a-run")
    assert sum(entry.usd for entry in entries) == Decimal("1.5")
    meter.on_event({"event": "cost", "amount_usd": "2.25", "source": "provider"})
    assert meter.desired_state() is DesiredState.SPEND


def test_a_month_gets_what_is_spent_in_it(jobs: Jobs, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, price_per_hour=Decimal(36))
    clock = Clock(datetime(2026, 11, 30, 23, 59, 55, tzinfo=UTC).timestamp())
    meter = build_meter(jobs, settings, clock)
    for _ in range(3):
        clock.now += 5
        meter.desired_state()
    store = SpendingStore(settings.spending)
    months = {entry.month: entry.usd for entry in store.list_run("a-run")}
    assert sum(months.values()) == Decimal("0.15")
    assert months["2026-12"] > 0


def test_energy_and_seconds_belong_to_the_month_in_which_they_were_used(jobs: Jobs, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, price_per_hour=Decimal(36))
    clock, gpu = Clock(datetime(2026, 11, 30, 23, 59, 50, tzinfo=UTC).timestamp()), SimulatedGpu()
    meter = build_meter(jobs, settings, clock, SimulatedNvml([gpu]), devices=(0,))
    for _ in range(4):
        clock.now += 5
        gpu.millijoules += 3_600_000_000
        meter.desired_state()
    entries = SpendingStore(settings.spending).list_run("a-run")
    assert [(entry.month, entry.energy_kwh, entry.seconds) for entry in entries] == [
        ("2026-11", 1.0, 5.0), ("2026-12", 3.0, 15.0),
    ]  # fmt: skip
    cost = SpendingStore(settings.spending).find_cost("a-run")
    assert cost is not None
    assert cost.energy_kwh == 4.0


def test_a_statement_replaces_what_was_metered_in_every_month(jobs: Jobs, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, price_per_hour=Decimal(36))
    clock = Clock(datetime(2026, 11, 30, 23, 59, 50, tzinfo=UTC).timestamp())
    meter = build_meter(jobs, settings, clock)
    for _ in range(4):
        clock.now += 5
        meter.desired_state()
    meter.on_event({"event": "cost", "amount_usd": "0.5", "source": "provider"})
    meter.write()
    cost = SpendingStore(settings.spending).find_cost("a-run")
    assert cost is not None
    assert cost.usd == Decimal("0.5")


def test_tokens_that_a_service_bills_have_a_price(jobs: Jobs, tmp_path: Path) -> None:
    listed = {"usd": "3", "per": "million_tokens", "source": "price list", "date": "2026-11-01"}
    settings = Settings(home=tmp_path, prices={"trl": listed})
    meter = build_meter(jobs, settings, Clock())
    meter.on_event({"event": "progress", "step": 4})
    meter.on_event({"event": "usage", "tokens": 1_500_000, "source": "provider", "job": "ftjob-1"})
    meter.write()
    cost = SpendingStore(settings.spending).find_cost("a-run")
    assert cost is not None
    assert cost.usd == Decimal("4.5")


def test_tokens_and_steps_have_their_own_price(jobs: Jobs, tmp_path: Path) -> None:
    listed = {"usd": "8", "per": "million_tokens", "source": "price list", "date": "2026-11-01"}
    settings = Settings(home=tmp_path, prices={"trl": listed})
    meter = build_meter(jobs, settings, Clock())
    meter.on_event({"event": "progress", "step": 4, "tokens": 500_000})
    assert meter.cost() == 4
    settings = Settings(home=tmp_path, prices={"trl": {**listed, "per": "step", "usd": "0.5"}})
    meter = build_meter(jobs, settings, Clock())
    meter.on_event({"event": "progress", "step": 4})
    meter.on_event({"event": "progress", "step": 6})
    assert meter.cost() == Decimal("1.5")


def test_a_service_has_no_price_of_this_machine(tmp_path: Path) -> None:
    assert find_price(BackendName.TINKER, Settings(home=tmp_path, price_per_hour=Decimal(2))) is None


@pytest.mark.parametrize("unit", ["hour", "step"])
def test_the_ledger_has_the_cost_that_was_spent(jobs: Jobs, tmp_path: Path, unit: str) -> None:
    """The price of a backend, and all starts of the training."""
    listed = {"usd": "36", "per": unit, "source": "price list", "date": "2026-11-01"}
    settings, clock = Settings(home=tmp_path, price_per_hour=Decimal(1), prices={"trl": listed}), Clock()
    for _ in range(2):
        meter = build_meter(jobs, settings, clock)
        meter.on_event({"event": "progress", "step": 1})
        clock.now += 10
        meter.write()
    write_spent(settings, "5", run="a-run", node="another")
    entry = describe_training(meter.job, {}, settings, started=START, seconds=10.0)
    usd, source = {"hour": ("0.200000", "price list"), "step": ("72.000000", "per step: price list")}[unit]
    assert (entry["cost"]["amount"], entry["gpu_price_per_hour"]["source"]) == (usd, source)


def test_a_training_is_described_without_a_key_that_can_be_read(jobs: Jobs, tmp_path: Path) -> None:
    """A training is kept although its ledger cannot be written."""
    (tmp_path / "access").mkdir()
    (tmp_path / "access" / "ledger.key").write_text("damaged")
    entry = describe_training(jobs(), {}, Settings(home=tmp_path), started=START, seconds=10.0)
    assert (entry["sender_address"], entry["cost"]) == ("owner", None)


def test_a_provider_states_all_attempts_also_after_a_kill(tmp_path: Path) -> None:
    """The event of the first attempt is in the log, and its process ended right after it."""
    folder = tmp_path / "work"
    folder.mkdir()
    for job, stated in (("a", 0.25), ("b", 1.75)):
        events = Events(folder / EVENTS_FILE)
        submission = Submission(cast(Provider, None), "training", folder, events.emit)
        submission.charge(RemoteJob(job, ProviderState.FAILED, "failed", cost_usd=0.25 if job == "a" else 1.5))
        (*_, last) = read_events(folder / EVENTS_FILE)
        assert (last["job"], last["amount_usd"]) == (job, stated)
        (folder / JOURNAL_FILE).unlink(missing_ok=True)
