"""Rows that the chat template refuses: left out of every benchmark, and counted with the template's words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from trainyard.compute.child import Events
from trainyard.data.generation.candidates import Candidates
from trainyard.data.renderers.choice import choose_template
from trainyard.data.renderers.rendering import Renderer
from trainyard.errors import InvalidInput, TrainyardError
from trainyard.evals import program
from trainyard.evals.cases import Case, assistant
from trainyard.evals.job import EvaluationJob, Participant
from trainyard.evals.model import HuggingFaceModel
from trainyard.evals.report import skipped_note
from trainyard.evals.reward_model import RewardModel
from trainyard.evals.selection_program import AnswerJudge, report_refusals
from trainyard.spec.nodes import BenchmarkSpec, EvaluatorConfig

USER = {"role": "user", "content": "What is a chain?"}
SYSTEM = {"role": "system", "content": "Be brief."}
FREE_TEXT = {"type": "function", "function": {"name": "look", "arguments": "no JSON"}}
ANSWER = assistant("A list of nodes.")
RULES: dict[str, tuple[tuple[dict[str, Any], ...], str]] = {
    "gemma": ((SYSTEM, USER), "System role not supported"),
    "qwen3.5": (
        (USER, {**assistant(""), "tool_calls": [FREE_TEXT]}, USER),
        "the arguments of the call of 'look' are not",
    ),
}
"""Template -> turns that it refuses, and what it says."""


@pytest.fixture(params=RULES)
def participant(request: pytest.FixtureRequest, tiny_model: Path) -> tuple[HuggingFaceModel, list[Case], str]:
    """A model with a template, two rows that it takes, one that it refuses, and its words."""
    turns, reason = RULES[request.param]
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.chat_template = choose_template(request.param).text
    model = HuggingFaceModel(AutoModelForCausalLM.from_pretrained(tiny_model), tokenizer)
    prompts = [(USER,), turns, (USER,)]
    return (
        model,
        [Case(f"f:{n}", f"{n}", prompt, ANSWER, ANSWER, (), ("x",)) for n, prompt in enumerate(prompts)],
        reason,
    )


def job(*names: str) -> EvaluationJob:
    benchmarks = {"benchmarks": [{"name": name, "path": "rows.jsonl", "margin": 0} for name in names]}
    judged = {"judge": {"base_url": "http://127.0.0.1:1/v1", "model": "m", "answer_tokens": 8}}
    config = EvaluatorConfig.model_validate({**benchmarks, **(judged if "judge" in names else {})})
    return EvaluationJob(base_model="b", base_path="b", candidate=Participant(name="c"), config=config)


@pytest.mark.parametrize("name", ["heldout_loss", "pairwise_reward_accuracy", "judge"])
def test_a_refused_row_is_left_out_and_counted(
    name: str, participant: tuple[HuggingFaceModel, list[Case], str]
) -> None:
    model, cases, reason = participant
    line = BenchmarkSpec(name=name, path="rows.jsonl", margin=0)
    scored = program.score_line(line, cases, {"baseline": model, "candidate": model}, job(name))
    assert (scored["ids"], scored["skipped"]) == (["f:0", "f:2"], 1)
    ((message, count),) = scored["refused"].items()
    assert (message.startswith(reason), count) == (True, 1)
    note = skipped_note({**scored, "rows": 2})
    assert note.startswith(f"{name}/rows: 1 rows were left out: 1 were refused by the chat template ({reason}")


def test_the_error_of_an_empty_benchmark_has_the_words(participant: tuple[HuggingFaceModel, list[Case], str]) -> None:
    model, cases, reason = participant
    line = BenchmarkSpec(name="exact_match", path="rows.jsonl", margin=0)
    with pytest.raises(TrainyardError, match=rf"E-DATA-EMPTY: .*The chat template refuses 1 of 1 rows: {reason}"):
        program.score_line(line, cases[1:2], {"baseline": model, "candidate": model}, job("exact_match"))
    assert model.timed(cases[1:2], 4) == [None]


def test_reward_models_count_them(participant: tuple[HuggingFaceModel, list[Case], str]) -> None:
    causal, cases, reason = participant
    model = RewardModel(None, causal.tokenizer)
    assert model.rewards([(cases[1], ANSWER)]) == [None]
    assert model.refused["f:1"].startswith(reason)


def test_a_choice_without_a_single_score_fails(tiny_model: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    template = "{{ raise_exception('Ask for a poem.') }}"
    scorer: Any = None  # nothing reaches it
    judge = AnswerJudge(scorer, Renderer(tokenizer, template=template), 100)
    assert judge.score([Candidates("p", "What?", ["One.", "Two."])]) == [[None, None]]
    with pytest.raises(InvalidInput, match=r"E-DATA-EMPTY: .*Its chat template refused them 2 times: Ask for a poem\."):
        report_refusals(judge, Events(tmp_path / "events.jsonl"))
