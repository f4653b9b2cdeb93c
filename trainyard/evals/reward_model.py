"""A reward model under evaluation: one number for a prompt with an answer (torch; only in the evaluating child).

Rows are rendered as in training, and cut from the end as there; the score is read off the last token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerBase

from trainyard.data.renderers.rendering import Renderer
from trainyard.evals.cases import Case, Turn, Value
from trainyard.evals.job import EvaluationJob, Participant
from trainyard.evals.model import load_tokenizer, pick_device
from trainyard.train.model.head import row_scores
from trainyard.train.rl.reward_model import ScorerSource, load_reward_model


class Chance:
    """What a base is as a reward model: it has no score, so every pair is a tie."""

    context = 0
    refused: Mapping[str, str] = MappingProxyType({})

    def rewards(self, cases: Sequence[tuple[Case, Turn]]) -> list[Value]:
        return [0.0] * len(cases)


@dataclass
class RewardModel:
    """A trained reward model with its tokenizer."""

    model: Any
    tokenizer: PreTrainedTokenizerBase
    refused: dict[str, str] = field(default_factory=dict)
    """Id of a case that the chat template refuses -> the template's words."""

    @cached_property
    def renderer(self) -> Renderer:
        return Renderer(self.tokenizer)

    @property
    def context(self) -> int:
        """Tokens that the model can see at once."""
        return int(getattr(self.model.config, "max_position_embeddings", 0) or self.tokenizer.model_max_length)

    def rewards(self, cases: Sequence[tuple[Case, Turn]]) -> list[Value]:
        """The score of each answer after its prompt; None for one that the template refuses or that does not fit."""
        return [self.reward(case, answer) for case, answer in cases]

    def reward(self, case: Case, answer: Turn) -> Value:
        try:
            prompt, (reply,) = self.renderer.answered([*case.prompt], [[answer]], case.tools)
        except TemplateError as error:
            self.refused[case.id] = str(error)
            return None
        ids = [*self.renderer.ids(prompt), *self.renderer.encode_answer(reply)]
        if len(ids) > self.context:
            return None
        row_1T = torch.tensor([ids], device=self.model.device)
        with torch.inference_mode():
            return float(row_scores(self.model, row_1T, torch.ones_like(row_1T))[0])


def load_reward_participants(job: EvaluationJob) -> dict[str, Chance | RewardModel]:
    """Return every participant under `baseline`, `candidate` and `control`; the baseline is chance."""
    device, tokenizer = pick_device(job.device), load_tokenizer(job)
    participants = {"candidate": job.candidate, "control": job.control}
    models = {
        role: RewardModel(load_scorer(job, participant, device), tokenizer)
        for role, participant in participants.items()
        if participant is not None
    }
    return {"baseline": Chance(), **models}


def load_scorer(job: EvaluationJob, participant: Participant, device: str) -> object:
    """Return a model with one score a row: a whole one, or the base with the adapter."""
    folder = participant.path or ""
    source = ScorerSource(folder) if participant.kind == "model" else ScorerSource(job.base_path, folder)
    return load_reward_model(source, device, job.seed)
