from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from validating import Validated, block, make_labelled, preference, qa, run

from trainyard.data.quality.decontamination import HeldOutIndex, load_evaluation_sets, look_up, task_texts
from trainyard.data.rows import Message, SftRow, TextRow
from trainyard.errors import InvalidInput, NotFound

CHANCE = random.Random(0)
RUN = "one two three four five six seven eight nine ten eleven twelve thirteen"
HELD, HERE = "unseen_documents", "train"


def filler(count: int = 20) -> str:
    return " ".join(f"x{CHANCE.randrange(10**9)}" for _ in range(count))


def decontaminate(tmp_path: Path, rows: list[Any], *, length: int = 13, **more: Any) -> Validated:
    return run(rows, tmp_path, decontaminate=length, **more)


def count_dropped(tmp_path: Path, rows: list[Any], **more: Any) -> dict[str, int]:
    return dict(decontaminate(tmp_path, [*rows, qa(filler(), filler(), doc_id="z")], **more).facts["dropped"])


# --- against held-out documents -------------------------------------------------------------------------------------


def test_a_shared_run_of_words_in_any_part(tmp_path: Path) -> None:
    held = qa("What?", f"a {RUN} b", doc_id="h", split=HELD)
    for index, row in enumerate([qa(f"c {RUN.upper()}, d?", "e"), qa("f", f"{RUN}.")]):
        assert count_dropped(tmp_path / str(index), [held, row]) == {"contaminated_unseen_documents": 1}


def test_a_shorter_run_is_not_enough(tmp_path: Path) -> None:
    held = qa("What?", RUN, doc_id="h", split=HELD)
    assert count_dropped(tmp_path, [held, qa("x", RUN.removesuffix(" thirteen"))]) == {}
    assert count_dropped(tmp_path / "2", [held, qa("x", RUN.removesuffix(" thirteen"))], length=12) == {
        "contaminated_unseen_documents": 1
    }


def test_the_same_short_question(tmp_path: Path) -> None:
    held = qa("What is it?", "This.", doc_id="h", split=HELD)
    assert count_dropped(tmp_path, [held, qa("what IS it", "That.")]) == {"contaminated_unseen_documents": 1}
    assert count_dropped(tmp_path / "2", [held, qa("What is it now?", "That.")]) == {}
    assert count_dropped(tmp_path / "3", [held, qa("Where?", "This.")]) == {}


def test_questions_without_a_word_are_compared_by_character(tmp_path: Path) -> None:
    held = qa("?!", "This.", doc_id="h", split=HELD)
    assert count_dropped(tmp_path, [held, qa(" ?! ", "That."), qa("!?", "That.")]) == {
        "contaminated_unseen_documents": 1
    }


def test_system_messages_do_not_count(tmp_path: Path) -> None:
    system = Message("system", RUN)
    held = SftRow([system, *qa("a?").messages], doc_id="h", split=HELD)
    assert count_dropped(tmp_path, [held, SftRow([system, *qa("b?").messages])]) == {}


def test_nothing_is_compared_when_it_is_off(tmp_path: Path) -> None:
    held = qa("What?", RUN, doc_id="h", split=HELD)
    assert count_dropped(tmp_path, [held, qa("What?", f"x {RUN}")], length=0) == {}


@pytest.mark.parametrize(("copies", "expected"), [(10, {"contaminated_unseen_documents": 10}), (11, {})])
def test_a_run_in_more_than_ten_training_documents_is_boilerplate(
    tmp_path: Path, copies: int, expected: dict[str, int]
) -> None:
    held = qa("What?", RUN, doc_id="h", split=HELD)
    rows = [qa(f"q{copy}", f"{RUN} {copy}", doc_id=f"d{copy}") for copy in range(copies)]
    assert count_dropped(tmp_path, [held, *rows]) == expected


def test_many_rows_of_one_document_are_not_boilerplate(tmp_path: Path) -> None:
    held = qa("What?", RUN, doc_id="h", split=HELD)
    rows = [qa(f"q{copy}", f"{RUN} {copy}", doc_id="d") for copy in range(20)]
    assert count_dropped(tmp_path, [held, *rows]) == {"contaminated_unseen_documents": 20}


