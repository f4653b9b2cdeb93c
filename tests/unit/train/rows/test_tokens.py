"""Tokenisation and its ledger, with a real tokenizer and chat template."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from trainyard.data.renderers.rendering import Renderer
from trainyard.data.renderers.table import PLAIN_TEMPLATE
from trainyard.data.rows import Message, PreferenceRow, SftRow
from trainyard.errors import InvalidInput
from trainyard.testing.tiny import TEXT, build_tokenizer
from trainyard.train.rows.tokens import IGNORED, TokenLedger, encode_preference, encode_sft, require_targets

TOKENIZER = build_tokenizer([TEXT * 20])
WORDS = st.text(alphabet="abcdefgh .?\n<|é", max_size=40)


def user(text: str) -> Message:
    return Message("user", text)


def assistant(text: str) -> Message:
    return Message("assistant", text)


def with_template(template: str) -> PreTrainedTokenizerFast:
    tokenizer = build_tokenizer([TEXT * 20])
    tokenizer.chat_template = template
    return tokenizer


def decode_learned(example: dict[str, list[int]]) -> str:
    return TOKENIZER.decode([label for label in example["labels"] if label != IGNORED])


def test_only_the_answer_and_its_end_are_learned() -> None:
    examples, ledger = encode_sft([SftRow([user("What is a node?"), assistant("A step.")])], TOKENIZER, 512)
    assert decode_learned(examples[0]) == "A step.<|im_end|>"
    prompt = Renderer(TOKENIZER).text([{"role": "user", "content": "What is a node?"}], None, ask=True)
    served = TOKENIZER(prompt, add_special_tokens=False)["input_ids"]
    assert examples[0]["input_ids"][: len(served)] == served
    assert ledger.tokens() == {
        "read": len(examples[0]["input_ids"]),
        "trained": len(examples[0]["input_ids"]) - len(served),
        "masked": len(served),
        "truncated": 0,
        "dropped": 0,
    }
    assert ledger.line().startswith(f"tokens: read {ledger.read} = trained ")


def test_every_turn_of_the_assistant_is_learned() -> None:
    row = SftRow([Message("system", "Be brief."), user("a?"), assistant("one"), user("b?"), assistant("two")])
    examples, _ = encode_sft([row], TOKENIZER, 512)
    assert decode_learned(examples[0]) == "one<|im_end|>two<|im_end|>"
    assert TOKENIZER.decode(examples[0]["input_ids"]).endswith("two<|im_end|>")


def test_a_turn_with_weight_0_is_shown_and_not_learned() -> None:
    silent = Message("assistant", "one", more='{"weight":0}')
    row = SftRow([user("a?"), silent, user("b?"), assistant("two")])
    loud = SftRow([user("a?"), assistant("one"), user("b?"), assistant("two")])
    (example,), ledger = encode_sft([row], TOKENIZER, 512)
    (whole,), everything = encode_sft([loud], TOKENIZER, 512)
    assert decode_learned(example) == "two<|im_end|>"
    assert example["input_ids"] == whole["input_ids"]
    assert everything.trained - ledger.trained == len(TOKENIZER("one<|im_end|>")["input_ids"])
    assert ledger.balanced


def test_reasoning_and_names_reach_the_template_or_are_counted() -> None:
    template = (
        "{% for m in messages %}{{ m.role }}{{ ' ' + m.name if m.name }}: "
        "{{ '<think>' + m.reasoning_content + '</think>' if m.reasoning_content }}{{ m.content }}<|im_end|>\n"
        "{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    thoughtful = Message("assistant", "one", more='{"reasoning_content":"since b"}')
    row = SftRow([Message("user", "a?", more='{"name":"Ada"}'), thoughtful])
    (example,), ledger = encode_sft([row], with_template(template), 512)
    assert "<think>since b</think>one" in decode_learned(example)
    assert "user Ada: a?" in TOKENIZER.decode(example["input_ids"])
    assert not any(name.startswith("hidden") for name in ledger.rows)
    _, ledger = encode_sft([row], TOKENIZER, 512)
    assert (ledger.rows["hidden_name"], ledger.rows["hidden_reasoning_content"]) == (1, 1)
    assert "does not show the reasoning_content of 1 rows" in ledger.line()


def test_template_that_rewrites_earlier_turns_shows_them_without_learning() -> None:
    tokenizer = with_template(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{{ m.content if loop.last or m.role != 'assistant' else '(dropped)' }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    row = SftRow([user("a?"), assistant("one"), user("b?"), assistant("two")])
    examples, ledger = encode_sft([row], tokenizer, 512)
    assert decode_learned(examples[0]) == "two<|im_end|>"
    assert "(dropped)" in tokenizer.decode(examples[0]["input_ids"])
    assert ledger.balanced


def test_long_row_is_cut_and_a_row_without_a_target_left_is_dropped() -> None:
    short, long = SftRow([user("a?"), assistant("b " * 30)]), SftRow([user("a " * 60), assistant("lost")])
    whole, _ = encode_sft([short, long], TOKENIZER, 512)
    lengths = [len(example["input_ids"]) for example in whole]
    examples, ledger = encode_sft([short, long], TOKENIZER, 20)
    assert [len(example["input_ids"]) for example in examples] == [20]
    assert ledger.truncated == lengths[0] - 20
    assert ledger.dropped == lengths[1]
    assert ledger.read == sum(lengths)
    assert dict(ledger.rows) == {"read": 2, "trained": 1, "truncated": 1, "dropped_truncated": 1}


def test_held_out_rows_are_not_even_read() -> None:
    rows = [
        SftRow([user("a?"), assistant("b")], split=split) for split in ("train", "unseen_wording", "unseen_documents")
    ]
    examples, ledger = encode_sft(rows, TOKENIZER, 64)
    assert len(examples) == 1
    assert (ledger.rows["read"], ledger.rows["held_out"]) == (1, 2)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(["user", "assistant", "system"]), WORDS), min_size=1, max_size=5), max_size=4
    ),
    st.integers(8, 90),
)
def test_ledger_balances_for_any_conversations(conversations: list[list[tuple[str, str]]], max_length: int) -> None:
    rows = [SftRow([Message(role, text) for role, text in turns]) for turns in conversations]
    examples, ledger = encode_sft(rows, TOKENIZER, max_length)
    assert ledger.balanced
    assert ledger.trained == sum(label != IGNORED for example in examples for label in example["labels"])
    assert ledger.trained + ledger.masked == sum(len(example["input_ids"]) for example in examples)
    for example in examples:
        assert len(example["input_ids"]) == len(example["labels"]) <= max_length
        assert example["labels"][0] == IGNORED
        assert all(label in (IGNORED, id) for id, label in zip(example["input_ids"], example["labels"], strict=True))
    dropped = sum(count for name, count in ledger.rows.items() if name.startswith("dropped"))
    assert ledger.rows["read"] == len(rows) == ledger.rows["trained"] + dropped


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(WORDS, WORDS, WORDS), max_size=4), st.integers(8, 90))
def test_ledger_balances_for_any_pairs(pairs: list[tuple[str, str, str]], max_length: int) -> None:
    rows = [PreferenceRow([user(question)], [assistant(good)], [assistant(bad)]) for question, good, bad in pairs]
    examples, ledger = encode_preference(rows, TOKENIZER, max_length)
    assert ledger.balanced
    assert ledger.trained == sum(len(example["chosen_ids"]) + len(example["rejected_ids"]) for example in examples)
    for example in examples:
        longest = max(len(example["chosen_ids"]), len(example["rejected_ids"]))
        assert len(example["prompt_ids"]) + longest <= max_length
        assert example["chosen_ids"] != example["rejected_ids"]


def test_pair_of_equal_answers_is_dropped_by_name() -> None:
    row = PreferenceRow([user("a?")], [assistant("same")], [assistant("same")])
    assert encode_preference([row], TOKENIZER, 64)[1].rows["dropped_same"] == 1


def test_pair_cut_before_its_difference_is_dropped() -> None:
    common = "b " * 40
    row = PreferenceRow([user("a?")], [assistant(common + "yes")], [assistant(common + "no")])
    assert encode_preference([row], TOKENIZER, 30)[1].rows["dropped_truncated"] == 1


def test_pair_keeps_prompt_and_both_ends() -> None:
    row = PreferenceRow([user("a?")], [assistant("yes")], [assistant("no")])
    (example,), _ = encode_preference([row], TOKENIZER, 64)
    assert TOKENIZER.decode(example["prompt_ids"]).endswith("<|im_start|>assistant\n")
    assert TOKENIZER.decode(example["chosen_ids"]) == "yes<|im_end|>"
    assert TOKENIZER.decode(example["rejected_ids"]) == "no<|im_end|>"


def test_data_set_without_any_target_is_refused_with_its_reasons() -> None:
    _, ledger = encode_sft([SftRow([user("only a question")])], TOKENIZER, 64)
    with pytest.raises(InvalidInput, match=r"E-DATA-EMPTY: All labels .* none of 1 rows .* 1 dropped_no_target"):
        require_targets(ledger)


def test_empty_data_set_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"E-DATA-EMPTY: The training data set has no rows\. Why: It is empty"):
        require_targets(TokenLedger())
    _, ledger = encode_sft([SftRow([user("a"), assistant("b")], split="unseen_wording")], TOKENIZER, 64)
    with pytest.raises(InvalidInput, match="All 1 rows are held out"):
        require_targets(ledger)


def test_row_that_the_template_refuses_is_counted() -> None:
    tokenizer = with_template("{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}x")
    examples, ledger = encode_sft([SftRow([Message("system", "s"), assistant("a")])], tokenizer, 64)
    assert examples == []
    assert ledger.rows["dropped_template"] == 1
    pair = PreferenceRow([Message("system", "s")], [assistant("a")], [assistant("b")])
    assert encode_preference([pair], tokenizer, 64)[1].rows["dropped_template"] == 1


def test_model_without_a_template_learns_to_stop_all_the_same() -> None:
    (example,), _ = encode_sft([SftRow([user("a?"), assistant("b")])], with_template(PLAIN_TEMPLATE), 64)
    assert decode_learned(example) == " b<|im_end|>"
    endless = with_template("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    (example,), _ = encode_sft([SftRow([user("a?"), assistant("b")])], endless, 64)
    assert decode_learned(example).endswith("b<|im_end|>")


def test_tool_calls_and_tools_reach_the_template() -> None:
    tokenizer = with_template(
        "{{ tools[0].name }}{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{{ m.tool_calls[0].name if m.tool_calls else m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    row = SftRow([user("add"), Message("assistant", "", '[{"name": "plus"}]')], tools='[{"name": "calculator"}]')
    (example,), _ = encode_sft([row], tokenizer, 64)
    assert decode_learned(example) == "plus<|im_end|>"
    assert tokenizer.decode(example["input_ids"]).startswith("calculator")
