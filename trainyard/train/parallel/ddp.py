"""DDP: every process has all weights and states, and the gradients are summed before a step.

torch's `DistributedDataParallel` reduces in every backward, because a session does not know which is the last of a
step; with 8 micro-batches a step then takes 1.26 times as long. Here the gradients of a whole step are summed once, in
flat buckets, when `step` is called. Sums, not means: a loss is divided by the units of the whole step already.

Which rows of a batch a process computes, and how the scores of all of them come together.

Every process knows the whole batch, which is small, and runs the model over its share of it. The scores (a number a
token, a row or a pair) are exchanged, so that every process computes the loss of the whole batch, with a graph through
its own rows alone. The sum of all their gradients is then the gradient of that loss, whatever the loss is: also one
that compares the rows of a batch, as those of KTO do.

Shapes: B rows, T positions, P pairs (rows 0..P-1 of a batch are chosen, P..2P-1 rejected), N labelled tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from trainyard.json_types import JsonObject
from trainyard.spec.axes.data import Port
from trainyard.spec.axes.strategies import Strategy
from trainyard.spec.training import LaunchSettings, TrainerConfig
from trainyard.train.contracts import Batch, Head, Scores, StageSpec
from trainyard.train.optimizers import make_optimizer
from trainyard.train.parallel.team import Team
from trainyard.train.session.parallelism import SingleProcess

MASKS = ("attention_mask", "kl_attention_mask")


@dataclass(frozen=True)
class RowShare:
    """The rows of one process."""

    batch: Batch
    idle: bool
    """There are fewer examples than processes: this one computes a row like the others, and its scores do not count."""
    sides: int
    """2 where an example is a chosen row and, in the second half of the batch, a rejected one."""


def cut_share(batch: Batch, stage: StageSpec, rank: int, size: int) -> RowShare:
    """Return a run of neighbouring examples; as many for each process, but for one."""
    sides = 2 if stage.facts.ports == (Port.PREFERENCE,) else 1
    if "position_ids" in batch and len(batch["position_ids"]) == 1:
        return cut_packed_share(batch, rank, size)
    examples = batch["input_ids"].shape[0] // sides
    start, end = examples * rank // size, examples * (rank + 1) // size
    idle = start == end
    if idle:
        start, end = 0, 1
    rows = [row + side * examples for side in range(sides) for row in range(start, end)]
    share = {name: value[rows] for name, value in batch.items() if value.ndim == 2}
    return RowShare(trim_batch(share), idle, sides)


def cut_packed_share(batch: Batch, rank: int, size: int) -> RowShare:
    """Of rows that lie end to end in one: those that begin in this process's part of the positions."""
    starts = (batch["position_ids"][0] == 0).nonzero()[:, 0].tolist()
    width = batch["input_ids"].shape[1]
    first, last = (sum(at < width * edge / size for at in starts) for edge in (rank, rank + 1))
    idle = first == last
    if idle:
        first, last = 0, 1
    edges = [*starts, width]
    return RowShare({name: value[:, edges[first] : edges[last]] for name, value in batch.items()}, idle, 1)


def trim_batch(batch: Batch) -> Batch:
    """Without the positions at the end that no row of the share uses."""
    trimmed_batch = dict(batch)
    for mask in MASKS:
        if mask not in batch:
            continue
        prefix, whole = mask.removesuffix("attention_mask"), batch[mask].shape[1]
        used = int(batch[mask].any(0).nonzero()[-1]) + 1 if batch[mask].any() else 1
        trimmed_batch |= {
            name: value[:, :used]
            for name, value in batch.items()
            if name.startswith(prefix) and value.shape[1] == whole and (prefix or not name.startswith("kl_"))
        }
    return trimmed_batch


def join_scores(scores: Scores, share: RowShare, team: Team) -> Scores:
    """Return the scores of the whole batch, in the order of its rows; a graph leads to this process's own."""
    names = sorted(scores)
    local = {name: scores[name][:0] if share.idle else scores[name] for name in names}
    own_lengths = torch.tensor([len(local[name]) for name in names], device=scores[names[0]].device)
    gathered = [torch.zeros_like(own_lengths) for _ in range(team.size)]
    dist.all_gather(gathered, own_lengths, group=team.group)
    lengths = [row.tolist() for row in gathered]
    flat_M = torch.cat([local[name].detach().float() for name in names])
    everyone = exchange_values(flat_M, [sum(row) for row in lengths], team)
    parts: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    for source, (values_M, row) in enumerate(zip(everyone, lengths, strict=True)):
        for name, part in zip(names, values_M.split(row), strict=True):
            parts[name].append(local[name] if source == team.rank else part)
    whole = {name: put_together(name, parts[name], share.sides) for name in names}
    if not share.idle:
        return whole
    # A graph through this process's row that adds nothing: a backward has to meet those of the others.
    anchor = sum((value.sum() * 0 for value in scores.values() if value.requires_grad), torch.zeros(()))
    return {name: value + anchor.to(value.device) for name, value in whole.items()}


