"""Scores of sampled completions by a policy and its critic: log-probabilities at the sampling temperature, and values.

Shapes: B rows, T positions, N tokens that are learned from, D hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from trainyard.train.contracts import IGNORED, Batch, Head, Scores
from trainyard.train.model.head import LabelScorer, Output, hidden_states, model_inputs, token_logprobs

CRITIC = "critic"
"""Name of the critic as a module of the policy, so that state, optimizer and clipping include it."""
WITH_VALUES = "with_values"
"""Key of a batch whose tokens the critic values too."""


@dataclass(frozen=True)
class TemperedOutput(Output):
    """An output layer whose logits are divided as they are when completions are drawn."""

    temperature: float = 1.0

    def __call__(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        return super().__call__(hidden_ND) / self.temperature


def score_tokens(model: Any, batch: Batch, head: Head, *, temperature: float) -> Scores:
    """`logprobs_N` of every labelled token, and `values_N` before each where the batch asks for them."""
    if isinstance(model, LabelScorer):
        assert temperature == 1, "other temperatures are refused"
        return {"logprobs_N": model.score_labels(batch).logprobs_N}
    hidden_BTD, output = hidden_states(model, batch)
    target_BT = batch["labels"][:, 1:]
    label_positions = (target_BT != IGNORED).nonzero(as_tuple=True)
    tempered = TemperedOutput(output.layer, output.factor, output.cap, temperature)
    logprobs_N = token_logprobs(hidden_BTD[label_positions], target_BT[label_positions], tempered, head)
    if WITH_VALUES not in batch:
        return {"logprobs_N": logprobs_N}
    return {"logprobs_N": logprobs_N, "values_N": token_values(getattr(model, CRITIC), batch)[label_positions]}


def token_values(critic: Any, batch: Batch) -> torch.Tensor:
    """Return the critic's value after each position, in float32: (B, T)."""
    base = critic.get_base_model() if hasattr(critic, "get_base_model") else critic
    hidden_BTD = base.base_model(**model_inputs(base, batch), use_cache=False).last_hidden_state
    values_BT: torch.Tensor = base.score(hidden_BTD)[..., 0].float()
    return values_BT
