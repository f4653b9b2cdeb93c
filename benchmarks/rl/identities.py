"""Is the first ratio of PPO 1, and are the advantages those of brute force?

    python -m benchmarks.rl identities [--seed 0]

The ratio is measured on the first minibatch of a rollout with completions of unequal length at temperature 0.7; the
advantages on random rewards, values and masks, next to the double sum of equation 16 (Schulman et al. 2016, arXiv
1506.02438).
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.rl.ppo_toy import toy_of
from trainyard.train.contracts import Cursor
from trainyard.train.losses.advantages import generalized_advantages

ROWS, TOKENS = 64, 24


def measure(seed: int, *, share: float = 1.0) -> dict[str, Any]:
    """The largest distance of each from what it has to be."""
    return {"task": "identities", "seed": seed, "ratio": ratio_error(seed), "gae": advantage_error(seed, share)}


def ratio_error(seed: int) -> float:
    """Largest |ratio - 1| before the first step."""
    with TemporaryDirectory(prefix="trainyard-rl-") as folder:
        session, feed = toy_of(seed, updates=1, temperature=0.7).open(Path(folder))
        errors = []
        for batch in feed.draw_batches(Cursor(), session, session.engine.config, {}):
            scores = session.engine.stage.score(session.engine.model, batch, session.engine.head)
            errors.append(float((scores["logprobs_N"].detach() - batch["old_N"]).exp().sub(1).abs().max()))
    return max(errors)


def advantage_error(seed: int, share: float) -> float:
    """Largest distance between the advantages and their double sum."""
    generator = torch.Generator().manual_seed(seed)
    rows = max(1, round(ROWS * share))
    rewards_RT, values_RT = (torch.randn(rows, TOKENS, dtype=torch.float64, generator=generator) for _ in range(2))
    mask_RT = (torch.rand(rows, TOKENS, generator=generator) > 0.3).double()
    gamma, lam = 0.97, 0.9
    found_RT, _ = generalized_advantages(rewards_RT, values_RT, mask_RT, gamma=gamma, lam=lam)
    worst = 0.0
    for row in range(rows):
        positions = mask_RT[row].nonzero()[:, 0].tolist()
        values = [*values_RT[row, positions].tolist(), 0.0]
        deltas = [
            float(rewards_RT[row, position]) + gamma * values[at + 1] - values[at]
            for at, position in enumerate(positions)
        ]
        for at, position in enumerate(positions):
            expected = sum((gamma * lam) ** ahead * delta for ahead, delta in enumerate(deltas[at:]))
            worst = max(worst, abs(expected - float(found_RT[row, position])))
    return worst
