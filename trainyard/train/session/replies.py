"""Replies of the verbs, and the record of replies that keeps a repeated call from counting twice.

Logits and hidden states that a `forward` hands out: by file, or in the reply while they are small.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import save_file

from trainyard.errors import Conflict, InvalidInput
from trainyard.json_types import JsonObject
from trainyard.stores.whole import file_sha256
from trainyard.train.contracts import Batch, Metrics

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
    """Unit of the mean loss, unless a normalizer was given."""
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


INLINE_BYTES = 8 << 20
"""Most bytes of logits or hidden states that a reply contains; larger outputs are returned by reference."""
OUTPUTS = ("logits", "hidden_states")


def require_outputs(names: Sequence[str]) -> None:
    """Raise `InvalidInput` (`E-NAME`) for an unknown name of an output."""
    unknown = set(names) - set(OUTPUTS)
    if unknown:
        raise InvalidInput(
            f"forward has no output {sorted(unknown)[0]!r}.", do="Ask for logits or hidden_states.", code="E-NAME"
        )


def read_outputs(model: Any, batch: Batch, names: Sequence[str]) -> dict[str, torch.Tensor]:
    """Return the outputs of one pass over the batch's `input_ids`, in float32 on the CPU."""
    model_inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "position_ids") if name in batch}
    output = model(**model_inputs, output_hidden_states="hidden_states" in names, use_cache=False)
    tensors = {"logits": output.logits.float()} if "logits" in names else {}
    if "hidden_states" in names:
        tensors["hidden_states"] = torch.stack(list(output.hidden_states)).float()
    return {name: value.cpu().contiguous() for name, value in tensors.items()}


def dump_output(name: str, value: torch.Tensor, path: Path, *, inline: bool) -> JsonObject:
    """Return one output for a reply: {shape, values}, or {shape, file, sha256} with the tensor in `path`.

    Raises `InvalidInput` (`E-STEP`).
    """
    size = value.numel() * value.element_size()
    if inline and size > INLINE_BYTES:
        raise InvalidInput(
            f"{name} takes {size:,} bytes, and a reply contains at most {INLINE_BYTES:,}.",
            do="Leave inline out: the reply then names a file.",
            code="E-STEP",
        )
    if inline:
        return {"shape": list(value.shape), "values": value.flatten().tolist()}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: value}, path)
    return {"shape": list(value.shape), "file": str(path), "sha256": file_sha256(path)}
