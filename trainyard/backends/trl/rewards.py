"""What a completion is worth to stage grpo: one pure function of the same signature for each type of reward.

To add one: its settings in `spec/training.py`, a function and a row here, a line in docs/training.md. Rewards are data:
no code of a user runs here, and no pattern takes more than time linear in the completion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic_core import SchemaValidator

from trainyard.spec.axes.stages import ContainsReward, ExactMatchReward, LengthReward, RegexReward, compiled


@dataclass(frozen=True)
class SampledCompletion:
    """What a model has written to a prompt."""

    text: str
    """Without special tokens."""
    tokens: int
    """The end of the turn included, where it was reached."""


def exact_match(completion: SampledCompletion, answer: str, settings: ExactMatchReward) -> float:
    """1.0 or 0.0."""
    said, wanted = (folded(text.strip(), settings.ignore_case) for text in (completion.text, answer))
    return float(said == wanted)


def contains(completion: SampledCompletion, answer: str, settings: ContainsReward) -> float:
    """1.0 or 0.0. An answer of spaces only is contained nowhere."""
    wanted = answer.strip() if settings.text is None else settings.text
    return float(bool(wanted) and folded(wanted, settings.ignore_case) in folded(completion.text, settings.ignore_case))


def regex(completion: SampledCompletion, _answer: str, settings: RegexReward) -> float:
    """1.0 or 0.0. The whole completion is what is left without the spaces around it."""
    text = completion.text.strip() if settings.full else completion.text
    return float(automaton(settings.pattern, settings.full).isinstance_python(text))


def length(completion: SampledCompletion, _answer: str, settings: LengthReward) -> float:
    """1.0 at the target or up to the most, and down to 0.0 at twice as many tokens or, of a target, at none."""
    bound = settings.target_tokens or settings.max_tokens
    assert bound is not None
    beyond = completion.tokens - bound
    off = abs(beyond) if settings.target_tokens else max(0, beyond)
    return max(0.0, 1.0 - off / bound)


REWARDS: dict[str, Callable[[SampledCompletion, str, Any], float]] = {
    "exact_match": exact_match,
    "contains": contains,
    "regex": regex,
    "length": length,
}


def named(rewards: Sequence[Any]) -> dict[str, Any]:
    """Each reward under a name of its own: its type, with a number from the second of that type on."""
    found: dict[str, Any] = {}
    for settings in rewards:
        same = sum(other.type == settings.type for other in found.values())
        found[settings.type if not same else f"{settings.type}_{same + 1}"] = settings
    return found


def folded(text: str, ignore_case: bool) -> str:
    return text.casefold() if ignore_case else text


@lru_cache(maxsize=64)
def automaton(pattern: str, full: bool) -> SchemaValidator:
    return compiled(pattern, full=full)
