"""Shares of a batch by process, and the joining of their scores.

Every process knows the whole batch, which is small, and runs the model over its share of it. The scores (a number a
token, a row or a pair) are exchanged, so that every process computes the loss of the whole batch, with a graph through
its own rows alone. The sum of all their gradients is then the gradient of that loss, whatever the loss is: also one
that compares the rows of a batch, as those of KTO do.

Shapes: B rows, T positions, P pairs (rows 0..P-1 of a batch are chosen, P..2P-1 rejected), N labelled tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from trainyard.spec.axes.data import Port
from trainyard.train.contracts import Batch, Scores, StageSpec

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
    if "position_ids" in batch:
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


def join_scores(scores: Scores, share: RowShare, rank: int, size: int) -> Scores:
    """Return the scores of the whole batch, in the order of its rows; a graph leads to this process's own."""
    names = sorted(scores)
    local = {name: scores[name][:0] if share.idle else scores[name] for name in names}
    own_lengths = torch.tensor([len(local[name]) for name in names], device=scores[names[0]].device)
    gathered = [torch.zeros_like(own_lengths) for _ in range(size)]
    dist.all_gather(gathered, own_lengths)
    lengths = [row.tolist() for row in gathered]
    flat_M = torch.cat([local[name].detach().float() for name in names])
    everyone = exchange_values(flat_M, [sum(row) for row in lengths], size)
    parts: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    for source, (values_M, row) in enumerate(zip(everyone, lengths, strict=True)):
        for name, part in zip(names, values_M.split(row), strict=True):
            parts[name].append(local[name] if source == rank else part)
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


def exchange_values(own_M: torch.Tensor, lengths: Sequence[int], size: int) -> list[torch.Tensor]:
    """Return the numbers of all processes, which are of different lengths."""
    padded_M = own_M.new_zeros(max(1, *lengths))
    padded_M[: len(own_M)] = own_M
    gathered = [torch.empty_like(padded_M) for _ in range(size)]
    dist.all_gather(gathered, padded_M)
    return [values_M[:length] for values_M, length in zip(gathered, lengths, strict=True)]
