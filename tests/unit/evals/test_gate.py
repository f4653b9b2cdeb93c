"""The gate: what passes, what blocks, and that more evidence of improvement never turns a yes into a no."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import InvalidInput
from trainyard.evals.gate import Measured, Word, choose_primary, judge, verdict_word
from trainyard.evals.statistics import ConfidenceInterval

PRIMARY = "heldout_loss/unseen_wording"


def make_measured(label: str, low: float, high: float, *, margin: float = 0.0, cases: int = 50) -> Measured:
    return Measured(label, "nats", ConfidenceInterval((low + high) / 2, low, high, cases), margin)


def test_a_clear_improvement_with_nothing_worse_is_better() -> None:
    verdict = judge(
        [make_measured(PRIMARY, 0.1, 0.3), make_measured("forgetting/general", -0.2, 0.1, margin=0.1)], PRIMARY, 0.95
    )
    assert verdict.better
    assert verdict.reasons == []
    assert verdict.passed[0] == f"{PRIMARY}: improvement +0.2000 [+0.1000, +0.3000] nats"


def test_an_interval_that_touches_zero_blocks() -> None:
    verdict = judge([make_measured(PRIMARY, 0.0, 0.3)], PRIMARY, 0.95)
    assert not verdict.better
    assert verdict.reasons == [
        f"{PRIMARY}: improvement +0.1500 [+0.0000, +0.3000] nats; the lower bound has to be above 0."
    ]


def test_too_few_cases_block_however_clear_they_are() -> None:
    verdict = judge([make_measured(PRIMARY, 0.5, 0.6, cases=5)], PRIMARY, 0.95)
    assert verdict.reasons == [
        f"{PRIMARY}: 5 independent cases cannot support 95% confidence; at least 6 are needed. "
        "Hold out more documents or questions."
    ]
    assert judge([make_measured(PRIMARY, 0.5, 0.6, cases=6)], PRIMARY, 0.95).better


def test_all_reasons_are_listed() -> None:
    other_results = [
        make_measured("exact_match/unseen_wording", -0.3, -0.1),
        make_measured("forgetting/general", -1.2, -0.8, margin=0.5),
    ]
    verdict = judge([make_measured(PRIMARY, -0.1, 0.3), *other_results], PRIMARY, 0.95)
    assert [reason.split(":")[0] for reason in verdict.reasons] == [
        PRIMARY,
        "exact_match/unseen_wording",
        "forgetting/general",
    ]
    assert verdict.reasons[2].endswith("worse by more than its margin of 0.5.")


def test_a_loss_of_exactly_the_margin_passes() -> None:
    exact = Measured("f1/x", "F1", ConfidenceInterval(-0.25, -0.3, -0.2, 40), 0.25)
    assert judge([make_measured(PRIMARY, 0.1, 0.2), exact], PRIMARY, 0.95).better


def test_the_primary_metric_is_unseen_wording_then_unseen_documents_then_the_first() -> None:
    documents = "heldout_loss/unseen_documents"
    assert choose_primary(["f1/x", documents, PRIMARY], None) == PRIMARY
    assert choose_primary(["f1/x", documents], None) == documents
    assert choose_primary(["f1/x", "exact_match/x"], None) == "f1/x"
    assert choose_primary(["f1/x", PRIMARY], "f1/x") == "f1/x"


def test_a_primary_that_does_not_run_is_refused_with_the_ones_that_do() -> None:
    with pytest.raises(InvalidInput, match=r"E-BENCHMARK: The primary metric 'f1/y' .* They are f1/x, f1/z\."):
        choose_primary(["f1/x", "f1/z"], "f1/y")


def test_a_metric_whose_interval_contains_zero_is_not_clear_and_does_not_block() -> None:
    """The case of the tables: mean below the margin, interval around zero."""
    accuracy = Measured("token_accuracy/x", "share", ConfidenceInterval(-0.0336, -0.1127, 0.0238, 40), 0.02)
    assert judge([make_measured(PRIMARY, 0.1, 0.2), accuracy], PRIMARY, 0.95).better
    worse = Measured("token_accuracy/x", "share", ConfidenceInterval(-0.0336, -0.0627, -0.0038, 40), 0.02)
    assert judge([make_measured(PRIMARY, 0.1, 0.2), worse], PRIMARY, 0.95).reasons == [
        "token_accuracy/x: improvement -0.0336 [-0.0627, -0.0038] share; worse by more than its margin of 0.02."
    ]


@pytest.mark.parametrize(("low", "word"), [(0.1, Word.BETTER), (-0.1, Word.NOT_BETTER)])
def test_few_rows_leave_no_verdict_however_they_look(low: float, word: Word) -> None:
    primary = [make_measured(PRIMARY, low, low + 0.3)]
    assert verdict_word(asdict(judge(primary, PRIMARY, 0.95))) is word
    few = judge(primary, PRIMARY, 0.95, few_rows=["16 rows."])
    assert (few.better, few.better_on_few, few.reasons[0]) == (False, low > 0, "16 rows.")
    assert verdict_word(asdict(few)) is Word.FEW_ROWS
    cases = judge([make_measured(PRIMARY, low, low + 0.3, cases=2)], PRIMARY, 0.95)
    assert verdict_word(asdict(cases)) is Word.FEW_ROWS


def test_a_control_that_knows_the_format_alone_has_to_be_beaten_clearly() -> None:
    def make_interval(low: float, high: float) -> list[Measured]:
        return [
            replace(make_measured(PRIMARY, 0.1, 0.2), over_control=ConfidenceInterval((low + high) / 2, low, high, 50))
        ]

    assert judge(make_interval(0.01, 0.1), PRIMARY, 0.95).better
    verdict = judge(make_interval(-0.01, 0.1), PRIMARY, 0.95)
    assert not verdict.better
    assert verdict.reasons == [
        f"{PRIMARY}: improvement +0.0450 [-0.0100, +0.1000] nats over the control, which was trained on shuffled "
        "answers: what was learned may be format alone; the lower bound has to be above 0."
    ]


def test_a_mean_that_is_required_and_missed_blocks_however_much_better_it_is() -> None:
    quotes = replace(
        make_measured("quotes/unseen_wording", 0.01, 0.2, margin=1.0), shortfall="quotes: 0.1; 0.2 is required."
    )
    verdict = judge([make_measured(PRIMARY, 0.5, 0.6), quotes], PRIMARY, 0.95)
    assert (verdict.better, verdict.reasons) == (False, ["quotes: 0.1; 0.2 is required."])


def test_what_is_live_has_to_be_beaten_clearly() -> None:
    def make_interval(low: float, high: float) -> list[Measured]:
        return [
            replace(make_measured(PRIMARY, 0.1, 0.3), over_live=ConfidenceInterval((low + high) / 2, low, high, 50))
        ]

    assert judge(make_interval(0.01, 0.1), PRIMARY, 0.95, live="acme/desk/v1").better
    for low, high in ((-0.1, 0.1), (0.0, 0.0), (-0.3, -0.1)):
        verdict = judge(make_interval(low, high), PRIMARY, 0.95, live="acme/desk/v1")
        assert (verdict.better, len(verdict.reasons)) == (False, 1)
        assert verdict.reasons[0].endswith(
            "over acme/desk/v1, which is live and stays; the lower bound has to be above 0."
        )


BOUND = st.floats(-2, 2, allow_nan=False)


@given(low=BOUND, width=st.floats(0, 1), other=BOUND, margin=st.floats(0, 1), gain=st.floats(0, 1))
def test_the_gate_is_monotonic(low: float, width: float, other: float, margin: float, gain: float) -> None:
    """Raising any improvement, or any margin, never turns better into not better."""
    before = [make_measured(PRIMARY, low, low + width), make_measured("f1/x", other, other + width, margin=margin)]
    risen = [
        [make_measured(PRIMARY, low + gain, low + gain + width), before[1]],
        [before[0], make_measured("f1/x", other + gain, other + gain + width, margin=margin)],
        [before[0], make_measured("f1/x", other, other + width, margin=margin + gain)],
    ]
    if judge(before, PRIMARY, 0.95).better:
        assert all(judge(after, PRIMARY, 0.95).better for after in risen)
