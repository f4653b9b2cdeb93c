"""Replies of the verbs, and the record of replies that keeps a repeated call from counting twice."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from trainyard.errors import Conflict
from trainyard.json_types import JsonObject
from trainyard.train.contracts import Metrics

Reply = TypeVar("Reply")
KEPT_REPLIES = 1024


@dataclass(frozen=True)
class Forward:
    """Reply of `forward`."""

    forward_id: str
    """Empty for a batch without labels, which has no graph."""
    loss: torch.Tensor
    """Detached, on the device: reading it is a synchronisation, which is left to the caller. NaN without labels."""
    units: int
    """What the loss is a mean over, unless a normalizer was given."""
    metrics: Metrics
    """Sums over the units, detached."""
    outputs: JsonObject = field(default_factory=dict)


@dataclass(frozen=True)
class Backward:
    """Reply of `backward`; the norm is of the unscaled gradients and None unless it was requested."""

    accumulated: int
    grad_norm: float | None = None
    overflow: bool | None = None


@dataclass(frozen=True)
class Stepped:
    """Reply of `step`. `grad_norm` is before the clip, on the device."""

    skipped: bool
    global_step: int
    learning_rate: float
    grad_norm: torch.Tensor


@dataclass(frozen=True)
class Evaluated:
    """Reply of `evaluate`: sums over the units, the loss among them."""

    sums: dict[str, float]
    units: int


class Replies:
    """The last replies by their `op_seq`."""

    def __init__(self) -> None:
        self._replies: OrderedDict[int, tuple[str, Any]] = OrderedDict()
        self._forgotten = -1

    def once(self, op_seq: int | None, verb: str, work: Callable[[], Reply]) -> Reply:
        """Carry out, or return the first reply of the same `op_seq`; `Conflict` (`E-STEP`) for another verb."""
        if op_seq is not None and op_seq in self._replies:
            earlier_verb, reply = self._replies[op_seq]
            if earlier_verb != verb:
                raise Conflict(
                    f"op_seq {op_seq} was a {earlier_verb} and comes again as a {verb}.",
                    do="Number the calls of a session one after another.",
                    code="E-STEP",
                )
            same: Reply = reply
            return same
        if op_seq is not None and op_seq <= self._forgotten:
            raise Conflict(
                f"op_seq {op_seq} is too old: the last {KEPT_REPLIES} replies are kept.",
                why="Whether it was carried out is not known any more, and it must not be carried out twice.",
                do="Number the calls of a session one after another.",
                code="E-STEP",
            )
        reply = work()
        if op_seq is not None:
            self._replies[op_seq] = (verb, reply)
            if len(self._replies) > KEPT_REPLIES:
                self._forgotten = max(self._forgotten, self._replies.popitem(last=False)[0])
        return reply
