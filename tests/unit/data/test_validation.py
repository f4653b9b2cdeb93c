from __future__ import annotations

import json
import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from validating import (
    LOOSE,
    PORTS,
    Validated,
    count_words,
    heldout_documents,
    make_labelled,
    preference,
    qa,
    run,
    sieve,
)

from trainyard.data.quality.blocks import Block, RowLedger, read_blocks
from trainyard.data.quality.sets import KeptRows, RowStatus
from trainyard.data.quality.sieve import RowFilter
from trainyard.data.quarantine import ROWS_WITH_TEXT
from trainyard.data.rows import Message, PreferenceRow, Row, SftRow, TextRow, to_batch, write_rows
from trainyard.data.validation import DESTINATIONS, ROW_STEPS, SET_STEPS, no_rows_left_error, validate
from trainyard.errors import InvalidInput, TrainyardError
from trainyard.spec.axes.data import Port
from trainyard.spec.nodes import ValidatorConfig
from trainyard.stores.artifacts import Reference

WORDS = [f"w{number}" for number in range(400)]


def wordings(docs: int, pairs: int = 3, count: int = 3) -> list[SftRow]:
    """What a generator hands on: several wordings of each question, the last marked."""
    return [
        qa(
            f"wording {wording} of question {pair} about document {doc}",
            f"answer {pair} from {doc}",
            doc_id=f"{doc:016x}",
            pair=f"{doc}-{pair}",
            source=f"doc{doc}.md",
            split="unseen_wording" if wording == count - 1 and count > 1 else "train",
        )
        for doc in range(docs)
        for pair in range(pairs)
        for wording in range(count)
    ]


HOLDOUT = {"documents": 0.1, "min_rows": 2, "wording": True}


# --- the tables -----------------------------------------------------------------------------------------------------


def test_the_steps_in_order() -> None:
    assert list(ROW_STEPS) == [
        "sensitive",
        "format",
        "row_schema",
        "length",
        "quality",
        "exact_duplicates",
        "grounding",
    ]
    assert list(SET_STEPS) == ["near_duplicates", "holdout", "decontamination"]


# --- held-out sets --------------------------------------------------------------------------------------------------


def test_rows_of_held_out_documents_go_to_their_own_set(tmp_path: Path) -> None:
    rows = wordings(10)
    out = run(rows, tmp_path, holdout=HOLDOUT)
    held = heldout_documents({row.doc_id for row in rows}, 0.1)
    assert len(held) == 1
    unseen = out.heldout("unseen_documents")
    assert {row.doc_id for row in unseen} == held
    assert [row.messages[0].content[:9] for row in unseen] == ["wording 2"] * 3
    assert {row.split for row in unseen} == {"unseen_documents"}
    assert not held & {row.doc_id for row in out.kept_rows}
    assert out.facts["dropped"] == {"spare_wording": 6}
    assert out.facts["documents"] == {"trained": 9, "heldout": 1}
    assert out.facts["unseen_names"] == sorted({row.source for row in unseen})


def test_the_last_wording_of_a_trained_question_is_set_aside(tmp_path: Path) -> None:
    out = run(wordings(10), tmp_path, holdout=HOLDOUT)
    unseen = out.heldout("unseen_wording")
    assert len(unseen) == 27
    assert {row.messages[0].content[:9] for row in unseen} == {"wording 2"}
    assert {row.messages[0].content[:9] for row in out.kept_rows} == {"wording 0", "wording 1"}
    assert {row.pair for row in unseen} == {row.pair for row in out.kept_rows}
    assert {row.split for row in unseen} == {"unseen_wording"}
    assert {row.split for row in out.kept_rows} == {"train"}


def test_wordings_stay_in_training_when_the_rule_is_off(tmp_path: Path) -> None:
    out = run(wordings(10), tmp_path, holdout={**HOLDOUT, "wording": False})
    assert out.heldout("unseen_wording") == []
    assert len(out.kept_rows) == 81
    assert {row.split for row in out.kept_rows} == {"train"}


