"""A toy model for benchmark tests: it knows some texts well, others badly, and answers from a dictionary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trainyard.evals.cases import AnswerScore, Case, Turn


@dataclass
class ToyModel:
    """`losses` maps an answer's text to its summed loss (5.0 otherwise); a token is a word."""

    losses: dict[str, float] = field(default_factory=dict)
    replies: dict[str, str] = field(default_factory=dict)
    base: ToyModel | None = None
    too_long: frozenset[str] = frozenset()

    @property
    def reference(self) -> ToyModel:
        return self.base or self

    def answers(self, cases: Sequence[tuple[Case, Turn]]) -> list[AnswerScore | None]:
        return self.texts([str(answer["content"]) for _, answer in cases])

    def texts(self, texts: Sequence[str]) -> list[AnswerScore | None]:
        return [None if text in self.too_long else self.score(text) for text in texts]

    def score(self, text: str) -> AnswerScore:
        count = len(text.split())
        return AnswerScore(nll=self.losses.get(text, 5.0), tokens=count, correct=count // 2)

    def generate(self, cases: Sequence[Case], max_tokens: int) -> list[str | None]:
        return [self.replies.get(case.question(), "") for case in cases]
