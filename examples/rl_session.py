"""Reinforcement learning through a step session, with a reward that a program can check: answers in digits alone.

    python examples/rl_session.py [MODEL]

REINFORCE (Williams 1992) with the mean reward of a prompt's own completions as its baseline, which is what GRPO
computes (arXiv 2402.03300, equation 3) when each batch of completions is used for one step: the ratio of the new
probability to the old one is 1 then, so there is nothing to clip. There is no KL penalty and no reference model.

For each step: `generate` draws completions, this program rewards them, `forward` scores the tokens of each completion,
and `backward` adds the gradient of its loss times its advantage: a completion that is better than the others of its
prompt becomes likelier, one that is worse becomes less likely. `logprobs` shows how far a step has moved them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from trainyard import here

STEPS, SAMPLES, NEW_TOKENS = 30, 8, 12
PROMPTS = ("What is 2 + 2?", "What is 3 * 5?")
IGNORED = -100
"""Label of a token that is not learned: the prompt's."""

Reward = Callable[[str], float]


def digits(text: str) -> float:
    """The share of an answer's characters that are digits."""
    return sum(letter.isdigit() for letter in text) / max(1, len(text))


def train(
    surface: Any, session: str, prompts: Sequence[str] = PROMPTS, reward: Reward = digits, steps: int = STEPS
) -> list[float]:
    """Train on drawn completions; the mean reward of each step, before it."""
    sessions, means = surface.sessions, []
    for step in range(steps):
        drawn = sessions.generate(
            session=session, prompts=list(prompts), samples=SAMPLES, max_new_tokens=NEW_TOKENS, seed=step
        ).completions
        rewards = [reward(one.text) for one in drawn]
        means.append(sum(rewards) / len(rewards))

        # Every completion counts by its advantage over the others of its prompt; those that are average are left out.
        tokens = sum(len(one.ids) for one in drawn)
        counted = [
            (one, advantage) for one, advantage in zip(drawn, advantages(drawn, rewards), strict=True) if advantage
        ]
        for one, advantage in counted:
            ids = [*one.prompt_ids, *one.ids]
            labels = [IGNORED] * len(one.prompt_ids) + list(one.ids)
            found = sessions.forward(session=session, batch={"input_ids": [ids], "labels": [labels]}, normalizer=tokens)
            sessions.backward(session=session, forward_id=found.forward_id, scale=advantage, measure=False)
        if not counted:
            continue
        sessions.step(session=session)
        sessions.zero_grad(session=session)
        best, _ = max(counted, key=lambda pair: pair[1])
        print(f"step {step + 1}  reward {means[-1]:.3f}  best answer {moved(sessions, session, best):+.3f}", flush=True)
    return means


def advantages(drawn: Sequence[Any], rewards: Sequence[float]) -> list[float]:
    """Each reward minus the mean over the completions of the same prompt."""
    groups: dict[int, list[float]] = {}
    for one, value in zip(drawn, rewards, strict=True):
        groups.setdefault(one.prompt, []).append(value)
    means = {prompt: sum(values) / len(values) for prompt, values in groups.items()}
    return [value - means[one.prompt] for one, value in zip(drawn, rewards, strict=True)]


def moved(sessions: Any, session: str, one: Any) -> float:
    """How much likelier a completion is now than when it was drawn, as a sum of log-probabilities."""
    scored = sessions.logprobs(session=session, rows=[[*one.prompt_ids, *one.ids]]).logprobs[0]
    return float(sum(scored[len(one.prompt_ids) :]) - sum(one.logprobs_at_one))


def main(model: str | None = None) -> None:
    settings = {"method": "lora", "hyperparameters": {"learning_rate": 1e-3}}
    session = here.sessions.create(parameters=settings | ({"base_model": model} if model else {}), wait=True).id
    try:
        train(here, session)
        print(here.sessions.save(session=session, name="adapter", kind="result").path)
    finally:
        here.sessions.close(session=session)


if __name__ == "__main__":
    main(*sys.argv[1:2])
