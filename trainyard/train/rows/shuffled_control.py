"""The format-only control: every question gets the answer of another question.

An adapter that is trained on it can learn how answers look, but no fact. What the real adapter knows beyond it was
learned from the documents.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec

from trainyard.data.rows import TRAIN, PreferenceRow, SftRow
from trainyard.errors import InvalidInput

Row = TypeVar("Row", SftRow, PreferenceRow)


def make_derangement(answers: Sequence[Hashable], seed: int) -> list[int]:
    """Return a permutation in which no position keeps an equal answer; position `i` receives `answers[result[i]]`.

    Wordings of one question share an answer, so equal *values* count, not only equal positions. The wordings of one
    question are scattered over several others: a consistent exchange could be learned like a fact.
    Raises `InvalidInput` (`E-DATA-EMPTY`) when one answer makes up more than half of the rows.
    """
    count = len(answers)
    most = max(Counter(answers).values(), default=0)
    if count < 2 or 2 * most > count:
        raise InvalidInput(
            f"The answers of {count} rows cannot be shuffled so that each question gets another one.",
            why=f"One answer occurs {most} times; at most half of the rows may share an answer.",
            do="Train the control on more and more varied rows, or leave `control` out.",
            code="E-DATA-EMPTY",
        )
    generator = random.Random(seed)
    order = list(range(count))
    generator.shuffle(order)
    for position in range(count):
        while answers[order[position]] == answers[position]:
            other = generator.randrange(count)
            first_giver, second_giver = order[position], order[other]
            # The other position may not get its own answer back by the exchange, unless it has it already.
            if answers[first_giver] != answers[other] or answers[second_giver] == answers[other]:
                order[position], order[other] = second_giver, first_giver
    return order


def givers(
    rows: Sequence[Row], row_indices: Iterable[int], answer: Callable[[Row], Hashable], seed: int
) -> Iterator[tuple[int, Row]]:
    """(place of a training row, the training row that gives it its answer)."""
    train_indices = [index for index in row_indices if rows[index].split == TRAIN]
    order = make_derangement([answer(rows[index]) for index in train_indices], seed)
    return ((index, rows[train_indices[other]]) for index, other in zip(train_indices, order, strict=True))


def shuffle_answers(rows: Sequence[SftRow], seed: int) -> list[SftRow]:
    """Return the same rows, the last assistant turn of each training row taken from another training row, with its
    calls.

    Held-out rows keep their answers and lend none; rows without an answer stay as they are.
    """
    answered_indices = [at for at, row in enumerate(rows) if row.messages and row.messages[-1].role == "assistant"]
    shuffled = list(rows)
    for index, giver in givers(rows, answered_indices, lambda row: msgspec.json.encode(row.messages[-1]), seed):
        messages = [*rows[index].messages[:-1], giver.messages[-1]]
        shuffled[index] = msgspec.structs.replace(rows[index], messages=messages)
    return shuffled


def shuffle_preferences(rows: Sequence[PreferenceRow], seed: int) -> list[PreferenceRow]:
    """Return the same prompts, each training row with both answers of another training row."""
    shuffled = list(rows)
    for index, giver in givers(
        rows, range(len(rows)), lambda row: msgspec.json.encode((row.chosen, row.rejected)), seed
    ):
        shuffled[index] = msgspec.structs.replace(rows[index], chosen=giver.chosen, rejected=giver.rejected)
    return shuffled
