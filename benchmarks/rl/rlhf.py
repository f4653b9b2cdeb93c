"""Does PPO with a learned reward model raise a utility that the model never sees, and what happens without the KL term?

    python -m benchmarks.rl rlhf [--seed 0] [--share 1.0]

The hidden utility counts good tokens among the eight of a completion, but above four each costs one: it peaks at 4. A
policy first imitates even draws (SFT). Pairs of its completions are labelled by the utility, a reward model is trained
on them and takes the place of the utility, and PPO starts policy, reference and critic from the two. The pairs contain
few completions with more than four good tokens: a reward model that was asked about so few extrapolates.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import torch
from torch.nn import functional
from transformers import LlamaForSequenceClassification

from benchmarks.rl.toy import Toy, rounded, toy_config, toy_policy, toy_tokenizer, toy_trainer
from trainyard.spec.axes.rewards import ModelReward
from trainyard.spec.axes.stages import Stage
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import Head, Sampling
from trainyard.train.losses import pairs, reward
from trainyard.train.model.sampling import sample, token_logprobs
from trainyard.train.rl.reward_model import RewardModelScorer
from trainyard.train.rl.rewards import RewardPanel

VOCABULARY, LENGTH, BEST = 12, 8, 4
GOOD = (3, 4, 5)
TOKENIZER = toy_tokenizer(["pad", "end", *(f"w{at}" for at in range(2, VOCABULARY))])
PROMPTS = [[2 + at % 10, 2 + at % 7] for at in range(70)]


def utility(ids: Sequence[int]) -> float:
    """Good tokens up to four; each above costs one."""
    good = sum(token in GOOD for token in ids)
    return float(good if good <= BEST else 2 * BEST - good)


def imitate(model: Any, seed: int, steps: int = 150) -> None:
    """SFT on even draws of tokens that are not padding."""
    generator, optimizer = torch.Generator().manual_seed(seed), torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        ids_BT = torch.randint(2, VOCABULARY, (64, 2 + LENGTH), generator=generator)
        logits_BTV = model(input_ids=ids_BT).logits
        functional.cross_entropy(logits_BTV[:, :-1].flatten(0, 1), ids_BT[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()


def draw(model: Any, times: int, seed: int) -> list[tuple[list[int], list[int]]]:
    """(prompt, completion), each prompt as often."""
    prompts = [prompt for prompt in PROMPTS for _ in range(times)]
    model.eval()
    with torch.no_grad():
        completions = sample(model, TOKENIZER, prompts, Sampling(LENGTH, seed=seed))
    return [(prompt, completion.ids) for prompt, completion in zip(prompts, completions, strict=True)]


def train_reward_model(model: Any, seed: int, steps: int = 150) -> tuple[Any, float]:
    """A reward model from labelled pairs of the policy's completions; returns it and its accuracy on other pairs."""
    torch.manual_seed(seed)
    scorer = LlamaForSequenceClassification(toy_config(VOCABULARY))
    scorer.model.load_state_dict(model.model.state_dict())
    optimizer = torch.optim.AdamW(scorer.parameters(), lr=1e-3)
    labelled = label_pairs(draw(model, 24, seed))
    held_out, trained = labelled[:100], labelled[100:]
    config = TrainerConfig(stage=Stage.REWARD)
    for step in range(steps):
        batch = pairs.collate([trained[(step * 32 + at) % len(trained)] for at in range(32)], 0)
        total, _ = reward.loss(batch, reward.score(scorer, batch, Head.FULL), None, config)
        (total / 32).backward()
        optimizer.step()
        optimizer.zero_grad()
    scorer.eval()
    batch = pairs.collate(held_out, 0)
    with torch.no_grad():
        _, metrics = reward.loss(batch, reward.score(scorer, batch, Head.FULL), None, config)
    return scorer, float(metrics["reward_accuracy"]) / len(held_out)


def label_pairs(samples: Sequence[tuple[list[int], list[int]]]) -> list[dict[str, list[int]]]:
    """Two completions of a prompt whose utilities differ, the better one first."""
    pairs = []
    for (prompt, first), (_, second) in zip(samples[::2], samples[1::2], strict=True):
        if utility(first) != utility(second):
            chosen, rejected = (first, second) if utility(first) > utility(second) else (second, first)
            pairs.append({"prompt_ids": prompt, "chosen_ids": chosen, "rejected_ids": rejected})
    return pairs


def judge(model: Any, scorer: RewardModelScorer, seed: int) -> tuple[float, float]:
    """Mean utility, and mean score of the reward model, of fresh completions."""
    samples = draw(model, 4, seed)
    return fmean(utility(ids) for _, ids in samples), fmean(
        scorer.score_rows([prompt + ids for prompt, ids in samples])
    )


def divergence(model: Any, start: Any, seed: int) -> float:
    """KL(model || start) of a completion in nats, on fresh completions."""
    rows = [prompt + ids for prompt, ids in draw(model, 4, seed)]
    with torch.no_grad():
        model_logprobs, start_logprobs = (token_logprobs(each.eval(), TOKENIZER, rows) for each in (model, start))
    gaps = [
        sum(a - b for a, b in zip(row[2:], start_row[2:], strict=True))
        for row, start_row in zip(model_logprobs, start_logprobs, strict=True)
    ]  # type: ignore[operator]
    return fmean(gaps)


COEFFICIENTS = {"kl_0": 0.0, "kl_0.1": 0.1, "kl_0.3": 0.3}
UPDATES = 160


def measure(seed: int, *, share: float = 1.0) -> dict[str, Any]:
    """SFT, a reward model, and PPO from both with each kl_coef: utility, score, and nats from the start."""
    start, updates = toy_policy(toy_config(VOCABULARY), seed), round(UPDATES * share)
    imitate(start, seed)
    model, accuracy = train_reward_model(start, seed)
    scorer = RewardModelScorer(model, 0)
    utility, score = judge(start, scorer, 1000 + seed)
    result = {"accuracy": accuracy, "sft_utility": utility, "sft_score": score}
    for name, kl_coef in COEFFICIENTS.items():
        policy = reinforce(start, model, kl_coef, updates, seed)
        utility, score = judge(policy, scorer, 1000 + seed)
        nats = divergence(policy, start, 1000 + seed)
        result |= {f"{name}_utility": utility, f"{name}_score": score, f"{name}_nats": nats}
    return {"task": "rlhf", "seed": seed, "updates": updates, **rounded(result)}


def reinforce(start: Any, model: Any, kl_coef: float, updates: int, seed: int) -> Any:
    """PPO from a policy and a reward model, with which the critic begins; returns the trained policy."""
    stage = Stage.PPO.settings(
        rewards=[{"type": "reward_model"}], advantage="gae_group", num_generations=4, temperature=1.0,
        max_completion_length=LENGTH, num_iterations=2, minibatches=2, kl_coef=kl_coef, critic_learning_rate=1e-3,
    )  # fmt: skip
    config = toy_trainer(stage, max_steps=updates, batch_size=32, learning_rate=1e-3, seed=seed)
    policy, critic = copy.deepcopy(start), copy.deepcopy(model).requires_grad_(True)
    prompts = [{"input_ids": prompt, "answer": "", "question": ""} for prompt in PROMPTS]
    panel = RewardPanel((ModelReward(),), {"reward_model": RewardModelScorer(model, 0)})
    Toy(config, policy, TOKENIZER, prompts, panel, critic).run()
    return policy
