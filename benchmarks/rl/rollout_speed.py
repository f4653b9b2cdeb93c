"""How many tokens a CPU-second do rollouts draw, next to transformers' `generate` as TRL's GRPOTrainer calls it?

    python -m benchmarks.rl rollout_speed [--seed 0] [--share 1.0]

Sixteen prompts are answered eight times each, with up to 64 tokens that end at random after 40 on average. Prompts have
equal lengths, or lengths of 1 to 4, or of 1 to 10. TRL pads them together on the left, once for each completion; here
those of similar length are drawn together, a prompt is computed once for its completions, and rows that have ended
leave the batch. Both draw the same number of completions at temperature 1; tokens up to the end are counted.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from statistics import geometric_mean, median
from typing import Any

import torch
from transformers import GenerationConfig

from benchmarks.rl.toy import rounded, toy_config, toy_policy, toy_tokenizer, toy_trainer
from trainyard.spec.axes.stages import Stage
from trainyard.train.contracts import Generated, Sampling
from trainyard.train.model.sampling import sample
from trainyard.train.rl.drawing import complete_prompts

VOCABULARY, LONGEST, GROUP, PROMPTS, NEW = 4096, 256, 8, 16, 64
ENDS = tuple(range(1, 103))
"""End tokens: one in forty of an even draw."""
SPREADS = {"equal": 1, "1_to_4": 4, "1_to_10": 10}
ROUNDS = 3
SETTINGS: dict[str, Any] = {
    "rewards": [{"type": "exact_match"}], "num_generations": GROUP, "max_completion_length": NEW,
}  # fmt: skip
TOKENIZER = toy_tokenizer(["pad", "end", *(f"w{at}" for at in range(2, VOCABULARY))])
Draw = Callable[[Any, Sequence[list[int]], int], int]
"""(model, prompts, seed) -> tokens that were drawn."""


class Writer:
    """What a rollout needs of a session."""

    def __init__(self, model: Any) -> None:
        self.model, self.context = model, None

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling | None = None) -> list[Generated]:
        with torch.no_grad():
            return sample(self.model, TOKENIZER, prompts, sampling or Sampling())

    def generate_by_reference(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Generated]:
        raise NotImplementedError


def run_ours(model: Any, prompts: Sequence[list[int]], seed: int) -> int:
    """Tokens drawn by a rollout."""
    config = toy_trainer(Stage.GRPO.settings(**SETTINGS), max_steps=1, batch_size=PROMPTS * GROUP, seed=seed)
    examples = [{"input_ids": prompt, "answer": "", "question": ""} for prompt in prompts]
    return sum(
        completion.row.num_learned for completion in complete_prompts(Writer(model), examples, config, f"{seed}")
    )


def run_transformers(model: Any, prompts: Sequence[list[int]], seed: int) -> int:
    """Tokens drawn by `generate` on prompts that are padded together, each repeated for its completions."""
    torch.manual_seed(seed)
    width = max(map(len, prompts))
    rows = [prompt for prompt in prompts for _ in range(GROUP)]
    ids_BT = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    mask_BT = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    generation_config = GenerationConfig(
        max_new_tokens=NEW, do_sample=True, pad_token_id=0, eos_token_id=list(ENDS), temperature=1.0, top_p=1.0, top_k=0
    )
    with torch.no_grad():
        drawn_BT = model.generate(input_ids=ids_BT, attention_mask=mask_BT, generation_config=generation_config)[
            :, width:
        ]
    ended_BT = torch.isin(drawn_BT, torch.tensor(ENDS))
    return int((ended_BT.cumsum(1) - ended_BT.long() == 0).sum())


def speed(draw: Draw, model: Any, prompts: Sequence[list[int]], seed: int) -> float:
    """Tokens a CPU-second."""
    began = time.process_time()
    return draw(model, prompts, seed) / (time.process_time() - began)


def compare(spread: int, rounds: int, first: int) -> dict[str, float]:
    """The medians of both over rounds that take turns, and their ratio."""
    model = toy_policy(toy_config(VOCABULARY, hidden=256, layers=4, context=512), 0).eval()
    model.generation_config.eos_token_id = list(ENDS)
    dice = random.Random(0)
    shortest = LONGEST // spread
    lengths = [round(shortest * math.exp(math.log(spread) * at / (PROMPTS - 1))) for at in range(PROMPTS)]
    prompts = [[dice.randrange(103, VOCABULARY) for _ in range(length)] for length in lengths]
    rates: dict[str, list[float]] = {"ours": [], "theirs": []}
    for seed in range(rounds):
        order: list[tuple[str, Draw]] = [("ours", run_ours), ("theirs", run_transformers)]
        for name, draw in order if seed % 2 else order[::-1]:
            rates[name].append(speed(draw, model, prompts, first + seed))
    values = {name: median(repeats) for name, repeats in rates.items()}
    return {**values, "ratio": values["ours"] / values["theirs"]}


def measure(seed: int, *, share: float = 1.0) -> dict[str, Any]:
    """Both speeds and their ratio, for each spread of prompt lengths."""
    result: dict[str, float] = {}
    for name, spread in SPREADS.items():
        values = compare(spread, max(1, round(ROUNDS * share)), seed)
        result |= {f"{name}_{key}": value for key, value in values.items()}
    ratios = [result[f"{name}_ratio"] for name in SPREADS]
    mean = {"geometric_mean": geometric_mean(ratios), "least": min(ratios)}
    return {"task": "rollout_speed", "seed": seed, **rounded({**result, **mean})}