def test_a_whole_question_counts_however_often_it_is_asked(tmp_path: Path) -> None:
    held = qa("What is it?", "This.", doc_id="h", split=HELD)
    rows = [qa("What is it?", f"That {copy}.", doc_id=f"d{copy}") for copy in range(12)]
    assert count_dropped(tmp_path, [held, *rows]) == {"contaminated_unseen_documents": 12}


def test_other_shapes(tmp_path: Path) -> None:
    rows = [TextRow(RUN, doc_id="h", split=HELD), TextRow(f"{RUN} a", doc_id="b"), TextRow("c", doc_id="c")]
    assert decontaminate(tmp_path / "1", rows).facts["dropped"] == {"contaminated_unseen_documents": 1}
    sides = [
        preference("a", RUN, "b", doc_id="h", split=HELD),
        preference("c", "d", f"e {RUN}", doc_id="i"),
        preference("f", doc_id="j"),
    ]
    assert decontaminate(tmp_path / "2", sides).facts["dropped"] == {"contaminated_unseen_documents": 1}
    marked = [
        make_labelled("a", RUN, doc_id="h", split=HELD),
        make_labelled("a", "b", doc_id="i"),
        make_labelled("f", doc_id="j"),
    ]
    assert decontaminate(tmp_path / "3", marked).facts["dropped"] == {"contaminated_unseen_documents": 1}


@pytest.mark.parametrize("every", [1, 3, 100])
def test_sorting_boilerplate_out_early_changes_nothing(every: int) -> None:
    """Shared runs are settled now and then, so that a repetitive set does not fill the memory."""
    apart = HeldOutIndex(length=3)
    apart.add(block([qa("a b c d e", "f g h i j")]), np.array([1], np.uint64), np.array([0], np.uint64))
    sealed = apart.sealed()
    texts = ["a b c", "g h i", "x y z", "c d e f"] * 12
    chance = random.Random(1)
    for row, text in enumerate(texts):
        document = chance.randrange(2, 9) if text == "g h i" else 10 + row
        pairs = np.array([7], np.uint64)
        sealed.compare(block([qa("q", text)]), np.array([row]), np.array([document], np.uint64), pairs)
        if row % every == 0:
            sealed.settle()
    assert sealed.find_contaminated().tolist() == [row for row, text in enumerate(texts) if text == "g h i"]
    assert sealed.boilerplate.sum() == 3


# --- against unseen wording -----------------------------------------------------------------------------------------

WORDING: dict[str, Any] = {"holdout": {"documents": 0, "min_rows": 0, "wording": True}}


def pair(name: str, doc: str, question: str, unseen: str, answer: str = "It is.") -> list[SftRow]:
    return [
        qa(question, answer, pair=name, doc_id=doc),
        qa(unseen, answer, pair=name, doc_id=doc, split="unseen_wording"),
    ]


def test_answers_may_be_shared_with_training(tmp_path: Path) -> None:
    out = decontaminate(tmp_path, pair("p", "d", "What is it?", "Tell me what it is.", RUN), **WORDING)
    assert (out.facts["kept"], out.facts["heldout"]["unseen_wording"], out.facts["dropped"]) == (1, 1, {})


def test_a_long_context_may_be_shared_within_a_document(tmp_path: Path) -> None:
    rows = [*pair("p", "d", f"{RUN} a?", f"{RUN} b?"), *pair("q", "d", f"{RUN} c?", "d?")]
    assert decontaminate(tmp_path, rows, **WORDING).facts["dropped"] == {}


def test_the_question_of_another_document_may_not(tmp_path: Path) -> None:
    rows = [*pair("p", "d", "a?", f"{RUN} b?"), *pair("q", "e", f"{RUN} c?", "d?")]
    out = decontaminate(tmp_path, rows, **WORDING)
    assert out.facts["dropped"] == {"contaminated_unseen_wording": 1, "untrained_wording": 1}
    assert [row.pair for row in out.kept_rows] == ["p"]


