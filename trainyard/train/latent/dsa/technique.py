"""Sparse attention as a technique of stage sft.

    granularity: token   epochs of warm-up: KL of the indexer alone, attention dense, everything else as it was
                         epochs after it: cross-entropy with attention over the selected tokens + KL over them
    granularity: head    cross-entropy with the routed heads + their balance

Rows, labels and prompts are those of stage sft. An evaluation computes what is served: the sparse phase.

Shapes: B rows, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from trainyard.errors import InvalidInput
from trainyard.spec.axes.latent import DsaSettings, HeadChoice, LatentSettings, TokenChoice
from trainyard.spec.axes.stages import SftSettings
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import Batch, Encoded, Head, Metrics, Scores, StageSpec
from trainyard.train.latent import rollout
from trainyard.train.latent.contract import LatentModule, LatentSpec, get_latent_module
from trainyard.train.latent.dsa.attention import AttentionPhase, Chooser, HeadRouter, HeadRouting, Measures, Selection
from trainyard.train.latent.dsa.indexer import IndexerShape, LightningIndexer
from trainyard.train.latent.dsa.layers import AttentionLayer, Installed, find_layers, install
from trainyard.train.model.head import label_logprobs
from trainyard.train.model.sampling import PLAIN, Reading

PROMPT_BLOCK = 1024
"""Tokens of a prompt that are read at once: a mask has that many rows, and not one for each token of the prompt."""
WARMING = "warming_up"
"""Of an example and of a batch: whether the indexer learns alone."""


class SparseAttention(LatentModule):
    """An indexer or a router for each full-attention layer of a model."""

    settings: DsaSettings

    def __init__(self, model: Any, settings: DsaSettings) -> None:
        super().__init__(settings)
        self.layers = find_layers(rollout.unwrap_base(model))
        self.choosers = torch.nn.ModuleList(make_chooser(layer, settings) for layer in self.layers)
        choice = settings.granularity
        self.shared = Selection(choice.top_k if isinstance(choice, TokenChoice) else 0)
        self._installed: Installed | None = None

    def attach(self, model: Any) -> None:
        super().attach(model)
        self._installed = self._install(model)

    def detach(self, model: Any) -> None:
        assert self._installed is not None, "it is attached"
        self._installed.remove()
        self._installed = None
        super().detach(model)

    def open(self, model: Any, ids_BT: torch.Tensor, mask_BT: torch.Tensor) -> tuple[Reading, torch.Tensor]:
        reading = Reading(None, mask_BT[:, :0])
        with self.reading(model):
            for start in range(0, ids_BT.shape[1], PROMPT_BLOCK):
                seen_BT = mask_BT[:, : start + PROMPT_BLOCK]
                block_BT = ids_BT[:, start : start + PROMPT_BLOCK]
                reading, logits_BV = PLAIN.read(model, Reading(reading.cache, seen_BT), block_BT)
        return reading, logits_BV

    def step(self, model: Any, reading: Reading, token_B: torch.Tensor) -> tuple[Reading, torch.Tensor]:
        with self.reading(model):
            return PLAIN.step(model, reading, token_B)

    @contextmanager
    def reading(self, model: Any) -> Iterator[None]:
        """The model selects while the block runs, also one that others use without selection."""
        if self._installed is not None:
            yield
            return
        installed = self._install(model)
        try:
            yield
        finally:
            installed.remove()

    def _install(self, model: Any) -> Installed:
        choosers: list[Any] = list(self.choosers)
        return install(rollout.unwrap_base(model), self.layers, choosers, self.shared)


def make_chooser(layer: AttentionLayer, settings: DsaSettings) -> Chooser:
    """Return a new indexer with random weights, or a router that begins with equal probabilities."""
    choice = settings.granularity
    if isinstance(choice, HeadChoice):
        if choice.active > layer.num_heads:
            raise InvalidInput(
                f"latent.granularity.active is {choice.active}, and {layer.name} has {layer.num_heads} heads.",
                do=f"Use at most {layer.num_heads}.",
                code="E-MODEL-INVALID",
            )
        return HeadRouter(layer.hidden_size, HeadRouting(layer.num_heads, choice.shared, choice.active))
    assert isinstance(choice, TokenChoice), choice
    indexer = LightningIndexer(layer.hidden_size, IndexerShape(choice.index_heads, choice.index_dim))
    for weight in (indexer.wq_b.weight, indexer.wk.weight, indexer.weights_proj.weight):
        torch.nn.init.normal_(weight, std=layer.hidden_size**-0.5)
    return indexer


def prepare(model: Any, _tokenizer: Any, settings: LatentSettings) -> SparseAttention:
    assert isinstance(settings, DsaSettings), settings
    return SparseAttention(model, settings)


def get_settings(config: TrainerConfig) -> DsaSettings:
    assert isinstance(config.stage, SftSettings), config.stage
    assert isinstance(config.stage.latent, DsaSettings), config.stage.latent
    return config.stage.latent


def stage(base: StageSpec, config: TrainerConfig) -> StageSpec:
    """Stage sft whose batches say in which phase they are computed."""
    warmup = get_settings(config).granularity.warmup_epochs

    def at_epoch(example: Encoded, _row: int, epoch: int) -> Encoded:
        return {**example, WARMING: [int(epoch < warmup)]}

    def collate(examples: Sequence[Encoded], pad_id: int) -> Batch:
        flags_B = torch.tensor([example[WARMING][0] if WARMING in example else 0 for example in examples])
        return {**base.collate(examples, pad_id), WARMING: flags_B}

    def loss(
        batch: Batch, policy: Scores, reference: Scores | None, config: TrainerConfig
    ) -> tuple[torch.Tensor, Metrics]:
        total, metrics = base.loss(batch, policy, reference, config)
        return join_losses(total, metrics, policy, base.units(batch), config)

    return replace(
        base, facts=replace(base.facts, packable=False), collate=collate, score=score, loss=loss, at_epoch=at_epoch
    )


def score(model: Any, batch: Batch, head: Head) -> Scores:
    """`logprobs_N` of the labels, and of the selection its loss and shares per token, as means over the layers."""
    attention: SparseAttention = get_latent_module(model)
    warming_up = WARMING in batch and bool(batch[WARMING].any())
    with attention.shared.measured(AttentionPhase.WARMUP if warming_up else AttentionPhase.SPARSE) as measures:
        logprobs_N = label_logprobs(model, batch, head).logprobs_N
    scores = {"logprobs_N": logprobs_N.detach() if warming_up else logprobs_N}
    return {**scores, WARMING: torch.tensor(warming_up), **mean_measures(measures)}


def mean_measures(measures: Sequence[Measures]) -> Scores:
    """Means over the tokens and layers of a pass."""
    return {
        name: torch.stack([getattr(each, name) / each.tokens for each in measures]).mean()
        for name in ("loss", "kept", "recall")
    }


def join_losses(
    total: torch.Tensor, metrics: Metrics, policy: Scores, units: int, config: TrainerConfig
) -> tuple[torch.Tensor, Metrics]:
    """Return the loss of stage sft and that of the selection per token, which counts once per unit; while the indexer
    warms
    up, the latter alone."""
    choice = get_settings(config).granularity
    selection = policy["loss"] * units
    warming_up = bool(policy[WARMING])
    measured = {
        **metrics,
        "answer_loss": total.detach(),
        choice.loss_name: selection.detach(),
        "attended_share": policy["kept"].detach() * units,
    }
    if warming_up:
        measured["attention_recall"] = policy["recall"].detach() * units
    return choice.loss_weight * selection + (0.0 if warming_up else total), measured


DSA = LatentSpec(prepare, stage)
