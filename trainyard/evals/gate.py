"""The gate: may this candidate replace what answers now?

Better means: on the primary metric the lower bound of the paired improvement's interval is above zero, over the
baseline, over what is live and over a control that was trained on shuffled answers; no other listed metric is worse by
more than its margin; and each reaches the mean that is required of it. A metric is worse when its
whole interval is below zero; one whose interval contains zero is not clear, and does not block. With fewer rows or
cases than a verdict needs, there is none: not enough rows to say. Every reason is given, not only the first. Numbers
decide, nothing else: the same report always gets the same verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from trainyard.data.rows import UNSEEN_DOCUMENTS, UNSEEN_WORDING
from trainyard.errors import InvalidInput
from trainyard.evals.statistics import ConfidenceInterval
from trainyard.spec.estimate.verdict import undecidable


@dataclass(frozen=True)
class Measured:
    """Input of the gate for one benchmark."""

    label: str
    """`benchmark/set`."""
    metric: str
    improvement: ConfidenceInterval
    """Candidate against baseline; positive is better for every metric."""
    margin: float
    over_live: ConfidenceInterval | None = None
    """Candidate against the adapter that is live; None without a comparison."""
    over_control: ConfidenceInterval | None = None
    """Candidate against a control that was trained on shuffled answers; None without one."""
    shortfall: str = ""
    """How the candidate misses the mean that is required of it; empty where it does not."""


@dataclass(frozen=True)
class GateVerdict:
    better: bool
    primary: str
    reasons: list[str]
    """Why not; empty when better."""
    passed: list[str]
    """Checks that passed."""
    few_rows: list[str] = field(default_factory=list)
    """Why there are not enough rows to say; they are among the reasons, too."""
    better_on_few: bool = False
    """Whether it would be better if these rows were enough."""


class Word(StrEnum):
    """A verdict in words."""

    BETTER = "better"
    NOT_BETTER = "not better"
    FEW_ROWS = "not enough rows to say"


def verdict_word(verdict: Mapping[str, object]) -> Word:
    """Return the word of a gate as reports store it; those of earlier releases know no floor of rows."""
    if verdict.get("few_rows"):
        return Word.FEW_ROWS
    return Word.BETTER if verdict["better"] else Word.NOT_BETTER


def choose_primary(labels: Sequence[str], name: str | None) -> str:
    """The label that decides: the wanted one, else held-out loss on unseen wording, on unseen documents, or the first.

    Raises `InvalidInput` (`E-BENCHMARK`) when the wanted one is not among the labels.
    """
    if name is None:
        preferred = (f"heldout_loss/{UNSEEN_WORDING}", f"heldout_loss/{UNSEEN_DOCUMENTS}")
        return next((label for label in preferred if label in labels), labels[0])
    if name in labels:
        return name
    raise InvalidInput(
        f"The primary metric {name!r} is not among the benchmarks that run.",
        why=f"They are {', '.join(labels)}.",
        do="Name one of them as `primary`, or add it to `benchmarks`.",
        code="E-BENCHMARK",
    )


def judge(
    measured: Sequence[Measured], primary: str, confidence: float, *, few_rows: Sequence[str] = (), live: str = ""
) -> GateVerdict:
    """Return the verdict over all benchmarks. `few_rows` says where rows are missing, `live` names what is live."""
    reasons: list[str] = []
    few = list(few_rows)
    passed: list[str] = []
    for result in measured:
        decides = result.label == primary
        if decides and (text := undecidable(result.label, result.improvement.cases, confidence)):
            few.append(text)
        if decides:
            faults = [primary_fault(result), control_fault(result), live_fault(result, live)]
        else:
            faults = [margin_fault(result)]
        faults.append(result.shortfall or None)
        wrong = [fault for fault in faults if fault]
        reasons += wrong
        passed += [] if wrong else [f"{result.label}: {describe(result.improvement, result.metric)}"]
    return GateVerdict(not (few or reasons), primary, [*few, *reasons], passed, few, not reasons)


def is_above_zero(interval: ConfidenceInterval) -> bool:
    """Whether an interval shows an improvement; of a single case, which has none, its value."""
    return interval.mean > 0 if interval.low is None else interval.low > 0


def primary_fault(result: Measured) -> str | None:
    """Why the primary metric does not show an improvement; None if it does."""
    if is_above_zero(result.improvement):
        return None
    return f"{result.label}: {describe(result.improvement, result.metric)}; the lower bound has to be above 0."


def control_fault(result: Measured) -> str | None:
    """Return why a candidate that is like its control, which knows the format alone, is not better; else None."""
    if result.over_control is None or is_above_zero(result.over_control):
        return None
    over = describe(result.over_control, result.metric)
    return (
        f"{result.label}: {over} over the control, which was trained on shuffled answers: what was learned may be "
        "format alone; the lower bound has to be above 0."
    )


def live_fault(result: Measured, live: str) -> str | None:
    """Why the candidate does not replace what is live; None if it is clearly better, or nothing is compared."""
    if result.over_live is None or is_above_zero(result.over_live):
        return None
    over = describe(result.over_live, result.metric)
    return f"{result.label}: {over} over {live}, which is live and stays; the lower bound has to be above 0."


def margin_fault(result: Measured) -> str | None:
    """Return why a metric other than the primary one blocks; None if it is not worse by more than its margin.

    Worse is the word of the tables: the whole interval is below zero. Where it contains zero nothing is clear.
    """
    clear = result.improvement.high is not None and result.improvement.high < 0
    if not clear or result.improvement.mean >= -result.margin:
        return None
    over = describe(result.improvement, result.metric)
    return f"{result.label}: {over}; worse by more than its margin of {result.margin:.3g}."


def describe(interval: ConfidenceInterval, metric: str) -> str:
    """`improvement +0.412 [+0.380, +0.444] nats …`."""
    bounds = (
        "no interval" if interval.low is None or interval.high is None else f"{interval.low:+.4f}, {interval.high:+.4f}"
    )
    return f"improvement {interval.mean:+.4f} [{bounds}] {metric}"
