"""Each loss of a call next to its definition, token by token in double precision: value and gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch

from trainyard.errors import InvalidInput
from trainyard.train.losses.token_losses import CLIP, TOKEN_LOSSES, complete_settings

Numbers = Sequence[float]
P = [-0.3, -1.2, -2.5, -0.05, -4.0]
Q = [-0.5, -1.0, -1.5, -0.06, -3.0]
A = [1.0, -0.7, 2.0, -1.5, 0.4]
W = [1.0, 0.0, -2.5, 0.5, 3.0]
IN_RATIO = [1.0, 1.0, 0.0, 1.0, 1.0]
LOW, HIGH = CLIP["clip_low_threshold"], CLIP["clip_high_threshold"]


def clip(value: float) -> float:
    return min(max(value, LOW), HIGH)


def compute_cross_entropy(p: Numbers) -> tuple[float, list[float]]:
    return -math.fsum(w * x for w, x in zip(W, p, strict=True)), [-w for w in W]


def compute_importance_sampling(p: Numbers) -> tuple[float, list[float]]:
    parts = [math.exp(x - q) * a for x, q, a in zip(p, Q, A, strict=True)]
    return -math.fsum(parts), [-part for part in parts]


def compute_ppo(p: Numbers) -> tuple[float, list[float]]:
    return clip_ratios([math.exp(x - q) for x, q in zip(p, Q, strict=True)])


def compute_cispo(p: Numbers) -> tuple[float, list[float]]:
    weights = [clip(math.exp(x - q)) * a for x, q, a in zip(p, Q, A, strict=True)]
    return -math.fsum(w * x for w, x in zip(weights, p, strict=True)), [-w for w in weights]


def compute_dro(p: Numbers) -> tuple[float, list[float]]:
    rows = list(zip(p, Q, A, strict=True))
    value = -math.fsum(x * a - 0.025 * (x - q) ** 2 for x, q, a in rows)
    return value, [-(a - 0.05 * (x - q)) for x, q, a in rows]


def compute_gspo(p: Numbers) -> tuple[float, list[float]]:
    marked = [x - q for x, q, m in zip(p, Q, IN_RATIO, strict=True) if m]
    return clip_ratios([math.exp(math.fsum(marked) / len(marked))] * len(p))


def clip_ratios(ratios: Numbers) -> tuple[float, list[float]]:
    value, gradient = 0.0, []
    for ratio, a in zip(ratios, A, strict=True):
        free, bound = ratio * a, clip(ratio) * a
        value -= min(free, bound)
        gradient.append(-free if free <= bound else 0.0)
    return value, gradient


BY_HAND: dict[str, Callable[[Numbers], tuple[float, list[float]]]] = {
    "cross_entropy": compute_cross_entropy,
    "importance_sampling": compute_importance_sampling,
    "ppo": compute_ppo,
    "cispo": compute_cispo,
    "dro": compute_dro,
    "gspo": compute_gspo,
}


def test_every_loss_has_its_definition_here() -> None:
    assert BY_HAND.keys() == TOKEN_LOSSES.keys()


@pytest.mark.parametrize("name", BY_HAND)
def test_value_and_gradient_are_those_of_the_definition(name: str) -> None:
    facts, logprobs = TOKEN_LOSSES[name], torch.tensor(P, requires_grad=True)
    values = {"weights": W, "logprobs": Q, "advantages": A, "sequence_ratio_mask": IN_RATIO}
    inputs = {key: torch.tensor(values[key]) for key in (*facts.required, *facts.optional)}
    loss = facts.loss(logprobs, inputs, complete_settings(name, {}))
    loss.backward()
    value, gradient = BY_HAND[name](P)
    assert float(loss.detach()) == pytest.approx(value, abs=1e-6, rel=1e-6)
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx(gradient, abs=1e-6, rel=1e-6)


def test_thresholds_of_a_call_are_used() -> None:
    facts = TOKEN_LOSSES["ppo"]
    inputs = {"logprobs": torch.tensor([-1.0]), "advantages": torch.tensor([1.0])}
    settings = complete_settings("ppo", {"clip_high_threshold": 1.05})
    assert float(facts.loss(torch.tensor([0.0]), inputs, settings)) == pytest.approx(-1.05)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("dro", {"gamma": 1.0}), ("dro", {"beta": "much"}), ("ppo", {"clip_low_threshold": math.nan}), ("nothing", {})],
)
def test_unread_and_wrong_settings_are_refused(name: str, settings: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match=r"setting|no token loss"):
        complete_settings(name, settings)