def test_without_a_holdout_all_is_training(tmp_path: Path) -> None:
    out = run(wordings(4), tmp_path)
    assert len(out.kept_rows) == 36
    assert not (out.folder / "heldout").exists()


def test_a_wording_of_a_question_that_is_not_trained_is_trained(tmp_path: Path) -> None:
    rows = [qa("robot", "", doc_id="d", pair="p"), qa("b?", doc_id="d", pair="p", split="unseen_wording")]
    out = run([*rows, qa("c?", doc_id="e")], tmp_path, holdout={**HOLDOUT, "documents": 0})
    assert [row.messages[0].content for row in out.kept_rows] == ["b?", "c?"]
    assert out.facts["heldout"] == {"unseen_documents": 0, "unseen_wording": 0}


def test_a_wording_that_training_shows_is_dropped(tmp_path: Path) -> None:
    rows = [qa("What is it?", "A", doc_id="d", pair="p"), qa("what IS it", "A", doc_id="d", pair="p")]
    rows[1].split = "unseen_wording"
    out = run(rows, tmp_path, holdout={**HOLDOUT, "documents": 0})
    assert out.facts["dropped"] == {"seen_wording": 1}


def test_marked_rows_without_a_pair_go_by_their_document(tmp_path: Path) -> None:
    rows = [qa("a?", doc_id="d"), qa("b?", doc_id="d", split="unseen_wording"), qa("c?", doc_id="e")]
    rows.append(qa("d?", doc_id="f", split="unseen_wording"))
    out = run(rows, tmp_path, holdout={**HOLDOUT, "documents": 0})
    assert [row.messages[0].content for row in out.heldout("unseen_wording")] == ["b?"]
    assert [row.messages[0].content for row in out.kept_rows] == ["a?", "c?", "d?"]


def test_a_row_marked_as_unseen_holds_its_document_out(tmp_path: Path) -> None:
    rows = [qa("a?", doc_id="d", split="unseen_documents"), qa("b?", doc_id="d"), qa("c?", doc_id="e")]
    out = run(rows, tmp_path)
    assert [row.doc_id for row in out.kept_rows] == ["e"]
    assert len(out.heldout("unseen_documents")) == 2


def test_rows_without_documents_are_held_out_each_for_itself(tmp_path: Path) -> None:
    out = run([qa(f"question {n}?") for n in range(40)], tmp_path, holdout={"documents": 0.1, "min_rows": 0})
    assert out.facts["heldout"]["unseen_documents"] == 4
    again = run(
        [qa(f"question {n}?") for n in reversed(range(40))], tmp_path / "2", holdout={"documents": 0.1, "min_rows": 0}
    )
    assert {row.messages[0].content for row in again.kept_rows} == {row.messages[0].content for row in out.kept_rows}


def test_as_many_documents_as_the_rows_need(tmp_path: Path) -> None:
    out = run(wordings(20, pairs=2), tmp_path, holdout={"documents": 0.05, "min_rows": 7, "wording": True})
    assert out.facts["documents"]["heldout"] == 4
    assert out.facts["heldout"]["unseen_documents"] == 8


def test_other_shapes_are_held_out(tmp_path: Path) -> None:
    makers: list[Any] = [
        lambda n: preference(f"q{n}?", doc_id=f"d{n // 2}"),
        lambda n: make_labelled(f"q{n}?", doc_id=f"d{n // 2}"),
        lambda n: TextRow(f"text {n}", doc_id=f"d{n // 2}"),
    ]
    for index, maker in enumerate(makers):
        out = run([maker(n) for n in range(20)], tmp_path / str(index), holdout=HOLDOUT)
        assert (out.facts["kept"], out.facts["heldout"]["unseen_documents"]) == (18, 2)


# --- warnings -------------------------------------------------------------------------------------------------------


