"""CODI (Shen et al. 2025, arXiv 2502.21074): a model teaches itself to think what it can say in words.

    words       prompt, steps, answer                                 CE of steps and answer
    thoughts    prompt, <begin>, z_1 .. z_n, <end>, answer            CE of the answer
    z           projection of the hidden state before it: Linear, GELU, Linear, LayerNorm
    distance    mean over all layers of SmoothL1(s, stop(w)) / std(w), where s and w are the states of the position
                before the first token of the answer in the two rows
    loss        words_weight x words + thoughts + distance_weight x distance, each a mean within its row

No gradient of the distance reaches the words. std is that of one row's state, where the paper's code takes the whole
batch's: so a step is the same however it is cut into micro-batches. The unit is the row.

Shapes: B rows, T positions, D hidden, L layers, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from trainyard.spec.axes.latent import CodiSettings, LatentSettings
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import Batch, Encoded, Head, Metrics, Scores, StageSpec
from trainyard.train.latent import rollout, rows
from trainyard.train.latent.contract import LatentModule, LatentSpec, build_stage, build_vectors, get_latent_module
from trainyard.train.model.head import logprobs_of_hidden, read_output
from trainyard.train.model.sampling import Reading

BEGIN, END, THOUGHT = 1, 2, 3
WORDS = "words/"
"""Before the names of the tensors of the rows in words."""


class CodiModule(LatentModule):
    """Vectors for where thoughts begin and end, and the projection that makes a thought of a hidden state."""

    settings: CodiSettings

    def __init__(self, model: Any, settings: CodiSettings) -> None:
        super().__init__(settings)
        self.vectors_KD = build_vectors(model, END)
        width = self.vectors_KD.shape[1]
        inner = settings.projection or width
        self.project = nn.Sequential(
            nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width), nn.LayerNorm(width)
        )  # fmt: skip

    def layers_after_thoughts(self, model: Any, batch: Batch) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """Hidden states after the final norm (B, T, D), and of each layer those before the answer (B, D).

        All rows have the same number of thoughts in the same columns.
        """
        embeds_BTD = rollout.embed(model, batch, self.vectors_KD)
        mask_BT = batch["attention_mask"]
        columns = (batch[rollout.SLOTS] == THOUGHT).any(0).nonzero()[:, 0].tolist()
        cache = rollout.new_cache(model)
        first, after = columns[0], columns[-1] + 1
        parts_BTD = [rollout.run(model, embeds_BTD[:, :first], mask_BT[:, :first], cache)]
        for column in columns:
            thought_B1D = self.project(parts_BTD[-1][:, -1:]).to(embeds_BTD.dtype)
            parts_BTD.append(rollout.run(model, thought_B1D, mask_BT[:, : column + 1], cache))
        layers = rollout.run_layers(model, embeds_BTD[:, after:], mask_BT, cache)
        return torch.cat([*parts_BTD, layers[-1]], 1), tuple(layer_BTD[:, 0] for layer_BTD in layers)

    def open(self, model: Any, ids_BT: torch.Tensor, mask_BT: torch.Tensor) -> tuple[Reading, torch.Tensor]:
        reading, hidden_BD = rollout.open_with(model, ids_BT, mask_BT, self.vectors_KD, [BEGIN])
        for _ in range(self.settings.thoughts):
            reading, hidden_BD = rollout.think(model, reading, self.project(hidden_BD[:, None]).to(hidden_BD.dtype))
        end_B1D = self.vectors_KD[END - 1].expand(len(ids_BT), 1, -1).to(hidden_BD.dtype)
        reading, hidden_BD = rollout.think(model, reading, end_B1D)
        return reading, rollout.compute_logits(model, hidden_BD)


def score(model: Any, batch: Batch, head: Head) -> Scores:
    """`words_B`, `thoughts_B` and `distance_B`, each a mean within its row."""
    latent, output = get_latent_module(model), read_output(rollout.unwrap_base(model))
    hidden_BTD, before = latent.layers_after_thoughts(model, batch)
    spoken = {name.removeprefix(WORDS): value for name, value in batch.items() if name.startswith(WORDS)}
    embeds_BTD = model.get_input_embeddings()(spoken["input_ids"])
    layers = rollout.run_layers(model, embeds_BTD, spoken["attention_mask"])
    rows_B = torch.arange(len(embeds_BTD), device=embeds_BTD.device)
    taught = [layer_BTD[rows_B, spoken["answer_B"] - 1].detach().float() for layer_BTD in layers]
    apart = [distance(student_BTD.float(), other) for student_BTD, other in zip(before, taught, strict=True)]
    return {
        "words_B": row_means(layers[-1], spoken, output, head),
        "thoughts_B": row_means(hidden_BTD, batch, output, head),
        "distance_B": torch.stack(apart).mean(0),
    }


def row_means(hidden_BTD: torch.Tensor, batch: Batch, output: Any, head: Head) -> torch.Tensor:
    """Return the mean cross-entropy of each row: (B,)."""
    logprobs = logprobs_of_hidden(hidden_BTD, batch, output, head)
    return -logprobs.sums(len(hidden_BTD)) / logprobs.counts(len(hidden_BTD))


def distance(student_BD: torch.Tensor, teacher_BD: torch.Tensor) -> torch.Tensor:
    """SmoothL1 in units of the teacher's deviation: (B,)."""
    return functional.smooth_l1_loss(student_BD, teacher_BD, reduction="none").mean(-1) / teacher_BD.std(-1)


