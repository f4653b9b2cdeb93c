"""Pairs of answers to one prompt, as the stages that compare two answers read them.

Shapes: P pairs, B = 2P rows (rows 0..P-1 are chosen, P..2P-1 rejected), T positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from transformers import PreTrainedTokenizerBase

from trainyard.data.rows import PreferenceRow
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import IGNORED, SEQUENCES, Batch, Encoded
from trainyard.train.rows.batching import pad
from trainyard.train.rows.prompts import TokenShare, encode_within_length
from trainyard.train.rows.segments import PromptGroup
from trainyard.train.rows.tokens import Answer, TokenLedger, encode_preference, get_answer

SIDES = ("chosen", "rejected")


def encode(
    rows: Iterable[PreferenceRow], tokenizer: PreTrainedTokenizerBase, config: TrainerConfig
) -> tuple[list[Encoded], TokenLedger]:
    """Pairs as {prompt_ids, chosen_ids, rejected_ids}; one-sided pairs and pairs of equal answers are dropped."""
    return encode_within_length(lambda limit: encode_preference(rows, tokenizer, limit), width, share, config)


def width(example: Encoded) -> int:
    """Return tokens of the prompt with the longer answer."""
    return len(example["prompt_ids"]) + max(len(example["chosen_ids"]), len(example["rejected_ids"]))


def share(example: Encoded) -> TokenShare:
    answers = [get_answer(example, side) for side in SIDES]
    trained = sum(answer.trained for answer in answers)
    return TokenShare(trained, 2 * len(example["prompt_ids"]) + sum(len(answer.ids) for answer in answers) - trained)


def collate(examples: Sequence[Encoded], pad_id: int) -> Batch:
    """Return the chosen rows, then the rejected ones; of answers what the assistant says has labels."""
    sides = [join_answer(example["prompt_ids"], get_answer(example, side)) for side in SIDES for example in examples]
    return pad(sides, pad_id)


def join_answer(prompt: list[int], answer: Answer) -> Encoded:
    """Return a prompt with its answer as a row whose answer is labelled."""
    return {"input_ids": prompt + answer.ids, "labels": [IGNORED] * len(prompt) + answer.labels}


def groups(examples: Sequence[Encoded]) -> list[PromptGroup]:
    """Return each pair as a prompt with two answers: sequences 0..P-1 are chosen, P..2P-1 rejected."""
    pairs = len(examples)
    prompt_groups = []
    for at, example in enumerate(examples):
        chosen, rejected = (get_answer(example, side) for side in SIDES)
        labels = {at: chosen.labels, pairs + at: rejected.labels}
        prompt_groups.append(PromptGroup(example["prompt_ids"], [(at, chosen.ids), (pairs + at, rejected.ids)], labels))
    return prompt_groups


def sequences(batch: Batch) -> int:
    """Chosen and rejected answers, whether each is a row or several are in one."""
    return int(batch[SEQUENCES].max()) + 1 if SEQUENCES in batch else batch["input_ids"].shape[0]


def units(batch: Batch) -> int:
    """Pairs."""
    return sequences(batch) // 2
