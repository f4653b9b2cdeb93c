"""Rows as prompts whose completions are drawn.

What happens to rows above `max_length`: cut, drop or refuse, and the ledger says which.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from trainyard.data.renderers.rendering import Renderer, build_turn
from trainyard.data.rows import Message, PromptRow, SftRow
from trainyard.errors import InvalidInput
from trainyard.json_types import JsonObject
from trainyard.spec.axes.rewards import RewardSource
from trainyard.spec.axes.stages import GrpoSettings, PpoSettings
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import Encoded
from trainyard.train.rows.tokens import TokenLedger, encode_answers, encode_rows

PLACEHOLDER = "1"
"""An answer for rendering a prompt that has none: the text before it is the prompt."""


def encode_prompts(
    rows: Iterable[SftRow | PromptRow],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    rewards: Sequence[RewardSource] = (),
) -> tuple[list[JsonObject], TokenLedger]:
    """Return rows as {input_ids: the prompt, answer: the text of the last turn of the assistant, question: the turn
    before, messages: all turns before it}. A row of prompts alone has its own answer, or none.

    The prompt is the text before that turn. One of more than `max_length` tokens is left out and counted: cut, it
    would ask something else. So is a row without an answer that one of the rewards would compare with.
    """
    encode = partial(encode_prompt, compared=any(reward.reads_answer for reward in rewards))
    return encode_rows(rows, tokenizer, max_length, encode)


def encode_prompt(
    renderer: Renderer, row: SftRow | PromptRow, max_length: int, ledger: TokenLedger, *, compared: bool = False
) -> JsonObject | None:
    turns, answer = split_row(row)
    if not turns or (compared and isinstance(row, PromptRow) and not answer.content):
        ledger.rows["dropped_no_answer" if turns else "dropped_no_target"] += 1
        return None
    visible_answer = answer if isinstance(row, SftRow) or answer.content else Message("assistant", PLACEHOLDER)
    prompt, _ = encode_answers(renderer, turns, ([visible_answer],), row.tools, ledger)
    ledger.read += len(prompt)
    if len(prompt) > max_length:
        ledger.dropped += len(prompt)
        ledger.rows["dropped_truncated"] += 1
        return None
    ledger.masked += len(prompt)
    ledger.rows["trained"] += 1
    return {
        "input_ids": prompt,
        "answer": answer.content,
        "question": turns[-1].content,
        "messages": [build_turn(message) for message in turns],
    }


def split_row(row: SftRow | PromptRow) -> tuple[list[Message], Message]:
    """Return the turns of a prompt, and the answer that completions are compared with."""
    if isinstance(row, PromptRow):
        return row.prompt, Message("assistant", row.answer)
    last = max((at for at, message in enumerate(row.messages) if message.role == "assistant"), default=0)
    return row.messages[:last], row.messages[last]


def require_any_prompt(ledger: TokenLedger) -> None:
    """Raise `InvalidInput` (`E-DATA-EMPTY`) where no row has a prompt that is short enough."""
    if ledger.rows["trained"]:
        return
    reasons = ", ".join(f"{n} {name}" for name, n in sorted(ledger.rows.items()) if name.startswith("dropped"))
    raise InvalidInput(
        f"None of {ledger.rows['read']} rows has a prompt to answer.",
        why=f"Rows by reason: {reasons}.",
        do="Raise max_length, check that the rows have a turn of the user before one of the assistant, and give "
        "prompts a solution or an answer where a reward compares with it.",
        code="E-DATA-EMPTY",
    )


NO_LIMIT = sys.maxsize


class TokenShare(NamedTuple):
    """The entry of an example in the token ledger."""

    trained: int
    masked: int


def count_rollout_prompts(config: TrainerConfig) -> int:
    """Return the prompts that the completions of one rollout answer."""
    hyper, settings = config.hyperparameters, config.stage
    assert isinstance(settings, PpoSettings | GrpoSettings), settings
    minibatches = settings.minibatches if isinstance(settings, PpoSettings) else 1
    completions = hyper.batch_size * hyper.gradient_accumulation * config.launch.processes * minibatches
    return completions // settings.num_generations


def require_rollout(num_prompts: int, needed: int) -> None:
    """Raise `InvalidInput` (`E-BATCH`) where the prompts do not fill one rollout."""
    if num_prompts < needed:
        raise InvalidInput(
            f"A rollout answers {needed} prompts, and the data set has {num_prompts}.",
            why="batch_size x gradient_accumulation x minibatches completions are drawn, num_generations to a prompt.",
            do="Give the trainer more rows, lower batch_size, or raise stage.num_generations.",
            code="E-BATCH",
        )


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
