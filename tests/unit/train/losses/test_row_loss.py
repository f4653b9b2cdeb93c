"""Where the loss lies, stage by stage, and what the account says of rows that a chat template hides or refuses."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from tests.unit.data.renderers.toys import toy
from trainyard.data.rows import LabelledRow, Message, PreferenceRow, SftRow
from trainyard.errors import InvalidInput
from trainyard.spec.axes.stages import Stage
from trainyard.spec.training import TrainerConfig
from trainyard.testing.tiny import TEXT, build_tokenizer
from trainyard.train.contracts import Encoded
from trainyard.train.losses import dpo, kto, pairs
from trainyard.train.losses.table import STAGES
from trainyard.train.rows.segments import collate_packed, collate_rows
from trainyard.train.rows.tokens import IGNORED, encode_sft, require_accepted

CHATML = build_tokenizer([TEXT * 20])


def call(name: str = "clock", arguments: Any = None) -> Message:
    listed = [{"id": "call00001", "type": "function", "function": {"name": name, "arguments": arguments}}]
    return Message("assistant", "", json.dumps(listed))


RESULT = Message("tool", "quarter past", more='{"tool_call_id":"call00001"}')
CALLED = [call(), RESULT, Message("assistant", "It is noon.")]
ASKED = [Message("user", "What time is it?")]
LATER = [Message("user", "And now?"), Message("assistant", "One.")]


@cache
def tokenizer(name: str) -> PreTrainedTokenizerBase:
    model_tokenizer = toy(name).tokenizer
    model_tokenizer.chat_template = toy(name).template
    return model_tokenizer


def decode_learned(example: Encoded, labels: str = "labels", name: str = "qwen2.5") -> str:
    return str(tokenizer(name).decode([label for label in example[labels] if label != IGNORED]))


def test_a_turn_of_calls_without_a_border_is_learned_in_an_example_of_its_own() -> None:
    examples, ledger = encode_sft([SftRow([*ASKED, *CALLED])], tokenizer("qwen3"), 4096)
    answer, apart = (decode_learned(example, name="qwen3") for example in examples)
    assert "It is noon.<|im_end|>" in answer
    assert '"name": "clock"' not in answer
    assert apart.endswith('{"name": "clock", "arguments": {}}\n</tool_call><|im_end|>')
    assert ledger.balanced
    assert dict(ledger.rows) == {"read": 1, "trained": 1, "truncated": 0, "extra_examples": 1}
    assert ledger.example_rows == [1, 1]


def test_calls_that_the_template_hides_are_counted_and_not_learned_as_an_empty_answer() -> None:
    tools = json.dumps([{"type": "function", "function": {"name": "clock", "description": "The time."}}])
    (example,), ledger = encode_sft([SftRow([*ASKED, *CALLED], tools=tools)], CHATML, 4096)
    assert CHATML.decode([id for id in example["labels"] if id != IGNORED]) == "It is noon.<|im_end|>"
    assert {name: ledger.rows[name] for name in ("hidden_tool_calls", "hidden_tools", "empty_turns")} == {
        "hidden_tool_calls": 1, "hidden_tools": 1, "empty_turns": 1,
    }  # fmt: skip
    assert "does not show the tool_calls of 1 rows" in ledger.line()
    assert "1 turns of the assistant say nothing" in ledger.line()


def test_an_empty_turn_in_the_middle_is_shown_and_counted() -> None:
    row = SftRow([*ASKED, Message("assistant", ""), *LATER])
    (example,), ledger = encode_sft([row], CHATML, 512)
    assert CHATML.decode([id for id in example["labels"] if id != IGNORED]) == "One.<|im_end|>"
    assert ledger.rows["empty_turns"] == 1


def test_only_the_last_turn_makes_one_example() -> None:
    row = SftRow([*ASKED, *CALLED])
    (example,), ledger = encode_sft([row], tokenizer("qwen3"), 4096, last_turn=True)
    assert "It is noon." in decode_learned(example, name="qwen3")
    silent = SftRow([*ASKED, *CALLED[:2], Message("assistant", "It is noon.", more='{"weight":0}')])
    (example,), ledger = encode_sft([silent], tokenizer("qwen3"), 4096, last_turn=True)
    assert "clock" in decode_learned(example, name="qwen3")
    assert "unlearned_turns" not in ledger.rows


def test_an_example_that_the_cut_empties_counts_as_dropped_while_its_row_is_trained() -> None:
    row = SftRow([*ASKED, *CALLED])
    whole, _ = encode_sft([row], tokenizer("qwen3"), 4096)
    shorter = min(len(example["labels"]) for example in whole)
    examples, ledger = encode_sft([row], tokenizer("qwen3"), shorter)
    assert len(examples) == 1
    assert (ledger.rows["trained"], ledger.rows["truncated"]) == (1, 1)
    assert ledger.dropped == max(len(example["labels"]) for example in whole)
    assert ledger.balanced


@pytest.mark.parametrize(("policy", "rows"), [("drop", {"trained": 2, "extra_examples": 1}), ("refuse", {})])
def test_rows_of_several_examples_are_dropped_by_row(policy: str, rows: dict[str, int]) -> None:
    short, long = SftRow([*ASKED, *CALLED]), SftRow([Message("user", "What? " * 500), *CALLED])
    longest = max(len(example["labels"]) for example in encode_sft([short], tokenizer("qwen3"), 4096)[0])
    config = TrainerConfig.model_validate(
        {"engine": {"too_long": policy}, "hyperparameters": {"max_length": longest}, "base_model": "starter"}
    )
    if policy == "refuse":
        with pytest.raises(InvalidInput, match=r"E-DATA-TOO-LONG: 1 of 2 rows"):
            STAGES[Stage.SFT].encode([short, long], tokenizer("qwen3"), config)
        return
    plain = SftRow([*ASKED, Message("assistant", "Noon.")])
    examples, ledger = STAGES[Stage.SFT].encode([short, long, plain], tokenizer("qwen3"), config)
    assert len(examples) == 3
    assert {name: ledger.rows[name] for name in rows} == rows
    assert ledger.rows["dropped_too_long"] == 1


# Answers of several turns


def pair(name: str = "qwen2.5") -> tuple[Encoded, Any]:
    row = PreferenceRow(ASKED, CALLED, [Message("assistant", "No idea.")])
    (example,), ledger = pairs.encode([row], tokenizer(name), settings(Stage.DPO))
    return example, ledger


def settings(stage: Stage, **more: Any) -> TrainerConfig:
    return TrainerConfig.model_validate(
        {"stage": {"type": stage.value, **more}, "hyperparameters": {"max_length": 4096}, "base_model": "starter"}
    )


def test_results_inside_an_answer_are_not_learned_in_pairs() -> None:
    example, ledger = pair()
    text = decode_learned(example, "chosen_labels")
    assert "clock" in text
    assert text.endswith("It is noon.<|im_end|>")
    assert "quarter past" not in text
    assert "quarter past" in tokenizer("qwen2.5").decode(example["chosen_ids"])
    assert "rejected_labels" not in example
    batch = pairs.collate([example], 0)
    assert int((batch["labels"] != IGNORED).sum()) == ledger.trained
    assert ledger.balanced


def test_turns_of_weight_0_with_their_reasoning_are_not_learned_in_pairs() -> None:
    silent = Message("assistant", "Let me see.", more='{"weight":0,"reasoning_content":"secret"}')
    row = PreferenceRow(ASKED, [silent, *LATER], [Message("assistant", "No idea.")])
    (example,), _ = pairs.encode([row], tokenizer("qwen3-keep"), settings(Stage.DPO))
    text = decode_learned(example, "chosen_labels", "qwen3-keep")
    assert "One." in text
    assert not any(word in text for word in ("secret", "Let me see", "And now"))
    assert "secret" in tokenizer("qwen3-keep").decode(example["chosen_ids"])


@pytest.mark.parametrize("loss", ["sigmoid", "orpo"])
def test_shared_and_packed_pairs_have_the_labels_of_separate_rows(loss: str) -> None:
    row = PreferenceRow(ASKED, CALLED, [Message("assistant", "No idea.")])
    examples, ledger = dpo.encode([row], tokenizer("qwen2.5"), settings(Stage.DPO, loss=loss))
    apart, groups = dpo.collate(examples, 0), pairs.groups(examples)
    name = "row_labels" if loss == "orpo" else "labels"
    expected = [row_T[1:][row_T[1:] != IGNORED].tolist() for row_T in apart[name]]
    layouts = {"rows": collate_rows(groups, 0), "packed": collate_packed(groups, shared=False)}
    for layout, together in layouts.items():
        batch = dpo.complete(together, examples)
        labels_T, sequence_T = batch[name].flatten(), batch["sequence_ids"].flatten()
        learned_ids = [labels_T[(sequence_T == number) & (labels_T != IGNORED)].tolist() for number in range(2)]
        assert learned_ids == expected, layout
    assert sum(map(len, expected)) == ledger.trained
    assert "quarter past" not in tokenizer("qwen2.5").decode(expected[0])
    assert ("What time" in tokenizer("qwen2.5").decode(expected[0])) == (loss == "orpo")


def test_means_per_token_count_what_is_learned() -> None:
    example, _ = pair()
    batch = pairs.collate([example], 0)
    labels_BT = batch["labels"][:, 1:]
    counts_B = (labels_BT != IGNORED).sum(1)
    rows_N = (labels_BT != IGNORED).nonzero(as_tuple=True)[0]
    scores = dpo.split_sides(dpo.LabelLogprobs(torch.zeros(len(rows_N)), rows_N), 2)
    assert [int(scores["chosen_count_P"]), int(scores["rejected_count_P"])] == counts_B.tolist()
    assert int(scores["chosen_count_P"]) < len(example["chosen_ids"])


@pytest.mark.parametrize("shared", [False, True])
def test_kto_learns_no_results_and_compares_with_none(shared: bool) -> None:
    rows = [
        LabelledRow(ASKED, CALLED, label=True),
        LabelledRow([Message("user", "And you?")], [Message("assistant", "Fine.")], label=False),
    ]
    examples, ledger = kto.encode(rows, tokenizer("qwen2.5"), settings(Stage.KTO))
    if shared:
        batch = kto.complete(collate_rows(kto.groups(examples), 0), examples)
    else:
        batch = kto.collate(examples, 0)
    decode = tokenizer("qwen2.5").decode
    labels, other = (batch[name][batch[name] != IGNORED] for name in ("labels", "kl_labels"))
    assert len(labels) == ledger.trained == len(other)
    assert all("quarter past" not in decode(ids) and "noon" in decode(ids) for ids in (labels, other))


def test_an_answer_whose_calls_are_hidden_is_no_target() -> None:
    row = PreferenceRow(ASKED, [call()], [Message("assistant", "No idea.")])
    examples, ledger = pairs.encode([row], CHATML, settings(Stage.DPO))
    assert examples == []
    assert (ledger.rows["dropped_no_target"], ledger.rows["hidden_tool_calls"]) == (1, 1)


# Rows that the template refuses


def test_a_call_that_cannot_be_written_costs_its_row_alone() -> None:
    rows = [SftRow([*ASKED, *CALLED], source=f"rows.jsonl:{number}") for number in range(1, 20)]
    wrong = SftRow([*ASKED, call(arguments="all of them"), *CALLED[1:]], source="rows.jsonl:20")
    examples, ledger = encode_sft([*rows, wrong], tokenizer("qwen3.5"), 4096)
    assert len(examples) == 19
    assert ledger.rows["dropped_template"] == 1
    reason = "the arguments of the call of 'clock' are not an object: 'all of them' (1, first rows.jsonl:20)"
    assert f"the chat template refuses 1 of 20 rows: {reason}" in ledger.line()
    require_accepted(ledger, 0.05)
    with pytest.raises(InvalidInput, match=r"E-DATA-BAD-ROWS: The chat template refuses 1 of 20 rows \(5\.0%\)"):
        require_accepted(ledger, 0.01)


def test_a_template_without_system_turns_names_the_rows_that_it_costs() -> None:
    rows = [SftRow([Message("system", "Be brief."), *ASKED, CALLED[2]]) for _ in range(38)]
    rows += [SftRow([*ASKED, CALLED[2]]) for _ in range(2)]
    _, ledger = encode_sft(rows, tokenizer("gemma"), 512)
    assert ledger.refused == {"System role not supported": (38, "")}
    with pytest.raises(InvalidInput, match=r"38 of 40 rows \(95\.0%\)\. Why: At most 5\.0% may be lost.*System role"):
        require_accepted(ledger, 0.05)


def test_reasons_of_a_template_are_not_listed_without_end() -> None:
    template = "{{ raise_exception(messages[0].content) }}"
    limited = build_tokenizer([TEXT])
    limited.chat_template = template
    rows = [SftRow([Message("user", f"reason {number}"), CALLED[2]]) for number in range(30)]
    _, ledger = encode_sft(rows, limited, 64)
    assert len(ledger.refused) == 21
    assert ledger.refused["other reasons"].rows == 10
