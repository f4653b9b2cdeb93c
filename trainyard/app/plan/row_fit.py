"""The rows of a sample as their trainer would encode them: which fit, and how many tokens they have. No torch.

Rendering, cutting and the account of every row are those of the training (`trainyard.train.rows.tokens`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from trainyard.backends.rows import split_rows
from trainyard.data import rows as shapes
from trainyard.data.renderers.tokenizer import choose_for_tokenizer
from trainyard.errors import InvalidInput, NotFound
from trainyard.spec.axes.data import Port
from trainyard.spec.axes.stages import SftSettings, Stage
from trainyard.spec.training import TrainerConfig
from trainyard.train.rows import reasoning
from trainyard.train.rows.prompts import (
    NO_LIMIT,
    count_rollout_prompts,
    encode_prompts,
    require_any_prompt,
    require_rollout,
)
from trainyard.train.rows.tokens import (
    TokenLedger,
    encode_labelled,
    encode_preference,
    encode_sft,
    require_accepted,
    require_both_labels,
    require_end_of_text,
    require_targets,
)

MOST_ROWS = 2_000
"""Rows that are rendered and tokenised."""


@dataclass(frozen=True)
class FittedRows:
    """What a trainer would make of a sample of its rows."""

    rows: int
    """Rows that were encoded."""
    examples: int
    """Examples that are trained on: of plain text the blocks, of a conversation at times more than one."""
    tokens_per_example: float
    """As measurements count them: of a pair both sides together."""
    dropped: dict[str, int]
    """Reason -> rows that are not trained on."""
    truncated: int = 0
    notes: tuple[str, ...] = ()
    """Parts that the template hides or refuses."""


def load_tokenizer(folder: Path, template: str, roots: Sequence[Path]) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a base with the template that its trainer would use.

    Raises `NotFound` (`E-TOKENIZER`) for a folder without `tokenizer.json`, and as `choose_for_tokenizer`.
    """
    if not (folder / "tokenizer.json").is_file():
        raise NotFound(
            f"There is no tokenizer.json in {folder}.", do="Save the tokenizer again with save_pretrained.",
            code="E-TOKENIZER",
        )  # fmt: skip
    tokenizer: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(str(folder))
    tokenizer.chat_template = choose_for_tokenizer(tokenizer, template, roots=roots).text
    return tokenizer


def fit_rows(
    config: TrainerConfig,
    path: Path,
    port: Port,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_bad_fraction: float,
    deadline: float,
    decides: bool,
) -> FittedRows:
    """Encode the first rows of a file as the trainer would, until the time is over.

    With `decides` the rows are all that there are. Raises `InvalidInput` as a training on them would.
    """
    rows = read_until(deadline, shapes.read_rows(path, port))
    if port in config.stage.facts.instead:
        rows = map(shapes.to_chosen_row, rows)
    stage = config.stage
    if decides:
        split_rows(config, path.parent, port)  # raises where the control or the evaluation leaves no row
    if Port.TEXT in stage.facts.ports:
        require_end_of_text(tokenizer)
        return fit_texts(config, rows, tokenizer)
    limit, policy = config.hyperparameters.max_length, config.engine.too_long
    draws_groups = stage.facts.draws_groups
    encoded, ledger = encode_rows_of(config, rows, tokenizer, limit if draws_groups or policy == "cut" else NO_LIMIT)
    examples = encoded if draws_groups else [example for example in encoded if width(example) <= limit]
    long = len(encoded) - len(examples)
    if decides:
        require_accepted(ledger, max_bad_fraction)
        (require_any_prompt if draws_groups else require_targets)(ledger)
        if ledger.rows["read"] + ledger.rows["held_out"] == shapes.count_rows(path):  # later rows may differ
            if draws_groups:
                require_rollout(len(encoded), count_rollout_prompts(config))
            elif stage.type is Stage.KTO:
                require_both_labels(examples)
        if long and policy == "refuse":
            raise InvalidInput(
                f"{long} of {ledger.rows['read']} rows are longer than max_length ({limit} tokens).",
                why="engine.too_long is refuse.",
                do="Raise max_length, split the rows, or set engine.too_long to cut or drop.",
                code="E-DATA-TOO-LONG",
            )
    dropped = {name.removeprefix("dropped_"): n for name, n in ledger.rows.items() if name.startswith("dropped_") and n}
    if long:
        dropped["too_long"] = dropped.get("too_long", 0) + long
    tokens = sum(map(total_tokens, examples))
    return FittedRows(
        rows=ledger.rows["read"],
        examples=len(examples),
        tokens_per_example=tokens / len(examples) if examples else 0.0,
        dropped=dropped,
        truncated=ledger.rows["truncated"],
        notes=tuple(ledger.notes()),
    )


def require_reasoning(
    config: TrainerConfig, path: Path, port: Port, tokenizer: PreTrainedTokenizerBase, deadline: float
) -> None:
    """Raise `InvalidInput` as a training of a latent technique would where no row has steps of reasoning."""
    rows = read_until(deadline, shapes.read_rows(path, port))
    if port in config.stage.facts.instead:
        rows = map(shapes.to_chosen_row, rows)
    _, ledger = reasoning.encode(rows, tokenizer, config, steps=True)
    require_accepted(ledger, config.refusal_limit)
    require_targets(ledger)


def read_until(deadline: float, rows: Iterable[Any]) -> Iterator[Any]:
    """Yield the first rows, of which at least one is taken."""
    for number, row in enumerate(rows):
        if number and (number >= MOST_ROWS or time.monotonic() > deadline):
            return
        yield row


def encode_rows_of(
    config: TrainerConfig, rows: Iterable[Any], tokenizer: PreTrainedTokenizerBase, limit: int
) -> tuple[list[Any], TokenLedger]:
    """Return the examples of a stage, or its prompts, cut to `limit` tokens, with the account of the rows."""
    if config.stage.facts.draws_groups:
        return encode_prompts(rows, tokenizer, limit, getattr(config.stage, "rewards", ()))
    ports = config.stage.facts.ports
    if Port.PREFERENCE in ports:
        return encode_preference(rows, tokenizer, limit)
    if Port.LABELLED in ports:
        return encode_labelled(rows, tokenizer, limit)
    last = isinstance(config.stage, SftSettings) and config.stage.turns == "last"
    return encode_sft(rows, tokenizer, limit, last_turn=last)


def fit_texts(config: TrainerConfig, rows: Iterable[Any], tokenizer: PreTrainedTokenizerBase) -> FittedRows:
    """Texts laid end to end and cut into blocks of `max_length`."""
    read = tokens = 0
    for row in rows:
        read += 1
        tokens += len(tokenizer(row.text, split_special_tokens=True, verbose=False)["input_ids"]) + 1
    length = config.hyperparameters.max_length
    blocks = -(-tokens // length)
    return FittedRows(read, blocks, tokens / blocks if blocks else 0.0, {})


def width(example: dict[str, Any]) -> int:
    """Return tokens of an example, of a pair those of the prompt with the longer answer."""
    if "input_ids" in example:
        return len(example["input_ids"])
    answers = [ids for name, ids in example.items() if name.endswith("_ids") and name != "prompt_ids"]
    return len(example["prompt_ids"]) + max(map(len, answers))


def total_tokens(example: dict[str, Any]) -> int:
    """Return tokens of an example that go through the model, of a pair those of both sides."""
    if "input_ids" in example:
        return len(example["input_ids"])
    answers = [ids for name, ids in example.items() if name.endswith("_ids") and name != "prompt_ids"]
    return len(answers) * len(example["prompt_ids"]) + sum(map(len, answers))
