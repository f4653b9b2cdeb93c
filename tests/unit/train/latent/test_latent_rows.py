"""Rows with steps: published ones, those that cannot be learned from, and borders that a tokenizer joins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.unit.train.latent.latent_models import PLAIN_ROWS, ROWS, TOKENIZER, config_with, row_with_steps
from trainyard.data.formats.records import Record
from trainyard.data.formats.supervised import prompt_completion
from trainyard.data.renderers.rendering import Renderer
from trainyard.data.rows import SftRow
from trainyard.errors import InvalidInput
from trainyard.evals.benchmarks.generated import final_answer_of
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import Encoded
from trainyard.train.latent.rows import encode_steps
from trainyard.train.losses.table import STAGES
from trainyard.train.rows.tokens import require_targets

STEPWISE = ("coconut", "hidden_cot", "codi")


def with_length(latent: dict[str, Any], max_length: int) -> TrainerConfig:
    config = config_with(latent).model_dump(mode="json")
    return TrainerConfig.model_validate({**config, "hyperparameters": {"max_length": max_length}})


def encode(rows: Sequence[SftRow], kind: str, tokenizer: Any = TOKENIZER, max_length: int = 128) -> Any:
    config = with_length({"type": kind}, max_length)
    examples, ledger = STAGES[config.stage.type].chosen(config).encode(rows, tokenizer, config)
    return list(examples), ledger


# What cannot be learned from


@pytest.mark.parametrize("kind", STEPWISE)
def test_rows_without_steps_alone_are_an_error_that_says_what_is_missing(kind: str) -> None:
    examples, ledger = encode(PLAIN_ROWS, kind)
    assert not examples
    with pytest.raises(InvalidInput, match=r"2 dropped_no_steps.*Give the rows their steps: reasoning_content"):
        require_targets(ledger)


@pytest.mark.parametrize("kind", STEPWISE)
def test_a_reasoning_longer_than_the_length_is_dropped_whole_and_counted(kind: str) -> None:
    """Cut, it would have no answer; the answer alone would have no reasoning."""
    long = row_with_steps("Why?", ["It reads documents."] * 40, "Because.")
    examples, ledger = encode([long, *ROWS], kind)
    assert (len(examples), ledger.rows["dropped_truncated"], ledger.balanced) == (3, 1, True)
    _, ledger = encode([long], kind)
    with pytest.raises(InvalidInput, match=r"1 dropped_truncated.*Raise max_length"):
        require_targets(ledger)


def test_techniques_that_read_no_steps_take_rows_without_them() -> None:
    for kind in ("pause", "quiet_star", "dsa"):
        assert len(encode(PLAIN_ROWS, kind)[0]) == 2


# Tokenizers that join what is encoded apart

TEMPLATE = "{% for m in messages %}{{ m['role'][0] + ':' + m['content'] + '\\n' }}{% endfor %}"
TEMPLATE += "{% if add_generation_prompt %}a:{% endif %}"


def joining_tokenizer() -> Any:
    """One that has a token for `:4` and for a line break with the letter after it: across both borders."""
    letters = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    pairs = [(":", "4"), ("Ċ", "1"), ("Ċ", "2")]
    vocabulary = {**letters, **{a + b: len(letters) + index for index, (a, b) in enumerate(pairs)}}
    plain = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    plain.decoder = decoders.ByteLevel()
    plain.add_special_tokens(["<end>"])
    fast: Any = PreTrainedTokenizerFast
    return fast(tokenizer_object=plain, pad_token="<end>", eos_token="<end>", chat_template=TEMPLATE)


@pytest.mark.parametrize("kind", STEPWISE)
def test_borders_that_a_tokenizer_joins_are_kept_apart(kind: str) -> None:
    """The prompt has the ids that it has when the model is served, whatever follows it."""
    tokenizer, row = joining_tokenizer(), row_with_steps("7?", ["4+0", "1+3", "2+2"], "4")
    (example,), _ = encode([row], kind, tokenizer)
    question = Renderer(tokenizer).text([{"role": "user", "content": "7?"}], None, ask=True)
    assert example["prompt_ids"] == Renderer(tokenizer).ids(question)
    pieces = [*example["prompt_ids"], *example["step_ids"], *example["answer_ids"]]
    whole = tokenizer.encode(tokenizer.decode(pieces), add_special_tokens=False)
    assert tokenizer.decode(pieces) == "u:7?\na:4+0\n1+3\n2+2\n4<end>"
    assert whole != pieces
    assert tokenizer.decode(whole) == tokenizer.decode(pieces)
    assert [tokenizer.decode(step) for step in encode_steps(example)] == ["4+0\n", "1+3\n", "2+2\n"]


# Published data


def read(path: Path) -> list[SftRow]:
    lines = path.read_bytes()
    records = orjson.loads(lines) if path.suffix == ".json" else [orjson.loads(line) for line in lines.splitlines()]
    return [prompt_completion(Record(record)) for record in records]


@pytest.mark.parametrize(
    ("name", "count", "most"),
    [("gsm8k_test.jsonl", 1319, 30), ("prosqa_valid.json", 300, 6), ("prosqa_test.json", 500, 6)],
)
def test_published_rows_are_read_as_they_are(shared_data: Path, name: str, count: int, most: int) -> None:
    """Each row has its steps, none of which is the answer, and the answer without its mark."""
    rows = read(shared_data / name)
    examples, ledger = encode(rows, "coconut", max_length=4096)
    assert (len(rows), len(examples)) == (count, count)
    assert ledger.balanced
    lengths = [len(example["step_lengths"]) for example in examples]
    assert 1 <= min(lengths) <= max(lengths) <= most
    for row, example in list(zip(rows, examples, strict=True))[:50]:
        answer, gold = decode_answer(example), row.messages[-1].content
        assert final_answer_of(answer) == final_answer_of(gold)
        assert "####" not in answer
    first = [TOKENIZER.decode(step).strip() for step in encode_steps(examples[0])]
    assert len(first) == lengths[0] > 1
    assert TOKENIZER.decode(examples[0]["prompt_ids"]).count("?") >= 1


def decode_answer(example: Encoded) -> str:
    return str(TOKENIZER.decode(example["answer_ids"], skip_special_tokens=True)).strip()
