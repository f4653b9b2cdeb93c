"""What the toy tasks share: a small GPT-2, training at a fixed stage of the curriculum, and answers that are counted.

Rows are tokens already, as `train/latent/rows.py` makes them. They are new ones in every step, so no row is seen
twice; the rows of an evaluation have a generator of their own.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from trainyard.spec.axes.latent import LatentSettings
from trainyard.spec.axes.stages import Stage
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import Encoded, Head, Sampling, StageSpec
from trainyard.train.latent import rows as latent_rows
from trainyard.train.latent import table
from trainyard.train.losses.table import STAGES
from trainyard.train.model.sampling import PLAIN, choose_reader, sample

Draw = Callable[[random.Random], Encoded]
PAD = 0
EVALUATED, AT_ONCE = 512, 128
BATCH, RATE = 64, 1e-3
INIT = 0.1
"""Deviation of the first weights. With GPT-2's 0.02, meant for wider models, pointer chasing with its steps in words is
at 0.35 after 300 steps; with 0.1 it is at 1.0."""


@dataclass(frozen=True)
class Learning:
    """AdamW's settings, and how the rate begins."""

    rate: float = RATE
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    warmup_steps: int = 0


@dataclass(frozen=True)
class Task:
    """Rows that are drawn, and the sizes that they need."""

    draw: Draw
    vocabulary: int
    positions: int
    end_id: int | None = None
    """Where an answer has more than one token."""
    held_out: Draw | None = None
    """Rows that are never drawn for training, where there are few different ones."""
    learning: Learning = Learning()


class NumberWriter:
    """Stands in for a tokenizer: tokens are numbers."""

    pad_token_id = PAD

    def __init__(self, end_id: int | None) -> None:
        self.eos_token_id = end_id

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return " ".join(map(str, ids))


def toy_model(task: Task, seed: int, *, layers: int = 2, hidden: int = 64, heads: int = 4) -> Any:
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=task.vocabulary, n_embd=hidden, n_layer=layers, n_head=heads, n_positions=task.positions,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=task.end_id,
        initializer_range=INIT, tie_word_embeddings=False,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def stage_of(latent: dict[str, Any] | None) -> tuple[StageSpec, TrainerConfig]:
    options = {} if latent is None else {"latent": latent}
    config = TrainerConfig(stage=Stage.SFT.settings(**options), method="full")
    return STAGES[Stage.SFT].chosen(config), config


def with_technique(model: Any, latent: dict[str, Any], seed: int) -> LatentSettings:
    """Attach a technique in place of the one that the model has; weights with the same shape are taken over."""
    settings = stage_of(latent)[1].stage.technique
    assert settings is not None
    before = getattr(model, table.LATENT, None)
    technique = table.attach(model, None, settings, seed=seed)
    if before is not None and technique.state_dict().keys() == before.state_dict().keys():
        technique.load_state_dict(before.state_dict())
    return settings


def plain(example: Encoded, *, steps: bool) -> Encoded:
    """An example for stage sft: with its steps in words, or with the answer alone."""
    learned = (example[latent_rows.STEPS] if steps else []) + example[latent_rows.ANSWER]
    row = latent_rows.build_row(example[latent_rows.PROMPT], [], learned)
    return {name: row[name] for name in ("input_ids", "labels")}


def train(
    model: Any,
    task: Task,
    latent: dict[str, Any] | None,
    num_steps: int,
    *,
    seed: int,
    epoch: int = 0,
    steps_in_words: bool = False,
    falls: bool = False,
) -> float:
    """Train with rows as they are in an epoch; a new optimizer each time. Returns the mean loss of the last steps.

    Where the rate `falls`, it ends near 0.
    """
    (stage, config), learning = stage_of(latent), task.learning
    model.train()
    optimizer = torch.optim.AdamW(
        [value for value in model.parameters() if value.requires_grad],
        lr=learning.rate, betas=learning.betas, weight_decay=learning.weight_decay,
    )  # fmt: skip
    dice, losses = random.Random(f"train:{seed}:{epoch}"), []
    for step in range(num_steps):
        share = min(1.0, (step + 1) / max(1, learning.warmup_steps))
        optimizer.param_groups[0]["lr"] = learning.rate * share * (max(0.02, 1 - step / num_steps) if falls else 1.0)
        examples = [task.draw(dice) for _ in range(BATCH)]
        if stage.at_epoch is not None:
            batch_examples = [
                stage.at_epoch(example, step * BATCH + index, epoch) for index, example in enumerate(examples)
            ]
        else:
            batch_examples = (
                examples if latent is not None else [plain(example, steps=steps_in_words) for example in examples]
            )
        batch = stage.collate(batch_examples, PAD)
        total, _ = stage.loss(batch, stage.score(model, batch, Head.FULL), None, config)
        loss = total / stage.units(batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
    last = losses[-20:]
    return sum(last) / max(1, len(last))


@dataclass(frozen=True)
class Answered:
    """How held-out rows were answered."""

    accuracy: float
    tokens: float
    """Passes that an answer took on average: thoughts, steps in words and the answer itself."""
    seconds: float
    """Of one answer, in batches."""


def answer(
    model: Any,
    task: Task,
    *,
    seed: int,
    max_tokens: int,
    thoughts: int = 0,
    latent: bool = True,
    count: int = EVALUATED,
) -> Answered:
    """Answer held-out rows greedily; right is one whose last tokens are the answer's."""
    model.eval()
    dice = random.Random(f"evaluate:{seed}")
    examples = [(task.held_out or task.draw)(dice) for _ in range(count)]
    sampling = Sampling(max_new_tokens=max_tokens, temperature=0, stop_ids=(task.end_id,) if task.end_id else ())
    right, tokens, started = 0, 0, time.perf_counter()
    for at in range(0, count, AT_ONCE):
        part = examples[at : at + AT_ONCE]
        prompts = [example[latent_rows.PROMPT] for example in part]
        with torch.no_grad():
            reader = choose_reader(model) if latent else PLAIN
            completions = sample(model, NumberWriter(task.end_id), prompts, sampling, reader=reader)
        for example, completion in zip(part, completions, strict=True):
            answer_ids = example[latent_rows.ANSWER]
            right += completion.ids[-len(answer_ids) :] == answer_ids
            tokens += len(completion.ids) + thoughts
    return Answered(right / count, tokens / count, (time.perf_counter() - started) / count)
