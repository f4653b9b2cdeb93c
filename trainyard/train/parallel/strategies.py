"""The strategies by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainyard.spec.axes.strategies import Strategy
from trainyard.spec.training import LaunchSettings
from trainyard.train.parallel.ddp import Ddp
from trainyard.train.parallel.fsdp import Hybrid
from trainyard.train.parallel.team import Team
from trainyard.train.parallel.zero import Zero1, Zero2

STRATEGIES: dict[Strategy, Callable[[Team, Any, LaunchSettings], Ddp]] = {
    Strategy.DDP: Ddp,
    Strategy.ZERO1: Zero1,
    Strategy.ZERO2: Zero2,
    Strategy.FSDP_HYBRID: Hybrid,
}
"""(team, model, launch settings) -> how they share it. The model is whole, and the same in every process."""
