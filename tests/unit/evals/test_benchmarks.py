"""Each benchmark's values on a toy model, worked out by hand."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from trainyard.errors import InvalidInput, NotFound, Unavailable
from trainyard.evals.benchmarks.generated import normalise, word_f1
from trainyard.evals.benchmarks.likelihood import GENERAL_SET
from trainyard.evals.benchmarks.table import BENCHMARKS, benchmark, sample_values
from trainyard.evals.cases import Case, TimedAnswer
from trainyard.evals.tasks import read_task_file
from trainyard.testing.toy_model import ToyModel

EXAMPLES = Path(__file__).parents[3] / "examples" / "tasks"


def talk(question: str, answer: str, **fields: object) -> Case:
    prompt = ({"role": "user", "content": question},)
    answer_message = {"role": "assistant", "content": answer}
    return Case(id=question, cluster=question, prompt=prompt, answer=answer_message, gold=(answer,), **fields)  # type: ignore[arg-type]


def test_every_name_has_a_row_with_the_direction_of_its_metric() -> None:
    assert {name for name, row in BENCHMARKS.items() if not row.higher_is_better} == {
        "heldout_loss", "forgetting", "answer_tokens", "answer_seconds",
    }  # fmt: skip


def test_heldout_loss_is_the_mean_per_token_and_none_where_a_row_does_not_fit() -> None:
    model = ToyModel(losses={"one two": 3.0}, too_long=frozenset({"very long"}))
    cases = [talk("a", "one two"), talk("b", "very long"), Case("t", "t", text="plain text of five words")]
    assert benchmark("heldout_loss").score(model, cases) == [1.5, None, 1.0]
    assert benchmark("token_accuracy").score(model, cases) == [0.5, None, 0.4]


def test_exact_match_ignores_case_articles_and_punctuation() -> None:
    model = ToyModel(replies={"a": "The Chain!", "b": "a node", "c": ""})
    assert benchmark("exact_match").score(model, [talk("a", "chain"), talk("b", "chain"), talk("c", "x")]) == [1, 0, 0]


class TimedToy:
    """Answers by a table: text, tokens and seconds."""

    def __init__(self, answers: dict[str, TimedAnswer]) -> None:
        self.answers = answers

    def timed(self, cases: Sequence[Case], max_tokens: int) -> list[TimedAnswer]:
        assert max_tokens >= 256
        return [self.answers[case.id] for case in cases]


def test_the_final_answer_is_after_the_mark_or_in_the_last_line() -> None:
    model = TimedToy(
        {
            "a": TimedAnswer("3 * 4 = 12\n12 - 2 = 10\n#### 10", 17, 0.5),
            "b": TimedAnswer("3 * 4 = 12\nIt is 10.", 9, 0.25),
            "c": TimedAnswer("", 0, 0.0),
        }
    )
    cases = [talk("a", "so: 12 - 2\n#### 10"), talk("b", "It is 10"), talk("c", "10")]
    assert benchmark("final_answer").score(model, cases) == [1, 1, 0]
    assert benchmark("answer_tokens").score(model, cases) == [17, 9, 0]
    assert benchmark("answer_seconds").score(model, cases) == [0.5, 0.25, 0.0]


def test_quotes_are_found_inside_an_answer_and_not_inside_a_word() -> None:
    model = ToyModel(replies={"a": "Well: the relay clicks, twice!", "b": "relays click twice", "c": ""})
    cases = [talk("a", "Relay clicks twice."), talk("b", "relay"), talk("c", "x")]
    assert benchmark("quotes").score(model, cases) == [1, 0, 0]


def test_word_f1_by_hand() -> None:
    # said 3 words, gold 2, shared 2: precision 2/3, recall 1 -> 0.8
    assert word_f1("trained adapter file", "adapter file") == pytest.approx(0.8)
    assert word_f1("x", "y") == 0.0
    assert word_f1("the", "a!") == 1.0
    assert normalise("The  Quick, an\tANT") == "quick ant"
    model = ToyModel(replies={"a": "trained adapter file"})
    assert benchmark("f1").score(model, [talk("a", "adapter file")]) == [pytest.approx(0.8)]


def test_multiple_choice_takes_the_likeliest_choice_per_token() -> None:
    # The long choice has the larger sum but the smaller mean, and is right.
    case = talk("q", "b c d e", choices=("a", "b c d e"))
    assert benchmark("multiple_choice").score(ToyModel(losses={"a": 1.5, "b c d e": 4.0}), [case]) == [1.0]
    assert benchmark("multiple_choice").score(ToyModel(losses={"a": 0.5, "b c d e": 4.0}), [case]) == [0.0]
    assert benchmark("multiple_choice").score(ToyModel(too_long=frozenset({"a"})), [case]) == [None]


def test_pairwise_reward_is_measured_against_the_base_and_the_base_ties_with_itself() -> None:
    pair = talk("q", "good", rejected={"role": "assistant", "content": "bad"})
    base = ToyModel(losses={"good": 4.0, "bad": 2.0})
    tuned = ToyModel(losses={"good": 3.0, "bad": 2.5}, base=base)  # still prefers "bad", but less than the base does
    worse = ToyModel(losses={"good": 4.0, "bad": 1.0}, base=base)
    score = benchmark("pairwise_reward_accuracy").score
    assert [score(model, [pair]) for model in (base, tuned, worse)] == [[0.5], [1.0], [0.0]]


def test_forgetting_reads_the_fixed_general_set() -> None:
    lines = [json.loads(line) for line in GENERAL_SET.read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 40
    assert len({line["text"] for line in lines}) == 40
    case = Case("g", "g", text=lines[0]["text"])
    num_words = len(lines[0]["text"].split())
    assert benchmark("forgetting").score(ToyModel(), [case]) == [pytest.approx(5.0 / num_words)]


def test_an_unknown_benchmark_is_refused_with_the_known_ones() -> None:
    with pytest.raises(NotFound, match=r"E-BENCHMARK: There is no benchmark 'bleu'.*exact_match.*lm_eval:<task>"):
        benchmark("bleu")


@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is not None, reason="the extra is installed here")
def test_a_harness_task_without_the_extra_is_refused_with_the_install_line() -> None:
    with pytest.raises(Unavailable, match=r"R-PACKAGE-MISSING: .*'lm_eval:arc_easy'.*pip install 'trainyard\[eval\]'"):
        benchmark("lm_eval:arc_easy")


def test_harness_samples_are_paired_by_document_number() -> None:
    samples = [{"doc_id": 1, "acc": 0.0, "acc_norm": 1.0}, {"doc_id": 0, "acc": 1.0, "acc_norm": 0.0}]
    assert sample_values("arc_easy", samples) == [0.0, 1.0]
    with pytest.raises(InvalidInput, match=r"E-BENCHMARK: The task 'wikitext' has no per-sample metric"):
        sample_values("wikitext", [{"doc_id": 0, "word_perplexity": 3.0}])


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.jsonl")), ids=lambda path: path.stem)
def test_every_example_task_file_can_be_read(path: Path) -> None:
    assert len(list(read_task_file(path))) >= 6


def test_there_is_an_example_for_each_kind_of_task_file() -> None:
    assert len(list(EXAMPLES.glob("*.jsonl"))) >= 3
