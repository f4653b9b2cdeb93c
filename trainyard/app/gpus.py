"""Load of the GPUs of this machine, and the jobs that use their memory; GPUs that are rented.

The load of this machine without its GPUs: processors, memory, and what each running job uses of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from uuid import uuid4

import psutil

from trainyard.app.context import Context, make_run_key
from trainyard.app.live.jobs import list_job_rows
from trainyard.app.live.waits import DeviceState, read_devices
from trainyard.app.responses import Response
from trainyard.app.stack.engines import (
    choose_service,
    open_renter,
    open_service,
    reap_all,
    require_effect,
    require_way_back,
    stay,
)
from trainyard.backends.spending import list_limits
from trainyard.compute.monitor import (
    Clocks,
    GpuMonitor,
    GpuReading,
    MonitorReading,
    ProcessMemory,
    read_amd,
    read_apple,
    read_nvidia,
)
from trainyard.compute.rent.rentals import Offer, OfferQuery, Rental, RentalLimits, RentalService, RentalStore
from trainyard.errors import InvalidInput, LimitExceeded, TrainyardError, Unavailable
from trainyard.operations.base import Nothing
from trainyard.operations.gpus import MachineInput, OffersInput, ReleaseInput, RentInput
from trainyard.settings import Settings
from trainyard.spec.money import ZERO, format_usd
from trainyard.spec.states import JobState
from trainyard.stores.ledger.recording import record_paid, record_rented
from trainyard.stores.live.job_index import JobQuery, Row
from trainyard.stores.spending import SpendingEntry, SpendingStore

MIB = 1024 * 1024
LOOK_EVERY_S, STRAY_S = 20.0, 3600.0
"""Time between two looks at rented machines, and after the end of a rental in which its name is still looked for."""


class CpuJob(Response):
    """Current load of the processes of one job."""

    job: str
    memory_mb: int
    processes: int


class MachineLoad(Response):
    """Processors and memory now."""

    processors: int
    load_1: float
    """Processes that run or wait for a processor, mean of one minute."""
    load_5: float
    memory_total_mb: int
    memory_used_mb: int
    """What no program could get now."""
    jobs: tuple[CpuJob, ...] = ()


def read_load(owners: dict[int, str]) -> MachineLoad:
    """Return the load now. `owners` has the job of each process."""
    memory = psutil.virtual_memory()
    load_1, load_5, _ = psutil.getloadavg()
    return MachineLoad(
        processors=os.cpu_count() or 1,
        load_1=round(load_1, 2),
        load_5=round(load_5, 2),
        memory_total_mb=memory.total // MIB,
        memory_used_mb=(memory.total - memory.available) // MIB,
        jobs=tuple(use_of_jobs(owners)),
    )


def use_of_jobs(owners: dict[int, str]) -> list[CpuJob]:
    """Return the resident memory of each job's processes, the largest first."""
    used: dict[str, list[int]] = {}
    for pid, job in owners.items():
        try:
            used.setdefault(job, []).append(psutil.Process(pid).memory_info().rss)
        except psutil.Error:
            continue  # it has ended meanwhile
    jobs = [CpuJob(job=job, memory_mb=sum(sizes) // MIB, processes=len(sizes)) for job, sizes in used.items()]
    return sorted(jobs, key=lambda job: -job.memory_mb)


MONITOR = GpuMonitor((read_nvidia, read_amd, read_apple))
"""One look for all who ask in this process."""
MOST_RUNNING = 1000


class GpuJob(Response):
    """The memory of one job on one GPU, or of the processes outside of jobs."""

    job: str | None
    """Its id; None for processes outside of jobs."""
    memory_mb: int | None
    """Of all its processes; None where the driver does not say."""
    pids: tuple[int, ...]


class GpuUse(Response):
    """A GPU now; used and free memory add up to the total. None: the device does not say."""

    index: int
    name: str
    memory_total_mb: int
    memory_used_mb: int
    memory_free_mb: int
    utilization_gpu: int | None
    utilization_memory: int | None
    temperature_c: int | None
    power_draw_w: float | None
    clock_graphics_mhz: int | None
    clock_memory_mhz: int | None
    processes: tuple[GpuJob, ...]


class GpuList(Response):
    state: str
    """`ok`, `no GPU`, or why they could not be read."""
    gpus: tuple[GpuUse, ...]
    driver_version: str | None
    cuda_version: str | None
    alerts: tuple[str, ...] = ()
    """GPUs that use more of their memory than `gpu_memory_alert_percent`."""
    devices: tuple[DeviceState, ...] = ()
    """Which job or session has each device of this machine, and which wait for it; 0 is the CPU where no GPU is."""
    machine: MachineLoad | None = None
    """Processors and memory, and what each running job uses of them."""


def show_gpus(request: Nothing, context: Context) -> GpuList:
    """Return every GPU as it was at most two seconds ago. A caller of one tenant sees the processes of its own jobs."""
    return list_gpus(MONITOR.read(), context)


def list_gpus(reading: MonitorReading, context: Context) -> GpuList:
    """Return a reading with the jobs that its processes belong to."""
    owners = find_owners(running_jobs(context))
    return GpuList(
        state=reading.state,
        gpus=tuple(describe_use(gpu, owners, only_jobs=bool(context.caller.tenant)) for gpu in reading.gpus),
        driver_version=reading.driver_version,
        cuda_version=reading.cuda_version,
        alerts=tuple(describe_full_gpus(reading, context.settings.gpu_memory_alert_percent)),
        devices=tuple(read_devices(context.settings, context.caller.tenant)),
        machine=read_load(owners),
    )


def describe_full_gpus(reading: MonitorReading, percent: int) -> Iterator[str]:
    """Yield a sentence for each GPU that uses at least so many percent of its memory; 0: none."""
    for gpu in reading.gpus if percent else ():
        if 100 * gpu.memory_used_mb >= percent * max(1, gpu.memory_total_mb):
            yield f"GPU {gpu.index} ({gpu.name}) uses {gpu.memory_used_mb:,} of {gpu.memory_total_mb:,} MiB."


def describe_use(gpu: GpuReading, owners: dict[int, str], *, only_jobs: bool) -> GpuUse:
    clocks: Clocks = gpu.clocks
    read: dict[str, object] = {name: getattr(gpu, name) for name in GpuUse.model_fields if hasattr(gpu, name)}
    read |= {"clock_graphics_mhz": clocks.graphics_mhz, "clock_memory_mhz": clocks.memory_mhz}
    return GpuUse(**read | {"processes": tuple(group_by_job(gpu.processes, owners, only_jobs=only_jobs))})


def group_by_job(processes: tuple[ProcessMemory, ...], owners: dict[int, str], *, only_jobs: bool) -> Iterator[GpuJob]:
    """Yield the processes of a GPU by their jobs, the others last."""
    jobs: dict[str | None, list[ProcessMemory]] = {}
    for process in processes:
        jobs.setdefault(owners.get(process.pid), []).append(process)
    for job in sorted(jobs, key=lambda job: (job is None, job or "")):
        if job is None and only_jobs:
            continue
        sizes = [process.memory_mb for process in jobs[job] if process.memory_mb is not None]
        pids = tuple(sorted(process.pid for process in jobs[job]))
        yield GpuJob(job=job, memory_mb=sum(sizes) if len(sizes) == len(jobs[job]) else None, pids=pids)


def running_jobs(context: Context) -> list[Row]:
    """Return the jobs that have a process here; empty where Prefect does not answer."""
    query = JobQuery(tenant=context.caller.tenant, state=JobState.RUNNING, limit=MOST_RUNNING)
    try:
        return [row for row in list_job_rows(query, context).page.rows if row["pid"]]
    except Unavailable:
        return []


def find_owners(rows: list[Row]) -> dict[int, str]:
    """Process -> its job: the run's own process and everything below it."""
    owners: dict[int, str] = {}
    for row in rows:
        try:
            root = psutil.Process(row["pid"])
            owners |= {process.pid: row["id"] for process in (root, *root.children(recursive=True))}
        except psutil.Error:
            continue  # it has ended meanwhile
    return owners


# Rented machines


class OfferList(Response):
    offers: tuple[Offer, ...]
    hours: float
    problems: tuple[str, ...] = ()
    """Services that could not be asked."""


class RentalView(Rental, Response):
    """A rental, as it was a moment ago."""


class RentalList(Response):
    rentals: tuple[RentalView, ...]
    problems: tuple[str, ...] = ()
    """Machines and services that could not be looked at."""


def list_offers(request: OffersInput, context: Context) -> OfferList:
    """Return the offers of every service that answers, by price. Raises the last error where none answers."""
    query, settings = build_query(request), context.settings
    service = choose_service(request.engine, settings)
    sources: dict[str, Callable[[], list[Offer]]] = {
        service: lambda: ask_service(service, query, settings),
        "catalog": lambda: ask_catalog(query, settings),
    }
    if request.service not in ("", *sources):
        raise InvalidInput(
            f"The engine {request.engine or settings.rent_engine} has no offers of {request.service}.",
            do=f"Use --service {service}, or another --engine.", code="E-PARAMETER",
        )  # fmt: skip
    offers: list[Offer] = []
    problems: list[str] = []
    failure: TrainyardError | None = None
    chosen = [name for name in sources if request.service in ("", name)]
    for name in chosen:
        try:
            offers += sources[name]()
        except TrainyardError as error:
            failure = error
            problems.append(f"{name}: {error}")
    if failure is not None and len(problems) == len(chosen):
        raise failure
    offers.sort(key=lambda offer: (offer.cost(request.hours), offer.provider, offer.instance))
    return OfferList(offers=tuple(offers[: request.limit]), hours=request.hours, problems=tuple(problems))


def build_query(request: MachineInput) -> OfferQuery:
    return OfferQuery(
        gpu=request.gpu, gpus=request.gpus, gpu_memory_gb=request.memory_gb, max_price=request.max_price,
        spot=request.spot,
    )  # fmt: skip


def ask_service(service: RentalService, query: OfferQuery, settings: Settings) -> list[Offer]:
    with open_service(service, settings) as client:
        return client.list_offers(query)


def ask_catalog(query: OfferQuery, settings: Settings) -> list[Offer]:
    from trainyard.compute.rent.catalog import list_catalog_offers  # only this operation reads a catalog

    return list_catalog_offers(query, settings.gpu_catalog)


def rent_machine(request: RentInput, context: Context) -> RentalView:
    """Rent a machine; with `attach` let it work until a limit, and release it."""
    settings = context.settings
    limits, service = resolve_limits(request, settings), choose_service(request.engine, settings)
    key = request.key or derive_rental_key(context)
    require_effect(service, settings)
    require_way_back(service, settings)
    with open_renter(service, settings, context.say) as renter:
        rental = renter.rent(
            key, build_query(request), limits, request.hours, partial(require_budget, key, limits, settings)
        )
        if request.attach:
            with renter.attach(rental):
                if service == "prime":
                    from trainyard.app.stack.rented import attach_machine  # imports the SSH client

                    attach_machine(rental, renter, context)
                else:
                    stay(rental, renter)
            rental = renter.store.get(key)
    return show_rental(rental, settings, context.say)


def derive_rental_key(context: Context) -> str:
    """Return the key of a rental: that of the caller's idempotency key, else a new one."""
    digest = make_run_key(context, "rent") or uuid4().hex
    return digest[:12]


def resolve_limits(request: RentInput, settings: Settings) -> RentalLimits:
    """Return the limits of a rental. Raises `InvalidInput` (`E-PARAMETER`) without a price or a sum."""
    price = request.max_price if request.max_price is not None else settings.rent_max_price
    spend = request.max_spend if request.max_spend is not None else settings.rent_max_spend
    for name, value in (("max_price", price), ("max_spend", spend)):
        if value is None:
            raise InvalidInput(
                f"A rental needs {name}.", why="A machine costs money until it is released.",
                do=f"Give --{name.replace('_', '-')}, or set rent_{name} in trainyard.toml.", code="E-PARAMETER",
            )  # fmt: skip
    return RentalLimits(
        max_price=price, max_spend=spend,
        max_duration_s=request.max_duration_s or settings.rent_max_duration_s,
        idle_duration_s=request.idle_duration_s or settings.rent_idle_duration_s,
    )  # fmt: skip


def require_budget(key: str, limits: RentalLimits, settings: Settings) -> None:
    """Raise `LimitExceeded` (`E-SPEND`) where a month's limit leaves less than the rental may spend.

    The amount that other open rentals may still spend counts as spent.
    """
    others = [rental for rental in RentalStore(settings.rentals).list() if rental.is_open and rental.key != key]
    promised = sum((max(ZERO, rental.limits.max_spend - rental.usd) for rental in others), ZERO)
    for limit in list_limits(settings, f"rental-{key}", None, datetime.now(UTC)):
        left = limit.left() - (promised if limit.is_monthly else ZERO)
        if limits.max_spend > left:
            open_rentals = f" next to {len(others)} open rentals" if promised and limit.is_monthly else ""
            raise LimitExceeded(
                f"The rental may spend {format_usd(limits.max_spend)}, and {limit.name} leaves "
                f"{format_usd(max(ZERO, left))}{open_rentals}.",
                do=f"Lower max_spend, or raise {limit.setting}.", code="E-SPEND",
            )  # fmt: skip


def list_rentals(request: Nothing, context: Context) -> RentalList:
    """Look at every open rental, and return all."""
    store, unreadable = RentalStore(context.settings.rentals), list[str]()
    problems, failure = reap_all(store.list(unreadable.append), context.settings, context.say)
    if failure is not None:
        raise failure
    rentals = tuple(show_rental(rental, context.settings, context.say) for rental in store.list())
    return RentalList(rentals=rentals, problems=tuple(dict.fromkeys([*problems, *unreadable])))


def release_machine(request: ReleaseInput, context: Context) -> RentalView:
    """Release a machine. Raises `NotFound` (`E-RENTAL`), and `Unavailable` where the service does not confirm it."""
    store = RentalStore(context.settings.rentals)
    rental = store.get(request.key)
    if rental.is_open and rental.offer.service != "catalog":
        with open_renter(rental.offer.service, context.settings, context.say) as renter:
            rental = renter.check(rental)
            rental = renter.release(rental, "released by a command") if rental.is_open else rental
        if rental.is_open:
            raise Unavailable(
                f"The service has not confirmed that {rental.name} is gone.", do="Look again by `trainyard gpus ps`.",
                code="E-RENT",
            )  # fmt: skip
    return show_rental(rental, context.settings, context.say)


def show_rental(rental: Rental, settings: Settings, say: Callable[[str], None]) -> RentalView:
    """Return a rental, with its cost in the spending of the month, and its begin and its bill in the ledger."""
    if rental.usd:
        write_rental_cost(rental, settings)
    for problem in filter(None, record_rental(rental, settings)):
        say(problem)
    return RentalView(**rental.model_dump())


def record_rental(rental: Rental, settings: Settings) -> Iterator[str]:
    """Record a machine in the ledger, and its cost once it is released; yield why an entry could not be written."""
    offer = rental.offer
    if rental.pod_id:
        yield record_rented(
            settings.home, provider=offer.provider, machine=rental.pod_id, gpu=offer.gpu, count=offer.gpus,
            usd_per_hour=offer.usd_per_hour, price_source=offer.source, tenant=settings.tenant,
        )  # fmt: skip
        if not rental.is_open:
            yield record_paid(
                settings.home, provider=offer.provider, machine=rental.pod_id, seconds=rental.age_s, usd=rental.usd,
                tenant=settings.tenant,
            )  # fmt: skip


def write_rental_cost(rental: Rental, settings: Settings) -> None:
    """Count a rental among what its month has cost."""
    run, begun = f"rental-{rental.key}", datetime.fromtimestamp(rental.created, UTC)
    SpendingStore(settings.spending).write(
        SpendingEntry(
            usd=rental.usd,
            source=rental.offer.source,
            date=rental.offer.date,
            month=f"{begun:%Y-%m}",
            run=run,
            node="machine",
            name="machine",
            tenant=settings.tenant,
            seconds=rental.age_s,
            updated=rental.checked,
        )
    )


def release_due(settings: Settings, say: Callable[[str], None]) -> None:
    """Look at the rentals of this home, every twenty seconds at most, where one is open or has ended in the last hour.

    Called before each command and by the watchdog; what cannot be looked at is said, and fails no command.
    """
    store = RentalStore(settings.rentals)
    now = time.time()
    rentals = [rental for rental in store.list(say) if rental.is_open or abs(now - rental.checked) < STRAY_S]
    if not rentals or all(abs(now - max(rental.checked, rental.created)) < LOOK_EVERY_S for rental in rentals):
        return
    problems, _ = reap_all(rentals, settings, say)
    for rental in store.list():
        show_rental(rental, settings, say)
    for problem in problems:
        say(f"rented machines: {problem}")
