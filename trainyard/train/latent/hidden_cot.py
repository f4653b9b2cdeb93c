"""Stepwise internalisation (Deng et al. 2024, arXiv 2405.14838): the reasoning goes from its left, token by token.

    row in epoch e    prompt, the reasoning without its first s(e) + o tokens, answer
    s(e)              `tokens_per_epoch` more with each epoch after `whole_epochs`; all from `most_tokens` on
    o                 drawn for each row with P(o) proportional to exp(-smoothing x o)
    loss              - sum over what is left of the reasoning and the answer of log p(token | everything before it)

There are no weights besides the model's, and the served model answers at once: what it computes is in its layers. A row
is a function of epoch, row and seed alone. The paper resets the optimizer with each removal, as it is done here.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

from trainyard.spec.axes.latent import ALL_TOKENS, HiddenCotSettings, LatentSettings
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import Encoded, StageSpec
from trainyard.train.latent import rows
from trainyard.train.latent.contract import LatentModule, LatentSpec, build_stage


def count_removed_tokens(settings: HiddenCotSettings, epoch: int, row: int, seed: int) -> int:
    """Return tokens that are taken away from a row in an epoch."""
    scheduled = settings.stage_at(epoch)
    if settings.smoothing is None or scheduled == ALL_TOKENS:
        return scheduled
    return scheduled + int(random.Random(f"{seed}:{epoch}:{row}").expovariate(settings.smoothing))


def arrange(example: Encoded, skipped_tokens: int) -> Encoded:
    """Return an example without the first tokens of its reasoning."""
    return rows.build_row(example[rows.PROMPT], [], [*example[rows.STEPS][skipped_tokens:], *example[rows.ANSWER]])


def stage(base: StageSpec, config: TrainerConfig) -> StageSpec:
    settings, seed = config.stage.technique, config.hyperparameters.seed
    assert isinstance(settings, HiddenCotSettings), settings

    def at_epoch(example: Encoded, row: int, epoch: int) -> Encoded:
        return arrange(example, count_removed_tokens(settings, epoch, row, seed))

    return build_stage(base, partial(arrange, skipped_tokens=ALL_TOKENS), steps=True, at_epoch=at_epoch)


def prepare(_model: Any, _tokenizer: Any, settings: LatentSettings) -> LatentModule:
    return LatentModule(settings)


HIDDEN_COT = LatentSpec(prepare, stage)
