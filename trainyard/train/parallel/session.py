"""The eight verbs over several processes: rank 0 takes the calls, the other ranks run the same verbs.

Each call is broadcast with its arguments before it runs. A call that is refused is refused on every rank, because all
of them have the same batch and the same counters, so nothing has to be undone. So is one that fails in an unforeseen
way: the ranks meet, and the session stays open; where one of them fails alone, it ends.

The strategies by name.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainyard.errors import TrainyardError
from trainyard.json_types import JsonObject
from trainyard.spec.axes.strategies import Strategy
from trainyard.spec.training import LaunchSettings
from trainyard.train.checkpoint.state import Snapshot
from trainyard.train.contracts import Batch, Scores
from trainyard.train.parallel.ddp import Ddp
from trainyard.train.parallel.diloco import Diloco
from trainyard.train.parallel.fsdp import Hybrid
from trainyard.train.parallel.islands import Archipelago
from trainyard.train.parallel.team import LEADER, Team
from trainyard.train.parallel.zero import Zero1, Zero2
from trainyard.train.session.parallelism import Found
from trainyard.train.session.replies import Evaluated
from trainyard.train.session.session import Session, TrainState

END = "end"
PEERS = "peers"
"""Part of a state: what only ranks other than 0 have, {part: {rank: …}}."""


class SharedSession(Session):
    """A rank's side of a session that all ranks share."""

    def __init__(self, engine: TrainState, folder: Path, team: Team) -> None:
        self.team, self._together = team, False
        assert isinstance(engine.parallelism, Ddp), "a strategy of `train.parallel`"
        self.strategy: Ddp = engine.parallelism
        super().__init__(engine, folder)

    def _all(self, verb: str, work: Callable[[], Found], *arguments: Any) -> Found:
        """Broadcast the verb, a method that the other ranks call, and run it; inside a verb all are already in step.

        Save and load are made of such verbs on rank 0. Every process draws the same tokens in `generate`: those of one
        process, which no share of the rows would give.
        """
        if self._together or not self.team.leading:
            return work()
        try:
            self.team.broadcast_command(verb, *arguments)
        except RuntimeError:
            self.team.broken = True  # another process is gone, and cannot be met
            raise
        self._together = True
        try:
            return work()
        except TrainyardError:
            raise
        except Exception:
            self.team.broken = not self.team.meet_after_failure()
            raise
        except BaseException:
            self.team.broken = True
            raise
        finally:
            self._together = False

    def _run(self, verb: Callable[..., Found], *arguments: Any) -> Found:
        return self._all(verb.__name__, lambda: verb(self, *arguments), *arguments)

    def reference_scores(self, batch: Batch) -> Scores:
        return self._run(Session.reference_scores, batch)

    def evaluate(self, batch: Batch) -> Evaluated:
        return self._run(Session.evaluate, batch)

    def drop_reference(self) -> None:
        self._run(Session.drop_reference)

    def count_forwards_from(self, number: int) -> None:
        self._run(Session.count_forwards_from, number)

    def reset_optimizer(self) -> None:
        self._run(Session.reset_optimizer)

    def finish(self) -> None:
        self._run(Session.finish)

    def show_served(self) -> None:
        self._run(Session.show_served)

    def show_trained(self) -> None:
        self._run(Session.show_trained)

    # The state

    def snapshot(self) -> Snapshot:
        """Return the whole state on rank 0: its own, as of a single process, and the parts of the other ranks."""
        return self._run(SharedSession._gather_snapshot)

    def _gather_snapshot(self) -> Snapshot:
        snapshot = super().snapshot()
        if not self.team.leading:
            self.team.send({name: snapshot.parts[name] for name in self.strategy.apart}, LEADER)
            return snapshot
        peers: dict[str, JsonObject] = {name: {} for name in self.strategy.apart}
        for rank in range(1, self.team.size):
            for name, part in self.team.receive(rank).items():
                peers.setdefault(name, {})[str(rank)] = part
        return Snapshot({**snapshot.parts, PEERS: peers}, snapshot.identity)

    def restore(self, snapshot: Snapshot, *, optimizer: bool = True) -> None:
        self.require_fit(snapshot, everything=optimizer)
        self._all("_received", lambda: self._hand_out(snapshot, optimizer), optimizer)

    def _hand_out(self, snapshot: Snapshot, everything: bool) -> None:
        """Send each rank the shared state and its own parts."""
        for rank in range(1, self.team.size):
            self.team.send(collect_parts(rank, snapshot, self.strategy), rank)
        self._take(snapshot.parts, everything)

    def _received(self, everything: bool) -> None:
        self._take(self.team.receive(LEADER), everything)

    def _take(self, parts: JsonObject, everything: bool) -> None:
        super()._zero_grad()
        self._take_over(parts, everything=everything)


def collect_parts(rank: int, snapshot: Snapshot, strategy: Ddp) -> JsonObject:
    """Return the state of one rank: rank 0's, with the parts that this rank or the ranks of its group had."""
    parts = {name: value for name, value in snapshot.parts.items() if name != PEERS}
    for name, by_rank in snapshot.parts.get(PEERS, {}).items():
        for holder in strategy.sources(rank):
            if str(holder) in by_rank:
                parts[name] = by_rank[str(holder)]
    return parts


def serve(session: SharedSession) -> None:
    """Run the verbs that rank 0 broadcasts, by the name of the method, until it sends the end."""
    while True:
        word, arguments = session.team.receive_command()
        if word == END:
            return
        try:
            getattr(session, word)(*arguments)
        except TrainyardError as error:
            print(f"refused, as on rank 0: {error}", flush=True)
        except Exception:
            traceback.print_exc()
            if not session.team.meet_after_failure():
                raise


def make_strategy(team: Team, model: Any, launch: LaunchSettings) -> Ddp:
    """Return how the processes of a team share a model, over islands where they have been made."""
    strategy = STRATEGIES[launch.strategy]
    if not isinstance(team, Archipelago):
        return strategy(team, model, launch)
    assert launch.diloco is not None, "islands are made where diloco is requested"
    return Diloco(strategy(team.local, model, launch), team, model, launch.diloco)


STRATEGIES: dict[Strategy, Callable[[Team, Any, LaunchSettings], Ddp]] = {
    Strategy.DDP: Ddp,
    Strategy.ZERO1: Zero1,
    Strategy.ZERO2: Zero2,
    Strategy.FSDP_HYBRID: Hybrid,
}
"""(team, model, launch settings) -> how they share it. The model is whole, and the same in every process."""