def test_too_few_held_out_rows_are_said(tmp_path: Path) -> None:
    out = run(wordings(3, pairs=1), tmp_path, holdout={"documents": 0.1, "min_rows": 20, "wording": True})
    assert out.facts["warnings"] == [
        "unseen_documents has 1 rows, asked were 20: of 3 documents at most half may be held out. "
        "Add documents, or lower holdout.min_rows.",
        "unseen_wording has 2 rows, asked were 20: 3 rows were marked for it. "
        "Generate more rows, or lower holdout.min_rows.",
    ]
    assert out.report["warnings"] == out.facts["warnings"]


def test_enough_held_out_rows_are_not_warned_about(tmp_path: Path) -> None:
    assert run(wordings(10), tmp_path, holdout=HOLDOUT).facts["warnings"] == []


def test_exactly_as_many_as_asked_is_enough(tmp_path: Path) -> None:
    out = run(wordings(3, pairs=2), tmp_path, holdout={"documents": 0.1, "min_rows": 2, "wording": True})
    assert (out.facts["heldout"]["unseen_documents"], out.facts["warnings"]) == (2, [])
    rows = [qa("a?", doc_id="d"), qa("b?", doc_id="d", split="unseen_wording")]
    out = run(rows, tmp_path / "2", holdout={"documents": 0, "min_rows": 1, "wording": True})
    assert (out.facts["heldout"]["unseen_wording"], out.facts["warnings"]) == (1, [])


def test_nothing_asked_nothing_warned(tmp_path: Path) -> None:
    off = {"documents": 0, "min_rows": 20, "wording": False}
    assert run(wordings(10), tmp_path, holdout=off).facts["warnings"] == []
    assert run([qa("a?"), qa("b?")], tmp_path / "2", holdout={**off, "wording": True}).facts["warnings"] == []


def test_one_document_cannot_be_held_out(tmp_path: Path) -> None:
    out = run([qa("a?", doc_id="d"), qa("b?", doc_id="d")], tmp_path, holdout=HOLDOUT)
    assert out.facts["heldout"]["unseen_documents"] == 0
    assert "of 1 documents at most half" in out.facts["warnings"][0]


# --- the output -----------------------------------------------------------------------------------------------------


def test_report_facts_and_reference_agree(tmp_path: Path) -> None:
    rows = [*wordings(10), qa("robot", ""), *wordings(1)[:1]]
    out = run(rows, tmp_path, holdout=HOLDOUT)
    facts = out.facts
    assert facts["read"] == 92
    assert facts["kept"] == len(out.kept_rows) == 54
    assert facts["heldout"] == {"unseen_documents": 3, "unseen_wording": 27}
    assert facts["dropped"] == {"empty_content": 1, "exact_duplicate": 1, "spare_wording": 6}
    assert facts["port"] == "sft"
    part = out.produced.outputs[Port.SFT]
    assert (part.folder, part.rows, part.facts) == ("sft", 54, facts)
    report = out.report
    config = report.pop("config")
    assert report == facts
    assert ValidatorConfig.model_validate(config).holdout.min_rows == 2


def test_tokens_are_those_of_the_rows(tmp_path: Path) -> None:
    out = run([qa("a b", "c"), qa("d", "e f g"), qa("h", "")], tmp_path)
    assert out.facts["tokens"] == {"read": 7, "kept": 7, "longest": 4}


def test_the_quarantine_holds_every_dropped_row(tmp_path: Path) -> None:
    rows = [qa("a?", source="f:1"), qa("b?", "", source="f:2"), qa("a?", source="f:9"), qa("c?", "much too long here")]
    out = run(rows, tmp_path, quality={**LOOSE["quality"], "max_answer_chars": 16})
    assert [(entry["line"], entry["source"], entry["reason"]) for entry in out.quarantine] == [
        (2, "f:2", "empty_content"),
        (4, "", "answer_too_long"),
        (3, "f:9", "exact_duplicate"),
    ]
    assert out.facts["dropped"] == {"answer_too_long": 1, "empty_content": 1, "exact_duplicate": 1}


def test_a_quarantined_row_is_shown(tmp_path: Path) -> None:
    out = run([qa("a?"), qa("b?" * 2000, "")], tmp_path)
    (entry,) = out.quarantine
    assert entry["line"] == 2
    assert entry["detail"] == "a message is blank"
    assert entry["row"].startswith('{"messages":[{"role":"user","content":"b?b?')
    assert len(entry["row"]) == 2000


