"""Limits of tenants: show the policy that is in force, and sign one. Requests, texts and rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from trainyard.json_types import JsonMapping
from trainyard.operations.base import Request, Tenant
from trainyard.operations.fields import Argument
from trainyard.operations.table import Operation, Scope
from trainyard.operations.tables import format_table

if TYPE_CHECKING:
    from trainyard.app.plan.limits import Limits, SignedPolicy, TierLimits


class LimitsInput(Request):
    tenant: Tenant = Field(None, description="Whose tier is shown; default: that of the settings.")


class SignLimitsInput(Request):
    policy: Annotated[Path, Argument("POLICY")] = Field(description="YAML or JSON file; it has tiers and tenants.")
    out: Path = Field(description="File for the signed policy; it must not exist.")


def dump_policy(value: JsonMapping) -> str:
    """Return a policy that was read from YAML as JSON; dates as texts."""
    return json.dumps(value, default=str)


def format_number(value: float | None) -> str:
    return "unlimited" if value is None else f"{value:,g}" if value < 1000 else f"{value:,.0f}"


def tier_row(tier: TierLimits) -> tuple[str, ...]:
    backends = "all" if tier.backends is None else ", ".join(tier.backends)
    numbers = (format_number(value) for value in (tier.max_epochs, tier.max_rows, tier.workers))
    return (tier.name, backends, *numbers, ", ".join(tier.features) or "none")


def limits_text(result: Limits) -> str:
    """Return the tiers as a table, and the tier of the tenant."""
    if result.problem:
        return f"No training starts. {result.problem}"
    if not result.tiers:
        return f"{result.tenant}: unlimited; no policy is set (limits_file)"
    header = ("tier", "backends", "epochs", "rows", "at a time", "features")
    until = f", until {result.expires}" if result.expires else ""
    others = f"default: {result.default or 'unlimited'}"
    return "\n".join(
        [
            format_table([tier_row(tier) for tier in result.tiers], header),
            f"issued by {result.issuer} on {result.issued}{until}; {others}",
            f"{result.tenant}: {result.tier or 'unlimited'}",
        ]
    )


def signed_policy_text(result: SignedPolicy) -> str:
    return (
        f'{result.file}: {", ".join(result.tiers)}\nlimits_file = "{result.file}"\nlimits_key = "{result.key}"\n'
        "Both belong in trainyard.toml of the homes that it limits."
    )


READ, RUN, ADMIN = Scope

ROWS: dict[str, Operation] = {
    "limits": Operation(
        "Tiers of tenants: backends, epochs, rows, trainings at the same time, features.",
        request=LimitsInput, run="app.plan.limits:show_limits", text=limits_text, scope=READ,
        route="GET /api/v1/limits", tenants=True,
    ),
    "limits sign": Operation(
        "Sign a policy of limits: with this home's key.",
        request=SignLimitsInput, run="app.plan.limits:sign_limits", text=signed_policy_text, scope=ADMIN,
        example="trainyard limits sign deployments/presets/limits-tiers.yaml --out limits.note",
        local="It uses a private key of this machine.",
    ),
}  # fmt: skip
"""Name -> row, in the order of the help."""
