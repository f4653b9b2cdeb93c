"""From hidden states to the log-probabilities of chosen tokens: the output layer, where a small model spends its time.

Only positions that have a label go through the output layer. A chat row is mostly prompt, so that is less work than the
logits of every position, and the same numbers. What some families do to their logits afterwards (Gemma's cap, Granite's
and Cohere's scale) is done here, too; `require_known_logits` refuses a model that does something else.

Shapes: B rows, T positions, N labelled positions, D hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from trainyard.errors import Unavailable
from trainyard.json_types import JsonObject
from trainyard.loading import load_object
from trainyard.train.contracts import IGNORED, MASK_GROUPS, SEQUENCES, Head
from trainyard.train.model.precision import require_liger
from trainyard.train.model.sequence_attention import border_inputs, takes_borders

CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
"""Names of the cap of the logits in configs: Gemma's, Recurrent Gemma's, xLSTM's."""
CHUNK_LOGITS = 1 << 25
"""Most logits of a chunk: 128 MiB in float32."""


@dataclass(frozen=True)
class LabelLogprobs:
    """Log-probability of every labelled token, in the order of rows and positions."""

    logprobs_N: torch.Tensor
    rows_N: torch.Tensor
    """Row of each, 0 <= row < B; its sequence, where a row has several."""

    def sums(self, rows: int) -> torch.Tensor:
        """Sum per row: (rows,)."""
        return torch.zeros(rows, device=self.logprobs_N.device).index_add(0, self.rows_N, self.logprobs_N)

    def counts(self, rows: int) -> torch.Tensor:
        """Labelled tokens per row: (rows,)."""
        ones_N = torch.ones_like(self.logprobs_N)
        return torch.zeros(rows, device=ones_N.device).index_add(0, self.rows_N, ones_N)


@runtime_checkable
class LabelScorer(Protocol):
    """A model that another machine computes: it scores the labels of a batch, and has no hidden states here."""

    def score_labels(self, batch: dict[str, torch.Tensor]) -> LabelLogprobs:
        """Return the log-probability of every label, at temperature 1."""


def label_logprobs(model: Any, batch: dict[str, torch.Tensor], head: Head = Head.FULL) -> LabelLogprobs:
    """Log-probabilities of the labels of `batch` (`input_ids`, `labels`, `attention_mask`, maybe `position_ids`).

    A label at position t is predicted from position t - 1; the label of position 0 takes no part.
    """
    if isinstance(model, LabelScorer):
        return model.score_labels(batch)
    hidden_BTD, output = hidden_states(model, batch)
    return logprobs_of_hidden(hidden_BTD, batch, output, head)


def logprobs_of_hidden(
    hidden_BTD: torch.Tensor, batch: dict[str, torch.Tensor], output: Output, head: Head
) -> LabelLogprobs:
    """Log-probabilities of the labels of `batch` by hidden states that are computed already."""
    target_BT = batch["labels"][:, 1:]
    rows_N, positions_N = (target_BT != IGNORED).nonzero(as_tuple=True)
    hidden_ND = hidden_BTD[rows_N, positions_N]
    target_N = target_BT[rows_N, positions_N]
    owner_N = batch[SEQUENCES][:, 1:][rows_N, positions_N] if SEQUENCES in batch else rows_N
    return LabelLogprobs(token_logprobs(hidden_ND, target_N, output, head), owner_N)


