"""Limits of a tenant's tier on this machine: the policy that is in force, and the check right before a training."""

from __future__ import annotations

import datetime
from pathlib import Path

from trainyard.backends.job import TrainingJob
from trainyard.errors import InvalidInput, Reason, Refused
from trainyard.settings import Settings
from trainyard.spec.limits import CODE, Demand, LimitsPolicy, judge_demands, list_training_demands
from trainyard.stores.signing.policies import read_policy


def load_policy(settings: Settings, today: datetime.date | None = None) -> LimitsPolicy | None:
    """Return the policy of this home; None where nothing is limited. Raises as `read_policy`, and `InvalidInput`."""
    if settings.limits_file is None:
        return None
    if not settings.limits_key:
        raise InvalidInput(
            "limits_file is set, and limits_key is not.", why="A policy counts only with a signature by that key.",
            do="Set limits_key to the public key that `trainyard limits sign` prints.", code=CODE,
        )  # fmt: skip
    return read_policy(settings.limits_file, settings.limits_key, today or datetime.datetime.now(datetime.UTC).date())


def require_within_tier(job: TrainingJob, settings: Settings) -> None:
    """Refuse a training whose rows, as they are now, are more than its tenant's tier allows. Raises `Refused`.

    A chain is checked when it is started; rows that it makes itself are known only here.
    """
    policy = load_policy(settings)
    if policy is None:
        return
    from trainyard.data.rows import ROWS_FILE, count_rows  # imports pyarrow, which a check does without

    rows = [count_rows(Path(folder) / ROWS_FILE) or 0 for folder in job.data.values()]
    demands = [*list_training_demands(job.config, max(rows, default=0))]
    demands += [Demand("max_rows", float(count), None, "data") for count in rows[:1] if count]
    if reasons := judge_demands(demands, policy, job.tenant or settings.tenant):
        raise Refused([Reason(r.code, job.node or None, r.field, r.because, r.instead) for r in reasons])
