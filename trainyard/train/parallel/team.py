"""The processes of one training and their messages: commands and states over gloo, gradients over the device's backend.

Rank 0 leads. It broadcasts the next command (`broadcast_command`, `receive_command`); a state is sent tensor by tensor
(`send`, `receive`). Nothing is pickled: values are sent as JSON, tensors as their bytes. The processes find each other
by a file, and gloo uses the loopback device: nothing listens where another machine could reach it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load, save

from trainyard.errors import InvalidInput
from trainyard.train.checkpoint.state import flatten, rebuild

LEADER = 0
PATIENCE = timedelta(days=30)
"""How long a process waits for the next command: the leader may prepare data, or wait for a person, for days."""
COLLECTIVE_PATIENCE = timedelta(minutes=30)
"""How long one waits inside a step. A process that is gone is noticed at once; this is for one that hangs."""
FAILURE_PATIENCE = timedelta(seconds=30)
"""How long a process in which a verb has failed waits for the same failure in all others."""
VALUE, END = "value", "end"
LOCAL_NAMES = ("127.0.0.1", "localhost", "::1")
LOOPBACK = {"linux": "lo", "darwin": "lo0"}


@dataclass
class Team:
    """This process among those of the training."""

    rank: int
    size: int
    device: str
    control_group: Any
    """The group for commands and states: always gloo, always on the CPU."""
    group: Any = None
    """The group of the collectives of a step; None for all processes."""
    islands: int = 1
    """Teams like this one that train together (`islands.py`); all of them make every group in the same order."""
    broken: bool = False
    """A verb failed in this process in a way that the others need not share: they may wait for it for ever."""

    @property
    def leading(self) -> bool:
        return self.rank == LEADER

    def broadcast_command(self, command: str, *arguments: Any) -> None:
        """Send the next command and its arguments, plain values and small tensors, to all other ranks."""
        self.broadcast_bytes(pack_value([command, list(arguments)]))

    def receive_command(self) -> tuple[str, list[Any]]:
        """Wait for rank 0's next command; raises `RuntimeError` when rank 0 is gone."""
        size_1 = torch.zeros(1, dtype=torch.int64)
        dist.broadcast(size_1, group_src=LEADER, group=self.control_group)
        data_N = torch.empty(int(size_1), dtype=torch.uint8)
        dist.broadcast(data_N, group_src=LEADER, group=self.control_group)
        command, arguments = unpack_value(data_N.numpy().tobytes())
        return command, arguments

    def shared(self, value: Any) -> Any:
        """Return rank 0's value on every rank; the values of other ranks are ignored."""
        if self.leading:
            self.broadcast_command(VALUE, value)
            return value
        return self.receive_command()[1][0]

    def broadcast_bytes(self, data: bytes) -> None:
        if self.size == 1:
            return
        data_N = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        dist.broadcast(torch.tensor([data_N.numel()]), group_src=LEADER, group=self.control_group)
        dist.broadcast(data_N, group_src=LEADER, group=self.control_group)

    def close(self) -> None:
        """Wait until the last command has left this process."""

    def meet_after_failure(self) -> bool:
        """Wait for all processes after an unforeseen error; returns whether it has happened in all of them.

        Then each is where it was before the verb: collectives block, so none is in the middle of one.
        """
        try:
            dist.monitored_barrier(self.control_group, FAILURE_PATIENCE)
        except RuntimeError as error:
            print(f"the other processes did not fail, too: {error}", flush=True)
            return False
        return True

    def send(self, value: Any, to: int) -> None:
        """Send a value whose tensors may be large to rank `to`: one tensor at a time, without a copy."""
        tensors: dict[str, torch.Tensor] = {}
        plain = flatten(value, VALUE, tensors)
        shapes = [[name, str(part.dtype).removeprefix("torch."), list(part.shape)] for name, part in tensors.items()]
        head_N = torch.frombuffer(bytearray(json.dumps([plain, shapes]).encode()), dtype=torch.uint8)
        dist.send(torch.tensor([head_N.numel()]), group=self.control_group, group_dst=to)
        dist.send(head_N, group=self.control_group, group_dst=to)
        for part in tensors.values():
            if part.numel():
                dist.send(part.cpu().contiguous().reshape(-1).view(torch.uint8), group=self.control_group, group_dst=to)

    def receive(self, source: int) -> Any:
        """Return what rank `source` passed to `send`, on the CPU."""
        size_1 = torch.zeros(1, dtype=torch.int64)
        dist.recv(size_1, group=self.control_group, group_src=source)
        head_N = torch.empty(int(size_1), dtype=torch.uint8)
        dist.recv(head_N, group=self.control_group, group_src=source)
        plain, shapes = json.loads(head_N.numpy().tobytes())
        tensors = {}
        for name, dtype, shape in shapes:
            value = torch.empty(shape, dtype=getattr(torch, dtype))
            if value.numel():
                dist.recv(value.reshape(-1).view(torch.uint8), group=self.control_group, group_src=source)
            tensors[name] = value
        return rebuild(plain, tensors)


def pack_value(value: Any) -> bytes:
    """Return a value as a safetensors file in memory, with its plain part in the metadata."""
    tensors: dict[str, torch.Tensor] = {}
    plain = flatten(value, VALUE, tensors)
    copies = {name: part.cpu().contiguous().clone() for name, part in tensors.items()}
    return save(copies, {VALUE: json.dumps(plain)})


def unpack_value(data: bytes) -> Any:
    size = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8 : 8 + size])["__metadata__"]
    return rebuild(json.loads(metadata[VALUE]), load(data))


def take_device(local_rank: int, size: int) -> None:
    """One GPU for each process. Raises `InvalidInput` (`E-LAUNCH`)."""
    count = torch.cuda.device_count()
    if count < size:
        raise InvalidInput(
            f"{size} processes were requested, and this machine shows {count} CUDA devices.",
            why="Each process computes on a device of its own.",
            do=f"Use launch.processes: {count}, or name the devices in CUDA_VISIBLE_DEVICES.",
            code="E-LAUNCH",
        )
    torch.cuda.set_device(local_rank)


@contextmanager
def join_team(rank: int, size: int, meeting: Path, device: str) -> Iterator[Team]:
    """This process in the group of `size` that meet by the file `meeting`, which must be a new one for each start; on
    spans_hosts hosts, at the address that torchrun passes.

    Raises `RuntimeError` when another one leaves while it is waited for.
    """
    spans_hosts = int(os.environ.get("GROUP_WORLD_SIZE", "1")) > 1  # hosts, as torchrun says
    if sys.platform in LOOPBACK and (not spans_hosts or os.environ["MASTER_ADDR"] in LOCAL_NAMES):
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, LOOPBACK[sys.platform])
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        init_method="env://" if spans_hosts else f"file://{meeting.resolve()}",
        rank=rank,
        world_size=size,
        timeout=COLLECTIVE_PATIENCE,
    )
    try:
        yield Team(rank, size, device, dist.new_group(backend="gloo", timeout=PATIENCE))
    finally:
        dist.destroy_process_group()
