"""The length policy, in tokens of the model that will be trained: drop, truncate or raise.

Tokens are counted by the model's own `tokenizer.json` through the `tokenizers` library; no transformers, no torch.
The chat template is not rendered, because a template is untrusted code; its tokens are estimated as four a message
in addition to the role's own (start, end and two separators: right for ChatML, Llama 3 and Gemma) and one for the
begin of the sequence. The trainer counts the rendered text once more, exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from trainyard.data.quality.blocks import ANSWERS, MESSAGE_COLUMNS, Block
from trainyard.data.quality.sieve import Item, RowFilter, TokenCounter
from trainyard.data.rows import SCHEMAS, Message
from trainyard.errors import InvalidInput, NotFound
from trainyard.json_types import JsonObject
from trainyard.spec.axes.data import Port

MESSAGE_OVERHEAD = 4
"""Template tokens around a message, without its role: start, end and two separators."""
TOKENIZER_FILE = "tokenizer.json"
SEQUENCE_OVERHEAD = 1
"""The begin-of-sequence token of a conversation."""


class TokenizerCounter:
    """Counts with a loaded tokenizer. Cost: about 1 M tokens a CPU second, by far the dearest step of a validator."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.role_tokens = cache(lambda role: len(tokenizer.encode(role, add_special_tokens=False)))

    def __call__(self, items: Sequence[Item]) -> list[int]:
        texts = [list_parts(item) for item in items]
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        encoded = self.tokenizer.encode_batch_fast(list(chain.from_iterable(texts)), add_special_tokens=False)
        counts = np.concatenate([[0], np.cumsum([len(encoding) for encoding in encoded], dtype=np.int64)])
        ends = np.cumsum(sizes)
        contents = (counts[ends] - counts[ends - sizes]).tolist()
        return [count + self.overhead(item) for count, item in zip(contents, items, strict=True)]

    def overhead(self, item: Item) -> int:
        if isinstance(item, str):
            return 0
        return SEQUENCE_OVERHEAD + sum(MESSAGE_OVERHEAD + self.role_tokens(message.role) for message in item)


def list_parts(item: Item) -> list[str]:
    """Return the texts of an item that are counted: a call of a tool counts as its JSON text, reasoning as it is."""
    if isinstance(item, str):
        return [item]
    thoughts = (message.extras.get("reasoning_content", "") if message.more else "" for message in item)
    return [
        thought + message.content + (message.tool_calls or "") for thought, message in zip(thoughts, item, strict=True)
    ]


def load_token_counter(model_folder: Path) -> TokenCounter:
    """Return a counter for the model in a folder, from its `tokenizer.json`.

    Raises `NotFound` (`E-TOKENIZER`) or `InvalidInput` (`E-TOKENIZER`).
    """
    path = model_folder / TOKENIZER_FILE
    if not path.is_file():
        raise NotFound(
            f"There is no tokenizer.json in {model_folder}.",
            why="The length policy is in tokens of the model, so its fast tokenizer is needed.",
            do="Name a folder with tokenizer.json as the validator's `tokenizer`.",
            code="E-TOKENIZER",
        )
    try:
        return TokenizerCounter(Tokenizer.from_file(str(path)))
    except Exception as error:  # the library raises bare Exception for a file that it cannot read
        raise InvalidInput(
            f"{path} is not a tokenizer that the tokenizers library can read: {error}.",
            do="Save the tokenizer again with save_pretrained, or name another folder as `tokenizer`.",
            code="E-TOKENIZER",
        ) from error


def length(block: Block, sieve: RowFilter) -> Block:
    """Count the tokens of every row; drop the short ones; drop, truncate or refuse those over `max_tokens`."""
    if not len(block):
        return block
    rules, ledger = sieve.config, sieve.ledger
    tokens = count_tokens(block, sieve.tokens)
    sieve.read_tokens += int(tokens.sum())
    short, most = tokens < rules.min_tokens, rules.max_tokens
    block = ledger.drop(block, short, "too_short", lambda row: f"{tokens[row]} tokens, least {rules.min_tokens}")
    sizes = tokens[~short]
    long = np.flatnonzero(sizes > most)
    if len(long) and rules.too_long == "raise":
        where = block.column("source")[long[0]].as_py() or "the set"
        raise InvalidInput(
            f"Line {block.numbers[long[0]]} of {where} has {sizes[long[0]]} tokens; max_tokens is {most}.",
            why="The validator's too_long is raise, so the first row that is too long ends the run.",
            do="Raise max_tokens, shorten the row, or set too_long to drop or truncate.",
            code="E-DATA-TOO-LONG",
        )
    if len(long) and rules.too_long == "truncate" and block.port is not Port.PROMPTS:  # cut, it asks something else
        block, sizes[long] = truncate(block, long, most, sieve.tokens)
        sieve.truncated += int((sizes[long] <= most).sum())
    block.tokens = sizes
    return ledger.drop(block, sizes > most, "too_long", lambda row: f"{sizes[row]} tokens, most {most}")


