"""Stage grpo with shared prompts: the completions of a prompt in one row behind it, so that it is computed once.

TRL scores each completion in a row of its own, with its prompt on the left. Of the rows that it scores together, those
with the same prompt become one here, and the log-probabilities go back to where TRL expects them. Which completions are
together is TRL's: with an accumulation it shuffles those of a step, and fewer of them meet their group.

Shapes: B completions, P positions of the longest prompt, C of the longest completion, T = P + C; N labelled tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from trainyard.errors import InvalidInput
from trainyard.train.contracts import IGNORED, SEQUENCES, Batch
from trainyard.train.model.head import attention_mask
from trainyard.train.rows.segments import PromptGroup, collate_rows
from trainyard.train.rows.sharing import LEAST_GAIN, Operations, explain_unshared

TokenScores = tuple[torch.Tensor, torch.Tensor | None]
"""Log-probabilities of the completions' tokens (B, C), and entropies where they are requested."""


@dataclass(frozen=True)
class PromptSharing:
    """Decision whether completions share a prompt, and its reason."""

    used: bool
    why: str
    least_gain: float = 0.0
    """Operations have to become fewer by this factor."""
    cost: Operations | None = None

    def pays(self, shape: torch.Size, batch: Batch) -> bool:
        """Whether a batch of this layout is computed with clearly fewer operations than rows of that shape."""
        assert self.cost is not None, "a sharing that is used"
        apart = self.cost.of_rows(shape[0], shape[1], 0)
        rows, width = batch["input_ids"].shape
        return apart >= self.least_gain * self.cost.of_rows(rows, width, 0)


def choose_sharing(setting: Literal["auto"] | bool, model: object, longest: int) -> PromptSharing:
    """Whether this model's completions may share their prompts; `longest` is the longest prompt with a completion.

    Raises `InvalidInput` (`E-BATCH`) where that was requested and this model cannot do it.
    """
    if setting is False:
        return PromptSharing(False, "not asked for")
    if against := explain_unshared(model, longest):
        if setting is True:
            raise InvalidInput(
                f"The prompts cannot be shared: {against}.",
                why="A completion would see tokens that it does not see in a row of its own.",
                do="Use shared_prompt: auto, which takes and records what is possible.",
                code="E-BATCH",
            )
        return PromptSharing(False, against)
    cost = Operations.of_model(model)
    if setting is True:
        return PromptSharing(True, "asked for", 0.0, cost)
    return PromptSharing(True, f"in batches that need {LEAST_GAIN} times fewer operations so", LEAST_GAIN, cost)


def group_completions(ids_BT: torch.Tensor, shown_BT: torch.Tensor, completion: int) -> list[PromptGroup]:
    """Rows of a prompt, filled up on the left, and a completion of at most `completion` tokens, by their prompts."""
    answers: dict[tuple[int, ...], list[tuple[int, list[int]]]] = {}
    for at, (ids_T, shown_T) in enumerate(zip(ids_BT, shown_BT.bool(), strict=True)):
        prompt, answer = (
            ids_T[part][shown_T[part]].tolist() for part in (slice(-completion), slice(-completion, None))
        )
        answers.setdefault(tuple(prompt), []).append((at, answer))
    return [PromptGroup(list(prompt), entries) for prompt, entries in answers.items()]


def collate_completions(groups: list[PromptGroup], device: torch.device) -> Batch:
    return {name: value.to(device) for name, value in collate_rows(groups, 0).items()}


def score_completions(model: Any, base: Any, groups: list[PromptGroup], batch: Batch, completion: int) -> TokenScores:
    """Score a batch with TRL's output layer, `base` being the transformers model inside: (B, C) and (B, C)."""
    output = model(
        input_ids=batch["input_ids"],
        attention_mask=attention_mask(batch, base),
        position_ids=batch["position_ids"],
        labels=batch["labels"],
        fused_lm_head=True,
    )
    rows_N, positions_N = (batch["labels"] != IGNORED).nonzero(as_tuple=True)
    sequence_N = batch[SEQUENCES][rows_N, positions_N]
    starts = {sequence: len(group.prompt) for group in groups for sequence, _ in group.answers}
    starts_B = torch.tensor([starts[at] for at in range(len(starts))], device=rows_N.device)
    index = (sequence_N, batch["position_ids"][rows_N, positions_N] - starts_B[sequence_N])

    def split_by_completion(scores_RT: torch.Tensor) -> torch.Tensor:
        """TRL's scores belong to the labels from the second position on."""
        scores_BC = scores_RT.new_zeros(len(starts), completion)
        return scores_BC.index_put(index, scores_RT[rows_N, positions_N - 1])

    entropies = None if output.entropy is None else split_by_completion(output.entropy)
    return split_by_completion(output.log_probs), entropies
