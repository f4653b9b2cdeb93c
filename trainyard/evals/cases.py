"""What benchmarks see: a case is one row with its prompt and gold, and a scored model answers three questions.

Everything here is free of torch, so a benchmark is a pure function that a test can call with a toy model.
`cluster` names rows that are sampled together in the bootstrap: rows that share it are not independent evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

Turn = dict[str, Any]
"""One message as chat templates take it: role, content and perhaps tool_calls."""
Value = float | None
"""A case's value; None when the case cannot be scored: it does not fit the context, nothing was left of it, or the chat
template refuses it."""


def assistant(text: Any) -> Turn:
    return {"role": "assistant", "content": text}


@dataclass(frozen=True)
class Case:
    """One row to score. Which fields are filled depends on where the row came from."""

    id: str
    """Where a person finds the row: `file.jsonl:17`."""
    cluster: str
    prompt: tuple[Turn, ...] = ()
    answer: Turn | None = None
    """The assistant turn that counts as right (the chosen side of a preference)."""
    rejected: Turn | None = None
    choices: tuple[str, ...] = ()
    gold: tuple[str, ...] = ()
    """Accepted answers as text; for multiple choice the right one of `choices`."""
    text: str | None = None
    """Plain text, for rows that are not conversations."""
    tools: str | None = None
    """JSON text of the tool schemas that the prompt shows."""

    def question(self) -> str:
        """Return the last user turn, for tables and samples."""
        questions = [str(turn.get("content") or "") for turn in self.prompt if turn.get("role") == "user"]
        return questions[-1] if questions else (self.text or "")[:200]


@dataclass(frozen=True)
class AnswerScore:
    """What a model thinks of one given answer, summed over the answer's tokens."""

    nll: float
    """Negative log-likelihood in nats, summed."""
    tokens: int
    correct: int
    """Tokens that the model would have chosen itself (argmax)."""


@dataclass(frozen=True)
class TimedAnswer:
    """An answer, and what it took."""

    text: str
    tokens: int
    """Positions after the prompt: thoughts and words."""
    seconds: float


class ScoredModel(Protocol):
    """A model under evaluation. Lists come back in the order in which they were given."""

    @property
    def reference(self) -> ScoredModel:
        """Return the base model without any adapter."""

    def answers(self, cases: Sequence[tuple[Case, Turn]]) -> list[AnswerScore | None]:
        """Score a given assistant turn after each case's prompt, rendered with the chat template."""

    def texts(self, texts: Sequence[str]) -> list[AnswerScore | None]:
        """Score plain text, every token but the first."""

    def generate(self, cases: Sequence[Case], max_tokens: int) -> list[str | None]:
        """Answer each case's prompt, greedily, in `max_tokens` or the length of its longest accepted answer; None for
        a prompt that the template refuses.
        """


class TimedModel(Protocol):
    """A model whose answers are timed."""

    def timed(self, cases: Sequence[Case], max_tokens: int) -> list[TimedAnswer | None]:
        """Answer each case's prompt, greedily and one at a time; None for a prompt that the template refuses."""


@runtime_checkable
class RewardScorer(Protocol):
    """A reward model under evaluation."""

    def rewards(self, cases: Sequence[tuple[Case, Turn]]) -> list[Value]:
        """Return the score of each answer after its prompt, higher for a better one."""
