"""Sharing of the computation of a prompt between answers: where the model allows it, and where it pays.

With P tokens of prompt and R of each of two answers, a pair is 2 (P + R) positions as two rows and P + 2 R + 1 as one.
Against it speak the attention of a row, which grows with the square of its length, and for stage kto the backward pass
through the mismatched answers, which have none as rows of their own. So the operations of the first steps' batches
are counted in both layouts.

Shapes: B rows, T positions.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import torch

from trainyard.errors import InvalidInput
from trainyard.spec.axes.strategies import Strategy
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import IGNORED, MASK_GROUPS, Batch, Encoded, StageSpec
from trainyard.train.model.head import evaluating, label_logprobs
from trainyard.train.rows.batching import Cut, Feed, make_plan
from trainyard.train.rows.segments import PromptGroup, collate_packed, collate_rows

LEAST_GAIN = 1.1
"""Fewer operations by this factor: below it, the mask and the bookkeeping eat the gain."""
COUNTED_STEPS = 32
"""Steps whose operations are counted."""
KL_LABELS = "kl_labels"
"""Of a batch of stage kto: the labels of the mismatched answers."""
MASKED_KERNELS = ("sdpa", "eager")
"""Attention kernels that take a mask of their caller."""


@dataclass(frozen=True)
class Operations:
    """Operations of a decoder's forward pass, two for a multiplication and its addition."""

    per_position: float
    """Of the weights, but for embedding and output layer."""
    per_seen: float
    """Of attention, for a token that another one sees or might see."""
    per_label: float
    """Of the output layer."""
    backward: float
    """Passes of the same size that the backward pass takes: 2, or 1 where the weights themselves are frozen."""

    @classmethod
    def of_model(cls, model: Any) -> Operations:
        """Return those of a transformers model, with or without an adapter around it."""
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        config, embedding = base.config.get_text_config(), base.get_input_embeddings().weight
        inner = sum(weight.numel() for weight in base.base_model.parameters()) - embedding.numel()
        seen = 4.0 * config.hidden_size * config.num_hidden_layers
        trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
        backward = 2.0 if 2 * trained > inner else 1.0
        return cls(2.0 * inner, seen, 2.0 * embedding.numel(), backward)

    def of_rows(self, rows: int, width: int, labels: int) -> float:
        """Forward pass over `rows` of `width` positions each."""
        return rows * width * (self.per_position + width * self.per_seen) + labels * self.per_label

    def of_batch(self, batch: Batch, *, by_reference: bool) -> float:
        """Forward and backward pass over a batch, and that of a reference that scores each batch again.

        Rows under another name (`kl_…`) have no backward pass.
        """
        total = 0.0
        for prefix in (name.removesuffix("input_ids") for name in batch if name.endswith("input_ids")):
            learned = [batch.get("row_labels", batch["labels"])] if not prefix else [batch[prefix + "labels"]]
            if MASK_GROUPS in batch and KL_LABELS in batch:
                learned.append(batch[KL_LABELS])
            labels = sum(int((labels_BT != IGNORED).sum()) for labels_BT in learned)
            rows, width = batch[prefix + "input_ids"].shape
            passes = 1.0 + by_reference + (0.0 if prefix else self.backward)
            total += passes * self.of_rows(rows, width, labels)
        return total


def share_prompts(cut: Cut, config: TrainerConfig, stage: StageSpec, model: Any, examples: Sequence[Encoded]) -> Cut:
    """Return the cut with the decision whether prompts are shared, and why.

    Raises `InvalidInput` (`E-BATCH`) where that was requested and this model cannot do it.
    """
    requested = config.stage.asks_shared
    if stage.layout is None:
        return cut
    if requested is False:
        return replace(cut, shared_why="not asked for")
    if config.launch.strategy is not Strategy.SINGLE:
        against = "the processes of a distributed training divide the rows of a batch among them"
    else:
        against = explain_unshared(model, max(map(stage.width, examples)))
    if against and requested is True:
        raise InvalidInput(
            f"The prompts cannot be shared: {against}.",
            why="An answer would see tokens that it does not see in a row of its own.",
            do="Use shared_prompt: auto, which takes and records the layout that is possible.",
            code="E-BATCH",
        )
    if against:
        return replace(cut, shared_why=against)
    gain = gain_of_sharing(cut, stage, model, examples)
    measured = f"answers in rows of their own take {gain:.2f} times the operations"
    if requested is True:
        return replace(cut, shared=True, shared_why=f"asked for; {measured}")
    if gain < LEAST_GAIN:
        return replace(cut, shared_why=f"{measured}, and sharing pays from {LEAST_GAIN}")
    return replace(cut, shared=True, shared_why=measured)


def gain_of_sharing(cut: Cut, stage: StageSpec, model: Any, examples: Sequence[Encoded]) -> float:
    """Operations of the first steps with each answer in its own row, as a multiple of those with shared prompts."""
    cost, totals = Operations.of_model(model), []
    again = not stage.reference_per_example
    for shared in (False, True):
        variant = replace(cut, shared=shared)
        feed = Feed(examples, make_plan(examples, variant, stage), stage, 0)
        micros = chain.from_iterable(islice(feed.plan.steps(0), COUNTED_STEPS))
        totals.append(sum(cost.of_batch(feed.batch(rows), by_reference=again) for rows in micros))
    return totals[0] / totals[1]


def explain_unshared(model: Any, longest: int) -> str:
    """Return why answers cannot share a prompt in this model; empty if they can. `longest` is the longest sequence."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    name, config = type(base).__name__, base.config.get_text_config()
    kernel = base.config._attn_implementation
    window = getattr(config, "sliding_window", None) or getattr(config, "attention_chunk_size", None)
    if kernel not in MASKED_KERNELS:
        return f"the attention kernel {kernel} takes no mask of its caller"
    if getattr(base, "_is_stateful", False):
        return f"{name} has a state that passes from one answer to the next"
    if "position_ids" not in inspect.signature(base.base_model.forward).parameters or getattr(config, "alibi", False):
        return f"{name} takes no positions of its caller"
    if window is not None and window < longest:
        return f"the attention of {name} has a window of {window} tokens, and the longest sequence has {longest}"
    return "" if keeps_answers_apart(model) else f"{name} does not keep answers behind one prompt apart"


def keeps_answers_apart(model: Any) -> bool:
    """Return whether two answers behind one prompt have the log-probabilities that they have in rows of their own."""
    vocab_size = model.config.get_text_config().vocab_size
    prompt, *answers = (
        [token % vocab_size for token in ids] for ids in ([5, 6, 7, 8], [9, 10, 11], [12, 5, 13, 14, 9])
    )
    group = PromptGroup(prompt, list(enumerate(answers)))
    logprobs = []
    with evaluating(model):
        for batch in (collate_rows(group.separate(), 0), collate_packed([group], shared=True)):
            on_device = {name: value.to(model.device) for name, value in batch.items()}
            logprobs.append(label_logprobs(model, on_device).sums(len(answers)))
    exact = model.dtype is torch.float32 and getattr(model.config, "quantization_config", None) is None
    close = 1e-4 if exact else 2e-2
    apart_S, together_S = logprobs
    return torch.allclose(apart_S, together_S, rtol=close, atol=close, equal_nan=True)
