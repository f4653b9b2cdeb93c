"""Format compliance, JSON Schema and quality rules: what a row has to be, whatever it says.

Every rule has a name; a row that breaks multiline is counted under the first.

Grounding: the share of an answer's different words that occur in its source document.

A word overlap, not a judgement: it finds answers that a model made up, and passes a wrong answer that is written with
the document's own words. Switched on by the validator's `grounding`; costs nothing otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from trainyard.data.quality.blocks import (
    ANSWERS,
    MESSAGE_COLUMNS,
    Block,
    Detail,
    RowLedger,
    Turns,
    read_blocks,
    to_numpy,
)
from trainyard.data.quality.duplicates import identities
from trainyard.data.quality.row_schemas import RowSchema
from trainyard.data.quality.sensitive import mask_texts
from trainyard.data.quality.sieve import RowFilter, Vocabulary
from trainyard.data.quality.words import split_words
from trainyard.data.rows import ROWS_FILE
from trainyard.errors import InvalidInput
from trainyard.spec.axes.data import Port
from trainyard.spec.nodes import QualityRules, SensitiveRules

SCHEMA_LIMIT = "row_schema_limit"
"""Why a row is left out that needs more than the schema may use for one row."""
ROLES = ("system", "user", "assistant", "tool")
Check = tuple[np.ndarray, str, Detail]
"""Mask of the rows that break the rule, the reason, and why."""


# --- format ---------------------------------------------------------------------------------------------------------


def check_format(block: Block, sieve: RowFilter) -> Block:
    """Known roles, no empty content, a user's message before an assistant's last one, two sides that differ."""
    for check in FORMAT_CHECKS[block.port]:
        if len(block):
            block = sieve.ledger.drop(block, *check(block))
    return block


def reduce_messages(turns: Turns, mask: np.ndarray) -> np.ndarray:
    """Return per row whether the mask is true for one of its messages."""
    counts = np.concatenate([[0], np.cumsum(mask)])
    return np.asarray(np.diff(counts[turns.offsets]) > 0)


def reduce_columns(block: Block, rule: Callable[[Turns], np.ndarray]) -> np.ndarray:
    """Return per row whether the rule is true for one of its columns of messages."""
    return np.asarray(np.logical_or.reduce([rule(block.turns(name)) for name in MESSAGE_COLUMNS[block.port]]))


def without_messages(block: Block) -> Check:
    mask = reduce_columns(block, lambda turns: np.asarray(np.diff(turns.offsets) == 0))
    return mask, "no_messages", f"{' or '.join(MESSAGE_COLUMNS[block.port])} contains no message"


def unknown_role(block: Block) -> Check:
    roles = pa.array(ROLES)
    mask = reduce_columns(
        block, lambda turns: reduce_messages(turns, ~to_numpy(pc.is_in(turns.roles, value_set=roles)))
    )
    return mask, "unknown_role", f"a message's role is none of {', '.join(ROLES)}"


def empty_content(block: Block) -> Check:
    """Find blank texts; a tool call needs no text, and a tool may answer nothing."""
    if block.port is Port.TEXT:
        return blank(block.column("text").fill_null("")), "empty_content", "the text is blank"

    def is_blank(turns: Turns) -> np.ndarray:
        return reduce_messages(turns, blank(turns.contents) & blank(turns.calls) & ~turns.is_role("tool"))

    return reduce_columns(block, is_blank), "empty_content", "a message is blank"


def without_user(block: Block) -> Check:
    turns = block.turns(MESSAGE_COLUMNS[block.port][0])
    return ~reduce_messages(turns, turns.is_role("user")), "no_user", "no message is the user's"


def last_not_assistant(block: Block) -> Check:
    sides = map(block.turns, ANSWERS[block.port] or MESSAGE_COLUMNS[block.port])
    masks = [reduce_messages(turns, turns.last & turns.is_role("assistant")) for turns in sides]
    return (
        ~np.logical_and.reduce(masks),
        "last_not_assistant",
        "the last message is not the assistant's, so there is nothing to learn",
    )


def same_sides(block: Block) -> Check:
    sides = []
    for turns in map(block.turns, ANSWERS[block.port]):
        texts = pc.utf8_trim_whitespace(turns.join_texts(turns.contents))
        sides.append(pc.binary_join_element_wise(texts, turns.join_texts(turns.calls), "\x1f"))
    return to_numpy(pc.equal(*sides)), "chosen_equals_rejected", "chosen and rejected are the same"


def without_label(block: Block) -> Check:
    return to_numpy(pc.is_null(block.column("label"))), "no_label", "the label is missing"


def blank(texts: pa.Array) -> np.ndarray:
    return to_numpy(pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(texts)), 0))


_CHAT = (without_messages, unknown_role, empty_content, without_user, last_not_assistant)
FORMAT_CHECKS: dict[Port, tuple[Callable[[Block], Check], ...]] = {
    Port.SFT: _CHAT,
    Port.PREFERENCE: (*_CHAT, same_sides),
    Port.LABELLED: (*_CHAT, without_label),
    Port.PROMPTS: (without_messages, unknown_role, empty_content, without_user),
    Port.TEXT: (empty_content,),
}


# --- JSON Schema ----------------------------------------------------------------------------------------------------


def row_validator(schema: Mapping[str, object] | None) -> RowSchema | None:
    """The config's `row_schema`, in its child. Raises `InvalidInput` (`E-DATA-FORMAT`) for what judges no row."""
    return None if schema is None else RowSchema(schema)


