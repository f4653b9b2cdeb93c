"""GPUs, processors and memory of this machine. The text and the row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from trainyard.operations.base import Nothing, Request
from trainyard.operations.fields import Argument, Option
from trainyard.operations.table import Operation, Scope
from trainyard.operations.tables import format_table
from trainyard.spec.money import Dollars

if TYPE_CHECKING:
    from trainyard.app.gpus import GpuList, OfferList, RentalList, RentalView


class MachineInput(Request):
    engine: str = Field(
        "",
        pattern=r"^(|native|skypilot|dstack)$",
        description="What rents: native, skypilot, dstack; default: rent_engine.",
    )
    gpu: str = Field("", max_length=64, description="Part of the GPU's name, such as H100; default: any.")
    gpus: int = Field(1, ge=1, le=64, description="GPUs of the machine.")
    memory_gb: float = Field(0.0, ge=0, le=4096, description="Least memory of each GPU in GB.")
    spot: bool | None = Field(None, description="Only machines that the provider may take back, or only others.")
    hours: float = Field(1.0, gt=0, le=720, description="Estimated hours of work: offers are ordered by price × hours.")
    max_price: Dollars | None = Field(None, description="USD per hour; default for rent: rent_max_price.")


class OffersInput(MachineInput):
    limit: int = Field(20, ge=1, le=1000, description="Maximum number of offers, cheapest first.")
    service: str = Field(
        "",
        pattern=r"^(|prime|skypilot|dstack|catalog)$",
        description="prime, skypilot, dstack: offers of the engine; catalog: gpuhunt's prices; default: both.",
    )


class RentInput(MachineInput):
    max_spend: Dollars | None = Field(None, description="USD in all; default: rent_max_spend.")
    max_duration_s: int | None = Field(None, ge=60, description="Seconds until it is released; default: the setting.")
    idle_duration_s: int | None = Field(None, ge=60, description="Seconds without work until it is released.")
    key: str = Field(
        "", pattern=r"^([a-z0-9]{4,32})?$", description="Name of the rental: asked for twice, it is rented once."
    )
    attach: Annotated[bool, Option(local=True)] = Field(
        False, description="Stay while it works as a Prefect worker, and release it at the end."
    )


class ReleaseInput(Request):
    key: Annotated[str, Argument("KEY")] = Field(description="Key of a rental.")


def offers_text(result: OfferList) -> str:
    """Return the offers as a table, the cheapest first, then what could not be read."""
    rows = [
        (
            offer.service,
            offer.provider,
            offer.instance,
            offer.region or "-",
            f"{offer.gpus} x {offer.gpu}",
            f"{offer.gpu_memory_gb:g}",
            "spot" if offer.spot else "",
            f"{offer.usd_per_hour:.3f}",
            f"{offer.cost(result.hours):.2f}",
            f"{offer.source}, {offer.date}",
        )
        for offer in result.offers
    ]
    header = ("service", "provider", "instance", "region", "gpus", "GB", "", "USD/h", "USD", "price from")
    return "\n".join([format_table(rows, header) if rows else "no offers", *result.problems])


def rental_text(result: RentalView) -> str:
    """Return a rental in one line, with its limits."""
    offer, limits = result.offer, result.limits
    reason = f" ({result.reason})" if result.reason else ""
    address = f", ssh {result.ssh}" if result.ssh else ""
    return (
        f"{result.key}: {result.state}{reason}, {offer.gpus} x {offer.gpu} at {offer.usd_per_hour:.3f} USD/h of "
        f"{offer.provider}{address}\n{result.usd:.4f} USD of {limits.max_spend:.2f}, {result.age_s:.0f} s of "
        f"{limits.max_duration_s:.0f}; released after {limits.idle_duration_s:.0f} s without work"
    )


def rentals_text(result: RentalList) -> str:
    return "\n".join([*map(rental_text, result.rentals), *result.problems]) or "nothing is rented"


def gpus_text(result: GpuList) -> str:
    """Return one line per GPU, then the memory of each job on it."""
    used = [f"device {device.device}: {device.text}" for device in result.devices if device.text]
    if not result.gpus:
        return "\n".join([str(result.state), *used, *machine_lines(result.machine)])
    rows = [
        (
            str(gpu.index),
            gpu.name,
            f"{gpu.memory_used_mb:,} / {gpu.memory_total_mb:,}",
            format_value(gpu.utilization_gpu, "%"),
            format_value(gpu.temperature_c, " °C"),
            format_value(gpu.power_draw_w, " W"),
            format_value(gpu.clock_graphics_mhz, " MHz"),
        )
        for gpu in result.gpus
    ]
    lines = [format_table(rows, ("gpu", "name", "MiB used", "load", "temperature", "power", "clock"))]
    for gpu in result.gpus:
        for process in gpu.processes:
            lines.append(
                f"gpu {gpu.index}: {process.job or 'no job'}, {format_value(process.memory_mb, ' MiB')}, "
                f"pids {list(process.pids)}"
            )
    versions = {"driver": result.driver_version, "CUDA": result.cuda_version}
    lines += [f"{name} {version}" for name, version in versions.items() if version]
    return "\n".join([*lines, *used, *machine_lines(result.machine)])


def machine_lines(machine: Any) -> list[str]:
    """Return the load of the processors and the memory, then the memory of each job."""
    if machine is None:
        return []
    lines = [
        f"{machine.processors} processors, load {machine.load_1:g} (1 min) {machine.load_5:g} (5 min)",
        f"memory: {machine.memory_used_mb:,} of {machine.memory_total_mb:,} MiB used",
    ]
    return lines + [f"  {job.job}: {job.memory_mb:,} MiB, {job.processes} processes" for job in machine.jobs]


def format_value(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:,}{unit}"


ROWS: dict[str, Operation] = {
    "gpus": Operation(
        "The GPUs of this machine: memory, load, temperature, power, clocks, and the memory of each job.",
        request=Nothing, run="app.gpus:show_gpus", text=gpus_text, scope=Scope.READ,
        route="GET /api/v1/gpus", tenants=True,
    ),
    "gpus offers": Operation(
        "GPUs to rent, by price × hours: those of the engine, and the price lists of gpuhunt.",
        request=OffersInput, run="app.gpus:list_offers", text=offers_text, scope=Scope.READ,
        route="GET /api/v1/gpus/offers", example="trainyard gpus offers --gpu H100 --hours 3",
    ),
    "gpus rent": Operation(
        "Rent the cheapest machine that fits, within limits of price, time and money.",
        request=RentInput, run="app.gpus:rent_machine", text=rental_text, scope=Scope.ADMIN,
        route="POST /api/v1/gpus/rentals", status=201,
        example="trainyard gpus rent --gpu H100 --hours 3 --max-price 3 --max-spend 10 --attach",
    ),
    "gpus ps": Operation(
        "The rented machines, what they cost so far, and the release of those whose limits are reached.",
        request=Nothing, run="app.gpus:list_rentals", text=rentals_text, scope=Scope.ADMIN,
        route="GET /api/v1/gpus/rentals",
    ),
    "gpus release": Operation(
        "Release a rented machine now.",
        request=ReleaseInput, run="app.gpus:release_machine", text=rental_text, scope=Scope.ADMIN,
        route="DELETE /api/v1/gpus/rentals/{key}",
    ),
}  # fmt: skip
"""Name -> row, in the order of the help."""
