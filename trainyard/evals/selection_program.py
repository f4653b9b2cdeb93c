"""The scoring child: reads spec.json and the candidates, writes what a reward model says of each (torch).

Started by `python -m trainyard.compute.launch trainyard.evals.selection_program:main FOLDER`. A candidate is rendered
as the reward model's training rendered answers, and scored at its last token; rows of similar length go together.

scores.jsonl   one line a question: a number for each candidate, null for one that does not fit the model
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import torch
from jinja2.exceptions import TemplateError

from trainyard.compute.child import SPEC_FILE, Events, Stopped
from trainyard.data.generation.candidates import Candidates, read_candidates
from trainyard.data.renderers.rendering import Renderer
from trainyard.errors import InvalidInput, TrainyardError
from trainyard.evals.model import pick_device
from trainyard.evals.selection import SCORES_FILE, SelectionJob
from trainyard.train.methods.loading import training_record
from trainyard.train.model.positions import find_context
from trainyard.train.model.sampling import find_pad_id
from trainyard.train.rl.reward_model import RewardModelScorer, find_source, load_own_tokenizer, load_reward_model

AT_ONCE = 256
"""Questions that are read, scored and written together."""


def main(folder: Path, events: Events) -> None:
    """Score the candidates of `folder/spec.json`."""
    started = time.monotonic()
    job = SelectionJob.model_validate_json((folder / SPEC_FILE).read_text(encoding="utf-8"))
    torch.set_num_threads(job.threads)
    judge = load_judge(job)
    candidates = Path(job.candidates)
    with candidates.open("rb") as lines:
        total = sum(1 for _ in lines)
    done = 0
    with (folder / SCORES_FILE).open("wb") as out:
        for part in batch_candidates(read_candidates(candidates)):
            if events.stop_requested():
                raise Stopped("asked to stop while answers were scored; that starts over")
            for scores in judge.score(part):
                out.write(orjson.dumps(scores) + b"\n")
            done += len(part)
            text = f"answers to {done:,} of {total:,} questions scored"
            events.emit("progress", step=done, total_steps=total, text=text, seconds=time.monotonic() - started)
    report_refusals(judge, events)


def report_refusals(judge: AnswerJudge, events: Events) -> None:
    """Warn of answers that the chat template refuses. Raises `InvalidInput` (`E-DATA-EMPTY`) if none has a score."""
    refused = [f"{count} times: {message}" for message, count in judge.refused.most_common()]
    if judge.scored == 0:
        raise InvalidInput(
            "The reward model can score none of the answers.",
            why=f"Its chat template refused them {'; '.join(refused)}." if refused else "They are longer than it sees.",
            do="Use a reward model whose chat template takes a question of the user and an answer.",
            code="E-DATA-EMPTY",
        )
    if refused:
        events.emit("warning", text=f"The reward model's chat template refused answers {'; '.join(refused)}.")


def batch_candidates(candidates: Iterator[Candidates]) -> Iterator[list[Candidates]]:
    while part := list(itertools.islice(candidates, AT_ONCE)):
        yield part


@dataclass
class AnswerJudge:
    """A reward model with its own tokenizer."""

    scorer: RewardModelScorer
    renderer: Renderer
    context: int | None
    refused: Counter[str] = field(default_factory=Counter)
    """Words of the chat template -> answers that it refused with them."""
    scored: int = 0

    def score(self, questions: Sequence[Candidates]) -> list[list[float | None]]:
        """Return a number for each answer to each question. Raises `TrainyardError` (`E-NON-FINITE`)."""
        rows = [self.row(question.prompt, answer) for question in questions for answer in question.answers]
        fitting = [row for row in rows if row is not None]
        self.scored += len(fitting)
        values = iter(self.scorer.score_rows(fitting) if fitting else [])
        scores = iter([None if row is None else next(values) for row in rows])
        answer_scores = [[next(scores) for _ in question.answers] for question in questions]
        for value in itertools.chain.from_iterable(answer_scores):
            if value is not None and not math.isfinite(value):
                raise TrainyardError(
                    f"The reward model gives {value} to an answer.",
                    why="Its weights contain NaN or infinite numbers.",
                    do="Train it again with a lower learning rate or in fp32.",
                    code="E-NON-FINITE",
                )
        return answer_scores

    def row(self, question: str, answer: str) -> list[int] | None:
        """Ids of a question with an answer; None where the template refuses it, or the model does not see so much."""
        turn = {"role": "assistant", "content": answer}
        try:
            prompt, (reply,) = self.renderer.answered([{"role": "user", "content": question}], [[turn]])
        except TemplateError as error:
            self.refused[str(error)] += 1
            return None
        ids = [*self.renderer.ids(prompt), *self.renderer.encode_answer(reply)]
        return ids if self.context is None or len(ids) <= self.context else None


def load_judge(job: SelectionJob) -> AnswerJudge:
    """Return the reward model of a job, on its device."""
    record = training_record(job.reward_model)
    source = find_source(job.reward_model, str(record.get("base_path", "")), str(record.get("base_sha256", "")))
    tokenizer = load_own_tokenizer(source)
    model = load_reward_model(source, pick_device(job.device), job.seed)
    return AnswerJudge(
        RewardModelScorer(model, find_pad_id(tokenizer)), Renderer(tokenizer), find_context(model.config)
    )
