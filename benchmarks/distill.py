"""On-policy distillation against imitation: which student is nearer to its teacher after the same optimizer steps?

    python -m benchmarks.distill [--steps 150] [--seeds 3]

A toy teacher is trained on sentences first. Two students with the same weights, rows, order and steps then learn: one
by stage sft from the rows, one by stage distill (GKD) from the teacher. Measured is KL(teacher || student) in nats per
token, on held-out rows and on what the student itself writes, where imitation alone was never corrected.

The students have 16 rows: a teacher knows more than so few rows say. With 128 rows of this toy imitation was nearer
after the same steps (docs/dev/log.md).
"""

from __future__ import annotations

import argparse
import copy
import json
import random
from collections.abc import Sequence
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from trainyard.data.rows import Message, SftRow
from trainyard.spec.axes.stages import Stage
from trainyard.spec.training import TrainerConfig
from trainyard.testing.tiny import TEXT, build_tokenizer
from trainyard.train.contracts import Batch, Encoded, Generated, Head, Sampling
from trainyard.train.losses import distill
from trainyard.train.losses.table import STAGES
from trainyard.train.model.sampling import sample

TOKENIZER = build_tokenizer([TEXT * 20])
PAD = int(TOKENIZER.pad_token_id)
WORDS = ["node", "chain", "trainer", "adapter", "documents", "pairs", "answer", "base", "token", "list", "fox", "dog"]
TEACHER_STEPS, BATCH, ROWS, HELD_OUT, ANSWER_TOKENS = 150, 16, 16, 64, 16
RATE = 3e-3


def toy_rows(seed: int, count: int) -> list[SftRow]:
    """Questions of two words; the answer repeats them with a word that follows at random."""
    dice = random.Random(seed)
    rows = []
    for _ in range(count):
        first, second, third = (dice.choice(WORDS) for _ in range(3))
        answer = Message("assistant", f"the {first} reads the {second} and the {third}")
        rows.append(SftRow([Message("user", f"{first} {second}?"), answer]))
    return rows


def toy_model(seed: int, hidden: int) -> Any:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(TOKENIZER), hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=128,
        pad_token_id=PAD, eos_token_id=TOKENIZER.eos_token_id, bos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


class Pair:
    """Who writes completions: the student and its teacher."""

    context = 128

    def __init__(self, student: Any, teacher: Any) -> None:
        self.student, self.teacher = student, teacher

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling | None = None) -> list[Generated]:
        with torch.no_grad():
            return sample(self.student, TOKENIZER, prompts, sampling or Sampling())

    def generate_by_reference(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Generated]:
        with torch.no_grad():
            return sample(self.teacher, TOKENIZER, prompts, sampling)


def config_of(stage: Any) -> TrainerConfig:
    return TrainerConfig(stage=stage, hyperparameters={"max_length": 64})


GKD = config_of(Stage.DISTILL.settings(teacher="teacher", beta=0.5, lmbda=0.5, max_completion_length=ANSWER_TOKENS))
SFT = config_of(Stage.SFT.settings())
FORWARD_KL = config_of(Stage.DISTILL.settings(teacher="teacher", beta=0.0, lmbda=0.0))
OWN_TEXT = config_of(
    Stage.DISTILL.settings(teacher="teacher", beta=0.0, lmbda=1.0, max_completion_length=ANSWER_TOKENS)
)


def encoded(seed: int, count: int) -> list[Encoded]:
    return list(STAGES[Stage.SFT].encode(toy_rows(seed, count), TOKENIZER, SFT)[0])


def train(student: Any, teacher: Any | None, config: TrainerConfig, examples: list[Encoded], steps: int) -> Any:
    """Train the student for a number of steps of 16 rows, in the same order for every stage."""
    stage, optimizer = STAGES[config.stage.type], torch.optim.AdamW(student.parameters(), lr=RATE, weight_decay=0.0)
    for step in range(steps):
        at = step * BATCH % (len(examples) - BATCH + 1)
        batch = stage.collate(examples[at : at + BATCH], PAD)
        if stage.draw is not None:
            batch = stage.draw(Pair(student, teacher), batch, config, PAD, f"0:{step}:0")
        with torch.no_grad():
            reference = stage.score(teacher, batch, Head.FULL) if teacher is not None else None
        total, _ = stage.loss(batch, stage.score(student, batch, Head.FULL), reference, config)
        optimizer.zero_grad()
        (total / stage.units(batch)).backward()
        optimizer.step()
    return student


def mean_kl(student: Any, teacher: Any, batch: Batch) -> float:
    """KL(teacher || student) in nats per labelled token."""
    stage = STAGES[Stage.DISTILL]
    with torch.no_grad():
        scores = [stage.score(model, batch, Head.FULL) for model in (student, teacher)]
        total, _ = stage.loss(batch, *scores, FORWARD_KL)
    return total.item() / stage.units(batch)


def measure(student: Any, teacher: Any, held_out: list[Encoded]) -> dict[str, float]:
    batch = STAGES[Stage.DISTILL].collate(held_out, PAD)
    samples = distill.draw(Pair(student, teacher), batch, OWN_TEXT, PAD, "held-out")
    return {"held_out": mean_kl(student, teacher, batch), "own_text": mean_kl(student, teacher, samples)}


def compare(seed: int, steps: int, teacher_steps: int = TEACHER_STEPS) -> dict[str, dict[str, float]]:
    """Distance from the teacher, by stage, of two students that began with the same weights."""
    teacher = train(toy_model(seed, 64), None, SFT, encoded(seed, 512), teacher_steps)
    student, examples, held_out = toy_model(seed + 1, 32), encoded(seed + 2, ROWS), encoded(seed + 3, HELD_OUT)
    return {
        "untrained": measure(student, teacher, held_out),
        "sft": measure(train(copy.deepcopy(student), None, SFT, examples, steps), teacher, held_out),
        "gkd": measure(train(copy.deepcopy(student), teacher, GKD, examples, steps), teacher, held_out),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--steps", type=int, default=150)
    arguments.add_argument("--seeds", type=int, default=3)
    args = arguments.parse_args()
    for seed in range(args.seeds):
        print(json.dumps({"seed": seed, "steps": args.steps, **compare(10 * seed, args.steps)}), flush=True)


if __name__ == "__main__":
    main()
