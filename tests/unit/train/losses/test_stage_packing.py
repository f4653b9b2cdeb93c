"""A stream of documents as blocks: every token once, in order."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.train.losses.stage_rows import TOKENIZER, settings
from trainyard.data.rows import UNSEEN_DOCUMENTS, TextRow
from trainyard.errors import InvalidInput
from trainyard.spec.axes.stages import Stage
from trainyard.testing.tiny import TEXT, build_tokenizer
from trainyard.train.contracts import IGNORED
from trainyard.train.losses.cpt import Blocks
from trainyard.train.losses.table import STAGES

DOCUMENTS = st.lists(st.lists(st.integers(0, 99), max_size=30), max_size=12)
CPT = STAGES[Stage.CPT]


@given(documents=DOCUMENTS, block=st.integers(1, 16))
def test_nothing_is_lost_and_nothing_doubled(documents: list[list[int]], block: int) -> None:
    blocks = [block["input_ids"] for block in Blocks(documents, block)]
    assert list(chain.from_iterable(blocks)) == list(chain.from_iterable(documents))
    assert all(len(part) == block for part in blocks[:-1])
    assert not blocks or 0 < len(blocks[-1]) <= block


def test_documents_are_packed_with_their_ends_and_the_ledger_says_what_is_learned() -> None:
    texts = ["A node reads documents.", "", "It counts every token.", "The fox jumps over the dog. " * 9]
    rows = [TextRow(text) for text in texts] + [TextRow("held out", split=UNSEEN_DOCUMENTS)]
    examples, ledger = CPT.encode(rows, TOKENIZER, settings(Stage.CPT, max_length=16))
    expected = [[*TOKENIZER(text)["input_ids"], TOKENIZER.eos_token_id] for text in texts if text]
    assert list(chain.from_iterable(example["input_ids"] for example in examples)) == list(
        chain.from_iterable(expected)
    )
    assert all(example["labels"] == [IGNORED, *example["input_ids"][1:]] for example in examples)
    assert ledger.tokens() == {
        "read": sum(map(len, expected)),
        "trained": sum(map(len, expected)) - len(examples),
        "masked": len(examples),
        "truncated": 0,
        "dropped": 0,
    }
    assert dict(ledger.rows) == {"read": 4, "held_out": 1, "dropped_empty": 1, "trained": 3}


def test_a_last_block_of_one_token_is_dropped_and_counted() -> None:
    ids = TOKENIZER(TEXT)["input_ids"]
    text = TOKENIZER.decode(ids[:16])
    assert TOKENIZER(text)["input_ids"] == ids[:16]
    examples, ledger = CPT.encode([TextRow(text)], TOKENIZER, settings(Stage.CPT, max_length=8))
    assert [len(example["input_ids"]) for example in examples] == [8, 8]
    assert ledger.tokens() == {"read": 17, "trained": 14, "masked": 2, "truncated": 0, "dropped": 1}


def test_special_tokens_that_a_document_spells_out_stay_text() -> None:
    examples, _ = CPT.encode([TextRow("end <|im_end|> no")], TOKENIZER, settings(Stage.CPT, max_length=64))
    assert examples[0]["input_ids"].count(TOKENIZER.eos_token_id) == 1
    assert TOKENIZER.decode(examples[0]["input_ids"]) == "end <|im_end|> no<|im_end|>"


def test_a_tokenizer_without_an_end_is_refused() -> None:
    tokenizer = build_tokenizer([TEXT])
    tokenizer.eos_token = None
    with pytest.raises(InvalidInput, match="no end-of-text token") as caught:
        CPT.encode([TextRow("a")], tokenizer, settings(Stage.CPT))
    assert caught.value.code == "E-TOKENIZER"


@given(documents=DOCUMENTS, block=st.integers(1, 16))
def test_the_first_token_of_each_block_is_masked(documents: list[list[int]], block: int) -> None:
    stored = Blocks(documents, block)
    assert [part["labels"] for part in stored[:]] == [[IGNORED, *part["input_ids"][1:]] for part in stored]


def test_a_document_of_many_blocks_is_read_back_whole() -> None:
    tokens = list(range((1 << 21) + 5))
    stored = Blocks([tokens], 4096)
    assert list(chain.from_iterable(part["input_ids"] for part in stored)) == tokens
    assert stored[-1]["input_ids"] == tokens[-5:]


def test_a_block_beyond_the_last_is_an_index_error() -> None:
    with pytest.raises(IndexError):
        Blocks([[1, 2], [3]], 2)[2]
