"""Rows above max_length: cut, dropped or refused, and always counted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.train.losses.stage_rows import TOKENIZER, assistant, conversations, make_labelled, pairs, settings, user
from trainyard.data.rows import LabelledRow, PreferenceRow, SftRow
from trainyard.errors import InvalidInput
from trainyard.spec.axes.stages import PreferenceLoss, Stage
from trainyard.train.losses.table import STAGES
from trainyard.train.rows.tokens import require_targets

LONG = "The trainer counts every token that it reads. " * 6
ROWS: dict[Stage, list[Any]] = {
    Stage.SFT: [*conversations(4), SftRow([user("a?"), assistant(LONG)])],
    Stage.DPO: [*pairs(4), PreferenceRow([user("a?")], [assistant(LONG)], [assistant("no")])],
    Stage.REWARD: [*pairs(4), PreferenceRow([user("a?")], [assistant("no")], [assistant(LONG)])],
    Stage.KTO: [*make_labelled(4), LabelledRow([user("a?")], [assistant(LONG)], label=True)],
}
LIMIT = 50


@pytest.mark.parametrize("stage", ROWS)
def test_long_rows_are_cut_by_default(stage: Stage) -> None:
    examples, ledger = STAGES[stage].encode(ROWS[stage], TOKENIZER, settings(stage, max_length=LIMIT))
    assert len(examples) == 5
    assert max(map(STAGES[stage].width, examples)) == LIMIT
    assert ledger.rows["truncated"] == 1
    assert ledger.truncated > 0


@pytest.mark.parametrize("stage", ROWS)
def test_long_rows_are_dropped_on_request(stage: Stage) -> None:
    config = settings(stage, max_length=LIMIT, engine={"too_long": "drop"})
    examples, ledger = STAGES[stage].encode(ROWS[stage], TOKENIZER, config)
    expected, clean = STAGES[stage].encode(ROWS[stage][:4], TOKENIZER, config)
    assert examples == expected
    assert (ledger.trained, ledger.masked, ledger.truncated) == (clean.trained, clean.masked, 0)
    assert ledger.dropped == ledger.read - clean.read > 0
    assert dict(ledger.rows) == {"read": 5, "trained": 4, "truncated": 0, "dropped_too_long": 1}


@pytest.mark.parametrize("stage", ROWS)
def test_long_rows_are_refused_on_request(stage: Stage) -> None:
    config = settings(stage, max_length=LIMIT, engine={"too_long": "refuse"})
    with pytest.raises(
        InvalidInput, match=r"1 of 5 rows are longer than max_length \(50 tokens\); the longest has \d+"
    ) as caught:
        STAGES[stage].encode(ROWS[stage], TOKENIZER, config)
    assert caught.value.code == "E-DATA-TOO-LONG"
    assert len(STAGES[stage].encode(ROWS[stage][:4], TOKENIZER, config)[0]) == 4


def test_orpo_learns_the_prompts_of_chosen_rows_and_the_ledger_says_so() -> None:
    plain, orpo = (
        STAGES[Stage.DPO].encode(pairs(4), TOKENIZER, settings(Stage.DPO, preference={"loss": loss}))
        for loss in (PreferenceLoss.SIGMOID, PreferenceLoss.ORPO)
    )
    prompts = sum(len(example["prompt_ids"]) - 1 for example in plain[0])
    assert orpo[1].balanced
    assert orpo[1].trained == plain[1].trained + prompts
    assert orpo[1].read == plain[1].read


@pytest.mark.parametrize("stage", [Stage.DPO, Stage.REWARD])
def test_pairs_without_a_difference_are_dropped_and_counted(stage: Stage) -> None:
    same = PreferenceRow([user("a?")], [assistant("one")], [assistant("one")])
    examples, ledger = STAGES[stage].encode([same, *pairs(2)], TOKENIZER, settings(stage))
    assert len(examples) == 2
    assert ledger.rows["dropped_same"] == 1


@pytest.mark.parametrize("stage", ROWS)
def test_data_without_a_target_is_refused(stage: Stage) -> None:
    """A prompt that fills the row leaves nothing to learn."""
    examples, ledger = STAGES[stage].encode(ROWS[stage], TOKENIZER, settings(stage, max_length=8))
    assert not examples
    with pytest.raises(InvalidInput, match="All labels of the data set are masked: none of 5 rows") as caught:
        require_targets(ledger)
    assert caught.value.code == "E-DATA-EMPTY"
