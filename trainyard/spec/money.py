"""Prices, limits and amounts of money. US dollars as decimals; JSON has them as strings, so that no cent is rounded.

price × quantity = cost        an hour of a device, a million tokens, a step
a limit                        of one run, of a month, of a month and a tenant
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from decimal import ROUND_HALF_UP, Decimal
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

SECONDS_PER_HOUR = Decimal(3600)
MILLION = Decimal(1_000_000)
MICRO = Decimal("0.000001")
SOURCE_CHARS = 200
ZERO = Decimal(0)

Dollars = Annotated[
    Decimal,
    Field(ge=0, le=10**9, allow_inf_nan=False),
    PlainSerializer(lambda value: format(value, "f"), return_type=str, when_used="json"),
]
"""An amount of US dollars."""
MaxSpend = Annotated[
    Dollars | None,
    Field(
        title="Spending limit",
        description="USD that the run may spend; empty: as the settings say.",
        exclude_if=lambda value: value is None,
    ),
]
"""Field of a template's form."""


class Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PriceUnit(StrEnum):
    """Quantity that a price is for."""

    HOUR = "hour"
    """Of one device, or of a rented machine."""
    MILLION_TOKENS = "million_tokens"
    STEP = "step"


class Price(Frozen):
    """Price of a training, with where it comes from and its date."""

    usd: Dollars
    per: PriceUnit = PriceUnit.HOUR
    currency: Literal["USD"] = "USD"
    source: str = Field("", max_length=SOURCE_CHARS, description="Where the price was read, such as a price list.")
    date: date

    @property
    def text(self) -> str:
        """`2.50 USD per hour (price list, 2026-11-01)`."""
        return f"{format_usd(self.usd, self.currency)} per {self.per.replace('_', ' ')} ({self.source}, {self.date})"

    def cost(self, quantity: float) -> Decimal:
        """Return the cost of hours, tokens or steps: for `million_tokens`, `quantity` counts single tokens."""
        divisor = MILLION if self.per is PriceUnit.MILLION_TOKENS else Decimal(1)
        return round_usd(self.usd * Decimal(str(quantity)) / divisor)


class Cost(Frozen):
    """Amount of money, estimated or spent."""

    usd: Dollars
    currency: Literal["USD"] = "USD"
    source: str = ""
    """The price, or the provider's own statement."""
    date: date
    """Of the price, or of the provider's statement."""
    energy_kwh: float | None = None
    """Of the GPUs, where the driver measures their power."""

    @property
    def text(self) -> str:
        energy = "" if self.energy_kwh is None else f", {self.energy_kwh:.3f} kWh"
        return f"{format_usd(self.usd, self.currency)}{energy} ({self.source})"


def round_usd(amount: Decimal) -> Decimal:
    """Return an amount in millionths of a dollar, the precision of every stored amount."""
    return amount.quantize(MICRO, rounding=ROUND_HALF_UP)


def format_usd(amount: Decimal, currency: str = "USD") -> str:
    """`0.42 USD`; four digits below a cent."""
    digits = 2 if amount == 0 or amount >= Decimal("0.1") else 4
    return f"{amount:,.{digits}f} {currency}"


def hours_cost(price: Price, seconds: float, devices: int = 1) -> Decimal:
    """Return the cost of so many seconds on each of `devices`."""
    return round_usd(price.usd * Decimal(str(seconds)) * devices / SECONDS_PER_HOUR)


def add_costs(costs: Iterable[Cost]) -> Cost | None:
    """Return the sum of several costs, with the sources of all and the newest date; None of no cost."""
    listed = list(costs)
    if not listed:
        return None
    energies = [cost.energy_kwh for cost in listed if cost.energy_kwh is not None]
    return Cost(
        usd=round_usd(sum((cost.usd for cost in listed), ZERO)),
        source="; ".join(dict.fromkeys(cost.source for cost in listed)),
        date=max(cost.date for cost in listed),
        energy_kwh=sum(energies) if energies else None,
    )
