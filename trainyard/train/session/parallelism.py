"""The points of a session at which the processes of a distributed training synchronise.

`SingleProcess` is the case of one process, which has the whole model. The strategies of `train.parallel` override its
methods; the verbs and the loop are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from trainyard.json_types import JsonMapping, JsonObject
from trainyard.train.checkpoint import state
from trainyard.train.contracts import ONE_PROCESS, Batch, Head, Scores, StageSpec

Found = TypeVar("Found")


class SingleProcess:
    """Single process. Also the contract of every other way to share a session."""

    layout: JsonObject = ONE_PROCESS
    """How tensors are distributed over ranks; a state is loaded only where the layout is the same."""
    is_sharded = False
    """Whether the weights are sharded, so that no process has a complete model to save."""
    healed = False
    """Whether the state of another island was just taken over."""
    leading = True
    """Whether this process takes the calls and writes the files."""

    def parameters(self, model: Any) -> list[torch.Tensor]:
        """Return the trainable tensors of this process (its shards)."""
        return [value for value in model.parameters() if value.requires_grad]

    def run(self, model: Any, work: Callable[[Any], Found]) -> Found:
        """`work(model)`, with its weights in place."""
        return work(model)

    def scores(self, stage: StageSpec, model: Any, batch: Batch, head: Head) -> Scores:
        """Return the scores of the whole batch, with a graph through the rows that this process computes."""
        return stage.score(model, batch, head)

    def cut_batch(self, stage: StageSpec, batch: Batch) -> tuple[Batch, float]:
        """Return the rows of a batch that the loss is computed on, and the factor of their loss."""
        return batch, 1.0

    def before_backward(self, parameters: Sequence[torch.Tensor]) -> None:
        """A backward follows."""

    def after_backward(self, parameters: Sequence[torch.Tensor]) -> None:
        """The gradients of a backward are there."""

    def sync_gradients(self, parameters: Sequence[torch.Tensor], *, scaled: bool) -> None:
        """Before a step: bring the gradients of all processes together where the optimizer needs them.

        With `scaled` gradients (fp16) all processes also come to the same verdict on whether they overflowed.
        """

    def norm(self, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the norm of the whole gradient before a step."""
        return torch.nn.utils.get_total_norm([value.grad for value in parameters if value.grad is not None])

    def clip(self, parameters: Sequence[torch.Tensor], limit: float) -> torch.Tensor:
        """Clip the settled gradients by their global norm, which is returned as it was before."""
        return torch.nn.utils.clip_grad_norm_(parameters, limit)

    def clear(self, model: Any) -> None:
        """Drop gradients that the optimizer does not know of."""

    def after_step(self, steps: int) -> None:
        """A step was taken or skipped; `steps` are all so far."""

    def finish(self) -> None:
        """The last step of a training was taken."""

    def show_served(self) -> None:
        """Put the weights in place that all processes have in common."""

    def show_trained(self) -> None:
        """Put the weights in place that the next step moves."""

    def share_state(self, read: Callable[[], JsonObject], take: Callable[[JsonMapping], None]) -> None:
        """Learn how to read and replace what a session has besides its weights."""

    def facts(self) -> JsonObject:
        """Return what a step reports of the exchange between processes."""
        return {}

    # The state

    def own_parts(self) -> JsonObject:
        """Return the parts of a state that only this way of sharing has."""
        return {}

    def take_own_parts(self, parts: JsonMapping) -> None:
        """Take over the parts of a saved state that only this way of sharing has."""

    def begin_from_weights(self) -> None:
        """Weights alone were loaded."""

    def weights(self, model: Any) -> state.Tensors:
        """Return the trainable weights, gathered on rank 0, and the buffers."""
        return state.weights(model)

    def take_weights(self, model: Any, saved: state.Tensors) -> None:
        state.restore_weights(model, saved)

    def gradients(self, model: Any) -> state.Tensors:
        """Return the accumulated gradients of this process (its shards)."""
        return state.gradients(model)

    def take_gradients(self, model: Any, saved: state.Tensors) -> None:
        state.restore_gradients(model, saved)