def loss(
    _batch: Batch, policy: Scores, _reference: Scores | None, config: TrainerConfig
) -> tuple[torch.Tensor, Metrics]:
    settings = config.stage.technique
    assert isinstance(settings, CodiSettings), settings
    sums = {name.removesuffix("_B"): value.sum() for name, value in policy.items()}
    total = settings.words_weight * sums["words"] + sums["thoughts"] + settings.distance_weight * sums["distance"]
    return total, {f"{name}_loss" if name != "distance" else name: value.detach() for name, value in sums.items()}


def arrange(example: Encoded, thoughts: int) -> Encoded:
    """Return a row with thoughts in the place of its steps."""
    return rows.build_row(example[rows.PROMPT], [BEGIN, *[THOUGHT] * thoughts, END], example[rows.ANSWER])


def collate(examples: Sequence[Encoded], pad_id: int, thoughts: int) -> Batch:
    """Return the rows with thoughts, and under `words/` the same rows with steps; `words/answer_B` is where answers
    begin.
    """
    batch = rows.fill_up_around([arrange(example, thoughts) for example in examples], pad_id)
    spoken = [
        rows.build_row(example[rows.PROMPT], [], [*example[rows.STEPS], *example[rows.ANSWER]]) for example in examples
    ]
    starts = [len(example[rows.PROMPT]) + len(example[rows.STEPS]) for example in examples]
    spoken_batch = {**rows.pad_rows(spoken, pad_id), "answer_B": torch.tensor(starts)}
    return {**batch, **{f"{WORDS}{name}": value for name, value in spoken_batch.items()}}


def units(batch: Batch) -> int:
    """Return rows."""
    return len(batch["input_ids"])


def stage(base: StageSpec, config: TrainerConfig) -> StageSpec:
    settings = config.stage.technique
    assert isinstance(settings, CodiSettings), settings
    thoughts = settings.thoughts
    form = build_stage(base, lambda example: arrange(example, thoughts), steps=True)
    return replace(
        form, collate=lambda examples, pad_id: collate(examples, pad_id, thoughts), units=units, score=score, loss=loss
    )


def prepare(model: Any, _tokenizer: Any, settings: LatentSettings) -> CodiModule:
    assert isinstance(settings, CodiSettings), settings
    return CodiModule(model, settings)


CODI = LatentSpec(prepare, stage)
