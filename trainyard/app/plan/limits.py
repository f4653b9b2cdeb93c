"""Limits of tiers: the trainings at the same time, the operation that shows the policy, and the one that signs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from pydantic import Field

from trainyard.app.context import Context
from trainyard.app.live.jobs import select_page
from trainyard.app.responses import Response
from trainyard.backends.tier_limits import load_policy
from trainyard.errors import Conflict, InvalidInput, NotFound, Refused, TrainyardError
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.operations import limits as requests
from trainyard.spec.limits import Demand, Feature, LimitsPolicy, judge_demands
from trainyard.spec.load.text import parse_text
from trainyard.spec.states import JobState
from trainyard.stores.files import DISK, make_folders
from trainyard.stores.live.job_index import JobQuery
from trainyard.stores.signing.policies import parse_policy, policy_key, sign_policy
from trainyard.stores.whole import create_whole

OPEN = (JobState.PENDING, JobState.RUNNING)


def require_free_worker(tenant: str, context: Context, more: int = 1) -> None:
    """Refuse `more` trainings of a tenant than its tier lets run at the same time. Raises `Refused`.

    Asked when something is started, for Prefect's server, or its index, knows what is open then.
    """
    policy = load_policy(context.settings)
    tier = policy.find_tier(tenant) if policy else None
    if policy is None or tier is None or tier.workers is None:
        return
    running = count_open(tenant, context)
    if reasons := judge_demands([Demand("workers", float(running + more), None, "workers")], policy, tenant):
        raise Refused(reasons, what=f"{running} trainings of the tenant {tenant} are open.")


@contextmanager
def lock_free_worker(tenant: str, context: Context) -> Iterator[None]:
    """Check the limit again and keep other starts of this home out until the block has started its training.

    Two starts at the same moment would otherwise both see the last free place. Raises `Refused`.
    """
    policy = load_policy(context.settings)
    tier = policy.find_tier(tenant) if policy else None
    if tier is None or tier.workers is None:
        yield
        return
    folder = context.settings.home / "live"
    make_folders(DISK, folder)
    with DISK.locked(folder / f"starts-{tenant}.lock"):
        require_free_worker(tenant, context)
        yield


def lock_worker_of(row: JsonMapping, context: Context) -> AbstractContextManager[None]:
    """Do the same for a job that continues, which may count already. `row` is Prefect's, with its state and tenant."""
    return nullcontext() if row["state"] in OPEN else lock_free_worker(str(row["tenant"]), context)


def count_open(tenant: str, context: Context) -> int:
    """Return a tenant's trainings that wait or run."""
    pages = (select_page(JobQuery(tenant=tenant, state=state, limit=200), context).page for state in OPEN)
    return sum(len(page.rows) for page in pages)


class TierLimits(Response):
    """A tier, as a table shows it; None is unlimited."""

    name: str
    backends: tuple[str, ...] | None = None
    max_epochs: float | None = None
    max_rows: int | None = None
    workers: int | None = None
    features: tuple[str, ...] = ()


class Limits(Response):
    """The policy of this home, and the tier of the caller's tenant."""

    file: Path | None = None
    issuer: str = ""
    issued: str = ""
    expires: str = ""
    tenant: str
    tier: str = ""
    """Of the tenant; empty where it is unlimited."""
    tiers: tuple[TierLimits, ...] = ()
    features: tuple[str, ...] = ()
    """Every feature that a tier may leave out."""
    tenants: dict[str, str] = Field({})
    """Tenant -> tier, for callers of all tenants."""
    default: str = ""
    problem: str = ""
    """Why the policy is not in force: then no training starts."""


class SignedPolicy(Response):
    file: Path
    key: str
    tiers: tuple[str, ...]


def show_limits(request: requests.LimitsInput, context: Context) -> Limits:
    """Return the limits; a policy that is not in force is a `problem`, not an error."""
    settings, caller = context.settings, context.caller.tenant
    if caller and request.tenant not in (None, caller):
        raise NotFound(f"There is no tenant {request.tenant!r}.", do="Leave the tenant out.")
    tenant = caller or request.tenant or settings.tenant
    features = tuple(feature.value for feature in Feature)
    try:
        policy = load_policy(settings)
    except TrainyardError as error:
        return Limits(file=settings.limits_file, tenant=tenant, problem=str(error), features=features)
    if policy is None:
        return Limits(tenant=tenant, features=features)
    tier = policy.find_tier(tenant)
    return Limits(
        file=None if caller else settings.limits_file, issuer=policy.issuer, issued=policy.issued.isoformat(),
        expires=policy.expires.isoformat() if policy.expires else "", tenant=tenant,
        tier=tier.name if tier else "", tiers=tuple(describe_tiers(policy)), features=features,
        tenants={} if caller else policy.tenants, default=policy.default or "",
    )  # fmt: skip


def describe_tiers(policy: LimitsPolicy) -> list[TierLimits]:
    return [TierLimits(**tier.model_dump(mode="json")) for tier in policy.tiers]


def sign_limits(request: requests.SignLimitsInput, context: Context) -> SignedPolicy:
    """Sign a policy with this home's key. Raises `NotFound`, `InvalidInput`, `Conflict` (`E-FILE-EXISTS`)."""
    source, out = request.policy.expanduser(), request.out.expanduser().absolute()
    try:
        value: JsonObject | object = parse_text(source.read_bytes())
    except OSError as error:
        raise NotFound(f"{source} cannot be read.", why=str(error.strerror), do="Name a YAML or JSON file.") from error
    if not isinstance(value, dict):
        raise InvalidInput(f"{source.name} is not a mapping.", do="Write keys like `tiers:`.", code="E-SPEC")
    policy = parse_policy(requests.dump_policy(value), source.name)
    if out.exists():
        raise Conflict(f"{out} exists already.", do="Name another file; nothing is overwritten.", code="E-FILE-EXISTS")
    key = policy_key(context.settings.home)
    create_whole(DISK, out, sign_policy(policy, key))
    return SignedPolicy(file=out, key=key.public.vkey, tiers=tuple(tier.name for tier in policy.tiers))
