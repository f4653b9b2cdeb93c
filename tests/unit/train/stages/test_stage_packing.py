"""The packer of streams: every token once, in order, across any stop."""

from __future__ import annotations

import json
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.train.stages.stage_rows import TOKENIZER, settings
from trainyard.data.rows import UNSEEN_DOCUMENTS, TextRow
from trainyard.errors import InvalidInput
from trainyard.spec.axes.stages import Stage
from trainyard.testing.tiny import TEXT, build_tokenizer
from trainyard.train.head import IGNORED
from trainyard.train.stages import packing
from trainyard.train.stages.packing import Blocks, StreamPacker
from trainyard.train.stages.table import STAGES

DOCUMENTS = st.lists(st.lists(st.integers(0, 99), max_size=30), max_size=12)
CPT = STAGES[Stage.CPT]


@given(documents=DOCUMENTS, block=st.integers(1, 16))
def test_nothing_is_lost_and_nothing_doubled(documents: list[list[int]], block: int) -> None:
    blocks = list(StreamPacker(block).pack(documents))
    assert list(chain.from_iterable(blocks)) == list(chain.from_iterable(documents))
    assert all(len(part) == block for part in blocks[:-1])
    assert not blocks or 0 < len(blocks[-1]) <= block


@given(documents=DOCUMENTS, block=st.integers(1, 16), data=st.data())
def test_a_stream_that_stops_goes_on_as_if_it_had_not(
    documents: list[list[int]], block: int, data: st.DataObject
) -> None:
    stop = data.draw(st.integers(0, len(documents)))
    first = StreamPacker(block)
    before = [part for document in documents[:stop] for part in first.add(document)]
    second = StreamPacker(block)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.documents == stop
    assert before + list(second.pack(documents[second.documents :])) == list(StreamPacker(block).pack(documents))


def test_a_state_does_not_change_with_the_packer_it_was_taken_from() -> None:
    packer = StreamPacker(4)
    packer.add([1, 2])
    state = packer.state_dict()
    packer.add([3])
    assert state == {"block": 4, "documents": 1, "waiting": [1, 2]}


def test_a_state_of_other_blocks_is_refused() -> None:
    with pytest.raises(InvalidInput, match="blocks of 8 tokens, and this one makes 4") as caught:
        StreamPacker(4).load_state_dict(StreamPacker(8).state_dict())
    assert caught.value.code == "E-BATCH"


def test_a_block_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidInput, match="A block of 0 tokens") as caught:
        StreamPacker(0)
    assert caught.value.code == "E-BATCH"


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
def test_blocks_on_disk_are_the_blocks_that_were_packed(documents: list[list[int]], block: int) -> None:
    packed = list(StreamPacker(block).pack(documents))
    stored = Blocks(packed, block)
    assert len(stored) == len(packed)
    assert [stored[at]["input_ids"] for at in range(len(stored))] == packed
    assert [one["labels"] for one in stored[:]] == [[IGNORED, *one[1:]] for one in packed]


def test_a_corpus_that_is_written_in_several_parts_is_read_back_whole() -> None:
    tokens = list(range(packing.WRITE_AT_ONCE * 2 + 5))
    stored = Blocks(StreamPacker(4096).pack([tokens]), 4096)
    assert list(chain.from_iterable(one["input_ids"] for one in stored)) == tokens
    assert stored[-1]["input_ids"] == tokens[-5:]


def test_a_block_beyond_the_last_is_an_index_error() -> None:
    with pytest.raises(IndexError):
        Blocks([[1, 2], [3]], 2)[2]
