"""Money of a plan: what each training would cost, and the limits that refuse a chain.

A training costs nothing where its result is finished, and an unknown amount until a training like it was measured: such
a chain is accepted, and stops with a checkpoint when its limit is reached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal

from trainyard.app.plan.estimate import build_facts, find_results
from trainyard.app.plan.machine import list_trainers
from trainyard.backends.spending import SpendingLimit, find_price, list_limits
from trainyard.errors import Reason
from trainyard.settings import Settings
from trainyard.spec.chain import ResolvedChain
from trainyard.spec.estimate.estimate import Estimate, SampledNode, estimate
from trainyard.spec.money import Cost, Price, PriceUnit, add_costs, format_usd, hours_cost
from trainyard.spec.training import TrainerConfig

CODE = "E-SPEND"


def estimate_cost(config: TrainerConfig, estimated: Estimate, price: Price) -> Cost | None:
    """Return what a training would cost; None while its time, tokens or steps are not known."""
    if price.per is PriceUnit.HOUR:
        if estimated.seconds is None:
            return None
        usd = hours_cost(price, max(0.0, estimated.seconds - (estimated.queue_s or 0.0)), estimated.devices)
    elif price.per is PriceUnit.STEP:
        if estimated.steps is None:
            return None
        usd = price.cost(estimated.steps)
    else:
        if estimated.tokens is None:
            return None
        usd = price.cost(estimated.tokens * (config.hyperparameters.epochs or 1.0))
    return Cost(usd=usd, source=price.text, date=price.date)


def estimate_costs(
    chain: ResolvedChain, estimates: Mapping[str, Estimate], finished: frozenset[str], settings: Settings
) -> dict[str, Cost]:
    """Return node id -> estimated cost of the trainings that would run, as far as it is known."""
    costs: dict[str, Cost] = {}
    for node, config in list_trainers(chain):
        price = find_price(config.backend, settings)
        if price is None or node.id in finished:
            continue
        if (cost := estimate_cost(config, estimates[node.id], price)) is not None:
            costs[node.id] = cost
    return costs


def list_spending_refusals(
    chain: ResolvedChain, settings: Settings, sampled: Mapping[str, SampledNode], run: str = ""
) -> list[Reason]:
    """Return why limits of money refuse a chain: no price for a limit of its own, or an estimate above it."""
    trainers = list_trainers(chain)
    limits = list_limits(settings, run, chain.max_spend, datetime.now(UTC)) if trainers else []
    if chain.max_spend is not None and (reason := check_priced(chain, settings)) is not None:
        return [reason]
    if not limits:
        return []
    looks = find_results(chain, settings)
    finished = frozenset(node_id for node_id, look in looks.items() if look.output is not None)
    estimates = {
        estimated.node: estimated for estimated in estimate(chain, build_facts(chain, looks, sampled, settings))
    }
    total = add_costs(estimate_costs(chain, estimates, finished, settings).values())
    left_to_train = any(node.id not in finished for node, _ in trainers)
    return judge_limits(limits, Decimal(0) if total is None else total.usd) if left_to_train else []


def judge_limits(limits: Sequence[SpendingLimit], usd: Decimal) -> list[Reason]:
    """Return a reason for each limit that an estimate is above, or of which nothing is left."""
    reasons = []
    for limit in limits:
        left = max(Decimal(0), limit.left())
        if usd <= left and limit.left() > 0:
            continue
        spent = f", of which {format_usd(limit.others)} are spent" if limit.others else ""
        because = f"The estimate is {format_usd(usd)}, and {limit.name} is {format_usd(limit.usd)}{spent}."
        instead = f"Raise {limit.setting}, or train fewer steps: `trainyard plan` shows the estimate of each node."
        reasons.append(Reason(CODE, None, "max_spend", because, instead))
    return reasons


def check_priced(chain: ResolvedChain, settings: Settings) -> Reason | None:
    """Return why `max_spend` would have no effect: a trainer without a price, or no trainer."""
    trainers = list_trainers(chain)
    unpriced = sorted({config.backend.value for _, config in trainers if not find_price(config.backend, settings)})
    if trainers and not unpriced:
        return None
    if not trainers:
        because = "The chain has no trainer, so max_spend limits nothing."
        return Reason(CODE, None, "max_spend", because, "Remove max_spend.")
    name = unpriced[0]
    because = f"max_spend {chain.max_spend} has no effect: trainings of backend {name} have no price here."
    instead = f"Set price_per_hour, or [prices.{name}] with usd, per, source and date, in trainyard.toml."
    return Reason(CODE, None, "max_spend", because, instead)
