"""A teacher behind a server: its log-probabilities of the likeliest tokens, requested batch by batch.

    POST <base_url>/completions {"prompt": [[ids], …], "max_tokens": 1, "prompt_logprobs": k}

vLLM's extension of the completions API, which Trainyard's model server has too: for every token of a prompt the `k`
likeliest tokens at its place, and the token itself, by id. vLLM answers at most `--max-logprobs` of them (20).

What comes is sparse: `teacher_ids_NK` and `teacher_logprobs_NK` for each labelled token, padded by `FILL`, whose
probability is 0 in float32. The ids are those of the teacher's tokenizer; the first answer is compared with the
student's, word by word, because no server reports its vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import torch

from trainyard.errors import InvalidInput, Unavailable
from trainyard.json_types import JsonObject
from trainyard.train.contracts import IGNORED

FILL = -1e4
TIMEOUT_S = 600.0
"""Of one request: a large teacher reads a batch of long rows in minutes on a busy server."""
TRIES = 4
SURE_SHARE = 0.9
"""Of the tokens whose words are compared; a server may write a part of a character in another way."""

Answered = list[list[tuple[int, float]]]
"""For each token of a row: (id, log-probability) of the tokens at its place."""


@dataclass
class ServedTeacher:
    """A frozen model at an address. Takes the place of one that is loaded: `scores` is what a stage asks it for."""

    base_url: str
    model: str
    top_k: int
    tokenizer: Any
    key: str | None = None
    transport: httpx.BaseTransport | None = None
    checked: bool = field(default=False, init=False)

    @contextmanager
    def __call__(self) -> Iterator[ServedTeacher]:
        """The teacher, as `Policy.reference` gives a loaded one."""
        yield self

    def scores(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """`teacher_ids_NK` and `teacher_logprobs_NK` of every labelled token, the likeliest first.

        Raises `Unavailable` (`E-SERVER-UNREACHABLE`), `InvalidInput` (`E-MODEL-INVALID`) for other tokens.
        """
        ids_BT, labels_BT = batch["input_ids"], batch["labels"][:, 1:]
        lengths = batch["attention_mask"].sum(1).tolist()
        rows = [ids[:length] for ids, length in zip(ids_BT.tolist(), lengths, strict=True)]
        answered = self.ask(rows)
        label_positions = (labels_BT != IGNORED).nonzero().tolist()
        top_tokens = [sorted(answered[row][at + 1], key=lambda pair: -pair[1]) for row, at in label_positions]
        most = max(map(len, top_tokens))
        ids = torch.tensor([[token for token, _ in pairs] + [0] * (most - len(pairs)) for pairs in top_tokens])
        logprobs = torch.tensor([[value for _, value in pairs] + [FILL] * (most - len(pairs)) for pairs in top_tokens])
        return {
            "teacher_ids_NK": ids.to(ids_BT.device),
            "teacher_logprobs_NK": logprobs.clamp(min=FILL).to(ids_BT.device),
        }

    def ask(self, rows: Sequence[Sequence[int]]) -> list[Answered]:
        """Return the server's log-probabilities for each token of each row."""
        body = {"model": self.model, "prompt": rows, "max_tokens": 1, "temperature": 0, "prompt_logprobs": self.top_k}
        choices = sorted(self.post(body), key=lambda choice: choice["index"])
        try:
            prompt_logprobs = [[candidates or {} for candidates in choice["prompt_logprobs"]] for choice in choices]
            answers = [
                [
                    [(int(token), float(candidate["logprob"])) for token, candidate in candidates.items()]
                    for candidates in row
                ]
                for row in prompt_logprobs
            ]
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise Unavailable(
                f"The server at {self.base_url} does not answer `prompt_logprobs`.",
                why=f"{type(error).__name__}: {error}",
                do="Use vLLM, or Trainyard's model server, as the teacher.",
                code="E-SERVER-REFUSED",
            ) from error
        if not self.checked:
            self.require_same_words(rows, prompt_logprobs)
            self.checked = True
        return answers

    def post(self, body: JsonObject) -> list[JsonObject]:
        """Return the choices of an answer; a server that is busy or away for a moment is asked again."""
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        problem = ""
        with httpx.Client(timeout=TIMEOUT_S, transport=self.transport) as client:
            for _ in range(TRIES):
                try:
                    answer = client.post(f"{self.base_url.rstrip('/')}/completions", json=body, headers=headers)
                except httpx.HTTPError as error:
                    problem = f"{type(error).__name__}: {error}"
                    continue
                if answer.is_success:
                    choices: list[JsonObject] = answer.json()["choices"]
                    return choices
                problem = f"It answered {answer.status_code}: {answer.text[:300]}"
                if answer.is_client_error and answer.status_code != httpx.codes.TOO_MANY_REQUESTS:
                    break
        raise Unavailable(
            f"The teacher at {self.base_url} does not answer.",
            why=problem,
            do="Look at the server, then resume: the training continues from its last checkpoint. vLLM takes "
            f"{self.top_k} log-probabilities with --max-logprobs {self.top_k}.",
            code="E-SERVER-UNREACHABLE",
        )

    def require_same_words(self, rows: Sequence[Sequence[int]], prompt_logprobs: Sequence[Any]) -> None:
        """Raise `InvalidInput` (`E-MODEL-INVALID`) where the server reads other words in the ids than the student."""
        pairs = [
            (self.tokenizer.decode([token]), candidates.get(str(token), {}).get("decoded_token"))
            for row, answered in zip(rows, prompt_logprobs, strict=False)
            for token, candidates in zip(row[1:], answered[1:], strict=False)
        ]
        plain = [
            (student_token, teacher_token)
            for student_token, teacher_token in pairs
            if teacher_token and student_token.isascii() and teacher_token.isascii()
        ]
        same = sum(student_token.strip() == teacher_token.strip() for student_token, teacher_token in plain)
        if plain and same < SURE_SHARE * len(plain):
            student_token, teacher_token = next(pair for pair in plain if pair[0].strip() != pair[1].strip())
            raise InvalidInput(
                f"Teacher and student do not have the same vocabulary: {student_token!r} is {teacher_token!r} for the "
                "teacher.",
                why=f"Probabilities are compared token by token; {len(plain) - same} of {len(plain)} differ.",
                do="Use a teacher of the student's family, or let it write rows with an ai_generator and train sft.",
                code="E-MODEL-INVALID",
            )
