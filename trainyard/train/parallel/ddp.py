"""DDP: every process has all weights and states, and the gradients are summed before a step.

torch's `DistributedDataParallel` reduces in every backward, because a session does not know which is the last of a
step; with 8 micro-batches a step then takes 1.26 times as long. Here the gradients of a whole step are summed once, in
flat buckets, when `step` is called. Sums, not means: a loss is divided by the units of the whole step already.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from trainyard.json_types import JsonObject
from trainyard.spec.axes.strategies import Strategy
from trainyard.spec.training import LaunchSettings, TrainerConfig
from trainyard.train.contracts import Batch, Head, Scores, StageSpec
from trainyard.train.optimizers import make_optimizer
from trainyard.train.parallel.rows import cut_share, join_scores
from trainyard.train.parallel.team import Team
from trainyard.train.session.parallelism import SingleProcess

BUCKET_BYTES = 25 << 20
"""As torch's DDP: large enough to hide the latency of a collective, small enough to be in memory twice."""
Tensor_ = TypeVar("Tensor_", bound=torch.Tensor)


class Ddp(SingleProcess):
    """The collectives of a training in which every process has all weights and states."""

    strategy = Strategy.DDP
    apart: tuple[str, ...] = ("gradients", "random")
    """The parts of a state that are not the same in every process."""

    def __init__(self, team: Team, model: Any, launch: LaunchSettings) -> None:
        self.team, self.leading = team, team.leading
        self.layout = {"strategy": self.strategy.value, "processes": team.size}

    def optimizer(self, groups: list[JsonObject], config: TrainerConfig) -> Any:
        """Return the optimizer of this process's part."""
        return make_optimizer(groups, config)

    def source(self, rank: int) -> int:
        """Whose parts of a saved state a process takes over."""
        return rank

    def scores(self, stage: StageSpec, model: Any, batch: Batch, head: Head) -> Scores:
        share = cut_share(batch, stage, self.team.rank, self.team.size)
        scores = self.run(model, lambda whole: stage.score(whole, share.batch, head))
        return join_scores(scores, share, self.team.rank, self.team.size)

    def sync_gradients(self, parameters: Sequence[torch.Tensor], *, scaled: bool) -> None:
        for bucket in buckets(zero_missing_grads(parameters)):
            flat_M = flatten_bucket(bucket)
            dist.all_reduce(flat_M)
            for value, part in zip(bucket, unflatten_bucket(flat_M, bucket), strict=True):
                value.grad = part.clone()

    def norm(self, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        """Of the sum of all processes' gradients, which stay as they are."""
        squares = torch.zeros((), dtype=torch.float64)
        for bucket in buckets(zero_missing_grads(parameters)):
            flat_M = flatten_bucket(bucket)
            dist.all_reduce(flat_M)
            squares += flat_M.double().square().sum().cpu()
        return squares.sqrt().float()


def zero_missing_grads(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the tensors that have a gradient in some process; where they have none here, it becomes zero.

    A tensor that none of them has touched keeps no gradient, and the optimizer leaves it alone, as in one process.
    """
    touched = [value.grad is not None for value in parameters]
    present = []
    for value, here, anywhere in zip(parameters, touched, reduce_any(touched, choose_device(parameters)), strict=True):
        if anywhere and not here:
            value.grad = torch.zeros_like(value)
        if anywhere:
            present.append(value)
    return present


def reduce_any(flags: Sequence[bool], device: torch.device) -> list[bool]:
    """Of each flag, whether it is set in some process."""
    flags_M = torch.tensor(flags, dtype=torch.uint8, device=device)
    dist.all_reduce(flags_M, op=dist.ReduceOp.MAX)
    return [bool(flag) for flag in flags_M.tolist()]


def choose_device(parameters: Sequence[torch.Tensor]) -> torch.device:
    return parameters[0].device if parameters else torch.device("cpu")


def buckets(tensors: Iterable[Tensor_]) -> Iterator[list[Tensor_]]:
    """Yield the tensors in their order, in groups of one dtype and about 25 MiB."""
    bucket: list[Tensor_] = []
    size = 0
    for value in tensors:
        num_bytes = value.numel() * value.element_size()
        if bucket and (size + num_bytes > BUCKET_BYTES or value.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(value)
        size += num_bytes
    if bucket:
        yield bucket


def flatten_bucket(bucket: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the gradients of a bucket in one row."""
    grads = [value.grad for value in bucket if value.grad is not None]
    assert len(grads) == len(bucket), "every tensor of a bucket has a gradient"
    return torch.cat([grad.reshape(-1) for grad in grads])


def unflatten_bucket(flat_M: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the parts of a row, in the shapes of `like`."""
    parts = flat_M.split([value.numel() for value in like])
    return [part.view_as(value) for part, value in zip(parts, like, strict=True)]