def test_a_run_of_two_held_out_documents_counts_for_both(tmp_path: Path) -> None:
    rows = [*pair("p", "d", f"{RUN} a?", f"{RUN} b?"), *pair("q", "e", "c?", f"{RUN} d?"), qa("x", doc_id="z")]
    assert decontaminate(tmp_path, rows, **WORDING).facts["dropped"] == {
        "contaminated_unseen_wording": 1,
        "untrained_wording": 1,
    }


# --- against evaluation files ---------------------------------------------------------------------------------------


def tasks_file(tmp_path: Path, content: str | bytes, name: str = "tasks.jsonl") -> str:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def test_rows_that_show_a_task(tmp_path: Path) -> None:
    tasks = tasks_file(tmp_path, f'\ufeff{{"question": "Who wrote it?", "answer": "A"}}\n\n{{"text": "{RUN}"}}\n')
    rows = [qa("who wrote it", "B"), qa("a", f"b {RUN} c"), qa("c", "A")]
    out = decontaminate(tmp_path, rows, evaluation_sets=(tasks,))
    assert out.facts["dropped"] == {"contaminated_evaluation_sets": 2}
    assert [row.messages[0].content for row in out.kept_rows] == ["c"]


def test_evaluation_files_know_no_boilerplate(tmp_path: Path) -> None:
    tasks = tasks_file(tmp_path, f'{{"context": "{RUN}"}}')
    rows = [qa(f"q{copy}", f"{RUN} {copy}", doc_id=f"d{copy}") for copy in range(12)]
    assert count_dropped(tmp_path, rows, evaluation_sets=(tasks,)) == {"contaminated_evaluation_sets": 12}


def test_one_json_list_over_several_lines(tmp_path: Path) -> None:
    tasks = tasks_file(tmp_path, '[\n {"instruction": "Say it."},\n {"prompt": "Do it."}\n]', "tasks.json")
    assert count_dropped(tmp_path, [qa("say it"), qa("Do it!")], evaluation_sets=(tasks,)) == {
        "contaminated_evaluation_sets": 2
    }


def test_questions_inside_conversations(tmp_path: Path) -> None:
    questions, texts = task_texts(
        {"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}], "n": 1, "input": ["R"]}
    )
    assert sorted(questions) == ["Q", "R"]
    assert sorted(texts) == ["A", "Q", "R", "assistant", "user"]


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"E-EVALUATION-SET: The evaluation set .*no.jsonl does not exist"):
        decontaminate(tmp_path, [qa()], evaluation_sets=(str(tmp_path / "no.jsonl"),))


@pytest.mark.parametrize("content", ['{"a": 1}\n{"a": ', b'{"a": 1}\n\xff\xfe'])
def test_a_file_that_is_not_json(tmp_path: Path, content: str | bytes) -> None:
    tasks = tasks_file(tmp_path, content)
    with pytest.raises(InvalidInput, match=r"E-EVALUATION-SET: Line 2 of the evaluation set .*tasks.jsonl is not JSON"):
        decontaminate(tmp_path, [qa()], evaluation_sets=(tasks,))


def test_no_files_are_no_set() -> None:
    assert load_evaluation_sets((), 13) is None


# --- look-up --------------------------------------------------------------------------------------------------------


def test_is_in_finds_what_numpy_finds() -> None:
    generator = np.random.default_rng(0)
    table = np.unique(generator.integers(0, 2**63, 5000, dtype=np.uint64) * np.uint64(2))
    values = np.concatenate([table[::7], generator.integers(0, 2**63, 5000, dtype=np.uint64)])
    hit, positions = look_up(values, table)
    assert hit.tolist() == np.isin(values, table).tolist()
    assert table[positions[hit]].tolist() == values[hit].tolist()
    for first, other in ((values, table[:0]), (values[:0], table)):
        assert not look_up(first, other)[0].any()
