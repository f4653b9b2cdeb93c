"""Quiet-STaR: a thought after every token, for all positions at once (arXiv 2403.09629).

    x_t -> start, sampled tokens, end -> h'_t          h_mix = (1 - w) h + w h',  w = MLP([h; h'])
    loss = 1/2 NLL_base + 1/2 NLL_mix + weight * policy
    r_t  = sum_i [log p_mix(x_t+i) - log p_base(x_t+i)], minus its mean over the thoughts of the position
    policy = - sum_t r_t sum_j log pi(thought token j)

Each step of the thoughts is one pass: one column per thinking position, which sees the row up to its token and the
earlier columns of its own thought. The last layer of the MLP begins at zero: w = 0, and the model is the base. Start
and end are vectors and not tokens, so the vocabulary stays and no answer can contain them. A label counts once: its
NLL_mix is the mean over the positions that predict it and over the thoughts.

Shapes: B rows, T tokens, N thinking positions, A tokens ahead, P thoughts per position (Q = B * P rows, those of a row
in sequence), S columns seen, D hidden, V vocabulary, L labels that are predicted after thoughts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

from trainyard.train.contracts import IGNORED
from trainyard.train.model.head import Output, read_output

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class ThoughtSettings:
    """Length and learning of thoughts. The paper: 8 to 10 tokens, 4 ahead, 2 thoughts."""

    num_tokens: int = 8
    """Sampled tokens of a thought, between start and end."""
    num_ahead: int = 4
    """True tokens behind a thought that its reward looks at."""
    num_thoughts: int = 2
    """Thoughts of each position; their mean reward is the baseline."""
    temperature: float = 1.0
    """Of sampling; 0 is greedy."""
    policy_temperature: float = 3.0
    """Of the log-probabilities in the policy loss."""
    policy_weight: float = 1.0
    only_positive: bool = True
    """Whether thoughts below the mean are not pushed down (the official code)."""


class ThoughtHead(torch.nn.Module):
    """Weights that Quiet-STaR adds to a model: the vectors of start and end, and the weight of a thought."""

    def __init__(self, hidden_size: int, embedding_scale: float = 1.0) -> None:
        super().__init__()
        self.embedding_scale = embedding_scale
        """The vectors are stored divided by it: they learn that many times faster (the official code has 100)."""
        self.start_D = torch.nn.Parameter(torch.zeros(hidden_size))
        self.end_D = torch.nn.Parameter(torch.zeros(hidden_size))
        last = torch.nn.Linear(hidden_size, 1, bias=False)
        torch.nn.init.zeros_(last.weight)
        self.mixing = torch.nn.Sequential(
            torch.nn.Linear(2 * hidden_size, hidden_size), torch.nn.ReLU(),
            torch.nn.Linear(hidden_size, hidden_size), torch.nn.ReLU(), last,
        )  # fmt: skip

    def begin_with(self, embedding_D: torch.Tensor) -> None:
        """Let start and end begin as the embedding of a token (the official code takes `---`)."""
        with torch.no_grad():
            self.start_D.copy_(embedding_D / self.embedding_scale)
            self.end_D.copy_(embedding_D / self.embedding_scale)

    @property
    def start(self) -> torch.Tensor:
        """Return what begins a thought, as an input of the model: (D,)."""
        return self.start_D * self.embedding_scale

    @property
    def end(self) -> torch.Tensor:
        return self.end_D * self.embedding_scale

    def weight(self, base_ND: torch.Tensor, thought_ND: torch.Tensor) -> torch.Tensor:
        """Share of the thought in the hidden state, any number: (..., 1)."""
        states_ND = torch.cat([base_ND, thought_ND], dim=-1).to(self.start_D.dtype)
        weight_ND: torch.Tensor = self.mixing(states_ND)
        return weight_ND

    def mix(self, base_ND: torch.Tensor, thought_ND: torch.Tensor) -> torch.Tensor:
        """Return the hidden state that the next token is predicted from."""
        weight = self.weight(base_ND, thought_ND)
        return ((1 - weight) * base_ND + weight * thought_ND).to(base_ND.dtype)


@dataclass(frozen=True)
class Positions:
    """Positions of thoughts in a batch, and their targets."""

    at_BN: torch.Tensor
    """Token after which each thought begins."""
    thinks_BN: torch.Tensor
    """False fills up rows with fewer positions."""
    target_BNA: torch.Tensor
    """Labels 1, 2, ... tokens ahead; IGNORED where there is none."""


def find_positions(labels_BT: torch.Tensor, num_ahead: int) -> Positions:
    """Return every position with a label among the next tokens thinks."""
    length = labels_BT.shape[1]
    padded = torch.nn.functional.pad(labels_BT, (0, num_ahead), value=IGNORED)
    ahead_BTA = torch.stack([padded[:, 1 + i : 1 + i + length] for i in range(num_ahead)], dim=-1)
    thinks_BT = (ahead_BTA != IGNORED).any(dim=-1)
    count = max(1, int(thinks_BT.sum(dim=1).max()))
    at_BN = (~thinks_BT).long().argsort(dim=1, stable=True)[:, :count]
    target_BNA = ahead_BTA.gather(1, at_BN[..., None].expand(-1, -1, num_ahead))
    return Positions(at_BN, thinks_BT.gather(1, at_BN), target_BNA)


def diagonal_mask(mask_BT: torch.Tensor, at_BN: torch.Tensor, steps: int) -> torch.Tensor:
    """Return which columns the thoughts' newest step sees (B, 1, N, T + steps * N): its row so far and its own
    thought.
    """
    columns_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    row_BNT = (columns_T <= at_BN[..., None]) & mask_BT.bool()[:, None]
    own_NN = torch.eye(at_BN.shape[1], dtype=torch.bool, device=mask_BT.device)
    return torch.cat([row_BNT, own_NN.repeat(1, steps).expand(len(mask_BT), -1, -1)], dim=-1)[:, None]


def kernel_mask(visible: torch.Tensor, base: Any) -> torch.Tensor:
    """Return a mask as the model's attention takes it: True for visible, or a number that is added (eager)."""
    if base.config._attn_implementation != "eager":
        return visible
    return torch.zeros(visible.shape, dtype=base.dtype, device=visible.device).masked_fill(
        ~visible, torch.finfo(base.dtype).min
    )


