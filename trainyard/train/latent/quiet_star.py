"""Quiet-STaR as a technique of stage sft: thoughts while it trains, and hidden thoughts when it answers.

An answer is read token by token: after each one the model writes a thought, mixes its last hidden state with that of
the thought, and forgets the thought's columns of the cache. Thoughts of an answer are greedy, so that it depends on
nothing of the other rows of its batch. A token costs `thought_tokens` + 3 passes instead of one.

Shapes: B rows, T positions, D hidden, V vocabulary.

What thoughts are worth, and the three terms of Quiet-STaR's loss.

Shapes: B rows, T tokens, N thinking positions, A tokens ahead, P thoughts per position (Q = B * P rows), D hidden,
L labels that are predicted after thoughts, J tokens of a thought, M = N * A.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from trainyard.errors import InvalidInput
from trainyard.spec.axes.latent import LatentSettings, QuietStarSettings
from trainyard.spec.axes.stages import SftSettings
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import IGNORED, Batch, Head, Metrics, Scores, StageSpec
from trainyard.train.latent import rollout
from trainyard.train.latent.contract import LatentModule, LatentSpec, get_latent_module
from trainyard.train.latent.quiet_star_thoughts import (
    Positions,
    Thinker,
    ThoughtHead,
    Thoughts,
    ThoughtSettings,
    draw_tokens,
    find_positions,
)
from trainyard.train.model.head import evaluating, token_logprobs
from trainyard.train.model.positions import find_context
from trainyard.train.model.sampling import Reading


@dataclass(frozen=True)
class Talk:
    """Log-probabilities of labels without and with thoughts."""

    base_BT: torch.Tensor
    """Of each token; 0 where there is no label."""
    mixed_QNA: torch.Tensor
    """Of the tokens ahead; 0 where there is no label."""
    weight_QNA: torch.Tensor
    """The thought's share, detached."""