@dataclass(frozen=True)
class Output:
    """A model's output layer and the scaling of its logits, in the terms of transformers' configs."""

    layer: Any
    factor: float = 1.0
    cap: float | None = None
    """Logits are `cap * tanh(logits / cap)` (Gemma 2, arXiv 2408.00118, section 2)."""

    def __call__(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        """Logits in float32: (N, V)."""
        logits_NV = self.layer(hidden_ND).float()
        if self.factor != 1.0:
            logits_NV = logits_NV * self.factor
        return logits_NV if self.cap is None else self.cap * torch.tanh(logits_NV / self.cap)


def hidden_states(model: Any, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, Output]:
    """Hidden states after the final norm (B, T, D), and the output. PEFT's layers sit inside the decoder."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return find_decoder(base)(**model_inputs(base, batch), use_cache=False).last_hidden_state, read_output(base)


def row_scores(model: Any, ids_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return the score after the last token of each row of a model with one score, in float32: (B,).

    Read by the mask. transformers takes the last token that is not the padding token, and where that is the end of
    text, as in tokenizers without a padding token, the one before the end.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    states = find_decoder(base)(input_ids=ids_BT, attention_mask=mask_BT, use_cache=False).last_hidden_state
    scores_BT: torch.Tensor = base.score(states)[:, :, 0].float()
    return scores_BT.gather(1, mask_BT.sum(1, keepdim=True).long() - 1)[:, 0]


def find_decoder(base: Any) -> Any:
    """Return the model below the output layer. Llama 4 is its own `base_model`, as its decoder has another name."""
    if base.base_model is not base:
        return base.base_model
    return next(child for child in base.children() if child is not base.get_output_embeddings())


def model_inputs(base: Any, batch: dict[str, torch.Tensor]) -> JsonObject:
    """Return what a transformers model takes of a batch; answers that share a prompt get a mask that keeps them
    apart.
    """
    names = ("input_ids", "attention_mask", "position_ids")
    inputs: JsonObject = {name: batch[name] for name in names if name in batch}
    if MASK_GROUPS in batch:
        inputs["attention_mask"] = attention_mask(batch, base)
    elif len(inputs) > 1 and takes_borders(base):
        inputs |= border_inputs(inputs)
    return inputs


def attention_mask(batch: dict[str, torch.Tensor], base: Any) -> torch.Tensor:
    """Return which token sees which (B, 1, T, T): those before it in its own sequence and in the prompt of that.

    As the model's kernel takes it: True for visible, or a number that is added to the scores (eager). A token of the
    padding sees itself, so that its softmax has a sum.
    """
    sequence_BT, group_BT = batch[SEQUENCES], batch[MASK_GROUPS]
    own_BTT = sequence_BT[:, :, None] == sequence_BT[:, None, :]
    prompt_BTT = -group_BT.abs()[:, :, None] == group_BT[:, None, :]
    seen_BTT = (own_BTT | prompt_BTT).tril_()
    if base.config._attn_implementation != "eager":
        return seen_BTT[:, None]
    hidden_BTT = torch.zeros_like(seen_BTT, dtype=torch.float32).masked_fill_(~seen_BTT, torch.finfo(base.dtype).min)
    return hidden_BTT.to(base.dtype)[:, None]


def read_output(base: Any) -> Output:
    """Return the output of a transformers model, from its config."""
    config = base.config.get_text_config()
    scale = getattr(config, "logit_scale", None)  # Cohere
    divisor = getattr(config, "logits_scaling", None)  # Granite
    factor = (1.0 if scale is None else scale) / (divisor or 1.0)
    factor *= getattr(config, "lm_head_multiplier", 1.0)  # Falcon-H1
    cap = next((getattr(config, name) for name in CAPS if getattr(config, name, None)), None)
    return Output(base.get_output_embeddings(), factor, cap)


def require_known_logits(model: Any) -> None:
    """Compare the logits of this file with the model's own on a few tokens.

    Raises `Unavailable` (`E-STEP`) for a model that does something to its logits that is not known here: it would
    train towards other numbers than it is served with.
    """
    ids_BT = torch.arange(4, device=model.device)[None] % model.config.get_text_config().vocab_size
    with evaluating(model):
        own_BTV = model(input_ids=ids_BT, use_cache=False).logits.float()
        hidden_BTD, output = hidden_states(model, {"input_ids": ids_BT})
        found_BTV = output(hidden_BTD)
    close = 1e-4 if hidden_BTD.dtype is torch.float32 else 2e-2
    if not torch.allclose(own_BTV, found_BTV, rtol=close, atol=close, equal_nan=True):
        raise Unavailable(
            f"{type(model).__name__} changes its logits in a way that the native engine does not know.",
            why="Training would move other probabilities than those that the model is served with.",
            do="Use backend: trl, or a base model of another family.",
            code="E-STEP",
        )


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Without gradients and dropout, in the precision that a training has; every module's mode is put back."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad(), autocast_mixed(model):
            yield
    finally:
        for module, training in modes.items():
            module.training = training


def autocast_mixed(model: torch.nn.Module) -> AbstractContextManager[Any]:
    """Return the autocast that a model needs whose weights have two precisions: float32 norms in a base of bf16 hand
    their
    states to layers that take none but bf16."""
    weights = [weight for weight in model.parameters() if weight.is_floating_point()]
    halves = {weight.dtype for weight in weights} & {torch.bfloat16, torch.float16}
    if len(halves) != 1 or all(weight.dtype in halves for weight in weights):
        return nullcontext()
    return torch.autocast(weights[0].device.type, dtype=halves.pop())


def token_logprobs(
    hidden_ND: torch.Tensor, target_N: torch.Tensor, output: Output, head: Head, *, chunk_logits: int = CHUNK_LOGITS
) -> torch.Tensor:
    """Log-probability of each target, in float32: (N,)."""
    if head is Head.LIGER:
        return -load_object("liger_kernel.transformers.functional").liger_cross_entropy(
            output(hidden_ND), target_N, reduction="none"
        )
    if head is Head.FULL or not hidden_ND.requires_grad:
        return chunk_logprobs(hidden_ND, target_N, output)
    rows = max(1, chunk_logits // max(1, output.layer.weight.shape[0]))
    parts = [
        checkpoint(chunk_logprobs, hidden_CD, target_C, output, use_reentrant=False)
        for hidden_CD, target_C in zip(hidden_ND.split(rows), target_N.split(rows), strict=True)
    ]
    return torch.cat(parts)


def chunk_logprobs(hidden_CD: torch.Tensor, target_C: torch.Tensor, output: Output) -> torch.Tensor:
    return -functional.cross_entropy(output(hidden_CD), target_C, reduction="none")


def require_head(head: Head, device: str) -> None:
    """Raise `Unavailable` (`E-PACKAGE-MISSING`) when Liger's kernel was requested and is not possible here."""
    if head is Head.LIGER:
        require_liger(device)
