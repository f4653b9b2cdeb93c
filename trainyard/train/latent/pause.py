"""Pause tokens (Goyal et al. 2023, arXiv 2310.02226): vectors of no word between prompt and answer.

    loss = - sum over the tokens of the answer of log p(token | prompt, `count` pauses, tokens before it)

The same count is read when the model is served. The paper's gains need pauses in pretraining too: finetuning alone
gains little. Costs `count` more positions a row, and one vector.

Shapes: B rows, T positions, D hidden, V vocabulary.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from trainyard.spec.axes.latent import LatentSettings, PauseSettings
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import Batch, Encoded, StageSpec
from trainyard.train.latent import rollout, rows
from trainyard.train.latent.contract import LatentModule, LatentSpec, build_stage, build_vectors
from trainyard.train.model.sampling import Reading


class PauseModule(LatentModule):
    """A vector, read `count` times before the answer."""

    settings: PauseSettings

    def __init__(self, model: Any, settings: PauseSettings) -> None:
        super().__init__(settings)
        self.vectors_KD = build_vectors(model, 1)

    def hidden_states(self, model: Any, batch: Batch) -> torch.Tensor:
        embeds_BTD = rollout.embed(model, batch, self.vectors_KD)
        return rollout.run(model, embeds_BTD, batch["attention_mask"])

    def open(self, model: Any, ids_BT: torch.Tensor, mask_BT: torch.Tensor) -> tuple[Reading, torch.Tensor]:
        pauses = [1] * self.settings.count
        reading, hidden_BD = rollout.open_with(model, ids_BT, mask_BT, self.vectors_KD, pauses)
        return reading, rollout.compute_logits(model, hidden_BD)


def prepare(model: Any, _tokenizer: Any, settings: LatentSettings) -> PauseModule:
    assert isinstance(settings, PauseSettings), settings
    return PauseModule(model, settings)


def arrange(example: Encoded, count: int) -> Encoded:
    """Return the pauses come after the whole prompt, and have no label; the first token of the answer is predicted from
    the
    last of them."""
    return rows.build_row(example[rows.PROMPT], [1] * count, [*example[rows.STEPS], *example[rows.ANSWER]])


def stage(base: StageSpec, config: TrainerConfig) -> StageSpec:
    settings = config.stage.technique
    assert isinstance(settings, PauseSettings), settings
    return build_stage(base, partial(arrange, count=settings.count), steps=False)


PAUSE = LatentSpec(prepare, stage)
