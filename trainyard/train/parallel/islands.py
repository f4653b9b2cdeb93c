"""Islands: teams that train separately on their rows of each batch, joined by links that may be slow.

Rank 0 of the training leads all of them. Its commands go to the first process of every other island through a queue, in
the background: no island waits for the link before its next exchange of weights. A message contains all commands that
have gathered since the one before it, so a long way costs a delay and no throughput.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from trainyard.spec.axes.data import Port
from trainyard.train.contracts import Batch, StageSpec
from trainyard.train.parallel.ddp import trim_batch
from trainyard.train.parallel.team import LEADER, PATIENCE, Team, pack_value, unpack_value

CLOSING = -1
"""Length of a message after which none follows."""


@dataclass
class Archipelago(Team):
    """This process among those of all islands."""

    local: Team = field(kw_only=True)
    """The processes of this island."""
    courier: Courier | None = field(kw_only=True)
    """How commands reach the first process of another island; None for its other processes."""

    @property
    def island(self) -> int:
        return self.rank // self.local.size

    def broadcast_command(self, command: str, *arguments: Any) -> None:
        """Send the next command to this island at once, and to the others in the background."""
        data = pack_value([command, list(arguments)])
        assert self.courier is not None, "rank 0 leads an island"
        self.courier.send(data)
        self.local.broadcast_bytes(data)

    def receive_command(self) -> tuple[str, list[Any]]:
        if self.courier is None or self.leading:
            return self.local.receive_command()
        data = self.courier.receive()
        self.local.broadcast_bytes(data)
        command, arguments = unpack_value(data)
        return command, arguments

    def close(self) -> None:
        """Wait until the last command has left this process."""
        if self.courier is not None:
            self.courier.close()


class Courier:
    """A stream of commands from rank 0 to the first processes of the other islands, read and written by a thread."""

    def __init__(self, leaders: list[int], rank: int, group: Any) -> None:
        self.group, self.rank = group, rank
        self.others = [leader for leader in leaders if leader != LEADER]
        self.waiting: queue.SimpleQueue[bytes | BaseException | None] = queue.SimpleQueue()
        self.failure: BaseException | None = None
        work = self._send_all if rank == LEADER else self._receive_all
        self.thread = threading.Thread(target=work, name="courier", daemon=True)
        self.thread.start()

    def send(self, data: bytes) -> None:
        """Raise `RuntimeError` when an island is gone."""
        if self.failure is not None:
            raise RuntimeError(f"an island is gone: {self.failure}") from self.failure
        self.waiting.put(data)

    def receive(self) -> bytes:
        """Wait for the next command. Raises `RuntimeError` when rank 0 is gone."""
        data = self.waiting.get()
        if isinstance(data, bytes):
            return data
        raise RuntimeError(f"rank 0 is gone: {data}")

    def close(self) -> None:
        if self.rank == LEADER:
            self.waiting.put(None)
            self.thread.join()

    def _send_all(self) -> None:
        try:
            closing = False
            while not closing:
                commands = [self.waiting.get()]
                while not self.waiting.empty():
                    commands.append(self.waiting.get())
                closing = commands[-1] is None
                self._send_to_all([command for command in commands if isinstance(command, bytes)])
            self._to_all(torch.tensor([CLOSING]))
        except RuntimeError as error:
            self.failure = error

    def _send_to_all(self, commands: list[bytes]) -> None:
        if not commands:
            return
        framed = b"".join(len(command).to_bytes(8, "little") + command for command in commands)
        self._to_all(torch.tensor([len(framed)]))
        self._to_all(torch.frombuffer(bytearray(framed), dtype=torch.uint8))

    def _to_all(self, data_N: torch.Tensor) -> None:
        works = [dist.isend(data_N, leader, group=self.group) for leader in self.others]
        for work in works:
            if work is not None:
                work.wait()

    def _receive_all(self) -> None:
        try:
            while True:
                size_1 = torch.zeros(1, dtype=torch.int64)
                dist.recv(size_1, LEADER, group=self.group)
                if int(size_1) == CLOSING:
                    return
                data_N = torch.empty(int(size_1), dtype=torch.uint8)
                dist.recv(data_N, LEADER, group=self.group)
                framed, at = data_N.numpy().tobytes(), 0
                while at < len(framed):
                    end = at + 8 + int.from_bytes(framed[at : at + 8], "little")
                    self.waiting.put(framed[at + 8 : end])
                    at = end
        except RuntimeError as error:
            self.waiting.put(error)


def join_islands(team: Team, islands: int) -> Archipelago:
    """Divide the processes of a team into islands of neighbouring ranks. Every process makes all groups."""
    size = team.size // islands
    members = [list(range(island * size, (island + 1) * size)) for island in range(islands)]
    controls = [dist.new_group(ranks, backend="gloo", timeout=PATIENCE) for ranks in members]
    groups = [dist.new_group(ranks) for ranks in members] if team.device == "cuda" else controls
    leaders = [ranks[0] for ranks in members]
    stream = dist.new_group(leaders, backend="gloo", timeout=PATIENCE)
    island, rank = divmod(team.rank, size)
    local = Team(rank, size, team.device, controls[island], group=groups[island], islands=islands)
    courier = Courier(leaders, team.rank, stream) if rank == LEADER else None
    return Archipelago(team.rank, team.size, team.device, team.control_group, local=local, courier=courier)


def divide_team(team: Team, islands: int) -> Team:
    """Return the team, as islands where there are several."""
    return join_islands(team, islands) if islands > 1 else team


def cut_island(batch: Batch, stage: StageSpec, island: int, islands: int) -> tuple[Batch, bool]:
    """Return an island's examples of a batch, a run of neighbours, and whether there is none for it: then the first
    example of the batch.
    """
    if "position_ids" in batch:
        return cut_packed_island(batch, island, islands)
    sides = 2 if stage.facts.ports == (Port.PREFERENCE,) else 1
    rows = batch["input_ids"].shape[0]
    examples = rows // sides
    start, end = examples * island // islands, examples * (island + 1) // islands
    idle = start == end
    if idle:
        start, end = 0, 1
    chosen = list(range(start, end))
    by_row = [row + side * examples for side in range(sides) for row in chosen]
    part = {name: value[by_row if len(value) == rows else chosen] for name, value in batch.items()}
    wide = {name: value for name, value in part.items() if value.ndim == 2}
    return {**part, **trim_batch(wide)}, idle


def cut_packed_island(batch: Batch, island: int, islands: int) -> tuple[Batch, bool]:
    """Return the rows of a packed batch that begin in an island's part of the positions."""
    starts = (batch["position_ids"][0] == 0).nonzero()[:, 0].tolist()
    width = batch["input_ids"].shape[1]
    first, last = (sum(at < width * edge / islands for at in starts) for edge in (island, island + 1))
    idle = first == last
    if idle:
        first, last = 0, 1
    edges = [*starts, width]
    part = {
        name: value[:, edges[first] : edges[last]] if value.ndim == 2 else value[first:last]
        for name, value in batch.items()
    }
    return part, idle
