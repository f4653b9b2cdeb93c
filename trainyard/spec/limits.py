"""Limits of tenants: a policy with tiers, what a chain demands, and which tier would allow it.

A policy is data: the tiers in it, from the smallest to the largest, and the tenants of each. Nothing is limited without
one. It limits the tenants of an operator, who has its key and the settings; it does not limit that operator.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from trainyard.errors import Reason
from trainyard.spec.axes.axis import Strict
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.chain import ResolvedChain
from trainyard.spec.estimate.estimate import SampledNode
from trainyard.spec.nodes import DataSourceConfig
from trainyard.spec.training import TrainerConfig

CODE = "E-LIMIT"
TierName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
JOB_TYPES = ("data_source", "trainer")
"""Types of the nodes of a job; every other chain is a training chain."""


class Feature(StrEnum):
    """What a tier may leave out."""

    CHAINS = "chains"
    """Chains with more nodes than the data source and the trainer of a job."""
    LATENT_REASONING = "latent_reasoning"
    MULTI_GPU = "multi_gpu"
    """Trainings in several processes of one host."""
    DISTRIBUTED = "distributed"
    """Trainings on several hosts, and islands."""
    DATA_WORKER = "data_worker"
    """Data sets on a data worker."""


class Tier(Strict):
    """Limits of a tier; what is left out is unlimited, except features, of which those listed are allowed."""

    name: TierName
    backends: tuple[BackendName, ...] | None = Field(None, description="Backends that may train; default: all.")
    max_epochs: float | None = Field(None, gt=0, description="Passes over the rows.")
    max_rows: int | None = Field(None, ge=1, description="Rows of a data set.")
    workers: int | None = Field(None, ge=1, description="Trainings of a tenant at the same time.")
    features: tuple[Feature, ...] = Field((), description="Features that are allowed.")


class LimitsPolicy(Strict):
    """Tiers, and who is in which."""

    format: Literal[1]
    issuer: str = Field(min_length=1, max_length=200)
    issued: datetime.date
    expires: datetime.date | None = Field(None, description="Last day (UTC) on which it is in force.")
    tiers: tuple[Tier, ...] = Field(min_length=1, max_length=50, description="From the smallest to the largest.")
    tenants: dict[TierName, TierName] = Field({}, max_length=100_000, description="Tenant -> its tier.")
    default: TierName | None = Field(None, description="Tier of every other tenant; without one they are unlimited.")

    @model_validator(mode="after")
    def check_names(self) -> Self:
        names = [tier.name for tier in self.tiers]
        if len(set(names)) < len(names):
            raise ValueError(f"two tiers have one name: {', '.join(names)}")
        named = {*self.tenants.values(), *([self.default] if self.default else [])}
        if unknown := sorted(named - set(names)):
            raise ValueError(f"there is no tier {unknown[0]!r}: it has {', '.join(names)}")
        return self

    def find_tier(self, tenant: str) -> Tier | None:
        """Return the tier of a tenant; None for an unlimited one."""
        name = self.tenants.get(tenant, self.default)
        return next((tier for tier in self.tiers if tier.name == name), None)


@dataclass(frozen=True)
class Demand:
    """Something that a chain needs of a tier."""

    name: Literal["backends", "max_epochs", "max_rows", "workers", "features"]
    value: BackendName | Feature | float
    node: str | None = None
    field: str = ""

    def fits(self, tier: Tier) -> bool:
        if isinstance(self.value, BackendName):
            return tier.backends is None or self.value in tier.backends
        if isinstance(self.value, Feature):
            return self.value in tier.features
        limit = self.find_limit(tier)
        return limit is None or self.value <= limit

    def find_limit(self, tier: Tier) -> float | None:
        """Return the number that a tier allows; None for unlimited."""
        limits = {"max_epochs": tier.max_epochs, "max_rows": tier.max_rows, "workers": tier.workers}
        return limits[self.name]

    def describe(self) -> str:
        """Return what is demanded, such as `5,000 rows`."""
        if isinstance(self.value, BackendName):
            return f"backend {self.value.value}"
        if isinstance(self.value, Feature):
            return f"the feature {self.value.value}"
        words = {"max_epochs": "epochs", "max_rows": "rows", "workers": "trainings at the same time"}
        return f"{self.value:,.6g} {words[self.name]}" if self.value < 1000 else f"{self.value:,.0f} {words[self.name]}"

    def describe_limit(self, tier: Tier) -> str:
        """Return what a tier allows of it."""
        if self.name == "backends":
            return ", ".join(backend.value for backend in tier.backends or ())
        if self.name == "features":
            return ", ".join(tier.features) or "no feature"
        limit = self.find_limit(tier)
        assert limit is not None, "what has no limit is not refused"
        words = {"max_epochs": "epochs", "max_rows": "rows", "workers": "at the same time"}
        return f"{limit:,g} {words[self.name]}" if limit < 1000 else f"{limit:,.0f} {words[self.name]}"


def list_demands(chain: ResolvedChain, sampled: Mapping[str, SampledNode]) -> Iterator[Demand]:
    """Yield what a chain needs, as far as it is known before it runs: its rows are those that were counted."""
    trainers = [node for node in chain.nodes if isinstance(node.config, TrainerConfig)]
    others = [node.id for node in chain.nodes if node.type not in JOB_TYPES]
    if others or len(trainers) > 1:
        yield Demand("features", Feature.CHAINS, others[0] if others else trainers[1].id, "nodes")
    for node in chain.nodes:
        config, sample = node.config, sampled.get(node.id)
        if isinstance(config, DataSourceConfig):
            if any(source.data_worker is not None for _, _, source in config.named_sets()):
                yield Demand("features", Feature.DATA_WORKER, node.id, "config.data_worker")
            rows = max(sample.rows.values(), default=0) if sample else 0
            if rows:
                yield Demand("max_rows", float(rows), node.id, "config.max_rows")
        if isinstance(config, TrainerConfig):
            yield from list_training_demands(config, sample.examples if sample else None, node.id)


def list_training_demands(config: TrainerConfig, rows: int | None, node: str | None = None) -> Iterator[Demand]:
    """Yield what one training needs; `rows` are the examples of a pass, where they are known."""
    yield Demand("backends", config.backend, node, "config.backend")
    if getattr(config.stage, "latent", None) is not None:
        yield Demand("features", Feature.LATENT_REASONING, node, "config.stage.latent")
    launch = config.launch
    if launch.node_count > 1 or launch.islands > 1:
        yield Demand("features", Feature.DISTRIBUTED, node, "config.launch")
    if launch.local_processes > 1 and launch.islands == 1:
        yield Demand("features", Feature.MULTI_GPU, node, "config.launch.processes")
    if (epochs := count_epochs(config, rows)) is not None:
        steps = config.hyperparameters.max_steps is not None
        yield Demand("max_epochs", epochs, node, f"config.hyperparameters.{'max_steps' if steps else 'epochs'}")


def count_epochs(config: TrainerConfig, rows: int | None) -> float | None:
    """Return the passes over the rows; None for a number of steps over rows that are not counted."""
    hyper = config.hyperparameters
    if hyper.max_steps is None:
        return hyper.epochs
    if not rows:
        return None
    return hyper.max_steps * hyper.batch_size * hyper.gradient_accumulation * config.launch.processes / rows


def judge_demands(demands: Sequence[Demand], policy: LimitsPolicy, tenant: str) -> list[Reason]:
    """Return a reason for each demand that a tenant's tier does not allow; all name the tier that would allow it."""
    tier = policy.find_tier(tenant)
    if tier is None:
        return []
    refused = [demand for demand in demands if not demand.fits(tier)]
    allowing = find_allowing(demands, policy)
    instead = (
        f"The tier {allowing} allows it: ask {policy.issuer}."
        if allowing
        else f"No tier of {policy.issuer} allows it: reduce it."
    )
    return [
        Reason(
            CODE, demand.node, demand.field,
            f"The tier {tier.name} of the tenant {tenant} allows {demand.describe_limit(tier)}, and this needs "
            f"{demand.describe()}.",
            instead,
        )
        for demand in refused
    ]  # fmt: skip


def find_allowing(demands: Sequence[Demand], policy: LimitsPolicy) -> str | None:
    """Return the first tier that allows everything; None where none does."""
    return next((tier.name for tier in policy.tiers if all(demand.fits(tier) for demand in demands)), None)