def test_a_clean_set_has_an_empty_quarantine(tmp_path: Path) -> None:
    assert run([qa()], tmp_path).quarantine == []


def test_no_working_file_is_left(tmp_path: Path) -> None:
    out = run(wordings(10), tmp_path, holdout=HOLDOUT)
    assert sorted(path.relative_to(out.folder).as_posix() for path in out.folder.rglob("*") if path.is_file()) == [
        "heldout/unseen_documents.arrow",
        "heldout/unseen_wording.arrow",
        "quarantine.jsonl",
        "report.json",
        "rows.arrow",
    ]


def test_rows_keep_their_fields_and_their_order(tmp_path: Path) -> None:
    row = SftRow(
        [Message("system", "s"), Message("user", "u"), Message("assistant", "", '[{"name":"f"}]')],
        doc_id="d",
        source="f.jsonl:3",
        pair="p",
        tools='[{"type":"function"}]',
    )
    rows: list[Row] = [row, *(qa(f"q{n}?") for n in range(20))]
    assert run(rows, tmp_path).kept_rows == rows


def test_progress_rises_to_one(tmp_path: Path) -> None:
    write_rows(tmp_path / "in" / "rows.arrow", Port.SFT, [qa(f"q{n}") for n in range(9)])
    progress: list[tuple[float, str]] = []
    source = Reference(uri=f"file://{tmp_path / 'in'}", sha256="", kind=Port.SFT)
    validate(
        ValidatorConfig(**LOOSE), source, tmp_path / "out", tokens=count_words, report=lambda *x: progress.append(x)
    )
    fractions = [fraction for fraction, _ in progress]
    assert fractions == sorted(fractions)
    assert [text for _, text in progress] == [
        "checked 9 rows",
        "near duplicates among 9 rows",
        "holdout among 9 rows",
        "decontamination among 9 rows",
        "writing",
        "kept 9 of 9 rows",
    ]
    assert fractions[-1] == 1.0


def test_the_origin_of_the_gold_is_named(tmp_path: Path) -> None:
    write_rows(tmp_path / "in" / "rows.arrow", Port.SFT, [qa()])
    for facts, gold in [
        ({}, "file (rows)"),
        ({"format": "alpaca"}, "file (alpaca)"),
        ({"engine": "local"}, "synthetic (local)"),
    ]:
        source = Reference(uri=f"file://{tmp_path / 'in'}", sha256="", kind=Port.SFT, facts=facts)
        config = ValidatorConfig(**LOOSE)
        validated = validate(config, source, tmp_path / gold, tokens=count_words, report=lambda *_: None)
        assert validated.facts["gold"] == gold


def test_the_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    first = run(wordings(10), tmp_path / "1", holdout=HOLDOUT, near_duplicates=0.9, decontaminate=13)
    two = run(wordings(10), tmp_path / "2", holdout=HOLDOUT, near_duplicates=0.9, decontaminate=13)
    for path in sorted(first.folder.rglob("*")):
        if path.is_file():
            assert path.read_bytes() == (two.folder / path.relative_to(first.folder)).read_bytes()


# --- errors ---------------------------------------------------------------------------------------------------------


def test_nothing_kept_names_reasons_and_counts(tmp_path: Path) -> None:
    rows = [qa("a", "", source="f.jsonl:1"), qa("b", ""), qa("long " * 600)]
    with pytest.raises(InvalidInput) as caught:
        run(rows, tmp_path)
    assert caught.value.code == "E-DATA-EMPTY"
    assert str(caught.value) == (
        "E-DATA-EMPTY: The validator kept none of 3 rows. Why: Dropped: empty_content 2 (first: f.jsonl:1 "
        "(line 1): a message is blank); too_long 1 (first: row (line 3): 604 tokens, most 512). Held out: 0. "
        "Do: Loosen the rule that dropped most rows, or correct the data."
    )