def check_schema(block: Block, sieve: RowFilter) -> Block:
    """Rows that do not meet the config's JSON Schema, and rows that cannot be compared with it within its limits.

    Raises `InvalidInput` (`E-DATA-FORMAT`), `LimitExceeded` (`E-DATA-LIMIT`).
    """
    if sieve.row_validator is None or not len(block):
        return block
    replies = sieve.row_validator.judge(block.batch.to_pylist())
    limits = [reply.limit for reply in replies]
    problems = [reply.problem for reply in replies if not reply.limit]
    block = sieve.ledger.drop(
        block, np.array([bool(limit) for limit in limits]), SCHEMA_LIMIT,
        lambda row: f"comparing it with row_schema used {limits[row]}",
    )  # fmt: skip
    return sieve.ledger.drop(
        block, np.array([bool(text) for text in problems], bool), "row_schema", lambda row: problems[row]
    )


# --- exact duplicates -----------------------------------------------------------------------------------------------


def exact_duplicates(block: Block, sieve: RowFilter) -> Block:
    """Rows whose messages, tools and texts are byte for byte those of an earlier row."""
    if not sieve.config.exact_duplicates or not len(block):
        return block
    return drop_repeated(block, find_repeated(identities(block), sieve.seen), sieve.ledger)


def find_repeated(keys: Sequence[bytes], seen: set[bytes]) -> np.ndarray:
    """Return which of these keys came before; `seen` gets them all."""
    mask = np.zeros(len(keys), bool)
    for index, key in enumerate(keys):
        mask[index] = key in seen
        seen.add(key)
    return mask


def drop_repeated(block: Block, mask: np.ndarray, ledger: RowLedger) -> Block:
    return ledger.drop(block, mask, "exact_duplicate", "an earlier row is the same")


# --- quality --------------------------------------------------------------------------------------------------------


def quality(block: Block, sieve: RowFilter) -> Block:
    """Rules about the answer. A call of a tool and an undesirable completion are not judged by them."""
    for rule in QUALITY_RULES:
        if len(block):
            mask, reason, detail = rule(block, sieve.config.quality)
            block = sieve.ledger.drop(block, mask & select_judged(block), reason, detail)
    return block


def select_judged(block: Block) -> np.ndarray:
    """Rows whose answer is meant to be good prose: no tool calls, completions labelled bad, or answers of prompts."""
    if block.port is Port.PROMPTS:
        return np.zeros(len(block), bool)
    if block.port is Port.LABELLED:
        return to_numpy(block.column("label")).astype(bool)
    if block.port is Port.SFT:
        turns = block.turns("messages")
        return ~reduce_messages(turns, turns.last & ~blank(turns.calls))
    return np.ones(len(block), bool)


def answer_too_short(block: Block, rules: QualityRules) -> Check:
    sizes, least = characters(block.answer), rules.min_answer_chars
    return sizes < least, "answer_too_short", lambda row: f"the answer has {sizes[row]} characters, least {least}"


def answer_too_long(block: Block, rules: QualityRules) -> Check:
    sizes, most = characters(block.answer), rules.max_answer_chars
    # Length of running text is the length policy's business (in tokens), not an answer's.
    mask = (sizes > most) & (block.port is not Port.TEXT)
    return mask, "answer_too_long", lambda row: f"the answer has {sizes[row]} characters, most {most}"


def characters(texts: pa.Array) -> np.ndarray:
    return to_numpy(pc.utf8_length(pc.utf8_trim_whitespace(texts)))


