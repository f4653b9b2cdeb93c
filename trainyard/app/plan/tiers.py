"""Tier of a tenant against a chain: one answer for check, plan, runs, sweeps, nights, sessions and flows."""

from __future__ import annotations

from collections.abc import Mapping

from trainyard.backends.tier_limits import load_policy
from trainyard.errors import Reason, TrainyardError
from trainyard.settings import Settings
from trainyard.spec.chain import ResolvedChain
from trainyard.spec.estimate.estimate import SampledNode
from trainyard.spec.limits import CODE, judge_demands, list_demands


def list_limit_refusals(
    chain: ResolvedChain, settings: Settings, sampled: Mapping[str, SampledNode] | None = None
) -> list[Reason]:
    """Return why the tier of a chain's tenant does not allow it; a policy that is not in force allows no chain."""
    try:
        policy = load_policy(settings)
    except TrainyardError as error:
        return [Reason(CODE, None, "limits_file", " ".join(filter(None, (error.what, error.why))), error.do)]
    return [] if policy is None else judge_demands([*list_demands(chain, sampled or {})], policy, chain.tenant)