def count_tokens(block: Block, tokens: TokenCounter) -> np.ndarray:
    """int64 tokens of each row; of a preference row its longer side. Tool schemas count as text."""
    sides = [np.asarray(tokens(items), np.int64) for items in conversations(block)]
    counts: np.ndarray = np.maximum.reduce(sides)
    if "tools" in block.batch.schema.names and block.column("tools").null_count < len(block):
        counts = counts + np.asarray(tokens(block.column("tools").fill_null("").to_pylist()), np.int64)
    return counts


def conversations(block: Block) -> list[list[Item]]:
    """Return the counted items: one list of items, or one a side of a preference row."""
    if block.port is Port.TEXT:
        return [block.column("text").to_pylist()]
    turns, *sides = (messages(block, name) for name in MESSAGE_COLUMNS[block.port])
    return [[prompt + answer for prompt, answer in zip(turns, side, strict=True)] for side in sides] or [turns]


def messages(block: Block, column: str) -> list[Any]:
    """Return the message lists of a column as `Message` objects."""
    turns = block.turns(column)
    columns = (part.to_pylist() for part in (turns.roles, turns.contents, turns.calls, turns.more))
    flat = [Message(role, text, calls or None, more or None) for role, text, calls, more in zip(*columns, strict=True)]
    offsets = turns.offsets.tolist()
    return [flat[start:end] for start, end in pairwise(offsets)]


def truncate(block: Block, long: np.ndarray, limit: int, tokens: TokenCounter) -> tuple[Block, np.ndarray]:
    """The block with the answers of the `long` rows cut so that they fit, and how many tokens these rows then have.

    The answer's end is cut, never the prompt; a row whose prompt alone is too long, or whose answer is a call of a
    tool, stays as it is (and is dropped by the caller).
    """
    rows = block.batch.take(pa.array(long)).to_pylist()
    tools = tokens([row.get("tools") or "" for row in rows])
    for column in ANSWERS[block.port] or (None,):
        cut_side(rows, block.port, column, [limit - size for size in tools], tokens)
    fresh = pa.RecordBatch.from_pylist(rows, schema=SCHEMAS[block.port])
    order = np.arange(len(block))
    order[long] = len(block) + np.arange(len(long))
    joined = pa.Table.from_batches([block.batch.cast(SCHEMAS[block.port]), fresh]).combine_chunks().to_batches()
    counts = count_tokens(Block(block.port, fresh, block.numbers[long]), tokens)
    return Block(block.port, joined[0].take(pa.array(order)), block.numbers), counts


def cut_side(rows: list[JsonObject], port: Port, column: str | None, limits: list[int], tokens: TokenCounter) -> None:
    """Cut one learned text of each row in place, where that makes the row fit."""
    if port is Port.TEXT:
        texts = [row["text"] for row in rows]
        for row, text in zip(rows, longest_fit(texts, lambda _, text: text, limits, tokens), strict=True):
            row["text"] = row["text"] if text is None else text
        return
    turns = [row["messages"] if column is None else row["prompt"] + row[column] for row in rows]
    heads = [msgspec.convert(messages[:-1], list[Message]) for messages in turns]
    texts = ["" if messages[-1]["tool_calls"] else messages[-1]["content"] for messages in turns]

    def build(index: int, text: str) -> Item:
        last = turns[index][-1]
        return [*heads[index], Message(last["role"], text, more=last["more"])]

    for messages_, text in zip(turns, longest_fit(texts, build, limits, tokens), strict=True):
        if text is not None and not messages_[-1]["tool_calls"]:
            messages_[-1]["content"] = text


def longest_fit(
    texts: list[str], build: Callable[[int, str], Item], limits: list[int], tokens: TokenCounter
) -> list[str | None]:
    """For each text its longest beginning whose item has at most its limit of tokens; None if none has.

    Bisection over characters, all texts at once: about 13 counts for a text of 8,000 characters. The cut goes back to
    the last space, where there is one in the second half, so that no word is left half.
    """
    low, high = [0] * len(texts), [len(text) for text in texts]
    while open_ := [index for index in range(len(texts)) if low[index] < high[index]]:
        middles = [(low[index] + high[index] + 1) // 2 for index in open_]
        items = [build(index, texts[index][:middle]) for index, middle in zip(open_, middles, strict=True)]
        for index, middle, count in zip(open_, middles, tokens(items), strict=True):
            if count <= limits[index]:
                low[index] = middle
            else:
                high[index] = middle - 1
    return [whole_words(text, size) if size else None for text, size in zip(texts, low, strict=True)]


def whole_words(text: str, size: int) -> str:
    """Return the first `size` characters, back to the last space if it is in their second half."""
    if size == len(text) or text[size].isspace():
        return text[:size].rstrip() or text[:size]
    space = max(text.rfind(" ", 0, size), text.rfind("\n", 0, size))
    return text[: space if space > size // 2 else size].rstrip() or text[:size]