def repeated_lines(block: Block, rules: QualityRules) -> Check:
    """Check the share of repeated lines in the answer (compare Rae et al. 2021, arXiv 2112.11446, table A1)."""
    shares = np.zeros(len(block))
    multiline = to_numpy(pc.greater(pc.count_substring(block.answer, "\n"), 0))
    for index in np.flatnonzero(multiline).tolist():
        lines = [line for text in block.answer[index].as_py().split("\n") if (line := text.strip())]
        shares[index] = 1 - len(set(lines)) / max(len(lines), 1)
    most = rules.max_repeated_line_fraction
    return shares > most, "repeated_lines", lambda row: f"{shares[row]:.0%} of the lines repeat others, most {most:.0%}"


def symbols(block: Block, rules: QualityRules) -> Check:
    """Share of characters that are neither letters, digits nor spaces."""
    counts = to_numpy(pc.count_substring_regex(block.answer, r"[^\pL\pN\pM\s]"))
    shares = counts / np.maximum(to_numpy(pc.utf8_length(block.answer)), 1)
    most = rules.max_symbol_fraction
    return shares > most, "symbols", lambda row: f"{shares[row]:.0%} of the answer is symbols, most {most:.0%}"


def refused_phrase(block: Block, rules: QualityRules) -> Check:
    mask = np.zeros(len(block), bool)
    for phrase in rules.refuse_phrases:
        mask |= to_numpy(pc.match_substring(block.answer, phrase, ignore_case=True))
    return mask, "refused_phrase", "the answer contains a refused phrase"


QUALITY_RULES: tuple[Callable[[Block, QualityRules], Check], ...] = (
    answer_too_short,
    answer_too_long,
    repeated_lines,
    symbols,
    refused_phrase,
)


def load_vocabulary(documents: Path | None, masks: SensitiveRules) -> Vocabulary:
    """Return the words of every document of a documents folder: 8 bytes for each different word of each document.

    Documents are masked as their rows are: an answer that names `[EMAIL]` is then grounded.

    Raises `InvalidInput` (`E-DATA-NOT-FOUND`) without a folder.
    """
    if documents is None:
        raise InvalidInput(
            "The validator's grounding is set, but no documents reach it.",
            why="An answer is compared with the document that it was written from.",
            do="Put the validator behind a data_source of documents, or remove grounding.",
            code="E-DATA-NOT-FOUND",
        )
    vocabulary: Vocabulary = {}
    for block in read_blocks(documents / ROWS_FILE, Port.DOCUMENTS):
        of_block = split_words(mask_texts(pa.concat_arrays([block.column("text").fill_null("")]), masks))
        for index, doc_id in enumerate(block.column("doc_id").to_pylist()):
            vocabulary[document_key(doc_id)] = np.unique(of_block.of(index))
    return vocabulary


def document_key(doc_id: str | None) -> int:
    return xxhash.xxh3_64_intdigest((doc_id or "").encode())


def grounding(block: Block, sieve: RowFilter) -> Block:
    """Drop rows whose answer shares too few words with its document, and rows whose document is not known."""
    least = sieve.config.grounding
    if least is None or sieve.vocabulary is None or not len(block):
        return block
    return drop_ungrounded(block, grounded_shares(block, sieve.vocabulary), least, sieve.ledger)


def grounded_shares(block: Block, vocabulary: Vocabulary) -> np.ndarray:
    """Return the share of the different words of each answer that its document has; -1 where that is not known."""
    answers = split_words(block.answer)
    shares = np.full(len(block), -1.0)
    for index, doc_id in enumerate(block.column("doc_id").to_pylist()):
        document = vocabulary.get(document_key(doc_id))
        if document is not None:
            shares[index] = share_found(np.unique(answers.of(index)), document)
    return shares


def drop_ungrounded(block: Block, shares: np.ndarray, least: float, ledger: RowLedger) -> Block:
    unknown = shares < 0
    block = ledger.drop(block, unknown, "no_document", "its source document is not among the documents")
    shares = shares[~unknown]
    detail = "{:.0%} of the answer's words are in its document, least {:.0%}"
    return ledger.drop(block, shares < least, "ungrounded", lambda row: detail.format(shares[row], least))


def share_found(answer: np.ndarray, document: np.ndarray) -> float:
    """Share of the (different) words of an answer that are among the document's; 1 for an answer without words."""
    return float(np.isin(answer, document, assume_unique=True).mean()) if len(answer) else 1.0
