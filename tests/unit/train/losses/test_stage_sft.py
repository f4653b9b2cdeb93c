"""Settings of stage sft: which turns are learned, and what a token counts."""

from __future__ import annotations

import pytest
import torch

from tests.unit.train.losses.stage_rows import PAD, TOKENIZER, assistant, make_model, settings, user
from trainyard.data.rows import SftRow
from trainyard.spec.axes.stages import Stage
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import IGNORED, Encoded, Head
from trainyard.train.losses.table import STAGES
from trainyard.train.rows.batching import pack

ROWS = [
    SftRow([user("a?"), assistant("one"), user("b?"), assistant("The trainer counts every token.")]),
    SftRow([user("Why?"), assistant("Because.")]),
]


def make_config(**fields: object) -> TrainerConfig:
    return settings(Stage.SFT.settings(**fields))


def encode_rows(config: TrainerConfig) -> list[Encoded]:
    return list(STAGES[Stage.SFT].encode(ROWS, TOKENIZER, config)[0])


def decode_learned(example: Encoded) -> str:
    return TOKENIZER.decode([label for label in example["labels"] if label != IGNORED])


def test_the_last_turn_alone_is_learned_and_the_account_balances() -> None:
    examples, ledger = STAGES[Stage.SFT].encode(ROWS, TOKENIZER, make_config(turns="last"))
    assert list(map(decode_learned, examples)) == ["The trainer counts every token.<|im_end|>", "Because.<|im_end|>"]
    assert [example["input_ids"] for example in examples] == [
        example["input_ids"] for example in encode_rows(make_config())
    ]
    assert ledger.balanced
    assert ledger.trained == sum(label != IGNORED for example in examples for label in example["labels"])


def test_a_turn_without_weight_is_not_the_last_one() -> None:
    row = SftRow([*ROWS[0].messages, user("c?"), assistant("shown")])
    row.messages[-1].more = '{"weight":0}'
    (example,), _ = STAGES[Stage.SFT].encode([row], TOKENIZER, make_config(turns="last"))
    assert decode_learned(example) == "The trainer counts every token.<|im_end|>"


def test_a_row_whose_last_turn_is_cut_off_is_dropped() -> None:
    room = len(encode_rows(make_config())[0]["input_ids"]) // 2
    examples, ledger = STAGES[Stage.SFT].encode(
        ROWS[:1], TOKENIZER, settings(Stage.SFT.settings(turns="last"), max_length=room)
    )
    assert (examples, ledger.rows["dropped_truncated"]) == ([], 1)


@pytest.mark.parametrize("packed", [False, True])
def test_by_row_each_row_counts_the_same(packed: bool) -> None:
    config = make_config(average="row")
    stage, model, examples = STAGES[Stage.SFT].chosen(config), make_model("causal"), encode_rows(config)
    batch = pack(examples, PAD) if packed else stage.collate(examples, PAD)
    total, _ = stage.loss(batch, stage.score(model, batch, Head.FULL), None, config)
    alone = []
    for example in examples:
        ids_1T = torch.tensor([example["input_ids"]])
        alone.append(
            model(input_ids=ids_1T, labels=torch.tensor([example["labels"]])).loss.item()
        )  # transformers' mean
    assert stage.units(batch) == 2
    assert total.item() == pytest.approx(sum(alone), rel=1e-5)


def test_a_row_without_labels_is_no_unit() -> None:
    stage = STAGES[Stage.SFT].chosen(make_config(average="row"))
    batch = stage.collate(encode_rows(make_config()), PAD)
    batch["labels"][0] = IGNORED
    assert stage.units(batch) == 1
    batch["labels"][:] = IGNORED
    assert stage.units(batch) == 0


def test_settings_at_their_default_are_not_written() -> None:
    assert make_config().stage.model_dump(mode="json") == {"type": "sft"}
    assert make_config(average="row", neftune_alpha=5).stage.model_dump(mode="json") == {
        "type": "sft", "average": "row", "neftune_alpha": 5.0,
    }  # fmt: skip
