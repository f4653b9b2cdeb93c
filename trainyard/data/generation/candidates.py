"""Several answers to each question, of which a reward model chooses: best-of-n sampling (Stiennon et al. 2020,
arXiv 2009.01325, section 4.3; Nakano et al. 2021, arXiv 2112.09332).

The reply with the pairs brings the first answer to each question. Each further request asks for one more answer to all
questions of a reply, from the same document and without the answers that there are. What cannot be used is counted and
leaves the question fewer candidates, never none. They wait on disk, next to the rows, until they are scored:

candidates.jsonl   one line a pair: {pair, prompt, answers}; the first answer is that of the rows
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import orjson

from trainyard.data.prompts import Messages, answer_messages, answers_schema
from trainyard.data.rows import ROWS_FILE, SftRow, read_rows, write_rows
from trainyard.spec.axes.data import Port
from trainyard.spec.nodes import AiGeneratorConfig

CANDIDATES_FILE = "candidates.jsonl"
SEED_STRIDE = 1_000_003
"""Between the seeds of the answers to one question; those of two requests differ by 1."""
Ask = Callable[[Messages, dict[str, Any], int], Awaitable[Any]]
"""(messages, schema, seed) -> the text of a reply, or why there is none."""
Further = dict[int, str]
"""Place of a question in its reply -> one more answer to it."""


class Candidates(msgspec.Struct):
    """The answers to one question."""

    pair: str
    prompt: str
    answers: list[str]


async def further_answers(
    ask: Ask, config: AiGeneratorConfig, document: dict[str, str], questions: Mapping[int, str], seed: int
) -> list[Further]:
    """`best_of - 1` further answers to each question; of a request that brought nothing usable, none."""
    rounds: list[Further] = []
    for number in range(1, config.best_of if questions else 1):
        messages = answer_messages(config.template, document, list(questions.values()))
        reply = await ask(messages, answers_schema(len(questions)), (seed + number * SEED_STRIDE) % 2**31)
        answers = parse_answers(reply) if isinstance(reply, str) else []
        if len(answers) != len(questions):
            answers = [None] * len(questions)  # which answer is whose is not known
        usable = zip(questions, answers, strict=True)
        rounds.append({index: answer.strip() for index, answer in usable if isinstance(answer, str) and answer.strip()})
    return rounds


def parse_answers(reply: str) -> list[object]:
    """The answers in a reply; empty for one of another form."""
    try:
        value = orjson.loads(reply)
    except (orjson.JSONDecodeError, UnicodeEncodeError):
        return []
    answers = value.get("answers") if isinstance(value, dict) else None
    return answers if isinstance(answers, list) else []


@dataclass
class CandidateBook:
    """Writes down the candidates of the rows that are kept, and counts those that are missing."""

    folder: Path
    best_of: int
    num_candidates: int = 0
    missing: int = 0
    pairs: set[str] = field(default_factory=set)

    def __enter__(self) -> CandidateBook:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file = (self.folder / CANDIDATES_FILE).open("wb")
        return self

    def __exit__(self, *_error: object) -> None:
        self.file.close()

    def keep(self, rows: Sequence[Any], further: Sequence[Further], index: int) -> None:
        """Note the candidates of one pair of rows, which have the first of them. Equal answers are one candidate."""
        row = rows[0]
        if not isinstance(row, SftRow) or row.pair in self.pairs:
            return
        self.pairs.add(row.pair)
        other_answers = [answers[index] for answers in further if index in answers]
        answers = list(dict.fromkeys([row.messages[-1].content, *other_answers]))
        self.num_candidates += 1 + len(other_answers)
        self.missing += self.best_of - 1 - len(other_answers)
        line = Candidates(row.pair, row.messages[0].content, answers)
        self.file.write(msgspec.json.encode(line) + b"\n")


def read_candidates(path: Path) -> Iterator[Candidates]:
    """Yield the candidates in the order in which they were kept."""
    with path.open("rb") as lines:
        for line in lines:
            yield msgspec.json.decode(line, type=Candidates)


Scored = Sequence[float | None]
"""What each candidate of a question is worth; None for one that does not fit the reward model."""


def select_best(scores: Scored) -> int:
    """Return the place of the highest score, of equal ones the first; the first where none has a score."""
    ranked = [(score, -index) for index, score in enumerate(scores) if score is not None]
    return -max(ranked)[1] if ranked else 0


def keep_best(folder: Path, port: Port, scores: Iterator[Scored]) -> dict[str, object]:
    """Rewrite the rows of a folder with the best answer to each question; returns counts of the selection."""
    best_answers: dict[str, str] = {}
    first_scores: list[float] = []
    best_scores: list[float] = []
    unscored = changed = 0
    for candidates, question_scores in zip(read_candidates(folder / CANDIDATES_FILE), scores, strict=True):
        index = select_best(question_scores)
        best_answers[candidates.pair] = candidates.answers[index]
        changed += index > 0
        unscored += sum(score is None for score in question_scores)
        first, best = question_scores[0], question_scores[index]
        if first is not None and best is not None:
            first_scores.append(first)
            best_scores.append(best)
    rewrite(folder, port, best_answers)
    count = len(best_scores)
    means = {"first": sum(first_scores) / count, "best": sum(best_scores) / count} if count else {}
    return {"questions": len(best_answers), "changed": changed, "unscored": unscored, "mean_reward": means}


def rewrite(folder: Path, port: Port, answers: Mapping[str, str]) -> None:
    """Put the chosen answers into the rows, which keep their order."""
    path, new = folder / ROWS_FILE, folder / f"{ROWS_FILE}.new"

    def answer_rows() -> Iterator[SftRow]:
        for row in read_rows(path, port):
            assert isinstance(row, SftRow), "a reward model scores answers"
            row.messages[-1].content = answers.get(row.pair, row.messages[-1].content)
            yield row

    write_rows(new, port, answer_rows())
    new.replace(path)
