"""Training in several processes: one row a strategy in `STRATEGIES`, each a way to share a session's work and state.

    team.py      the processes, and how they talk
    rows.py      which rows each computes, and how scores come together
    ddp.py       everything in every process
    zero.py      optimizer states, and gradients, in parts (ZeRO 1 and 2)
    fsdp.py      weights in parts, too, once in each replica
    session.py   the eight verbs: told by one process, carried out by all

The training loop runs in the process that leads and knows nothing of this; the others `serve`. Adding a strategy: a
class with the methods of `Ddp`, a row here, a row in `spec/compat/launch.py`, and the tests that run over the table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainyard.spec.axes import Strategy
from trainyard.spec.training import LaunchSettings
from trainyard.train.parallel.ddp import Ddp
from trainyard.train.parallel.fsdp import Hybrid
from trainyard.train.parallel.session import END, SharedSession, serve
from trainyard.train.parallel.team import Team, joined
from trainyard.train.parallel.zero import Zero1, Zero2

STRATEGIES: dict[Strategy, Callable[[Team, Any, LaunchSettings], Ddp]] = {
    Strategy.DDP: Ddp,
    Strategy.ZERO1: Zero1,
    Strategy.ZERO2: Zero2,
    Strategy.FSDP_HYBRID: Hybrid,
}
"""(team, model, launch settings) -> how they share it. The model is whole, and the same in every process."""

__all__ = ["END", "STRATEGIES", "SharedSession", "Team", "joined", "serve"]