def talk(thinker: Thinker, labels_BT: torch.Tensor, positions: Positions, thoughts: Thoughts, kind: Head) -> Talk:
    """Score the labels with the base's hidden states and with the mixed ones."""
    repeats, target_BNA = thinker.settings.num_thoughts, positions.target_BNA
    rows_N, columns_N = (labels_BT[:, 1:] != IGNORED).nonzero(as_tuple=True)
    base_N = token_logprobs(
        thoughts.base_BTD[rows_N, columns_N], labels_BT[:, 1:][rows_N, columns_N], thinker.output, kind
    )
    base_BT = torch.zeros(labels_BT.shape, device=base_N.device).index_put((rows_N, columns_N + 1), base_N)
    target_QNA = target_BNA.repeat_interleave(repeats, 0)
    q_L, n_L, a_L = (target_QNA != IGNORED).nonzero(as_tuple=True)
    before_L = positions.at_BN[q_L // repeats, n_L] + a_L
    base_LD, thought_LD = thoughts.base_BTD[q_L // repeats, before_L], thoughts.ahead_QNAD[q_L, n_L, a_L]
    weight_L1 = thinker.head.weight(base_LD, thought_LD)
    mixed_LD = ((1 - weight_L1) * base_LD + weight_L1 * thought_LD).to(base_LD.dtype)
    mixed_L = token_logprobs(mixed_LD, target_QNA[q_L, n_L, a_L], thinker.output, kind)
    empty = torch.zeros(target_QNA.shape, device=mixed_L.device)
    return Talk(
        base_BT,
        empty.index_put((q_L, n_L, a_L), mixed_L),
        empty.index_put((q_L, n_L, a_L), weight_L1.detach()[:, 0].float()),
    )


def compute_gain(talk_scores: Talk, positions: Positions, repeats: int) -> torch.Tensor:
    """Return how much likelier a thought made each token ahead, detached: (Q, N, A)."""
    ahead = torch.arange(1, positions.target_BNA.shape[-1] + 1, device=talk_scores.base_BT.device)
    at_BNA = (positions.at_BN[..., None] + ahead).clamp(max=talk_scores.base_BT.shape[1] - 1)
    base_BNA = talk_scores.base_BT.detach().gather(1, at_BNA.flatten(1)).view_as(at_BNA)
    has_BNA = positions.target_BNA != IGNORED
    return (talk_scores.mixed_QNA.detach() - base_BNA.repeat_interleave(repeats, 0)) * has_BNA.repeat_interleave(
        repeats, 0
    )


def policy_loss(gain_QN: torch.Tensor, logprobs_QNJ: torch.Tensor, settings: ThoughtSettings) -> torch.Tensor:
    """REINFORCE with the mean over a position's thoughts as baseline, summed over positions, averaged over thoughts.

    The baseline contains the thought itself, so the expected gradient is (P - 1) / P of the exact one.
    """
    gain_BPN = gain_QN.detach().unflatten(0, (-1, settings.num_thoughts))
    reward_BPN = gain_BPN - gain_BPN.mean(dim=1, keepdim=True)
    if settings.only_positive:
        reward_BPN = reward_BPN.clamp(min=0)
    logprob_BPN = logprobs_QNJ.sum(dim=-1).unflatten(0, (-1, settings.num_thoughts))
    return -(reward_BPN * logprob_BPN).sum() / settings.num_thoughts


def compute_mixed_loss(talk_scores: Talk, positions: Positions, repeats: int) -> torch.Tensor:
    """NLL with thoughts, summed over labels: each is the mean over the positions and thoughts that predict it."""
    has_BNA = positions.target_BNA != IGNORED
    ahead = torch.arange(1, has_BNA.shape[-1] + 1, device=has_BNA.device)
    at_BM = (positions.at_BN[..., None] + ahead).clamp(max=talk_scores.base_BT.shape[1] - 1).flatten(1)
    counts_BT = torch.zeros_like(talk_scores.base_BT).scatter_add(1, at_BM, has_BNA.flatten(1).float())
    share_BNA = has_BNA / (counts_BT.gather(1, at_BM).view(has_BNA.shape).clamp(min=1) * repeats)
    return -(talk_scores.mixed_QNA * share_BNA.repeat_interleave(repeats, 0)).sum()


def quiet_scores(base: Any, head: ThoughtHead, batch: Batch, settings: ThoughtSettings, kind: Head) -> Batch:
    """Think at every position with a label ahead. Sums over the batch:

    `base`, `mixed`, `policy`   the three terms of the loss
    `gain`                      log-probability of the next token that the thoughts added
    `weight`                    the thoughts' share at the next token
    """
    positions = find_positions(batch["labels"], settings.num_ahead)
    thinker = Thinker(base, head, settings)
    thoughts = thinker.think(batch, positions)
    talk_scores = talk(thinker, batch["labels"], positions, thoughts, kind)
    gain_QNA = compute_gain(talk_scores, positions, settings.num_thoughts)
    return {
        "base": -talk_scores.base_BT.sum(),
        "mixed": compute_mixed_loss(talk_scores, positions, settings.num_thoughts),
        "policy": policy_loss(gain_QNA.sum(dim=-1), thoughts.logprobs_QNJ, settings),
        "gain": gain_QNA[..., 0].sum() / settings.num_thoughts,
        "weight": talk_scores.weight_QNA[..., 0].sum() / settings.num_thoughts,
    }


def quiet_loss(scores: Batch, settings: ThoughtSettings) -> torch.Tensor:
    """Return the loss, summed over the labels; its unit is the label."""
    return 0.5 * scores["base"] + 0.5 * scores["mixed"] + settings.policy_weight * scores["policy"]


SEED_TEXT = "---"
"""Start and end begin as the embedding of its last token, as in the paper's code."""


class QuietStar(LatentModule):
    """The vectors of start and end, and the mixing head."""

    settings: QuietStarSettings

    def __init__(self, model: Any, tokenizer: Any, settings: QuietStarSettings) -> None:
        super().__init__(settings)
        table_VD = model.get_input_embeddings().weight
        self.head = ThoughtHead(table_VD.shape[1], settings.embedding_scale)
        ids = tokenizer.encode(SEED_TEXT, add_special_tokens=False)
        self.head.begin_with(table_VD[ids[-1]].float() if ids else table_VD.float().mean(0))

    @property
    def positions(self) -> int:
        return self.settings.thought_tokens + 2

    def num_read(self, num_answered: int) -> int:
        return num_answered * (1 + self.positions)

    def attach(self, model: Any) -> None:
        require_masks(model, self.head)
        super().attach(model)

    def open(self, model: Any, ids_BT: torch.Tensor, mask_BT: torch.Tensor) -> tuple[Reading, torch.Tensor]:
        reading = Reading(rollout.new_cache(model), mask_BT)
        return self._read(model, reading, ids_BT)

    def step(self, model: Any, reading: Reading, token_B: torch.Tensor) -> tuple[Reading, torch.Tensor]:
        mask_BT = torch.cat([reading.mask_BT, torch.ones_like(token_B[:, None])], dim=1)
        return self._read(model, Reading(reading.cache, mask_BT), token_B[:, None])

    def _read(self, model: Any, reading: Reading, ids_BT: torch.Tensor) -> tuple[Reading, torch.Tensor]:
        """Read tokens that the mask includes already, and think: the logits of the next token too (B, V)."""
        embeds_BTD = model.get_input_embeddings()(ids_BT)
        base_BD = rollout.run(model, embeds_BTD, reading.mask_BT, reading.cache)[:, -1]
        thought_BD = self.think(model, reading, base_BD)
        return reading, rollout.compute_logits(model, self.head.mix(base_BD, thought_BD))

    def think(self, model: Any, reading: Reading, base_BD: torch.Tensor) -> torch.Tensor:
        """Return the hidden state at the end of a greedy thought; the cache is as before (B, D)."""
        added, mask_BT, embed = self.positions, reading.mask_BT, model.get_input_embeddings()
        require_room(model, int(mask_BT.sum(1).max()), added)
        fed_BD = self.head.start.to(base_BD.dtype).expand_as(base_BD)
        for thought_index in range(added):
            mask_BT = torch.cat([mask_BT, torch.ones_like(mask_BT[:, :1])], dim=1)
            thought_BD = rollout.run(model, fed_BD[:, None], mask_BT, reading.cache)[:, -1]
            if thought_index < self.settings.thought_tokens:
                fed_BD = embed(draw_tokens(rollout.compute_logits(model, thought_BD)[:, None], 0)[:, 0])
            else:
                fed_BD = self.head.end.to(base_BD.dtype).expand_as(base_BD)
        reading.cache.crop(-added)
        return thought_BD


def prepare(model: Any, tokenizer: Any, settings: LatentSettings) -> QuietStar:
    assert isinstance(settings, QuietStarSettings), settings
    return QuietStar(model, tokenizer, settings)


def thought_settings(settings: QuietStarSettings) -> ThoughtSettings:
    return ThoughtSettings(
        num_tokens=settings.thought_tokens,
        num_ahead=settings.ahead,
        num_thoughts=settings.thoughts,
        temperature=settings.temperature,
        policy_temperature=settings.policy_temperature,
        policy_weight=settings.policy_weight,
        only_positive=settings.only_positive,
    )


def stage(base: StageSpec, _config: TrainerConfig) -> StageSpec:
    """Stage sft that thinks at each position with labels ahead."""
    return replace(base, facts=replace(base.facts, packable=False), score=score, loss=loss)


def score(model: Any, batch: Batch, head: Head) -> Scores:
    """Return the sums of `quiet_scores`."""
    latent: QuietStar = get_latent_module(model)
    require_room(model, batch["input_ids"].shape[1] - 1, latent.settings.thought_tokens + 1 + latent.settings.ahead)
    return quiet_scores(rollout.unwrap_base(model), latent.head, batch, thought_settings(latent.settings), head)


def require_masks(model: Any, head: ThoughtHead) -> None:
    """Raise `InvalidInput` (`E-MODEL-INVALID`) for a model that takes no mask of its caller."""
    base = rollout.unwrap_base(model)
    ids_BT = torch.zeros((1, 3), dtype=torch.long, device=base.device)
    batch = {"input_ids": ids_BT, "attention_mask": torch.ones_like(ids_BT)}
    try:
        with evaluating(base):
            Thinker(base, head, ThoughtSettings(num_tokens=1, num_ahead=1, num_thoughts=1, temperature=0)).think(
                batch, find_positions(ids_BT, 1)
            )
    except Exception as error:  # each architecture fails in its own way
        raise InvalidInput(
            f"{type(base).__name__} cannot think at all positions at once.",
            why=f"It does not take the mask of parallel thoughts: {' '.join(str(error).split())[:200]}",
            do="Use a base such as a Llama, a Qwen or a GPT-2.",
            code="E-MODEL-INVALID",
        ) from error


def require_room(model: Any, length: int, added: int) -> None:
    """Raise `InvalidInput` (`E-STEP`) where a thought behind so many tokens has positions that the model has not."""
    context, window = find_context(rollout.unwrap_base(model).config), rollout.find_window(model)
    # A layer with a window has neither the diagonal mask beyond it nor a cache that forgets a thought again.
    if window is not None and (context is None or window - 1 < context):
        context = window - 1
    if context is not None and length + added > context:
        raise InvalidInput(
            f"A thought after {length} tokens takes {added} positions, and the model has "
            f"{context}{' in the window of its layers' if window is not None and context == window - 1 else ''}.",
            do=f"Use rows and answers of {context - added} tokens at most (hyperparameters.max_length), or shorter "
            "thoughts.",
            code="E-STEP",
        )


def loss(
    _batch: Batch, policy: Scores, _reference: Scores | None, config: TrainerConfig
) -> tuple[torch.Tensor, Metrics]:
    """Half of both cross-entropies and the policy loss, summed over the labelled tokens."""
    assert isinstance(config.stage, SftSettings), config.stage
    assert isinstance(config.stage.latent, QuietStarSettings), config.stage.latent
    names = {"base": "base_loss", "mixed": "thought_loss", "gain": "thought_gain", "weight": "thought_weight"}
    metrics = {metric: policy[name].detach() for name, metric in names.items()}
    return quiet_loss(policy, thought_settings(config.stage.latent)), metrics


QUIET_STAR = LatentSpec(prepare, stage)