def test_all_held_out_is_nothing_kept(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"kept none of 1 rows\. Why: Dropped: \. Held out: 1"):
        run([qa(doc_id="d", split="unseen_documents")], tmp_path)


def test_an_empty_set(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="E-DATA-EMPTY: The set that reached the validator has no rows"):
        run([], tmp_path, port=Port.SFT)


def test_documents_cannot_be_validated(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="E-DATA-FORMAT: A validator cannot check documents"):
        run([], tmp_path, port=Port.DOCUMENTS)


def test_the_working_file_goes_when_a_step_fails(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="E-DATA-TOO-LONG"):
        run([qa("a b c d e f g h i")], tmp_path, max_tokens=8, too_long="raise")
    assert not list((tmp_path / "out").rglob("*.arrow"))


# --- the balance ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"read": 10},
        {"read": 12},
        {"kept_rows": 5},
        {"kept_rows": 7},
        {"heldout": {"a": 1}},
        {"dropped": Counter({"x": 3})},
    ],
)
def test_a_wrong_balance_fails_the_run(tmp_path: Path, change: dict[str, Any]) -> None:
    right = {"read": 11, "kept_rows": 6, "heldout": {"a": 2, "b": 1}, "dropped": Counter({"x": 1, "y": 1})}
    RowLedger(tmp_path / "q", **right).check_balance()
    with pytest.raises(TrainyardError, match=r"E-BATCH: The validator's balance is wrong: read \d+, kept \d"):
        RowLedger(tmp_path / "q", **{**right, **change}).check_balance()


def test_a_run_with_a_wrong_balance_hands_nothing_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose_a_row(survivors: KeptRows, of_run: RowFilter) -> None:
        of_run.ledger.read += 1

    monkeypatch.setitem(SET_STEPS, "lose_a_row", lose_a_row)
    with pytest.raises(TrainyardError, match="read 3, kept 2, held out 0, dropped 0"):
        run([qa("a?"), qa("b?")], tmp_path)
    assert not (tmp_path / "out" / "sft" / "report.json").exists()


def test_drop_counts_what_it_writes(tmp_path: Path) -> None:
    rules = sieve(tmp_path)
    rows = [qa(f"q{n}", source=f"f:{n}") for n in range(4)]
    rows_block = Block(Port.SFT, to_batch(list(rows), Port.SFT), np.array([11, 12, 13, 14]))
    left = rules.ledger.drop(rows_block, np.array([False, True, False, True]), "why", lambda row: f"row {row}")
    assert left.numbers.tolist() == [11, 13]
    assert rules.ledger.dropped == {"why": 2}
    lines = [json.loads(line) for line in rules.ledger.quarantine.read_text().splitlines()]
    assert [line["line"] for line in lines] == [12, 14]
    assert [line["detail"] for line in lines] == ["row 1", "row 3"]
    assert [line["source"] for line in lines] == ["f:1", "f:3"]
    assert rules.ledger.first == {"why": "f:1 (line 12): row 1"}
    same = rules.ledger.drop(left, np.array([False, False]), "not", "at all")
    assert same is left
    assert rules.ledger.dropped == {"why": 2}


def test_every_dropped_fate_has_a_reason_and_every_other_a_place() -> None:
    assert {fate for fate in RowStatus if fate < RowStatus.NEAR_DUPLICATE} == set(DESTINATIONS)
    assert RowStatus.SEEN_WORDING.reason == "seen_wording"


def test_nothing_kept_of_nothing(tmp_path: Path) -> None:
    assert no_rows_left_error(RowLedger(tmp_path / "q")).code == "E-DATA-EMPTY"
    assert no_rows_left_error(RowLedger(tmp_path / "q", read=1)).code == "E-DATA-EMPTY"