def put_together(name: str, parts: Sequence[torch.Tensor], sides: int) -> torch.Tensor:
    """Scores of rows (named `_B`) keep the sides of a batch of pairs apart; all others follow one another."""
    if sides == 2 and name.endswith("_B"):
        halves = [part.chunk(2) if len(part) else (part, part) for part in parts]
        return torch.cat([half[side] for side in range(2) for half in halves])
    return torch.cat(list(parts))


def exchange_values(own_M: torch.Tensor, lengths: Sequence[int], team: Team) -> list[torch.Tensor]:
    """Return the numbers of all processes, which are of different lengths."""
    padded_M = own_M.new_zeros(max(1, *lengths))
    padded_M[: len(own_M)] = own_M
    gathered = [torch.empty_like(padded_M) for _ in range(team.size)]
    dist.all_gather(gathered, padded_M, group=team.group)
    return [values_M[:length] for values_M, length in zip(gathered, lengths, strict=True)]


BUCKET_BYTES = 25 << 20
"""As torch's DDP: large enough to hide the latency of a collective, small enough to be in memory twice."""
Tensor_ = TypeVar("Tensor_", bound=torch.Tensor)


class Ddp(SingleProcess):
    """The collectives of a training in which every process has all weights and states."""

    strategy = Strategy.DDP
    apart: tuple[str, ...] = ("gradients", "random")
    """The parts of a state that are not the same in every process."""
    last_step: int | None = None
    """The step after which a training ends, where that is known."""

    def __init__(self, team: Team, model: Any, launch: LaunchSettings) -> None:
        self.team, self.leading = team, team.leading
        self.layout = {"strategy": self.strategy.value, "processes": team.size}

    def optimizer(self, groups: list[JsonObject], config: TrainerConfig) -> Any:
        """Return the optimizer of this process's part."""
        return make_optimizer(groups, config)

    def sources(self, rank: int) -> tuple[int, ...]:
        """Return the ranks whose parts of a saved state a process takes over; the last one that has a part wins."""
        return (rank,)

    def scores(self, stage: StageSpec, model: Any, batch: Batch, head: Head) -> Scores:
        share = cut_share(batch, stage, self.team.rank, self.team.size)
        scores = self.run(model, lambda whole: stage.score(whole, share.batch, head))
        return join_scores(scores, share, self.team)

    def sync_gradients(self, parameters: Sequence[torch.Tensor], *, scaled: bool) -> None:
        for bucket in buckets(zero_missing_grads(parameters, self.team.group)):
            flat_M = flatten_bucket(bucket)
            dist.all_reduce(flat_M, group=self.team.group)
            for value, part in zip(bucket, unflatten_bucket(flat_M, bucket), strict=True):
                value.grad = part.clone()

    def norm(self, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        """Of the sum of all processes' gradients, which stay as they are."""
        squares = torch.zeros((), dtype=torch.float64)
        for bucket in buckets(zero_missing_grads(parameters, self.team.group)):
            flat_M = flatten_bucket(bucket)
            dist.all_reduce(flat_M, group=self.team.group)
            squares += flat_M.double().square().sum().cpu()
        return squares.sqrt().float()


def zero_missing_grads(parameters: Sequence[torch.Tensor], group: Any = None) -> list[torch.Tensor]:
    """Return the tensors that have a gradient in some process; where they have none here, it becomes zero.

    A tensor that none of them has touched keeps no gradient, and the optimizer leaves it alone, as in one process.
    """
    touched = [value.grad is not None for value in parameters]
    present = []
    flags = reduce_any(touched, choose_device(parameters), group)
    for value, here, anywhere in zip(parameters, touched, flags, strict=True):
        if anywhere and not here:
            value.grad = torch.zeros_like(value)
        if anywhere:
            present.append(value)
    return present


def reduce_any(flags: Sequence[bool], device: torch.device, group: Any = None) -> list[bool]:
    """Of each flag, whether it is set in some process."""
    flags_M = torch.tensor(flags, dtype=torch.uint8, device=device)
    dist.all_reduce(flags_M, op=dist.ReduceOp.MAX, group=group)
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