@dataclass
class Thoughts:
    """Thoughts of a model at the positions of a batch."""

    base_BTD: torch.Tensor
    """Hidden states without thoughts."""
    ahead_QNAD: torch.Tensor
    """Hidden states behind a thought and 0, 1, ... true tokens."""
    tokens_QNJ: torch.Tensor
    """The sampled tokens."""
    logprobs_QNJ: torch.Tensor
    """Of it, at the policy's temperature."""


class Thinker:
    """A model that thinks at positions of a batch; one pass per step of the thoughts."""

    def __init__(self, base: Any, head: ThoughtHead, settings: ThoughtSettings) -> None:
        self.base, self.head, self.settings = base, head, settings
        self.output: Output = read_output(base)

    def think(self, batch: Batch, positions: Positions) -> Thoughts:
        """Sample `num_thoughts` thoughts at each position, from torch's generators, and read the tokens ahead."""
        settings, embed = self.settings, self.base.get_input_embeddings()
        base_BTD, cache = self._read(batch)
        cache.batch_repeat_interleave(settings.num_thoughts)
        columns = Columns(self.base, batch, positions, settings.num_thoughts, cache)
        inputs_QND = self.head.start.to(base_BTD.dtype).expand(*columns.shape, -1)
        tokens, logprobs = [], []
        for _ in range(settings.num_tokens):
            token_QN, logprob_QN = self._sample(columns.run(inputs_QND))
            tokens.append(token_QN)
            logprobs.append(logprob_QN)
            inputs_QND = embed(token_QN)
        if tokens:
            columns.run(inputs_QND)
        ahead = [columns.run(self.head.end.to(base_BTD.dtype).expand(*columns.shape, -1))]
        ahead += [columns.run(embed(columns.true_tokens(i))) for i in range(1, settings.num_ahead)]
        none = base_BTD.new_zeros(*columns.shape, 0)
        return Thoughts(
            base_BTD,
            torch.stack(ahead, dim=2),
            torch.stack(tokens, dim=-1) if tokens else none.long(),
            torch.stack(logprobs, dim=-1) if tokens else none,
        )

    def _read(self, batch: Batch) -> tuple[torch.Tensor, DynamicCache]:
        model_inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "position_ids") if name in batch}
        cache = DynamicCache()
        output = self.base.base_model(**model_inputs, past_key_values=cache, use_cache=True)
        return output.last_hidden_state, cache

    def _sample(self, hidden_QND: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        settings, logits_QNV = self.settings, self.output(hidden_QND)
        token_QN = draw_tokens(logits_QNV.detach(), settings.temperature)
        logprobs_QNV = torch.log_softmax(logits_QNV / settings.policy_temperature, dim=-1)
        return token_QN, logprobs_QNV.gather(-1, token_QN[..., None])[..., 0]


def draw_tokens(logits_QNV: torch.Tensor, temperature: float, generator: torch.Generator | None = None) -> torch.Tensor:
    """Return one token per position: (Q, N)."""
    if temperature == 0:
        return logits_QNV.argmax(dim=-1)
    probs_MV = torch.softmax(logits_QNV / temperature, dim=-1).flatten(0, 1)
    return torch.multinomial(probs_MV, 1, generator=generator).view(logits_QNV.shape[:2])


class Columns:
    """The columns of thoughts behind a row in the cache."""

    def __init__(self, base: Any, batch: Batch, positions: Positions, repeats: int, cache: DynamicCache) -> None:
        ids_BT = batch["input_ids"]
        self.base, self.cache, self.steps = base, cache, 0
        mask_BT = batch.get("attention_mask", torch.ones_like(ids_BT))
        self.ids_QT = ids_BT.repeat_interleave(repeats, 0)
        self.mask_QT, self.at_QN = mask_BT.repeat_interleave(repeats, 0), positions.at_BN.repeat_interleave(repeats, 0)
        counted_BT = (mask_BT.cumsum(1) - 1).clamp(min=0)
        positions_BT = batch.get("position_ids", counted_BT).expand_as(ids_BT)
        self.first_QN = positions_BT.gather(1, positions.at_BN).repeat_interleave(repeats, 0) + 1

    @property
    def shape(self) -> tuple[int, int]:
        return self.at_QN.shape[0], self.at_QN.shape[1]

    def run(self, inputs_QND: torch.Tensor) -> torch.Tensor:
        """Append one column to every thought; returns its hidden states (Q, N, D)."""
        self.steps += 1
        hidden_QND: torch.Tensor = self.base.base_model(
            inputs_embeds=inputs_QND,
            attention_mask=kernel_mask(diagonal_mask(self.mask_QT, self.at_QN, self.steps), self.base),
            position_ids=self.first_QN + self.steps - 1,
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state
        return hidden_QND

    def true_tokens(self, ahead: int) -> torch.Tensor:
        """Return the row's token that many positions later (the last one where the row ends): (Q, N)."""
        return self.ids_QT.gather(1, (self.at_QN + ahead).clamp(max=self.ids_QT.shape[1] - 1))