SENTENCE = st.lists(st.sampled_from(WORDS[:8]), max_size=16).map(" ".join)
ORIGIN = {
    "doc_id": st.sampled_from(["", "a", "b", "c", "d", "e"]),
    "split": st.sampled_from(["train", "train", "unseen_wording", "unseen_documents"]),
}
MESSAGE = st.builds(Message, st.sampled_from(["system", "user", "assistant", "robot"]), SENTENCE)
SFT = st.one_of(
    st.builds(qa, SENTENCE, SENTENCE, pair=st.sampled_from(["", "p", "q"]), **ORIGIN),
    st.builds(SftRow, st.lists(MESSAGE, max_size=4), **ORIGIN),
)
SETS = st.one_of(
    st.lists(SFT, min_size=1, max_size=24),
    st.lists(st.builds(preference, SENTENCE, SENTENCE, SENTENCE, **ORIGIN), min_size=1, max_size=16),
    st.lists(st.builds(make_labelled, SENTENCE, SENTENCE, st.booleans(), **ORIGIN), min_size=1, max_size=16),
    st.lists(st.builds(TextRow, SENTENCE, **ORIGIN), min_size=1, max_size=16),
)
CONFIGS = st.fixed_dictionaries(
    {
        "max_tokens": st.integers(8, 24),
        "min_tokens": st.integers(0, 4),
        "too_long": st.sampled_from(["drop", "truncate"]),
        "exact_duplicates": st.booleans(),
        "near_duplicates": st.sampled_from([None, 0.5, 0.9]),
        "decontaminate": st.sampled_from([1, 3, 13]),
        "quality": st.fixed_dictionaries({"min_answer_chars": st.integers(0, 5)}),
        "holdout": st.fixed_dictionaries(
            {"documents": st.sampled_from([0.0, 0.1, 0.4]), "min_rows": st.integers(0, 6), "wording": st.booleans()}
        ),
    }
)


def question(row: Row) -> str:
    if isinstance(row, TextRow):
        return ""
    messages = row.messages[:-1] if isinstance(row, SftRow) else row.prompt
    return " ".join(" ".join(message.content.split()) for message in messages if message.role != "system")


