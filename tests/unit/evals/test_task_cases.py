"""From rows and task files to cases, with every wrong line named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainyard.data.rows import DocumentRow, LabelledRow, Message, PreferenceRow, Row, SftRow, TextRow, write_rows
from trainyard.errors import InvalidInput, NotFound
from trainyard.evals.job import EvaluationJob, HeldOutSet, Participant, label, listed_benchmarks
from trainyard.evals.tasks import case_of_row, cases_of, count_held_out, gold_of, read_task_file, spread
from trainyard.spec.axes.data import Port
from trainyard.spec.nodes import BenchmarkSpec, EvaluatorConfig


def talk(question: str = "Who?", answer: str = "Nobody.") -> list[Message]:
    return [Message("user", question), Message("assistant", answer)]


def make_held_out(path: Path, port: Port, rows: list[Row], name: str = "unseen_documents") -> HeldOutSet:
    write_rows(path, port, rows)
    return HeldOutSet(name=name, port=port, path=str(path))  # type: ignore[arg-type]


def job(*sets: HeldOutSet, **config: Any) -> EvaluationJob:
    candidate = Participant(name="candidate", path="adapter", kind="adapter")
    settings = EvaluatorConfig.model_validate(config)
    return EvaluationJob(base_model="b", base_path="b", candidate=candidate, heldout=sets, config=settings)


def test_a_conversation_is_asked_up_to_its_last_answer() -> None:
    row = SftRow([*talk("a", "b"), *talk("c", "d")], doc_id="d1", source="f:1", pair="p1", tools='[{"name": "t"}]')
    (case,) = case_of_row(row, by_question=False)
    assert [turn["content"] for turn in case.prompt] == ["a", "b", "c"]
    assert case.answer == {"role": "assistant", "content": "d"}
    assert (case.gold, case.cluster, case.question(), case.tools) == (("d",), "d1", "c", '[{"name": "t"}]')


def test_unseen_wording_is_independent_by_question_and_unseen_documents_by_document() -> None:
    row = SftRow(talk(), doc_id="d1", source="f:1", pair="p1")
    assert [next(case_of_row(row, by_question=flag)).cluster for flag in (True, False)] == ["p1", "d1"]
    bare = SftRow(talk(), source="f:2")
    assert [next(case_of_row(bare, by_question=flag)).cluster for flag in (True, False)] == ["f:2", "f:2"]


def test_tool_calls_reach_the_template_as_objects() -> None:
    row = SftRow([Message("user", "x"), Message("assistant", "", '[{"type": "function"}]')], source="f:1")
    (case,) = case_of_row(row, by_question=False)
    assert case.answer == {"role": "assistant", "content": "", "tool_calls": [{"type": "function"}]}
    assert case.gold == ()


def test_each_shape_of_row_gives_what_its_benchmarks_need() -> None:
    user, good, bad = ([Message(role, text)] for role, text in (("user", "q"), ("assistant", "g"), ("assistant", "b")))
    (preference,) = case_of_row(PreferenceRow(user, good, bad, source="s"), by_question=False)
    assert preference.rejected == {"role": "assistant", "content": "b"}
    assert len(list(case_of_row(LabelledRow(user, good, True, source="s"), by_question=False))) == 1
    assert list(case_of_row(LabelledRow(user, bad, False, source="s"), by_question=False)) == []
    assert list(case_of_row(SftRow(user, source="s"), by_question=False)) == []
    assert next(case_of_row(TextRow("plain", source="s"), by_question=False)).text == "plain"
    assert next(case_of_row(DocumentRow("d", "s", "text", "t", "body"), by_question=False)).cluster == "d"


def test_a_long_set_is_thinned_evenly(tmp_path: Path) -> None:
    rows: list[Row] = [SftRow(talk(answer=str(index)), source=f"f:{index}") for index in range(100)]
    evaluation_job = job(make_held_out(tmp_path / "h.arrow", Port.SFT, rows))
    cases = cases_of(BenchmarkSpec(name="heldout_loss", set="unseen_documents", max_rows=4), evaluation_job)
    assert [case.id for case in cases] == ["f:0", "f:25", "f:50", "f:75"]
    assert spread(cases, 4) is cases


def test_where_two_ports_share_a_set_each_benchmark_takes_its_own(tmp_path: Path) -> None:
    sft = make_held_out(tmp_path / "s.arrow", Port.SFT, [SftRow(talk(), source="s:1")])
    pairs: list[Row] = [PreferenceRow([Message("user", "q")], talk()[1:], talk(answer="b")[1:], source="p:1")]
    both = job(sft, make_held_out(tmp_path / "p.arrow", Port.PREFERENCE, pairs))
    labels = [label(line) for line in listed_benchmarks(both)]
    assert labels == [
        "heldout_loss/unseen_documents",
        "token_accuracy/unseen_documents",
        "pairwise_reward_accuracy/unseen_documents",
        "forgetting/general",
    ]
    ids = [[case.id for case in cases_of(line, both)] for line in listed_benchmarks(both)]
    assert ids[:3] == [["s:1"], ["s:1"], ["p:1"]]


def test_a_listed_benchmark_without_a_set_runs_on_every_set(tmp_path: Path) -> None:
    rows: list[Row] = [SftRow(talk(), source="s:1")]
    names = ("unseen_wording", "unseen_documents")
    sets = [make_held_out(tmp_path / f"{name}.arrow", Port.SFT, rows, name) for name in names]
    listed = listed_benchmarks(job(*sets, benchmarks=[{"name": "f1", "margin": 0.1}]))
    assert [(label(line), line.margin) for line in listed] == [("f1/unseen_wording", 0.1), ("f1/unseen_documents", 0.1)]


def test_a_benchmark_without_any_rows_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"E-DATA-EMPTY: The benchmark 'f1' has no rows to run on\..*a validator"):
        listed_benchmarks(job(benchmarks=[{"name": "f1"}]))


def test_a_benchmark_that_does_not_fit_its_set_is_refused(tmp_path: Path) -> None:
    evaluation_job = job(make_held_out(tmp_path / "h.arrow", Port.SFT, [SftRow(talk(), source="s:1")]))
    with pytest.raises(InvalidInput, match=r"multiple_choice/unseen_documents has no row with the field 'choices'"):
        cases_of(BenchmarkSpec(name="multiple_choice", set="unseen_documents"), evaluation_job)


def test_the_origin_of_the_gold_is_named(tmp_path: Path) -> None:
    evaluation_job = job(make_held_out(tmp_path / "h.arrow", Port.SFT, [SftRow(talk(), source="s:1")]))
    assert gold_of(BenchmarkSpec(name="f1", path="/data/quiz.jsonl"), evaluation_job) == "file (quiz.jsonl)"
    assert gold_of(BenchmarkSpec(name="f1", set="unseen_documents"), evaluation_job) == "file"
    assert gold_of(BenchmarkSpec(name="forgetting"), evaluation_job) == "fixed general text of this package"


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def test_task_lines_of_every_kind(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.jsonl",
        {"question": "q", "answer": ["a", "b"], "document": "d"},
        "",
        {"question": "q", "choices": ["x", "y"], "answer": 1},
        {"prompt": "q", "chosen": "good", "rejected": "bad"},
        {"text": "plain"},
    )
    several, choice, pair, text = read_task_file(path)
    assert (several.gold, several.cluster, several.id) == (("a", "b"), "d", "t.jsonl:1")
    assert (choice.gold, choice.choices, choice.id) == (("y",), ("x", "y"), "t.jsonl:3")
    assert (pair.answer, pair.rejected) == (
        {"role": "assistant", "content": "good"},
        {"role": "assistant", "content": "bad"},
    )
    assert text.text == "plain"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", r"t\.jsonl:1 of a task file cannot be used: it is not valid JSON"),
        ("[1]", "it is a list, not an object"),
        ({"answer": "a"}, "neither `text` nor `question` nor `prompt`"),
        ({"question": "q"}, "`answer` is None, not a text"),
        ({"question": "q", "answer": []}, r"`answer` is \[\], not a text"),
        ({"question": "q", "choices": ["a"], "answer": 1}, "`answer` is 1, not a text"),
        ({"question": "q", "choices": ["a"], "answer": "b"}, "the answer 'b' is not among its choices"),
        ({"prompt": "q", "chosen": "a"}, "`chosen` and `rejected` have to be texts"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: object, why: str) -> None:
    with pytest.raises(InvalidInput, match=f"E-BENCHMARK: .*{why}"):
        list(read_task_file(write(tmp_path / "t.jsonl", line)))


def test_a_missing_task_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"E-BENCHMARK: The task file .*no\.jsonl does not exist"):
        list(read_task_file(tmp_path / "no.jsonl"))


def test_held_out_rows_and_cases_are_counted_of_the_set_that_decides(tmp_path: Path) -> None:
    def make_row(question: str, document: str) -> SftRow:
        messages = [Message("user", question), Message("assistant", "Yes.")]
        return SftRow(messages, source=f"{document}:{question}", doc_id=document)

    assert count_held_out(tmp_path, Port.SFT) is None
    rows = [make_row(f"Is it {n}?", f"page-{n % 3}") for n in range(9)]
    write_rows(tmp_path / "heldout" / "unseen_documents.arrow", Port.SFT, rows)
    assert count_held_out(tmp_path, Port.SFT) == (9, 3)
    write_rows(tmp_path / "heldout" / "unseen_wording.arrow", Port.SFT, rows[:4])
    assert count_held_out(tmp_path, Port.SFT) == (4, 4)
