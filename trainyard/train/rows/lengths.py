"""Handling of rows above `max_length`: cut, drop or refuse, and the ledger says which."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

from trainyard.errors import InvalidInput
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import Encoded
from trainyard.train.rows.tokens import TokenLedger

NO_LIMIT = sys.maxsize


class TokenShare(NamedTuple):
    """The entry of an example in the token ledger."""

    trained: int
    masked: int


def encode_within_length(
    encode: Callable[[int], tuple[list[Encoded], TokenLedger]],
    width: Callable[[Encoded], int],
    share: Callable[[Encoded], TokenShare],
    config: TrainerConfig,
) -> tuple[list[Encoded], TokenLedger]:
    """Encode with a limit of tokens per row, as `engine.too_long` says.

    `encode(limit)`, which is called once, cuts every row to `limit` tokens; `width` is an example's number of tokens
    and `share` its entry in the ledger. Raises `InvalidInput` (`E-DATA-TOO-LONG`) with the number of long rows and the
    longest.
    """
    limit, policy = config.hyperparameters.max_length, config.engine.too_long
    if policy == "cut":
        return encode(limit)
    examples, ledger = encode(NO_LIMIT)
    long = [example for example in examples if width(example) > limit]
    long_rows = {row for example, row in zip(examples, ledger.example_rows, strict=True) if width(example) > limit}
    if policy == "refuse" and long:
        raise InvalidInput(
            f"{len(long_rows)} of {ledger.rows['read']} rows are longer than max_length ({limit} tokens); "
            f"the longest has {max(map(width, long))}.",
            why="engine.too_long is refuse.",
            do="Raise max_length, split the rows, or set engine.too_long to cut or drop.",
            code="E-DATA-TOO-LONG",
        )
    for example in long:
        trained, masked = share(example)
        ledger.trained -= trained
        ledger.masked -= masked
        ledger.dropped += trained + masked
    fitting = [
        (example, row) for example, row in zip(examples, ledger.example_rows, strict=True) if width(example) <= limit
    ]
    before, ledger.example_rows = set(ledger.example_rows), [row for _, row in fitting]
    lost = len(before - set(ledger.example_rows))
    ledger.rows["trained"] -= lost
    ledger.rows["dropped_too_long"] += lost
    if "extra_examples" in ledger.rows:
        ledger.rows["extra_examples"] = len(fitting) - ledger.rows["trained"]
    assert ledger.balanced, ledger
    return [example for example, _ in fitting], ledger
