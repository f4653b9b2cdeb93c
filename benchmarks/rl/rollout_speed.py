"""How many tokens a CPU-second do rollouts draw, next to transformers' `generate` as TRL's GRPOTrainer calls it?

    python -m benchmarks.rl.rollout_speed [--rounds 3]

Sixteen prompts are answered eight times each, with up to 64 tokens that end at random after 40 on average. Prompts have
equal lengths, or lengths of 1 to 4, or of 1 to 10. TRL pads them together on the left, once for each completion; here
those of similar length are drawn together, a prompt is computed once for its completions, and rows that have ended
leave the batch. Both draw the same number of completions at temperature 1; tokens up to the end are counted.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Callable, Sequence
from statistics import geometric_mean, median
from typing import Any

import torch
from transformers import GenerationConfig

from benchmarks.rl.toy import toy_config, toy_policy, toy_tokenizer, toy_trainer
from trainyard.spec.axes.stages import Stage
from trainyard.train.rollouts.drawing import complete_prompts
from trainyard.train.session.sampling import Generated, Sampling, sample

VOCABULARY, LONGEST, GROUP, PROMPTS, NEW = 4096, 256, 8, 16, 64
ENDS = tuple(range(1, 103))
"""End tokens: one in forty of an even draw."""
SPREADS = {"equal": 1, "1:4": 4, "1:10": 10}
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


def ours(model: Any, prompts: Sequence[list[int]], seed: int) -> int:
    """Tokens drawn by a rollout."""
    config = toy_trainer(Stage.GRPO.settings(**SETTINGS), max_steps=1, batch_size=PROMPTS * GROUP, seed=seed)
    examples = [{"input_ids": prompt, "answer": "", "question": ""} for prompt in prompts]
    return sum(one.row.num_learned for one in complete_prompts(Writer(model), examples, config, f"{seed}"))


def theirs(model: Any, prompts: Sequence[list[int]], seed: int) -> int:
    """Tokens drawn by `generate` on prompts that are padded together, each repeated for its completions."""
    torch.manual_seed(seed)
    width = max(map(len, prompts))
    rows = [prompt for prompt in prompts for _ in range(GROUP)]
    ids_BT = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    mask_BT = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    asked = GenerationConfig(
        max_new_tokens=NEW, do_sample=True, pad_token_id=0, eos_token_id=list(ENDS), temperature=1.0, top_p=1.0, top_k=0
    )
    with torch.no_grad():
        drawn_BT = model.generate(input_ids=ids_BT, attention_mask=mask_BT, generation_config=asked)[:, width:]
    ended_BT = torch.isin(drawn_BT, torch.tensor(ENDS))
    return int((ended_BT.cumsum(1) - ended_BT.long() == 0).sum())


def measure(draw: Draw, model: Any, prompts: Sequence[list[int]], seed: int) -> float:
    """Tokens a CPU-second."""
    began = time.process_time()
    return draw(model, prompts, seed) / (time.process_time() - began)


def compare(spread: int, rounds: int) -> dict[str, float]:
    """The medians of both over rounds that take turns, and their ratio."""
    model = toy_policy(toy_config(VOCABULARY, hidden=256, layers=4, context=512), 0).eval()
    model.generation_config.eos_token_id = list(ENDS)
    dice = random.Random(0)
    shortest = LONGEST // spread
    lengths = [round(shortest * math.exp(math.log(spread) * at / (PROMPTS - 1))) for at in range(PROMPTS)]
    prompts = [[dice.randrange(103, VOCABULARY) for _ in range(length)] for length in lengths]
    found: dict[str, list[float]] = {"ours": [], "theirs": []}
    for seed in range(rounds):
        order: list[tuple[str, Draw]] = [("ours", ours), ("theirs", theirs)]
        for name, draw in order if seed % 2 else order[::-1]:
            found[name].append(measure(draw, model, prompts, seed))
    values = {name: median(given) for name, given in found.items()}
    return {**{name: round(value, 1) for name, value in values.items()}, "ratio": values["ours"] / values["theirs"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    ratios = []
    for name, spread in SPREADS.items():
        found = compare(spread, asked.rounds)
        ratios.append(found["ratio"])
        print(json.dumps({"lengths": name, **found}), flush=True)
    print(json.dumps({"geometric mean": geometric_mean(ratios)}), flush=True)


if __name__ == "__main__":
    main()
