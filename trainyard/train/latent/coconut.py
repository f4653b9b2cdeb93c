"""COCONUT (Hao et al. 2024, arXiv 2412.06769): hidden states are fed back as thoughts, without becoming words.

    row at stage s    prompt, <start>, s x `thoughts_per_step` thoughts, <end>, the steps after the first s, answer
    thought           the hidden state after the final norm of the position before it, as an embedding
    loss              - sum over the remaining steps and the answer of log p(token | everything before it)

The stage rises with the epochs; behind `max_stage` no step is left, which is the form that is served. Which stage a row
has is a function of epoch, row and seed alone. Gradients go back through all thoughts. A batch takes one pass more than
its row with the most thoughts has, and every pass computes new columns only.

Without `markers` there is neither <start> nor <end>: the first thought is then the state of the prompt's last token,
from which the first step was predicted before. With `feedback: false` thoughts are a learned vector: the control that
has the same curriculum and the same number of positions.

Shapes: B rows, T positions, D hidden, V vocabulary.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from trainyard.spec.axes.latent import CoconutSettings, LatentSettings
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import Batch, Encoded, StageSpec
from trainyard.train.latent import rollout, rows
from trainyard.train.latent.contract import LatentModule, LatentSpec, build_stage, build_vectors
from trainyard.train.model.sampling import Reading

START, END, THOUGHT = 1, 2, 3
"""Numbers of the own vectors; that of a thought is read where nothing is fed back."""


class CoconutModule(LatentModule):
    """Vectors for where thoughts begin and end."""

    settings: CoconutSettings

    def __init__(self, model: Any, settings: CoconutSettings) -> None:
        super().__init__(settings)
        self.vectors_KD = build_vectors(model, END if settings.feedback else THOUGHT)

    def hidden_states(self, model: Any, batch: Batch) -> torch.Tensor:
        embeds_BTD = rollout.embed(model, batch, self.vectors_KD)
        if not self.settings.feedback:
            return rollout.run(model, embeds_BTD, batch["attention_mask"])
        thought_BT = batch[rollout.SLOTS] == THOUGHT
        return rollout.think_ahead(model, embeds_BTD, batch["attention_mask"], thought_BT, keep)

    def open(self, model: Any, ids_BT: torch.Tensor, mask_BT: torch.Tensor) -> tuple[Reading, torch.Tensor]:
        return self.open_after(model, ids_BT, mask_BT, self.settings.most_thoughts)

    def open_after(
        self, model: Any, ids_BT: torch.Tensor, mask_BT: torch.Tensor, thoughts: int
    ) -> tuple[Reading, torch.Tensor]:
        """Read prompts and think a number of thoughts; and return the logits of the next token (B, V)."""
        before = [START] if self.settings.markers else []
        reading, hidden_BD = rollout.open_with(model, ids_BT, mask_BT, self.vectors_KD, before)
        for _ in range(thoughts):
            fed_BD = hidden_BD if self.settings.feedback else self.vectors_KD[THOUGHT - 1].expand(len(ids_BT), -1)
            reading, hidden_BD = rollout.think(model, reading, fed_BD[:, None])
        if self.settings.markers:
            end_B1D = self.vectors_KD[END - 1].expand(len(ids_BT), 1, -1).to(hidden_BD.dtype)
            reading, hidden_BD = rollout.think(model, reading, end_B1D)
        return reading, rollout.compute_logits(model, hidden_BD)


def keep(hidden_BTD: torch.Tensor) -> torch.Tensor:
    """Return a thought is the hidden state as it is."""
    return hidden_BTD


# The curriculum


def stage_of_row(settings: CoconutSettings, epoch: int, row: int, num_steps: int, seed: int) -> int:
    """Return the stage of a row in an epoch: the epoch's, or with the probability `mix` any up to the number of its
    steps.
    """
    if settings.mix:
        dice = random.Random(f"{seed}:{epoch}:{row}")
        if dice.random() < settings.mix:
            return dice.randint(0, num_steps)
    return settings.stage_at(epoch)


def arrange(example: Encoded, settings: CoconutSettings, stage: int) -> Encoded:
    """Return an example as it is learned at a stage."""
    steps = rows.encode_steps(example)
    remaining_steps = [] if stage > settings.max_stage else steps[stage:]
    thoughts = [THOUGHT] * (min(stage, settings.max_stage) * settings.thoughts_per_step)
    learned = [token for step in remaining_steps for token in step] + example[rows.ANSWER]
    slots = [START, *thoughts, END] if settings.markers else thoughts
    return rows.build_row(example[rows.PROMPT], slots, learned)


def stage(base: StageSpec, config: TrainerConfig) -> StageSpec:
    settings, seed = config.stage.technique, config.hyperparameters.seed
    assert isinstance(settings, CoconutSettings), settings

    def at_epoch(example: Encoded, row: int, epoch: int) -> Encoded:
        return arrange(example, settings, stage_of_row(settings, epoch, row, len(example[rows.LENGTHS]), seed))

    served = partial(arrange, settings=settings, stage=settings.max_stage + 1)
    form = build_stage(base, served, steps=True, at_epoch=at_epoch)
    return replace(form, collate=partial(rows.collate, arrange=served, around=True))


def prepare(model: Any, _tokenizer: Any, settings: LatentSettings) -> CoconutModule:
    assert isinstance(settings, CoconutSettings), settings
    return CoconutModule(model, settings)


COCONUT = LatentSpec(prepare, stage)
