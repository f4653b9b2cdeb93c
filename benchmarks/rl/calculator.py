"""Does GRPO teach a small model to use a calculator over several turns, where imitation left it half-way?

    python -m benchmarks.rl calculator [--seed 0] [--share 1.0]

A question is `a + b` with numbers below 100, each a token of its own. The model may write `calc( a + b )`, gets the
result as the next message, and answers with it; without the call it would have to know the sum by heart.
It imitates such conversations until it succeeds in at most 0.3 of them. Measured is the success of drawn conversations
on held-out questions, before and after.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.nn import functional
from transformers import PreTrainedTokenizerFast

from benchmarks.rl.toy import Toy, rounded, toy_config, toy_policy, toy_trainer
from trainyard.data.renderers.rendering import Renderer
from trainyard.spec.axes.rewards import EnvironmentReward
from trainyard.spec.axes.stages import Stage
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import Generated, Sampling
from trainyard.train.model.sampling import sample
from trainyard.train.rl.drawing import complete_prompts
from trainyard.train.rl.environments import Environment
from trainyard.train.rl.rewards import RewardPanel

LARGEST, MOST_TOKENS = 100, 8
STEPS, RATE = 300, 1e-3
EARLIEST = 64
"""Imitation steps before the success is looked at, which takes longer than a step."""
INIT = 0.1
"""Deviation of the first weights; with 0.02 the imitation takes many times as long."""
WORDS = ["<|pad|>", "<|im_end|>", "<|im_start|>", "user", "assistant", "calc(", ")", "+", *map(str, range(2 * LARGEST))]
TEMPLATE = (
    "{% for m in messages %}<|im_start|> {{ m['role'] }} {{ m['content'] }} <|im_end|> {% endfor %}"
    "{% if add_generation_prompt %}<|im_start|> assistant {% endif %}"
)
SETTINGS: dict[str, Any] = {
    "rewards": [{"type": "environment"}], "environment": {"type": "calculator", "max_turns": 3}, "num_generations": 8,
    "max_completion_length": MOST_TOKENS, "temperature": 1.0,
}  # fmt: skip

SETTINGS_OF: Any = Stage.GRPO.settings(**SETTINGS)


def tokenizer_of_words() -> PreTrainedTokenizerFast:
    plain = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token=WORDS[0]))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    plain.add_special_tokens(WORDS[:3])
    return PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token=WORDS[0], eos_token=WORDS[1], chat_template=TEMPLATE
    )


TOKENIZER = tokenizer_of_words()
RENDERER = Renderer(TOKENIZER)


def turn(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def example_of(a: int, b: int) -> dict[str, Any]:
    """A question as a prompt of a rollout."""
    turns = [turn("user", f"{a} + {b}")]
    ids = RENDERER.ids(RENDERER.text(turns, ask=True))
    return {"input_ids": ids, "answer": str(a + b), "question": turns[0]["content"], "messages": turns}


def demonstration(a: int, b: int) -> tuple[list[int], list[int]]:
    """A whole conversation with the call, and its labels: the assistant's tokens."""
    turns = [turn("user", f"{a} + {b}"), turn("assistant", f"calc( {a} + {b} )")]
    rendered = RENDERER.render([*turns, turn("user", str(a + b)), turn("assistant", str(a + b))])
    labels = [id if weight else -100 for id, weight in zip(rendered.ids, rendered.weights, strict=True)]
    return rendered.ids, labels


class Writer:
    """What a rollout needs of a session."""

    context = None

    def __init__(self, model: Any) -> None:
        self.model = model

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling | None = None) -> list[Generated]:
        self.model.eval()
        with torch.no_grad():
            return sample(self.model, TOKENIZER, prompts, sampling or Sampling())

    def generate_by_reference(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Generated]:
        raise NotImplementedError


def trainer_of(steps: int, seed: int) -> TrainerConfig:
    stage = Stage.GRPO.settings(**SETTINGS)
    return toy_trainer(stage, max_steps=steps, batch_size=128, learning_rate=RATE, seed=seed)


def success(model: Any, pairs: Sequence[tuple[int, int]], seed: int) -> float:
    """Share of drawn conversations that end with the sum, eight for each question."""
    config, environment = trainer_of(1, seed), Environment.of(SETTINGS_OF.environment, TOKENIZER)
    completions = complete_prompts(Writer(model), [example_of(*pair) for pair in pairs], config, f"{seed}", environment)
    return sum(completion.sampled.given for completion in completions) / len(completions)


def imitate(model: Any, pairs: Sequence[tuple[int, int]], seed: int, *, until: float = 0.15, most: int = 3000) -> None:
    """Cross-entropy on demonstrations until the model succeeds in `until` of some conversations."""
    dice, optimizer = random.Random(seed), torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(most):
        rows = [demonstration(*pair) for pair in dice.sample(pairs, 64)]
        width = max(len(ids) for ids, _ in rows)
        ids_BT = torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in rows])
        labels_BT = torch.tensor([labels + [-100] * (width - len(labels)) for _, labels in rows])
        model.train()
        logits_BTV = model(input_ids=ids_BT, attention_mask=(ids_BT != 0).long()).logits
        functional.cross_entropy(logits_BTV[:, :-1].flatten(0, 1), labels_BT[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 5 == 4 and step >= EARLIEST and success(model, pairs[:16], step) >= until:
            return


def measure(seed: int, *, share: float = 1.0) -> dict[str, Any]:
    """Imitate, then GRPO in the environment: the success of drawn conversations on held-out questions."""
    pairs = [(a, b) for a in range(1, LARGEST) for b in range(1, LARGEST)]
    random.Random(seed).shuffle(pairs)
    held_out, trained = pairs[:100], pairs[100:]
    model = toy_policy(toy_config(len(WORDS), hidden=64, layers=2, context=64, init=INIT), seed)
    began, steps = time.process_time(), round(STEPS * share)
    imitate(model, trained, seed)
    before = success(model, held_out, 10**6 + seed)
    prompts = [example_of(*pair) for pair in trained[:2000]]
    environment = Environment.of(SETTINGS_OF.environment, TOKENIZER)
    panel = RewardPanel((EnvironmentReward(),))
    recorder = Toy(trainer_of(steps, seed), model, TOKENIZER, prompts, panel, None, environment).run()
    result = {
        "sft": before,
        "grpo": success(model, held_out, 10**6 + seed),
        "last_reward": recorder.curve("reward")[-1],
    }
    cpu_s = round(time.process_time() - began, 1)
    return {"task": "calculator", "seed": seed, "steps": steps, **rounded(result), "cpu_s": cpu_s}