def validate_rows(rows: list[Row], folder: Path, config: dict[str, Any]) -> Validated | None:
    """The run's outputs; None if no row was kept, which has to be said in that case only."""
    try:
        return run(rows, folder, **config)
    except InvalidInput as error:
        if error.code == "E-DATA-EMPTY":
            return None
        raise


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SETS, CONFIGS)
def test_whatever_comes_in_is_accounted_for_and_nothing_leaks(rows: list[Row], config: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as name:
        out = validate_rows(rows, Path(name), config)
        if out is None:
            assert not (Path(name) / "out" / PORTS[type(rows[0])].value / "rows.arrow").exists()
            return
        held = {name: out.heldout(name) for name in ("unseen_documents", "unseen_wording")}
        assert_balanced(rows, out, held)
        assert_apart(out.kept_rows, held)


def assert_balanced(rows: list[Row], out: Validated, held: dict[str, list[Any]]) -> None:
    facts = out.facts
    assert facts["read"] == len(rows)
    assert facts["kept"] == len(out.kept_rows) > 0
    assert facts["heldout"] == {name: len(held_rows) for name, held_rows in held.items()}
    assert facts["dropped"] == dict(Counter(entry["reason"] for entry in out.quarantine))
    assert len(rows) == len(out.kept_rows) + sum(map(len, held.values())) + len(out.quarantine)
    lines = [entry["line"] for entry in out.quarantine]
    assert len(set(lines)) == len(lines)
    assert set(lines) <= set(range(1, len(rows) + 1))


def assert_apart(trained_rows: list[Any], held: dict[str, list[Any]]) -> None:
    trained = {row.doc_id for row in trained_rows if row.doc_id}
    assert not trained & {row.doc_id for row in held["unseen_documents"]}
    questions = {question(row) for row in trained_rows} - {""}
    assert not questions & {question(row) for held_rows in held.values() for row in held_rows}
    for row in held["unseen_wording"]:
        if isinstance(row, SftRow) and row.pair:
            assert any((other.pair, other.doc_id) == (row.pair, row.doc_id) for other in trained_rows)
        elif row.doc_id:
            assert row.doc_id in trained
    assert {row.split for row in held["unseen_documents"]} <= {"unseen_documents"}
    assert {row.split for row in trained_rows} == {"train"}


# --- blocks ---------------------------------------------------------------------------------------------------------


def test_long_rows_come_in_small_blocks(tmp_path: Path) -> None:
    rows = [TextRow("x" * 30_000_000, source=f"f:{number}") for number in range(4)]
    write_rows(tmp_path / "rows.arrow", Port.TEXT, rows)
    blocks = list(read_blocks(tmp_path / "rows.arrow", Port.TEXT))
    assert [block.numbers.tolist() for block in blocks] == [[1, 2], [3, 4]]
    assert [block.column("source").to_pylist() for block in blocks] == [["f:0", "f:1"], ["f:2", "f:3"]]


def test_more_rows_than_a_block(tmp_path: Path) -> None:
    chance = random.Random(0)
    answers = [" ".join(chance.choices(WORDS, k=30)) for _ in range(12_000)]
    rows = [qa(f"question {number}", answer, doc_id=f"{number // 4}") for number, answer in enumerate(answers)]
    rows[11_000] = rows[5]
    rows[11_500].messages[1].content = " "
    out = run(rows, tmp_path, near_duplicates=0.9, decontaminate=13, holdout={"documents": 0.1, "min_rows": 20})
    assert out.facts["read"] == 12_000
    assert out.facts["heldout"]["unseen_documents"] == pytest.approx(1200, abs=8)
    reason_by_line = {entry["line"]: entry["reason"] for entry in out.quarantine}
    assert reason_by_line == {11_001: "exact_duplicate", 11_501: "empty_content"}


def test_after_many_dropped_rows_the_quarantine_leaves_their_text_out(tmp_path: Path) -> None:
    out = run([qa(), *(qa(answer="") for _ in range(ROWS_WITH_TEXT + 1))], tmp_path)
    entries = out.quarantine
    assert ["row" in entry for entry in entries] == [True] * ROWS_WITH_TEXT + [False]
    assert entries[-1]["line"] == ROWS_WITH_TEXT + 2


def test_the_demo_sets_validate(tmp_path: Path, shared_data: Path) -> None:
    chosen = json.loads((shared_data / "dpo_en_demo.json").read_text())
    rows: list[PreferenceRow] = []
    for number, row in enumerate(chosen):
        prompt = [Message("user", turn["value"]) for turn in row["conversations"] if turn["from"] == "human"][:1]
        sides = [[Message("assistant", row[side]["value"])] for side in ("chosen", "rejected")]
        rows.append(PreferenceRow(prompt, *sides, source=f"dpo_en_demo.json:{number}"))
    out = run(rows, tmp_path, near_duplicates=0.9, decontaminate=13, max_tokens=2048, holdout={"documents": 0.1})
    assert out.facts["read"] == len(rows) == 300
    assert out.facts["kept"] > 200
    assert out.facts["heldout"]["unseen_documents"] >= 20


def test_rows_with_one_answer_are_held_out_together(tmp_path: Path) -> None:
    """An FAQ asks for each answer in several ways: one held-out row of it must not cost all others."""
    answers = [f"Answer {number} says that part {number} of the machine is oiled each week." for number in range(10)]
    rows = [
        qa(f"How is part {number} kept, wording {n}?", answer)
        for n in range(4)
        for number, answer in enumerate(answers)
    ]
    out = run(rows, tmp_path, near_duplicates=None, holdout={"documents": 0.2, "min_rows": 8})
    facts = out.facts
    assert (facts["kept"], facts["heldout"]) == (32, {"unseen_documents": 8, "unseen_wording": 0})
    assert not facts["dropped"], "all rows of two answers are held out, and none of the others"


def test_short_answers_such_as_labels_join_no_rows(tmp_path: Path) -> None:
    rows = [qa(f"Is ticket {n} about money?", "yes" if n % 2 else "no") for n in range(40)]
    out = run(rows, tmp_path, near_duplicates=None, decontaminate=0, holdout={"documents": 0.1, "min_rows": 4})
    assert out.facts["heldout"] == {"unseen_documents": 4, "unseen_wording": 0}
